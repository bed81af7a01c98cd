"""A control of a user's own, from its declaration to the report: made, resumed, evaluated and compared like ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.pruning.control_case import Case
from headwise.pruning.controls import control
from refusals import refuses
from study.studies import NUMBER, again, numbers_of, of_model, plan_of


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two controls, declared as on the page of the documentation; forgotten after the test."""
    monkeypatch.setattr(control, "added", {})

    @control(
        "first-heads",
        title="the first heads",
        question="whether any heads would do",
        better="the choice of heads matters",
        worse="the first heads do better",
    )
    def first_heads(case: Case) -> hw.HeadMask:
        """As many heads as the pruned model has, the first ones of the map."""
        assert case.mask is not None
        some = [head for head in case.heads if head.kind in case.kinds]
        count = sum(case.mask.count(kind) for kind in case.kinds)
        return hw.HeadMask.full(case.heads).without(some[count:])

    @control("untouched", title="the full model itself", of="sweep")
    def untouched(case: Case) -> hw.Model:
        return case.full

    yield


def test_an_own_control_is_made_compared_resumed_and_reported(
    declared: None, finished: Path, tmp_path: Path
) -> None:
    controls = ["first-heads", "untouched", "fine-tuned"]
    pruning = {"keep": [3], "epochs": 1, "train": "apart", "controls": controls}
    plan = plan_of(of_model(finished, pruning=pruning))
    again(plan, tmp_path)
    mask = hw.HeadMask.read(tmp_path / "layouts/keep-3.first-heads.json")
    assert mask.count("encoder-self") == 3 and {head.layer for head in mask.kept} >= {0}
    assert hw.load(tmp_path / "pruned/keep-3.first-heads").layout == mask
    table = numbers_of(tmp_path)
    compared = table.xs(("keep-3.first-heads", "test", "bleu"), level=NUMBER[:3])
    assert {*compared.index} == {"", "full", "pruned", "fine-tuned"}
    tested = table.value.xs(("test", "bleu", ""), level=NUMBER[1:])
    assert tested["untouched"] == tested["full"]
    assert "the first heads" in hw.report(tmp_path).read_text()
    assert again(plan, tmp_path).made == []


def test_a_control_that_gives_something_else_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, finished: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr(control, "added", {})
    control("nothing", of="sweep")(lambda case: None)
    pruning = {"keep": [3], "epochs": 1, "controls": ["nothing"]}
    plan = plan_of(of_model(finished, pruning=pruning))
    refuses(lambda: again(plan, tmp_path, "prune"), "control 'nothing' gave None … must")


@pytest.mark.parametrize(
    ("name", "facts", "reason"),
    [
        ("a b", {}, "cannot be called 'a b'"),
        ("mine", {"of": "layer"}, "'mine' is 'layer' … 'model' or 'sweep'"),
        ("random", {}, "'random' is declared twice"),
    ],
)
def test_declarations_that_cannot_be(name: str, facts: dict[str, Any], reason: str) -> None:
    refuses(lambda: control(name, **facts)(lambda case: case.mask), reason)
