"""How much measures read, and the progress that follows from it."""

from __future__ import annotations

from functools import partial

import pytest

import headwise as hw
from headwise.core.heads import HeadMap
from headwise.importance import gating
from headwise.importance.gating import gate_heads
from headwise.importance.lrp import relevance
from headwise.importance.measures import STARTS
from headwise.importance.work import Workload
from headwise.models.tasks.batches import Fold
from models.tasks.askers import asker, lines, pairs

HEADS = HeadMap({"decoder-self": (3, 3)})


def test_work_is_in_forwards_over_the_text() -> None:
    """Six heads in two layers, eight sentences of ten tokens."""
    work = Workload(HEADS, 8, 10.0)
    assert work.of_passes(["confidence", "entropy", "ablation.zero", "lrp.ding"]) == {
        "attention-statistics": pytest.approx(1.0),
        "ablation.zero": pytest.approx(1 + 6 * 0.75),
        "lrp.ding": pytest.approx(1.5 * 10),
    }
    assert work.of_measures(["attribution.steps"]) == pytest.approx(1 + 2 * 6.25)
    assert work.of_measures(["ablation.bleu"]) == pytest.approx(6 * 6.0 * 5)
    assert work.of_measures(["gating.irrelevant"]) == pytest.approx(600 * 3)
    longer = Workload(HEADS, 4096, 10.0)
    assert longer.of_measures(["gating.irrelevant"]) == pytest.approx(600 * 3 / 10)
    assert Workload(HEADS, 8, 1000.0).of_measures(["lrp.ding"]) == pytest.approx(1.5 * STARTS)


@pytest.mark.parametrize(
    "measure", ["ablation.zero", "lrp.ding", "attribution.steps", "gating.irrelevant"]
)
def test_progress_moves_inside_a_batch(measure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sentences are in one batch."""
    monkeypatch.setattr(relevance, "ROWS", 1)
    monkeypatch.setattr(gating, "gate_heads", partial(gate_heads, steps=3))
    seen: list[float] = []
    model = asker("gpt2", n_layer=4)
    assert len([*model.task.batches(lines(6)).whole()]) == 1
    hw.score(model, lines(6), [measure], progress=lambda share, what: seen.append(share))
    assert seen == sorted(seen)
    assert len({round(share, 6) for share in seen}) >= 4
    assert seen[-1] == 1


def test_passes_take_shares_by_their_work() -> None:
    seen: dict[str, float] = {}

    def report(share: float, what: str) -> None:
        seen[what.partition(":")[0]] = share

    model = asker("gpt2")
    hw.score(model, lines(6), ["confidence", "ablation.zero"], progress=report)
    ablation = 1 + 0.75 * model.heads.total
    assert seen["attention-statistics"] == pytest.approx(1 / (1 + ablation))
    assert seen["ablation.zero"] == pytest.approx(1)


def test_the_judge_reports() -> None:
    seen: list[float] = []

    def report(share: float, what: str) -> None:
        if what.startswith("judge"):
            seen.append(share)

    measures = ["confidence", "gradient", "ablation.zero"]
    hw.score(asker("gpt2"), lines(8), measures, judge=True, progress=report)
    assert seen == sorted(seen)
    assert len(set(seen)) >= 20
    assert seen[-1] == pytest.approx(1)


@pytest.mark.parametrize("by_token", [False, True])
def test_shares_of_a_text_are_by_its_tokens(by_token: bool) -> None:
    """The shortest sentences come first: half of them is less than half of the work."""
    seen: list[float] = []
    task = asker("gpt2").task
    report = lambda share, what: seen.append(share)  # noqa: E731
    batches = task.batches(lines(40)).with_progress(report, by_token)
    sizes = sorted(len(line.split()) + 2 for line in lines(40).lines)  # with begin and end
    power = 2 if by_token else 1
    weights = [size**power for size in sizes]
    for batch in batches:
        batches.within(0.5)
        assert len(batch["rows"]) == 40
    assert seen == [pytest.approx(0.5), pytest.approx(1)]
    assert batches.total == pytest.approx(sum(weights))


def test_halves_of_pairs() -> None:
    """Every other pair is about half of the work."""
    task = asker().task
    text = task.batches(pairs(40))
    longest = [max(len(side.split()) for side in pair) + 1 for pair in pairs(40)]
    assert text.total == pytest.approx(sum(longest))
    for which in (0, 1):
        seen: list[float] = []
        for _ in Fold(text, which, lambda share, what, seen=seen: seen.append(share)):
            pass
        assert 0.8 < seen[-1] <= 1
