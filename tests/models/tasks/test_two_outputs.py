"""Masked models of several tasks: their words are what they are scored by."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import headwise as hw
from headwise.models.tasks.language_model import MaskedLanguageModel
from models.attention.families import STACK, build
from models.tasks.askers import IDS, lines
from models.training.letters import letters

SMALL: dict[str, Any] = {"intra_bottleneck_size": 32, "true_hidden_size": 32, "embedding_size": 32}


@pytest.mark.parametrize(
    "name", ["BertForPreTraining", "AlbertForPreTraining", "MobileBertForPreTraining"]
)
def test_the_loss_is_that_of_its_words(name: str) -> None:
    changes = SMALL if name.startswith("Mobile") else {}
    model = hw.Model(build(name, **{**STACK, **IDS, **changes}), letters(), name)
    assert isinstance(model.task, MaskedLanguageModel)
    text = lines(8)
    lost = asked = 0.0
    for batch in model.task.batches(text):
        with torch.no_grad():
            output = model.hf(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        lost += float(
            torch.nn.functional.cross_entropy(
                output.prediction_logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum"
            )
        )
        asked += int((batch["labels"] != -100).sum())
    found = hw.evaluate(model, text).table.set_index("measure")
    assert found.value["loss"] == pytest.approx(lost / asked, rel=1e-5)
    scores = hw.score(model, text, ["gradient", "confidence"])
    assert any(value > 0 for value in scores.of("gradient").values())
