"""Sentences that are longer than a model's positions are left out and counted, wherever its configuration says them."""

from __future__ import annotations

from typing import Any

import pytest

import headwise as hw
from models.attention.families import STACK, build
from models.tasks.askers import IDS
from models.training.letters import END, LETTERS, PAD, START, letters

POSITIONS = 20


def bert2bert() -> hw.Model:
    part = {**STACK, "max_position_embeddings": POSITIONS, "model_type": "bert"}
    decoder = {**part, "is_decoder": True, "add_cross_attention": True}
    hf: Any = build("EncoderDecoderModel", encoder=part, decoder=decoder)
    hf.config.decoder_start_token_id = START
    hf.generation_config.decoder_start_token_id = START
    hf.config.pad_token_id = hf.generation_config.pad_token_id = PAD
    hf.generation_config.eos_token_id = END
    return hw.Model(hf, letters("$A </s>"), "bert2bert")


def line(count: int) -> str:
    return " ".join(LETTERS[place % 26] for place in range(count))


def test_a_composite_of_two_models() -> None:
    model = bert2bert()
    assert model.task.longest == POSITIONS
    rows = [(line(count), line(3)) for count in (3, POSITIONS - 1, POSITIONS, 3 * POSITIONS)]
    rows += [(target, source) for source, target in rows[1:]]
    scores = hw.score(model, rows, ["gradient", "confidence"])
    assert scores.signature["sentences"] == 3 and scores.signature["dropped"] == 4
    assert len(model.translate([line(60), line(3)])) == 2


@pytest.mark.parametrize("name", ["RobertaForMaskedLM", "BertForMaskedLM", "CamembertForMaskedLM"])
def test_positions_that_padding_takes(name: str) -> None:
    """RoBERTa's first position is behind the padding's number: of 20 it can use 19 here, for padding is 0."""
    model = hw.Model(
        build(name, **{**STACK, **IDS, "max_position_embeddings": POSITIONS}), letters()
    )
    usable = POSITIONS - (0 if name.startswith("Bert") else PAD + 1)
    assert model.task.longest == usable
    # The start and the end of a sentence are tokens, too.
    rows = [line(count) for count in (3, usable - 2, usable - 1, usable, usable + 1)]
    scores = hw.score(model, rows, ["gradient"])
    assert scores.signature["sentences"] == 2 and scores.signature["dropped"] == 3
