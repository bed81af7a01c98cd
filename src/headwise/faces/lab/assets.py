"""The files of the page: for a browser one by one, for a widget as one module."""

from __future__ import annotations

import graphlib
import json
import re
from importlib import resources
from pathlib import Path

from headwise.core.theme import DARK, FONT, LIGHT, css_variables

MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
IMPORT = re.compile(r'^import \{ ([^}]+) \} from "\./([\w./-]+)";$', re.MULTILINE)
EXPORTED = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
EXPORT_LIST = re.compile(r"export\{([^}]+)\};?")


def page_folder() -> Path:
    """The folder of the page's files."""
    return Path(str(resources.files("headwise.faces.lab") / "page"))


def asset_files() -> dict[str, tuple[bytes, str]]:
    """Every file of the page, with its type, by its path."""
    files = {"theme.css": (theme().encode(), "text/css; charset=utf-8")}
    for path in sorted(page_folder().rglob("*")):
        if path.suffix in MEDIA_TYPES:
            name = path.relative_to(page_folder()).as_posix()
            files[name] = path.read_bytes(), f"{MEDIA_TYPES[path.suffix]}; charset=utf-8"
    return files


def theme(selector: str = ":root") -> str:
    """The report's colours and font, light and dark, as variables of a part of the page."""
    return (
        f"{selector} {{ --font: {FONT}; {css_variables(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ {selector} {{ {css_variables(DARK)} }} }}\n"
    )


def one_module(entry: str, name: str) -> str:
    """The modules of the page that `entry` needs as one module, whose default is what `entry`
    exports as `name`: a widget is one file.

    Knows the forms of import and export that the page is written in, and raises ValueError for any
    other.
    """
    bodies: dict[str, str] = {}
    needs: dict[str, set[str]] = {}
    waiting = [entry]
    while waiting:
        path = waiting.pop()
        if path in bodies:
            continue
        source = (page_folder() / path).read_text(encoding="utf-8")
        needs[path] = {match[1] for match in IMPORT.findall(source)}
        waiting += needs[path]
        bodies[path] = as_function(path, source)

    # A module's function runs at once, so those that it imports must stand before it.
    order = graphlib.TopologicalSorter(needs).static_order()
    text = "".join(bodies[path] for path in order)
    return f"const modules = {{}};\n{text}export default modules[{json.dumps(entry)}].{name};\n"


def as_function(path: str, source: str) -> str:
    """A module as a function that returns its exports, called once."""
    exports = []
    for names in EXPORT_LIST.findall(source):
        for pair in names.split(","):
            words = pair.split(" as ")
            exports.append(f"{words[-1]}: {words[0]}")
    exports += EXPORTED.findall(source)

    source = IMPORT.sub(
        lambda match: f"const {{ {match[1]} }} = modules[{json.dumps(match[2])}];", source
    )
    source = EXPORTED.sub("", EXPORT_LIST.sub("", source))
    if re.search(r"^(import|export)\b", source, re.MULTILINE):
        raise ValueError(f"{path} imports or exports in a form that cannot be joined.")
    return (
        f"modules[{json.dumps(path)}] = (() => {{\n{source}\n"
        f"return {{ {', '.join(exports)} }};\n}})();\n"
    )
