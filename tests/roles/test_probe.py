"""Sums kept in bounded memory, values and intervals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from headwise.core.heads import HeadMap, Site
from headwise.models.evaluation.sums import SentenceSums, add_all
from headwise.roles import probe as module
from headwise.roles.probe import AnswerSums, Probe, together
from refusals import refuses


def probe(
    names: list[str], counts: Tensor, baseline: Tensor | None = None, per: str | None = None
) -> Probe:
    none = counts.new_zeros(len(counts), 0, len(names))
    return Probe(names, counts, none if baseline is None else baseline, lambda view: counts, per)


def filled(seed: int, batches: int = 6) -> tuple[AnswerSums, Tensor, Tensor]:
    """A measure "a" of two heads in every batch, and "b" in every second one."""
    generator = torch.Generator().manual_seed(seed)
    answers, all_counts, all_sums = AnswerSums("encoder-self"), [], []
    for batch in range(batches):
        names = ["a", "b"] if batch % 2 else ["a"]
        counts = torch.randint(0, 9, (10, len(names)), generator=generator).float()
        sums = torch.rand(10, 2, len(names), generator=generator) * counts[:, None]
        answers.add([probe(names, counts, counts[:, None] / 4)], {0: [sums]})
        all_counts.append(counts[:, 0])
        all_sums.append(sums[..., 0])
    return answers, torch.cat(all_sums), torch.cat(all_counts)


def test_values_and_intervals_are_those_of_a_tally() -> None:
    answers, sums, counts = filled(0)
    measured, site = SentenceSums(HeadMap({"encoder-self": (2,)})), Site("encoder-self", 0)
    add_all([(measured, site, sums, counts)])
    mine = answers.table(seed=0)
    mine = mine[mine["measure"] == "a"]
    for row, expected in zip(mine.to_dict("records"), measured.rows("a"), strict=True):
        assert row["value"] == pytest.approx(expected["value"]) and row["n"] == expected["n"]
        # The measured leaves out sentences that do not count, so that its draws are others.
        assert row["low"] == pytest.approx(expected["low"], abs=0.03)
        assert row["high"] == pytest.approx(expected["high"], abs=0.03)
        assert row["baseline"] == pytest.approx(0.25) and row["units"] == int((counts > 0).sum())


def test_memory_does_not_grow_with_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = filled(1, 40)[0].table()
    monkeypatch.setattr(module, "MERGED_UNITS", 16)
    answers = filled(1, 40)[0]
    assert answers.units < 32 and len(answers.array(0)) == answers.units
    for column in ("value", "n", "baseline"):
        np.testing.assert_allclose(answers.table()[column], whole[column], rtol=1e-5)


def test_two_halves_are_one_text() -> None:
    (first, sums, counts), (second, more, others) = filled(2), filled(3, 3)
    both = together([first, second]).table()
    value = (sums.sum(0) + more.sum(0)) / (counts.sum() + others.sum())
    assert both[both["measure"] == "a"]["value"].tolist() == pytest.approx(value.tolist())


def test_a_measure_may_be_divided_by_another() -> None:
    answers = AnswerSums("cross")
    sums = torch.tensor([[[2.0, 1.0], [4.0, 1.0]], [[2.0, 2.0], [0.0, 0.0]]])
    answers.add([probe(["mass", "share"], torch.ones(2, 2), per="mass")], {3: [sums]})
    table = answers.table(seed=0)
    assert table["measure"].tolist() == ["share", "share"] and table["layer"].tolist() == [3, 3]
    assert table["value"].tolist() == [0.75, 0.25]
    assert table["baseline"].isna().all() and table["p"].isna().all()


def test_the_best_rule_on_the_whole_text_is_the_baseline() -> None:
    """Each rule wins one sentence; over both, the second is better, and is the baseline in both."""
    answers = AnswerSums("encoder-self")
    rules = torch.tensor([[[3.0], [2.0]], [[0.0], [4.0]]])
    answers.add([probe(["a"], torch.full((2, 1), 5.0), rules)], {0: [torch.ones(2, 1, 1)]})
    assert answers.table()["baseline"].tolist() == [pytest.approx(0.6)]
    assert answers.best_rule()[:, 0].tolist() == [2, 4]


def test_a_broken_model_is_named() -> None:
    answers, probes = AnswerSums("cross"), [probe(["a"], torch.ones(1, 1))]
    nothing = {1: [torch.full((1, 1, 1), torch.nan)]}
    refuses(lambda: answers.add(probes, nothing), "cross layer 1 gave values that are not numbers")
