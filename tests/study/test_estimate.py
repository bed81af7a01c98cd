"""What a study will take: the arithmetic in closed form, sizes of texts against all of their pieces, rates that fit."""

from __future__ import annotations

import math
from dataclasses import replace
from time import perf_counter

import pytest

from headwise.data.embedded import write_parallel
from headwise.data.text import ParallelText
from headwise.forecast import Amount, drawn
from headwise.heads import HeadMap
from headwise.options import Architecture, Search, Training
from headwise.study import estimate as estimating
from headwise.study.estimate import (
    PADDED_PIECES,
    Estimate,
    TrainingRates,
    estimate,
    random_batch,
    text_amount,
)
from headwise.training.token_batches import IGNORED
from headwise.training.tokenizer import learn_subwords

RATES = TrainingRates(update=0.003, encoder_update=0.002, step=0.5)
HEADS = HeadMap({"encoder-self": (4,), "decoder-self": (3,), "cross": (3,)})
PLAN = Estimate(
    0.001,
    Training(epochs=4, batch_tokens=100),
    Search(batch=8),
    Amount(50, 20.0),
    Amount(16, 10.0),
    HEADS,
    rates=RATES,
    piece=0.25,
)
SMALL = Architecture(
    encoder_layers=1, decoder_layers=1, heads=2, width=16, feedforward=32, vocabulary=200
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[ParallelText]:
    folder = tmp_path_factory.mktemp("texts")
    for split, count in (("train", 300), ("dev", 40)):
        write_parallel(folder, split, count)
    return [
        ParallelText.open([folder / f"{split}.{side}" for side in ("en", "fr")])
        for split in ("train", "dev")
    ]


class TestArithmetic:
    def test_a_training(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """1,000 positions are 10 updates an epoch, each 0.3 s and 0.5 s of the optimiser; then 0.16 s of dev."""
        monkeypatch.setattr(estimating, "LOADING", 2.0)
        before = 2.0 + 50 * estimating.ENCODING_SECONDS
        assert PLAN.training() == pytest.approx(before + 4 * (10 * 0.8 + 0.16))
        assert PLAN.training(epochs=1) == pytest.approx(before + 10 * 0.8 + 0.16)
        assert PLAN.training(1, ["encoder-self"]) == pytest.approx(before + 10 * 0.7 + 0.16)
        assert PLAN.training(1, ["encoder-self", "cross"]) == PLAN.training(1)

    def test_batches_of_one_update_share_the_optimiser(self) -> None:
        """Four batches an update: 3 updates instead of 10."""
        shared = replace(PLAN, recipe=Training(epochs=4, batch_tokens=100, accumulate=4))
        assert shared.training(1) - PLAN.training(1) == pytest.approx(
            3 * (1.2 + 0.5) - 10 * (0.3 + 0.5)
        )

    def test_a_translation(self) -> None:
        """Two batches of 20 pieces."""
        assert PLAN.translating(Amount(16, 10.0)) == 2 * 20 * 0.25
        by_ctranslate2 = replace(PLAN, search=PLAN.search.model_copy(update={"engine": "ct2"}))
        assert 0 < by_ctranslate2.translating(Amount(16, 10.0)) < 2 * 20 * 0.25
        assert PLAN.evaluating(PLAN.dev) == pytest.approx(10 + 0.16 + estimating.BOOTSTRAP)

    def test_scoring(self) -> None:
        """160 positions: 0.16 s forward, 0.4 s forward and backward."""
        assert (
            PLAN.scoring(["confidence"])
            == PLAN.scoring(["confidence", "entropy"])
            == pytest.approx(1.2 * 0.16)
        )
        assert PLAN.scoring(["gradient"]) == PLAN.scoring(["lrp.ding.pooled"]) == pytest.approx(0.4)
        assert PLAN.scoring(["lrp.ding"]) == pytest.approx(0.4 * 0.8 * 10)
        assert PLAN.scoring(["ablation.zero"]) == pytest.approx(6 * 0.16)
        assert PLAN.scoring(["ablation.bleu"]) == 11 * 5  # by default, 25 sentences at once
        assert PLAN.scoring([]) == 0
        assert PLAN.judging(["ablation.zero"], 3) == pytest.approx(11 * 4 * 0.08)
        assert PLAN.judging(["gradient"], 0) == pytest.approx((11 * 2 * 0.16 + 10 * 0.4) / 2)


class TestSizes:
    def test_of_a_text(self, texts: list[ParallelText]) -> None:
        """As all pieces of all pairs have it; pairs that are too long do not count."""
        text = texts[1]
        pieces = learn_subwords([side for pair in text for side in pair], 200)
        every = [max(len(pieces(side)["input_ids"]) for side in pair) for pair in text]
        whole = text_amount(text, pieces, 1000)
        assert whole == Amount(40, pytest.approx(PADDED_PIECES * sum(every) / 40), whole.spread)
        squares = sum(length**2 for length in every)
        assert whole.spread == pytest.approx(squares / 40 / (sum(every) / 40) ** 2)
        most = sorted(every)[20]
        short = [length for length in every if length <= most]
        assert 20 < len(short) < 40
        part = text_amount(text, pieces, most)
        assert part == Amount(
            len(short), pytest.approx(PADDED_PIECES * sum(short) / len(short)), part.spread
        )
        assert text_amount(text, pieces, 1).examples == 0

    @pytest.mark.parametrize("total", [1, 2, 7, 100, 101])
    @pytest.mark.parametrize("start", [0, 1])
    def test_a_sample_is_spread_evenly(self, total: int, start: int) -> None:
        places = drawn(total, 10, start)
        assert 0 < len(places) <= 10 and places == sorted(set(places))
        assert places[0] >= 0 and places[-1] < total and (total < 10 or places[-1] >= 0.8 * total)


def test_a_random_batch_is_full() -> None:
    """Rows × length pieces of the vocabulary, labels one ahead of the decoder's input, a tenth of them filling."""
    hf = estimating.blank(SMALL)
    batch = random_batch(hf, 3, 20)
    assert all(tensor.shape == (3, 20) for tensor in batch.values())
    labels, inputs = batch["labels"], batch["decoder_input_ids"]
    assert (labels == IGNORED).sum() == 6 and (labels[:, :17] == inputs[:, 1:18]).all()
    assert (inputs[:, 0] == hf.config.decoder_start_token_id).all()
    assert int(batch["input_ids"].min()) >= 4 and int(batch["input_ids"].max()) < 200


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_of_a_plan(texts: list[ParallelText], norm: str) -> None:
    """No rate is more than all of the measuring took."""
    start = perf_counter()
    found = estimate(
        SMALL.model_copy(update={"norm": norm}), Training(batch_tokens=500), Search(batch=4), *texts
    )
    took = perf_counter() - start
    rates = found.rates
    assert rates is not None
    assert found.heads == SMALL.head_map
    assert found.train.examples == 300
    assert found.dev.examples == 40
    for rate in (found.forward, rates.update, rates.encoder_update):
        assert 0 < rate < took / 100  # positions of the measured batch, at least
    assert 0 < rates.step < took
    assert 0 < found.piece < took
    assert found.training() > found.training(1)


def test_of_a_plan_for_a_gpu(texts: list[ParallelText], monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU measures whole batches: the processor's bound on operations is not set."""
    monkeypatch.setattr(estimating, "OPERATIONS", math.inf)
    found = estimate(SMALL, Training(batch_tokens=500), Search(batch=4), *texts)
    assert found.rates is not None and 0 < found.piece < math.inf
