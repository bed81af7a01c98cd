"""Tables of declarations: our own rows, others from scripts and packages."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path

import pytest

from headwise.core.declarations import Declaration, Declarations
from headwise.core.errors import HeadwiseError
from headwise.faces.report.page import section
from headwise.importance.measures import measure
from headwise.models.engines.engine import engine
from headwise.pruning.controls import control
from headwise.roles.role import role


@dataclass(frozen=True, kw_only=True)
class Colour(Declaration):
    warm: bool = False


def table() -> Declarations[Colour]:
    return Declarations("colour", Colour, "headwise.models.marian", "headwise.colours", "names")


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


def test_rows_of_our_own_name_their_home() -> None:
    colour = table()
    colour.row("blue", home="network:build", warm=False)
    assert (
        colour.own["blue"].home == ("headwise.models.marian.network", "build") and not colour.added
    )
    with pytest.raises(HeadwiseError, match="'blue' is declared twice"):
        colour("blue")(lambda: None)


@pytest.mark.parametrize("own", [measure, role, control, engine, section], ids=lambda own: own.word)
def test_every_row_has_a_function(own: Declarations[Declaration]) -> None:
    for entry in own.own.values():
        assert callable(entry.function), entry.name
        if getattr(entry, "refusal", ""):
            assert callable(getattr(import_module(entry.home[0]), entry.refusal)), entry.name


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
    modules = ("importance.measures", "roles.role", "pruning.controls", "models.engines.engine")
    code = "import sys; from importlib import import_module\n"
    for module, word in zip(modules, ("measure", "role", "control", "engine"), strict=True):
        code += f"assert len(import_module('headwise.{module}').{word}) > 5\n"
    code += "assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
