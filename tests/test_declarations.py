"""Tables of declarations: ours from the source, others from scripts and packages."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

from headwise.declarations import Declaration, Declarations
from headwise.errors import HeadwiseError


@dataclass(frozen=True, kw_only=True)
class Colour(Declaration):
    warm: bool = False


def table() -> Declarations[Colour]:
    return Declarations("colour", Colour, "headwise.errors_that_are_none", "headwise.colours")


def test_a_script_declares_and_finds() -> None:
    colour = table()

    @colour("red", warm=True)
    def paint() -> str:
        return "red"

    assert list(colour) == ["red"] and "red" in colour and len(colour) == 1
    assert colour["red"].warm and colour["red"].function() == "red"


def test_names_are_declared_once() -> None:
    colour = table()
    colour("red")(lambda: None)
    with pytest.raises(HeadwiseError, match="'red' is declared twice"):

        @colour("red")
        def other() -> None: ...


def test_unknown_names_are_refused_with_the_nearest() -> None:
    colour = table()
    colour("crimson")(lambda: None)
    with pytest.raises(HeadwiseError, match=r"'crimsn' is unknown .did you mean 'crimson'"):
        colour["crimsn"]


def test_source_is_read_without_running_it() -> None:
    text = '@colour("blue", warm=False)\n@colour("grey")\ndef paint():\n    import nothing_of_the_kind\n'
    found = {one.name: one for one in table().read(text, "some.module")}
    assert found["blue"].home == ("some.module", "paint") and set(found) == {"blue", "grey"}


def test_packages_declare_by_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shades.py").write_text(
        "import test_declarations as tests\ntests.LENT.append(tests.CURRENT('pink')(lambda: 1))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "test_declarations", sys.modules[__name__])
    global CURRENT
    CURRENT = table()
    points = metadata.EntryPoints([metadata.EntryPoint("shades", "shades", "headwise.colours")])
    monkeypatch.setattr(metadata, "entry_points", lambda group: points.select(group=group))
    assert "pink" in CURRENT


LENT: list[object] = []
CURRENT = table()


def test_no_torch_is_loaded_to_name_what_there_is() -> None:
    code = "import sys; import headwise.declarations; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
