"""Ablation on a sample that grows: what it reads, when it stops, and that the values are those of the sentences read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.core.progress import silent
from headwise.importance import ablation, sample
from headwise.importance.ablation import ablate
from headwise.importance.control_variate import controlled
from headwise.importance.gradient import gradients
from headwise.importance.options import TimedScoring
from headwise.importance.scores import Scores
from headwise.models.evaluation.sums import SentenceSums
from headwise.models.tasks.batches import Shuffled
from models.tasks.askers import asker, lines, pairs


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "SAMPLE_POSITIONS", 24)
    monkeypatch.setattr(sample, "FEWEST_SAMPLED", 10)


def ablation_of(scores: Scores) -> torch.Tensor:
    table = scores.table
    return torch.tensor(table[table.measure == "ablation.zero"].value.to_numpy())


def facts_of(scores: Scores) -> dict[str, Any]:
    found: dict[str, Any] = scores.signature["sampled"]["ablation.zero"]
    return found


@pytest.mark.parametrize(
    ("words", "seconds"), [("90s", 90.0), ("10m", 600.0), ("1.5h", 5400.0), ("0.5s", 0.5)]
)
def test_a_time(words: str, seconds: float) -> None:
    assert TimedScoring(time=words).seconds == seconds


def test_random_order_reads_every_sentence_once() -> None:
    batches = asker("gpt2").task.batches(lines(40))

    def rows(seed: int) -> list[list[int]]:
        read = list(Shuffled(batches, seed, 24, silent))
        assert all(b["labels"].numel() <= 24 or len(b["labels"]) == 1 for b in read)
        return [batch["rows"].tolist() for batch in read]

    first = rows(0)
    assert len(first) > 5
    assert sorted(row for rows_of_batch in first for row in rows_of_batch) == list(range(40))
    assert rows(0) == first != rows(1)


def test_few_sentences_say_nothing_about_ranks_and_the_signature_is_json() -> None:
    scores = hw.score(asker("llama"), lines(4), ["ablation.zero"], time="1h")
    assert facts_of(scores)["repeats"] is None and json.dumps(scores.signature, allow_nan=False)


def test_a_sample_of_all_sentences_is_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "SETTLED", 2.0)
    model = asker("llama")
    whole = hw.score(model, lines(30), ["ablation.zero"])
    sampled = hw.score(model, lines(30), ["ablation.zero"], time="1h")
    assert "sampled" not in whole.signature
    assert facts_of(sampled)["ended"] == "whole text"
    assert facts_of(sampled)["sentences"] == facts_of(sampled)["of"] == 30
    torch.testing.assert_close(ablation_of(sampled), ablation_of(whole), rtol=1e-4, atol=1e-6)


def test_it_ends_when_ranks_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values are those of the sentences that were read beside the first orders of more, the same for the same
    seed."""
    monkeypatch.setattr(sample, "SETTLED", -1.0)
    model, text = asker("llama"), lines(60)
    scores = hw.score(model, text, ["ablation.zero"], time="1h", seed=3)
    facts = facts_of(scores)
    assert facts["ended"] == "ranks settled" and facts["limit"] == 3600
    assert 10 <= facts["sentences"] < 30

    order: list[int] = []
    for batch in Shuffled(model.task.batches(text), 3, 24, silent):
        order += batch["rows"].tolist()
    assert facts["sentences"] < facts["gradients"] < 60

    whole = model.task.batches(text)
    by_row = np.argsort(np.concatenate([batch["rows"].numpy() for batch in whole]))

    def read(sums: SentenceSums, name: str) -> SentenceSums:
        return sums.some(by_row[order[: facts[name]]])

    effects = ablate(model.hf, model.discovery, whole, ["ablation.zero"])["ablation.zero"]
    few = read(effects, "sentences")
    slopes = read(gradients(model.hf, model.discovery, whole)["attribution.zero"], "gradients")
    tried = SentenceSums(model.heads)
    for site in model.heads.sites:
        counts = few.whole(site)[1]
        tried.take(site, np.repeat(counts[:, None], model.heads.count(site), 1), counts)
    made, _ = controlled(few, tried, slopes)
    expected = np.array([row["value"] for row in made.rows("ablation.zero")])
    np.testing.assert_allclose(ablation_of(scores), expected, rtol=1e-4, atol=1e-6)
    again = hw.score(model, text, ["ablation.zero"], time="1h", seed=3)
    assert torch.equal(ablation_of(again), ablation_of(scores))


