"""The files of the page, as a browser gets them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from headwise.theme import COLOURS, DARK, FONT, LIGHT, SCALES

TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


def page_files() -> dict[str, tuple[bytes, str]]:
    """Every file of the page, with its type, by its path."""
    found = {"theme.css": (theme().encode(), "text/css; charset=utf-8")}
    with resources.as_file(resources.files("headwise.lab") / "page") as folder:
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix in TYPES:
                found[path.relative_to(folder).as_posix()] = (
                    path.read_bytes(),
                    f"{TYPES[path.suffix]}; charset=utf-8",
                )
    return found


def theme(where: str = ":root") -> str:
    """The report's colours and font, light and dark, as variables of a part of the page."""
    light, dark = (
        " ".join(f"--{name}: {palette[name]};" for name in (*COLOURS, *SCALES))
        for palette in (LIGHT, DARK)
    )
    return f"{where} {{ --font: {FONT}; {light} }}\n@media (prefers-color-scheme: dark) {{ {where} {{ {dark} }} }}\n"
