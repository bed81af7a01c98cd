"""A measure that a script declares: scored, judged, saved, resumed in a study, in the report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.importance.measures import measure, resolve_measures
from headwise.models.attention.capture import capture
from headwise.study.plan import make_plan
from models.tasks.askers import asker, embedder, lines, pairs
from study.studies import again


@pytest.fixture(autouse=True)
def output_norm() -> list[str]:
    """The measure of docs/howto/own-measure.md, for the time of a test. Gives what it was called with."""
    called: list[str] = []

    @measure("output-norm", title="length of the output", caption="mean length", rescored=True)
    def length(model: hw.Model, batches: Any) -> Iterator[Tensor]:
        called.append(model.name)
        for batch in batches:
            lengths = {}

            def hook(call: Any, batch: Any = batch, lengths: Any = lengths) -> None:
                there = batches.queries(batch, call.site)[..., None]
                sums = (call.output.norm(dim=-1) * there).sum(1)
                lengths[call.site] = sums / there.sum(1)

            with capture(model.hf, model.discovery, hook=hook):
                batches.forward(batch)
            yield torch.cat([lengths[site] for site in model.heads.sites], dim=1)

    return called


def test_it_is_listed() -> None:
    assert "output-norm" in resolve_measures(["all"])
    with pytest.raises(hw.HeadwiseError, match="did you mean 'output-norm'"):
        resolve_measures(["output-nrom"])


def test_it_is_scored_and_judged(tmp_path: Path) -> None:
    model = asker("marian", encoder_layers=1, decoder_layers=1)
    names = ["output-norm", "gradient", "ablation"]
    scores = hw.score(model, pairs(12), names, judge=True, untrained=1)
    table = scores.table[scores.table.measure == "output-norm"]
    assert [str(head) for head in scores.of("output-norm")] == [str(head) for head in model.heads]
    assert (table.n == 12).all() and (table.low <= table.high).all() and (table.value > 0).all()
    assert table.baseline.notna().all()
    assert scores.faithfulness is not None and scores.curves is not None
    assert "output-norm" in set(scores.faithfulness.measure)
    orders = scores.curves[scores.curves.measure == "output-norm"].ranking
    assert set(orders) == {"once", "rescored"}
    scores.save(tmp_path)
    read = hw.Scores.read(tmp_path, model.heads)
    assert read.signature["declared"]["output-norm"]["title"] == "length of the output"
    np.testing.assert_allclose(read.table.value, scores.table.value, rtol=1e-5)
    assert "output-norm" in read.plot("output-norm").html()


def test_the_value_is_the_mean_over_sentences() -> None:
    """Whatever the batches: each sentence alone gives the same values."""
    model, text = asker("gpt2"), lines(5)
    together = hw.score(model, text, ["output-norm"]).of("output-norm")
    alone = [
        hw.score(model, text.take([row]), ["output-norm"]).of("output-norm") for row in range(5)
    ]
    for head, value in together.items():
        assert value == pytest.approx(np.mean([each[head] for each in alone]), rel=1e-5)


def test_a_model_that_predicts_nothing_has_it() -> None:
    assert len(hw.score(embedder(), lines(4), ["output-norm"]).table) == embedder().heads.total


def test_it_orders_greedy_removal() -> None:
    model = asker("gpt2")
    small = hw.prune(model, lines(6), hw.Greedy(keep=2, measure="output-norm"), dev=lines(6))
    assert small.heads.total == 2


@pytest.mark.parametrize(
    ("yielded", "sentence"),
    [
        ([np.zeros((4, 3))], r"array 1, of shape \(4, 3\), .* yield one array, rows x heads"),
        ([], "gave 0 arrays for 1 batches"),
        ([np.full((4, 8), np.nan)], "gave values that are not numbers"),
    ],
)
def test_what_it_may_not_yield(yielded: list[np.ndarray], sentence: str) -> None:
    @measure("odd")
    def odd(model: hw.Model, batches: Any) -> Iterator[np.ndarray]:
        for _ in batches:
            yield from yielded

    with pytest.raises(hw.HeadwiseError, match=sentence):
        hw.score(asker("gpt2"), lines(4), ["odd"])


def test_a_study_scores_judges_resumes_and_reports_it(
    tmp_path: Path, output_norm: list[str]
) -> None:
    asker("marian", encoder_layers=1, decoder_layers=1).save(tmp_path / "given")
    for split, seed in (("train", 0), ("dev", 2)):
        text = pairs(8, seed)
        (tmp_path / f"{split}.a").write_text("\n".join(text.sources) + "\n")
        (tmp_path / f"{split}.b").write_text("\n".join(text.targets) + "\n")
    files = {
        split: [f"{tmp_path}/{split}.a", f"{tmp_path}/{split}.b"] for split in ("train", "dev")
    }
    scoring = {"measures": ["output-norm", "ablation"], "random_orders": 1, "untrained": 1}
    plan = make_plan({"data": files, "model": str(tmp_path / "given"), "scoring": scoring})
    run = tmp_path / "run"
    again(plan, run, only="score")
    calls = len(output_norm)
    assert again(plan, run, only="score").made == [] and len(output_norm) == calls
    for name in ("heads", "faithfulness", "untrained"):
        assert "output-norm" in set(pd.read_csv(run / f"{name}.csv").measure)
    assert "output-norm" in json.loads((run / "heads.json").read_text())["declared"]
    page = hw.report(run)
    assert re.search("length of the output|output norm", page.read_text())
