"""The whole way, from a treebank and a model to labels."""

from __future__ import annotations

from collections.abc import Callable

from transformers import MarianMTModel, PreTrainedTokenizerFast

from headwise.attention import discover
from headwise.data.treebank import Treebank
from headwise.heads import COLUMNS
from headwise.roles.label import NO_ROLE
from headwise.roles.table import roles


def test_a_random_model_has_no_role(
    treebank: Treebank, tokenizer: PreTrainedTokenizerFast, tiny_marian: Callable[..., MarianMTModel]
) -> None:
    model = tiny_marian(vocab_size=len(tokenizer))
    out = roles(model, tokenizer, discover(model), treebank)
    assert list(out.table.columns) == list(COLUMNS)
    assert set(out.labels["kind"]) == {"encoder-self"} and set(out.labels["label"]) == {NO_ROLE}
    assert out.coverage["treebank"].used == 400 and out.roles.empty
    assert (out.table["low"] <= out.table["value"]).all() and (out.table["value"] <= out.table["high"]).all()
    assert any("positional −1" in text for text in out.absent)