def test_without_gradients_a_sample_is_as_good_as_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where no gradient passes through the model, and where it says nothing."""
    monkeypatch.setattr(sample, "SETTLED", -1.0)
    model, text = asker("llama"), lines(60)

    def none(*given: object, **named: object) -> Any:
        raise RuntimeError("no derivative")

    monkeypatch.setattr(ablation, "to_first_order", none)
    scores = hw.score(model, text, ["ablation.zero"], time="1h", seed=3)
    assert facts_of(scores)["gradients"] == 0 and facts_of(scores)["gain"] == 1

    def noise(batch: Any, *given: object, **named: object) -> Any:
        drawn = np.random.default_rng(len(batch.losses))
        counts = {site: model.heads.count(site) for site in model.heads.sites}
        return {
            site: torch.tensor(drawn.normal(size=(len(batch.losses), count)))
            for site, count in counts.items()
        }

    monkeypatch.setattr(sample, "SETTLED", 2.0)
    monkeypatch.setattr(ablation, "to_first_order", noise)
    scores = hw.score(model, text, ["ablation.zero"], time="1h", seed=3)
    assert facts_of(scores)["gradients"] < facts_of(scores)["sentences"] == 60


def test_it_ends_when_the_time_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.arange(0.0, 1e6, 1.0))
    monkeypatch.setattr(sample.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(sample, "SETTLED", 2.0)
    scores = hw.score(asker("llama"), lines(60), ["ablation.zero"], time="40s")
    facts = facts_of(scores)
    assert facts["ended"] == "time spent"
    assert 0 < facts["sentences"] < 60
    table = scores.table
    assert (table.low < table.value).all() and (table.value < table.high).all()


def test_the_mean_of_a_sample_is_that_of_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "SETTLED", -1.0)
    model, text = asker("gpt2"), lines(40)
    seen = []
    usual = sample.Sample.enough
    monkeypatch.setattr(sample.Sample, "enough", lambda *given: seen.append(1) or usual(*given))
    scores = hw.score(model, text, ["ablation.mean"], time="1h")
    assert scores.signature["sampled"]["ablation.mean"]["sentences"] < 40
    whole = hw.score(model, text, ["ablation.mean"]).table
    inside = (whole.value >= scores.table.low) & (whole.value <= scores.table.high)
    assert seen and inside.mean() > 0.5


def test_what_a_language_model_is_scored_by() -> None:
    scores = hw.score(asker("gpt2"), lines(12))
    assert scores.measures == ["confidence", "gradient", "attribution.zero", "ablation.zero"]
    assert facts_of(scores)["limit"] == 120
    judged = hw.score(asker("gpt2"), lines(12), judge=True)
    assert "sampled" not in judged.signature


def test_a_translation_model_is_scored_on_the_whole_text() -> None:
    scores = hw.score(asker("marian"), pairs(6))
    assert "lrp.ding" in scores.measures and "sampled" not in scores.signature


def test_the_time_for_means_is_no_time_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second for each batch that is read. The reading for means is over after a quarter of the time, and the ablation
    goes on until the time is spent; it used to stop after one batch."""
    read: list[int] = []
    joined = Shuffled.joined

    def noted(shuffled: Shuffled, sentences: list[dict[str, Any]]) -> dict[str, Any]:
        read.append(len(sentences))
        return joined(shuffled, sentences)

    monkeypatch.setattr(Shuffled, "joined", noted)
    monkeypatch.setattr(sample.time, "perf_counter", lambda: float(len(read)))
    monkeypatch.setattr(sample, "times_ahead", lambda forwards: 0)
    monkeypatch.setattr(sample, "SETTLED", 2.0)
    scores = hw.score(asker("llama"), lines(150), ["ablation.mean"], time="40s")
    facts = scores.signature["sampled"]["ablation.mean"]
    assert facts["ended"] == "time spent" and len(read) == pytest.approx(40, abs=2)
    assert facts["sentences"] == pytest.approx(sum(read) * 3 / 4, rel=0.2)


def test_a_sample_is_of_sentences_whatever_their_length() -> None:
    """The mean length of the first 40 sentences. Batches of like length left it out in far more than 5 %."""
    text = lines(400)
    batches = asker("gpt2").task.batches(text)
    lengths = np.zeros(400)
    for batch in batches:
        lengths[batch["rows"].numpy()] = batch["attention_mask"].sum(1).numpy()
    left_out = 0
    for seed in range(200):
        rows: list[int] = []
        for batch in Shuffled(batches, seed, 64, silent):
            rows += batch["rows"].tolist()
            if len(rows) >= 40:
                break
        drawn = lengths[rows]
        left_out += abs(drawn.mean() - lengths.mean()) > 2.02 * drawn.std(ddof=1) / len(rows) ** 0.5
    assert left_out / 200 <= 0.08
