"""What a study will take: how many forwards each step counts as, sizes of texts against all of their pieces, and what is
timed."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from headwise.core.options import Architecture
from headwise.data.embedded import write_parallel
from headwise.data.text import ParallelText
from headwise.importance.work import TRANSLATION, UPDATE
from headwise.models.forecast import drawn, expected_pieces
from headwise.models.token_rows import IGNORED
from headwise.models.training.tokenizer import learn_subwords
from headwise.study import forecast
from headwise.study.forecast import (
    blank,
    forwards_of,
    random_batch,
    seconds_of,
    sentence_seconds,
)
from headwise.study.run_context import RunContext
from headwise.study.schedule import Schedule
from headwise.study.step import Job
from models.tasks.askers import asker
from study.studies import QUIET, TINY, plan_of

SMALL = Architecture(
    encoder_layers=1, decoder_layers=1, heads=2, width=16, feedforward=32, vocabulary=200
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ParallelText:
    folder = tmp_path_factory.mktemp("text")
    write_parallel(folder, "dev", 40)
    return ParallelText.open([folder / f"dev.{side}" for side in ("en", "fr")])


class TestForwards:
    def of(self, folder: Path, read: bool = True, **values: Any) -> dict[str, float]:
        """The forwards of every step of a plan."""
        run = RunContext(plan_of(TINY, **values), folder, QUIET)
        if read:
            run.text("train")
            run.text("dev")
        return {step.name: forwards_of(Job(step, run)) for step in Schedule(run).steps()}

    def test_of_trainings(self, tmp_path: Path) -> None:
        run = RunContext(plan_of(TINY), tmp_path, QUIET)
        train, dev = len(run.text("train")), len(run.text("dev"))
        forwards = self.of(tmp_path, pruning={"penalty": [0.1], "epochs": 7})
        assert forwards["train"] == UPDATE * run.training.epochs * train
        assert forwards["prune/lambda-0.1"] == UPDATE * 7 * train
        assert forwards["translate/dev/full"] == TRANSLATION * run.plan.search.beam * dev
        assert forwards["scores/gradients"] == 2.5 * dev
        assert forwards["choose"] == forwards["evaluate/dev/full"] == 0

    def test_of_a_greedy_order(self, tmp_path: Path) -> None:
        """Of 8 heads 2 go at a time, and one stays: four rankings."""
        greedy = {"method": "greedy", "measure": ["gradient", "random"], "orders": 1, "step": 0.25}
        once = self.of(tmp_path, pruning=greedy)
        again = self.of(tmp_path, pruning={**greedy, "rescore": True})
        assert again["ranking/greedy-gradient"] == 4 * once["ranking/greedy-gradient"] > 0
        assert once["ranking/greedy-random.1"] == once["prune/greedy-random.1-1"] == 0

    def test_test_text_counts_as_long_as_it_is(self, tmp_path: Path) -> None:
        """Which preflight has counted; before it counts as dev."""
        data = {"embedded": {"train": 150, "dev": 20, "test": 50}}
        run = RunContext(plan_of(TINY, data=data, pruning={"penalty": [0.1]}), tmp_path, QUIET)
        run.text("train")
        run.text("dev")
        assert run.count("test") == 50

        def forwards() -> dict[str, float]:
            return {step.name: forwards_of(Job(step, run)) for step in Schedule(run).steps()}

        times = forwards()["translate/test/full"] / forwards()["translate/dev/full"]
        assert times == pytest.approx(50 / 20)

    def test_no_text_is_opened_for_it(self, tmp_path: Path) -> None:
        assert set(self.of(tmp_path, read=False).values()) == {0.0}


class TestSizes:
    def test_of_a_text(self, text: ParallelText) -> None:
        """As all pieces of all pairs have it, those of the longer side."""
        pieces = learn_subwords([side for pair in text for side in pair], 200)
        every = [max(len(pieces(side)["input_ids"]) for side in pair) for pair in text]
        assert expected_pieces(text, pieces) == pytest.approx(sum(every))
        assert expected_pieces(text, 200) == pytest.approx(sum(every), rel=0.5)

    @pytest.mark.parametrize("total", [1, 2, 7, 100, 101])
    def test_a_sample_is_spread_evenly(self, total: int) -> None:
        places = drawn(total, 10)
        assert 0 < len(places) <= 10 and places == sorted(set(places))
        assert places[0] == 0 and places[-1] < total and (total < 10 or places[-1] >= 0.8 * total)


def test_translations_of_a_given_model_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoders of few layers translate faster than so many forwards."""
    monkeypatch.setattr(forecast, "sentence_seconds", lambda run, given: 0.0)
    monkeypatch.setattr(forecast, "translation_seconds", lambda *given: 10.0)
    run = RunContext(plan_of(TINY), tmp_path, QUIET)
    run.text("train")
    dev = len(run.text("dev"))
    jobs = [Job(step, run) for step in Schedule(run).steps()]
    translated = 0
    for job in jobs:
        if job.step.name.startswith("translate/"):
            translated += run.counts.get(job.step.split, dev)
    assert seconds_of(jobs, run, asker()) == 10.0 * translated / dev > 0
    assert seconds_of(jobs, run, None) == 0


def test_a_random_batch_is_full() -> None:
    """Rows × length pieces of the vocabulary, labels one ahead of the decoder's input, a tenth of them filling."""
    hf = blank(SMALL)
    batch = random_batch(hf, 3, 20)
    assert all(tensor.shape == (3, 20) for tensor in batch.values())
    labels, inputs = batch["labels"], batch["decoder_input_ids"]
    assert (labels == IGNORED).sum() == 6 and (labels[:, :17] == inputs[:, 1:18]).all()
    assert (inputs[:, 0] == hf.config.decoder_start_token_id).all()
    assert int(batch["input_ids"].min()) >= 4 and int(batch["input_ids"].max()) < 200


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_what_is_timed(tmp_path: Path, norm: str) -> None:
    shape = SMALL.model_copy(update={"norm": norm})
    run = RunContext(plan_of(TINY, model=shape.model_dump()), tmp_path, QUIET)
    start = perf_counter()
    seconds = sentence_seconds(run, None)
    assert 0 < seconds < perf_counter() - start
