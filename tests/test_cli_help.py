"""`--help` of every command fits a terminal of 80 columns and says what a newcomer asks first; `--help-all` says all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from typer.main import get_command

from headwise.faces import cli
from headwise.importance.measures import measure, usual

Call = Callable[..., tuple[int, str, str]]
COMMANDS = [command.__name__ for group in cli.GROUPS.values() for command in group]


def said(text: str) -> str:
    """The words of a help, without its frames and line breaks."""
    return " ".join(text.replace("│", " ").split())


def parameters(name: str) -> list[Any]:
    commands: Any = get_command(cli.app)
    found: list[Any] = commands.commands[name].params
    return found


@pytest.mark.parametrize("name", ["data", "data list", "data get", *COMMANDS])
def test_every_help_fits(call: Call, name: str) -> None:
    for option in ("--help", "--help-all"):
        status, out, _ = call(*name.split(), option)
        if option == "--help-all" and "--help-all" not in call(*name.split(), "--help")[1]:
            continue
        assert status == 0 and "<" not in out, "a type of Python, not a word for the user"
        assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_all_options_are_in_the_help_of_all(call: Call, name: str) -> None:
    hidden = [option for option in parameters(name) if option.hidden]
    short, whole = (call(name, option)[1] for option in ("--help", "--help-all"))
    assert ("--help-all" in short) == bool(hidden)
    for option in hidden:
        assert f"│ {option.opts[0]} " not in short and f"│ {option.opts[0]} " in whole


def test_the_commands_come_in_the_order_of_a_first_visit(call: Call) -> None:
    _, out, _ = call("--help")
    first = ["demo", "score", "roles", "lab", "prune", "evaluate", "report"]
    places = [out.index(f"│ {name} ") for name in [*first, "export", "run", "align"]]
    assert places == sorted(places) and len(out.splitlines()) <= 40
    names = [line.split()[1] for line in out.splitlines() if line.startswith("│ ")]
    assert {*COMMANDS, "data"} <= {*names}, "a description is one line"


def test_prune_on_one_screen(call: Call) -> None:
    _, out, _ = call("prune", "--help")
    assert len(out.splitlines()) <= 40
    for option in ("--text", "--dev", "--keep", "--max-drop", "--method", "--unit", "--out"):
        assert f"│ {option}" in out
    assert "│ --temperature" not in out and "50%" in out


def test_score_names_the_measures_that_it_takes_by_default(call: Call) -> None:
    _, out, _ = call("score", "--help")
    words = said(out)
    for provided in (("loss", "words", "translations"), ("loss", "words"), ("loss",), ()):
        for name in usual(provided):
            assert name in words


def test_score_lists_the_measures(call: Call) -> None:
    status, out, _ = call("score", "--list")
    assert status == 0 and max(map(len, out.splitlines())) <= 80
    for name, entry in measure.items():
        ((mark, _),) = [
            (line[:1], line) for line in out.splitlines() if f" {name} " in f"{line[:40]} "
        ]
        assert (mark == "*") == bool(entry.usual) and entry.caption in said(out)


def test_one_default_seed() -> None:
    """Roles of a story are those of `headwise roles`: every command and function draws alike."""
    import inspect

    import headwise as hw
    from headwise.core.options import SEED
    from headwise.faces.cli import app
    from headwise.study.plan import Plan

    named = [command.callback for command in app.registered_commands]
    named += [getattr(hw, name) for name in hw.__all__ if callable(getattr(hw, name))]
    found = 0
    for function in named:
        assert function is not None
        seed = inspect.signature(function).parameters.get("seed")
        if seed is not None and seed.default is not None:  # of `run` it is the plan's
            found += 1
            assert seed.default == SEED, function
    assert found >= 10 and Plan.model_fields["seed"].default == SEED
