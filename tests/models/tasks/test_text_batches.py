"""A text as batches: what models are asked, folds as collected have them, texts of the wrong kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import headwise as hw
from headwise.importance.gradient import gradients
from headwise.models.evaluation.sums import SentenceSums
from headwise.models.tasks.batches import Batches, Fold
from headwise.models.tasks.objective import predict, sentence_losses
from headwise.models.token_rows import IGNORED
from headwise.models.training.language import Lines
from headwise.models.training.token_batches import Encoded, batches
from models.tasks.askers import asker, lines, pairs

Whole = Iterator[dict[str, Any]]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batchess of many small batches, with filler rows."""

    def whole(text: Batches) -> Whole:
        if isinstance(text.data, Lines):
            return text.data.batches(tokens=40)
        start = text.data.task.hf.config.decoder_start_token_id
        return batches(text.data, start, tokens=40)

    monkeypatch.setattr(Batches, "whole", whole)


def asked_rows(text: Batches | Fold) -> list[int]:
    """The places, in the text, of the sentences that are asked for something."""
    return [
        row
        for batch in text
        for row, labels in zip(batch["rows"].tolist(), batch["labels"], strict=True)
        if bool((labels != IGNORED).any())
    ]


@pytest.mark.usefixtures("small")
class TestFold:
    @pytest.mark.parametrize(
        "make",
        [lambda: asker().task.batches(pairs(31)), lambda: asker("gpt2").task.batches(lines(31))],
        ids=["pairs", "lines"],
    )
    def test_two_folds_part_the_text(self, make: Callable[[], Batches]) -> None:
        text = make()
        ones, others = asked_rows(Fold(text, 0)), asked_rows(Fold(text, 1))
        assert sorted(ones + others) == sorted(asked_rows(text)) == list(range(31))
        assert not set(ones) & set(others) and abs(len(ones) - len(others)) <= 3
        assert all(-1 not in batch["rows"] for which in (0, 1) for batch in Fold(text, which))

    def test_folds_are_those_of_tallies(self) -> None:
        model = asker()
        text = model.task.batches(pairs(30))
        assert not any(-1 in batch["rows"] for batch in text), "no empty row is read"
        whole = gradients(model.hf, model.discovery, text)["gradient"]
        for which in (0, 1):
            fold = gradients(model.hf, model.discovery, Fold(text, which))["gradient"]
            assert table(fold) == pytest.approx(table(whole.fold(which)), rel=1e-4)
            assert counts(fold) == counts(whole.fold(which))


def table(measured: SentenceSums) -> list[float]:
    return [float(x) for site in measured.heads.sites for x in measured.sentences(site)[0].sum(0)]


def counts(measured: SentenceSums) -> list[float]:
    return [float(measured.sentences(site)[1].sum()) for site in measured.heads.sites]


class TestBatches:
    def test_labels_stand_where_a_causal_model_predicts(self) -> None:
        """The loss is transformers' own, which shifts its labels itself."""
        model = asker("gpt2")
        for batch in model.task.batches(lines(5)):
            ids, mask = batch["input_ids"], batch["attention_mask"].bool()
            with torch.no_grad():
                theirs = model.hf(
                    ids, attention_mask=mask, labels=ids.masked_fill(~mask, IGNORED)
                ).loss
                ours = sentence_losses(predict(model.hf, batch), batch["labels"]).sum() / (
                    mask.sum() - len(mask)
                )
            assert ours == pytest.approx(float(theirs), rel=1e-5)

    @pytest.mark.usefixtures("small")
    def test_it_can_be_read_again_and_tells_how_far_it_is(self) -> None:
        told: list[tuple[float, str]] = []
        text = asker().task.batches(pairs(20), lambda share, what: told.append((share, what)))
        first, second = list(text), list(text)
        assert len(first) > 2
        assert all(torch.equal(a["rows"], b["rows"]) for a, b in zip(first, second, strict=True))
        assert told[len(first) - 1] == told[-1] == (1.0, "20 of 20 sentences")
        assert [share for share, _ in told[: len(first)]] == sorted({share for share, _ in told})

    def test_sentences_count_as_the_work_on_their_batch_is_done(self) -> None:
        told: list[str] = []
        text = asker().task.batches(pairs(20), lambda _, what: told.append(what))
        for _ in text:
            for share in (0.25, 0.5):
                text.within(share)
        assert told == [f"{read} of 20 sentences" for read in (5, 10, 20)]

    def test_what_is_too_long_is_counted(self) -> None:
        model = asker(max_position_embeddings=10)
        text = model.task.batches(
            hw.ParallelText.from_pairs(
                [("a b", "c d"), (" ".join("abcdefghijk"), "h"), ("h", "i j")]
            ),
        )
        assert model.task.longest == 10 and (len(text.data), text.dropped) == (2, 1)
        assert isinstance(text.data, Encoded) and sorted(asked_rows(text)) == [0, 2]


class TestRefused:
    def test_texts_of_the_wrong_kind(self) -> None:
        with pytest.raises(hw.HeadwiseError, match=r"tiny marian is a MarianMTModel, .* parallel"):
            asker().task.batches(hw.LabelledText.from_rows([("a b", "c")]))
        for family in ("gpt2", "bert"):
            with pytest.raises(hw.HeadwiseError, match=rf"{family} is a \w+, .* needs one-sided"):
                asker(family).task.batches(pairs(3))

    @pytest.mark.parametrize("family", ["marian", "llama"])
    def test_a_model_without_a_tokenizer(self, family: str) -> None:
        model = asker(family)
        model.tokenizer = None
        with pytest.raises(hw.HeadwiseError, match=rf"tiny {family} has no tokenizer beside its"):
            model.task.batches(pairs(3) if family == "marian" else lines(3))

    def test_a_text_without_sentences(self) -> None:
        for make in (
            lambda: hw.Text.from_lines([]),
            lambda: hw.ParallelText.from_pairs([("", "a"), ("b", " ")]),
        ):
            with pytest.raises(hw.HeadwiseError) as refusal:
                make()
            assert "\n" not in str(refusal.value)

    def test_a_text_of_sentences_that_are_all_too_long(self) -> None:
        long = " ".join("abcdefghijklm")
        with pytest.raises(hw.HeadwiseError, match="pairs are longer than max_length = 10 tokens"):
            asker(max_position_embeddings=10).task.batches(
                hw.ParallelText.from_pairs([(long, "a"), ("b", long)]),
            )
        with pytest.raises(hw.HeadwiseError, match="of the 1 sentences has from 2 to 10 tokens"):
            asker("bert", max_position_embeddings=10).task.batches(hw.Text.from_lines([long]))
        assert len(asker("gpt2", n_positions=10).task.batches(hw.Text.from_lines([long])).data) == 2
