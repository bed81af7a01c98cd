"""Scores by the loss of the user's own batches: images with labels, speech with its transcription, text to classify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.core.heads import Head
from headwise.core.layout import HeadMask
from headwise.models.attention.capture import keeping
from models.attention.families import GPT, STACK, TWO_STACKS, batch, build

EYES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 28,
    "patch_size": 14,
    "num_labels": 5,
}
EARS = {**TWO_STACKS, "max_source_positions": 8, "max_target_positions": 32, "num_mel_bins": 8}


def images() -> hw.Model:
    return hw.Model(build("ViTForImageClassification", **EYES), None, "tiny ViT")


def speech() -> hw.Model:
    return hw.Model(build("WhisperForConditionalGeneration", **EARS), None, "tiny Whisper")


def classifier() -> hw.Model:
    return hw.Model(
        build("BertForSequenceClassification", **STACK, num_labels=3), None, "tiny classifier"
    )


def language_model() -> hw.Model:
    return hw.Model(build("GPT2LMHeadModel", **GPT), None, "tiny GPT-2")


def batches(model: hw.Model, count: int = 2) -> list[dict[str, Tensor]]:
    """Three examples a batch, as the model's Trainer gets them."""
    generator = torch.Generator().manual_seed(3)
    made: list[dict[str, Tensor]] = []
    for _ in range(count):
        if "ViT" in model.name:
            pixels = torch.randn(3, 3, 28, 28, generator=generator)
            made.append(
                {"pixel_values": pixels, "labels": torch.randint(5, (3,), generator=generator)}
            )
        elif "Whisper" in model.name:
            labels = torch.randint(4, 50, (3, 6), generator=generator)
            labels[1, 4:] = -100
            made.append(
                {"input_features": torch.randn(3, 8, 16, generator=generator), "labels": labels}
            )
        elif "GPT" in model.name:
            inputs = batch(model.hf)
            made.append(
                {
                    **inputs,
                    "labels": inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100),
                }
            )
        else:
            made.append({**batch(model.hf), "labels": torch.randint(3, (3,), generator=generator)})
    return made


MODELS = (images, speech, classifier, language_model)


@pytest.mark.parametrize("make", MODELS)
def test_ablation_is_the_change_of_the_models_own_loss(make: Any) -> None:
    model = make()
    given = batches(model, 1)
    table = hw.score(model, given).table
    assert {*table.measure} == {"confidence", "gradient", "ablation.zero"}
    assert len(table) == 3 * model.heads.total
    assert table.value.notna().all()
    rows = table[table.measure == "ablation.zero"]

    def loss() -> float:
        with torch.no_grad():
            return float(model.hf(**given[0]).loss)

    whole = loss()
    for row in rows.itertuples():
        mask = HeadMask.full(model.heads).without([Head(row.kind, row.layer, row.head)])  # type: ignore[arg-type]
        with keeping(model.hf, model.discovery, mask):
            assert row.value == pytest.approx(loss() - whole, abs=2e-5)


@pytest.mark.parametrize("make", [images, speech])
def test_heads_of_encoders_are_removed_saved_and_loaded(make: Any, tmp_path: Path) -> None:
    model = make()
    (given,) = batches(model, 1)
    mask = HeadMask.full(model.heads).without(
        [Head("encoder-self", 0, 1), *(Head("encoder-self", 1, h) for h in range(4))]
    )
    smaller = model.only(mask)
    again = hw.load(smaller.save(tmp_path / "small"))
    with keeping(model.hf, model.discovery, mask), torch.no_grad():
        expected = model.hf(**given).logits
    with torch.no_grad():
        torch.testing.assert_close(again.hf(**given).logits, expected, rtol=0, atol=1e-5)
    assert again.heads.query["encoder-self"] == (3, 0)


def test_which_tokens_of_a_prompt_are_queries() -> None:
    """As docs/methods/confidence.md says: not a prompt without labels. In one stack a label stands one place earlier and the
    first place is no query anyway; one sentence has no label behind the prompt, and loses its last place, too."""
    for make, fewer in ((language_model, 1 * 3 + 1), (speech, 2 * 3)):
        model = make()
        (batch_of_three,) = batches(model, 1)
        labels = batch_of_three["labels"].clone()
        labels[:, 1:3] = -100
        counts = []
        for given in (batch_of_three, {**batch_of_three, "labels": labels}):
            table = hw.score(model, [given], ["confidence"]).table
            counts.append(int(table[table.kind == "decoder-self"].n.iloc[0]))
        assert counts[0] - counts[1] == fewer


def test_what_is_no_batch_is_refused() -> None:
    model = images()
    (good,) = batches(model, 1)
    for wrong in (
        iter([good]),
        [],
        [{"pixel_values": good["pixel_values"]}],
        [{**good, "labels": torch.rand(3)}],
    ):
        with pytest.raises(hw.HeadwiseError, match=r"in place of text|labels of whole numbers"):
            hw.score(model, wrong)  # type: ignore[arg-type]
    for text in (["A line."], [("A line.", "a label")], hw.Text.from_lines(["A line."])):
        with pytest.raises(hw.HeadwiseError, match="reads pixel_values, not text"):
            hw.score(model, text)
    with pytest.raises(hw.HeadwiseError, match="batches were given"):
        hw.score(model, [good], ["lrp"])


def test_another_loss_than_cross_entropy_is_refused() -> None:
    config = {**STACK, "num_labels": 3, "problem_type": "multi_label_classification"}
    model = hw.Model(build("BertForSequenceClassification", **config), None, "tiny classifier")
    with pytest.raises((hw.HeadwiseError, ValueError)):
        hw.score(model, batches(model, 1))
    smoothed = language_model()
    given = [
        {**one, "labels": one["input_ids"]} for one in batches(smoothed, 1)
    ]  # padding counts, as in its own loss
    assert len(hw.score(smoothed, given, ["gradient"]).table) == 8
