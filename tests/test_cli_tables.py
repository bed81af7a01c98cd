"""The tables at the end of commands: what they show is what the tables hold, with and without colour."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Literal

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import headwise as hw
from headwise.core.grid import HeadGrid
from headwise.core.heads import HeadMap
from headwise.core.layout import HeadMask
from headwise.core.tables import score_table
from headwise.faces.cli.terminal import show_heads, show_kept, show_quality
from headwise.models.evaluation.quality import Quality
from headwise.roles.role_tests import Roles
from models.tasks import askers

MODEL = HeadMap({"encoder-self": (3, 2), "cross": (4, 0)})
MEASURES = ("gradient", "ablation.zero", "lrp.alpha-beta.signed", "attention-gradient")


@pytest.fixture
def scores() -> pd.DataFrame:
    """Random scores; one is missing."""
    values = iter(np.random.default_rng(0).normal(size=9 * len(MEASURES)))
    rows = [
        {**head._asdict(), "measure": measure, "value": next(values)}
        for measure in MEASURES
        for head in MODEL
    ]
    rows[4]["value"] = float("nan")
    return score_table(rows)


def console_of(terminal: bool = False, width: int = 80) -> Console:
    """As of a command, on a terminal or not."""
    colours: Literal["standard", "auto"] = "standard" if terminal else "auto"
    return Console(
        file=io.StringIO(),
        width=width,
        force_terminal=terminal,
        color_system=colours,
        highlight=False,
    )


def grids_of(table: pd.DataFrame, heads: HeadMap = MODEL) -> list[HeadGrid]:
    return hw.Scores(table, {"heads": heads.to_json()}).grids()


def printed(grids: list[HeadGrid], width: int = 80, terminal: bool = False) -> str:
    console = console_of(terminal, width)
    show_heads(console, grids, hw.Scores.CAPTION)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def rows_of(text: str, name: str) -> list[str]:
    return [
        line.split(name, 1)[1].strip()
        for line in text.splitlines()
        if line.startswith(f"  {name} ")
    ]


class TestScores:
    def test_digits_are_tenths_of_the_way_between_the_extremes(self, scores: pd.DataFrame) -> None:
        text = printed(grids_of(scores), width=40)  # a map beside no other
        for number, (measure, rows) in enumerate(scores.groupby("measure", sort=False)):
            low, high = rows.value.min(), rows.value.max()
            assert re.search(rf"{re.escape(str(measure))}\s+{low:.3g} … {high:.3g}", text)
            for kind, layer in (("encoder-self", 0), ("encoder-self", 1), ("cross", 0)):
                own = rows[(rows.kind == kind) & (rows.layer == layer)].value
                tenths = [
                    "·" if np.isnan(x) else f"{min(int(10 * (x - low) / (high - low)), 9)}"
                    for x in own
                ]
                assert rows_of(text, f"{kind}/{layer}")[number].split() == tenths
            assert rows_of(text, "cross/1")[number] == ""

    def test_as_many_side_by_side_as_there_is_room_for(self, scores: pd.DataFrame) -> None:
        for width, lines in ((30, 4), (80, 2), (140, 1)):
            text = printed(grids_of(scores), width)
            assert len(rows_of(text, "cross/0")) == lines
            assert width == 30 or max(map(len, text.splitlines()[1:])) <= width

    def test_a_layer_that_is_wider_than_the_screen_loses_no_head(self) -> None:
        wide = HeadMap({"decoder-self": (70,)})
        table = score_table(
            [{**head._asdict(), "measure": "dormancy", "value": head.head} for head in wide]
        )
        blocks = printed(grids_of(table, wide)).partition("decoder-self/0")[2].split()
        assert blocks == [str(min(int(10 * head / 69), 9)) for head in range(70)]

    def test_equal_scores(self) -> None:
        table = score_table(
            [{**head._asdict(), "measure": "dormancy", "value": 1.0} for head in MODEL]
        )
        assert rows_of(printed(grids_of(table)), "cross/0") == ["0 0 0 0"]

    def test_colour_only_on_a_terminal_that_wants_it(
        self, scores: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        grids = grids_of(scores)
        coloured, piped = printed(grids, terminal=True), printed(grids)
        assert "\x1b[" in coloured and "\x1b" not in piped
        plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
        assert plain.split() == piped.split(), "the same without its colours"
        monkeypatch.setenv("NO_COLOR", "1")
        assert not re.search(r"\x1b\[[0-9;]*[34][0-7]", printed(grids, terminal=True))


def test_the_best_role_of_each_head() -> None:
    found = [
        ("encoder-self", 0, 2, "positional.-1"),
        ("encoder-self", 0, 2, "rare.two-rarest"),
        ("encoder-self", 1, 0, "syntactic.nsubj.to-governor"),
        ("cross", 0, 3, "positional.1"),
    ]
    roles = pd.DataFrame(found, columns=["kind", "layer", "head", "measure"])
    result = Roles(MODEL, roles, roles, roles, roles, [], [], {}, [])
    text = printed([result.plot()])
    assert "po: positional 2, sy: syntactic 1" in text and "rare" not in text
    got = [
        rows_of(text, name)[0].split() for name in ("encoder-self/0", "encoder-self/1", "cross/0")
    ]
    assert got == [["·", "·", "po"], ["sy", "·"], ["·", "·", "·", "po"]]
    assert "none" in printed([replace(result, roles=roles[:0]).plot()])


def test_kept_and_removed_heads() -> None:
    masks = {
        "keep-2": HeadMask.full(MODEL).without(
            [head for head in MODEL if head.head != 1 or head.layer]
        ),
        "[all]": HeadMask.full(MODEL),
    }
    console = console_of()
    show_kept(console, {**masks, "not pruned": None})
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "2 of 9" in text and "9 of 9" in text and "[all]" in text and "not pruned" not in text
    assert rows_of(text, "encoder-self/0")[0].split() == ["·", "■", "·", "■", "■", "■"]
    assert rows_of(text, "encoder-self/1")[0].split() == ["·", "·", "■", "■"]


def test_quality_says_what_changed_for_the_better_or_the_worse() -> None:
    nan = float("nan")
    table = pd.DataFrame(
        [
            ("full", "perplexity", "", 12.345, 11.0, 13.0, nan, "bootstrap"),
            ("full", "parameters", "", 9472512, nan, nan, nan, ""),
            ("small", "perplexity", "", 14.0, 13.0, 15.0, nan, "bootstrap"),
            ("small", "perplexity", "full", 13.4, 10.0, 17.0, 0.002, "bootstrap"),
            ("small", "accuracy", "full", 1.5, 0.5, 2.5, 0.04, ""),
            ("small", "wer", "full", 1.5, 0.5, 2.5, 0.06, ""),
            ("small", "bleu", "full", 1.5, -0.5, 2.5, 0.2, ""),
        ],
        columns=["model", "measure", "reference", "value", "low", "high", "p", "made"],
    )
    shown = []
    for terminal in (True, False):
        console = console_of(terminal)
        show_quality(console, Quality(table, {}))
        shown.append(console.file.getvalue())  # type: ignore[attr-defined]
    coloured, text = shown
    assert "12.35 [11, 13]" in text or "12.34 [11, 13]" in text
    assert "9,472,512" in text and "perplexity: bootstrap" in text
    worse, better = (re.search(rf"\x1b\[{code}m *([^\x1b]*)", coloured) for code in (35, 36))
    assert worse and worse[1].strip() == "13.4 [10, 17]\u202f%, p\u00a0= 0.002"
    assert better and better[1].strip() == "1.5 [0.5, 2.5]\u202fpoints, p\u00a0= 0.040"
    assert coloured.count("\x1b[36m") == coloured.count("\x1b[35m") == 1, "others are neither"


def test_confidence_of_language_models_comes_with_a_warning() -> None:
    def said(model: hw.Model, text: hw.Text | hw.ParallelText, measure: str) -> str:
        return "\n".join(hw.score(model, text, [measure]).lines())

    assert "rest on the first token" in said(askers.asker("gpt2"), askers.lines(3), "confidence")
    assert "rest on" not in said(askers.asker("gpt2"), askers.lines(3), "gradient")
    assert "rest on" not in said(askers.asker("marian"), askers.pairs(3), "confidence")
