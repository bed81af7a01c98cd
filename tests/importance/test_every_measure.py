"""What holds of every measure that reads a model: the model is untouched, nothing depends on its mode, layers without
heads have no row, and what cannot be measured is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headwise.core.heads import Head, Site
from headwise.core.layout import HeadMask
from headwise.importance.ablation import ABLATIONS, ablate
from headwise.importance.attention_statistics import read_statistics
from headwise.importance.gating import gate_heads
from headwise.importance.gradient import GRADIENTS, direct_attributions, gradients
from headwise.importance.integrated_gradients import integrated_gradients
from headwise.importance.lrp.relevance import relevance
from headwise.importance.lrp.rules import RULES
from headwise.importance.measures import measure
from headwise.models.attention.discover import Discovery, discover
from headwise.models.evaluation.sums import SentenceSums
from headwise.models.evaluation.without_heads import removal_losses
from headwise.models.token_rows import IGNORED
from importance.asking import ASKED, asking, broken, state, where, worded
from models.attention.families import cut, tiny, whole_layer
from refusals import refuses

Batches = Iterable[dict[str, Tensor]]
Measure = Callable[[PreTrainedModel, Discovery, Batches], Any]
WITHOUT_PAIRS = [name for name in ABLATIONS if "counterparts" not in measure[name].needs]
SUMS: dict[str, Measure] = {
    "ablation": lambda *given: ablate(*given, WITHOUT_PAIRS),
    "gradients": gradients,
    "direct": direct_attributions,
    "integrated gradients": lambda *given: integrated_gradients(*given, 2),
    "relevance": lambda *given: relevance(*given, RULES["cp"]).sums,
    "statistics": lambda *given: read_statistics(*given, {0, 1}),
}
MEASURES: dict[str, Measure] = {
    **SUMS,
    "losses": lambda model, found, batches: removal_losses(
        model, found, batches, [HeadMask(found.heads, frozenset())]
    ),
    "gating": lambda *given: gate_heads(*given, steps=2),
}
EVERY = pytest.mark.parametrize("measure", MEASURES.values(), ids=list(MEASURES))


def numbers(measured: Any) -> np.ndarray:
    """Every number of what a measure gives."""
    if isinstance(measured, dict):
        of_sites = [sums.sentences(site) for sums in measured.values() for site in sums.heads.sites]
        measured = [part for both in of_sites for part in both]
    elif isinstance(measured[0], dict):
        measured = [np.array([row["value"] for row in measured])]
    return np.concatenate([np.ravel(part) for part in measured])


@EVERY
@pytest.mark.parametrize("family", ASKED)
def test_the_model_is_untouched_and_scored_without_dropout(family: str, measure: Measure) -> None:
    """In training mode, with a frozen parameter, inside `no_grad`, and after an error."""
    changes = {"marian": {"dropout": 0.5}, "albert": {"hidden_dropout_prob": 0.5}}.get(family, {})
    model = worded(family, **changes)
    discovery, inputs = discover(model), asking(model, family)
    expected = numbers(measure(model, discovery, [inputs]))
    next(model.parameters()).requires_grad_(False)
    before, names = state(model.train()), {*inputs}
    with torch.no_grad():
        found = numbers(measure(model, discovery, [inputs]))
    assert state(model) == before and inputs.keys() == names
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(IndexError):
        measure(model, discovery, [inputs, {**inputs, "input_ids": inputs["input_ids"] + 1000}])
    assert state(model) == before


@pytest.mark.parametrize("measure", SUMS.values(), ids=list(SUMS))
def test_layers_without_heads_have_no_row(measure: Measure) -> None:
    model = worded("marian")
    discovery = discover(model)
    gone = Site("encoder-self", 0), Site("cross", 1)
    one = Head("encoder-self", 1, 2)
    smaller = cut(model, discovery, [*whole_layer(discovery, *gone), one])
    for name, sums in measure(smaller, discover(smaller), [asking(model, "marian")]).items():
        rows = sums.rows(name)
        assert not {(row["kind"], row["layer"]) for row in rows} & {*gone}
        assert len(rows) == (7 if name == "attention-to-end" else 15)


@pytest.mark.parametrize("measure", SUMS.values(), ids=list(SUMS))
@pytest.mark.parametrize("family", ["marian", "t5", "bert", "llama"])
def test_a_broken_layer_is_named(family: str, measure: Measure) -> None:
    model = worded(family)
    discovery, inputs = discover(model), asking(model, family)
    for site in discovery.heads.sites[-2:][::-1]:
        broken(model, discovery.modules[site])
        words = f"{where(site)} gave values that are not numbers"
        refuses(lambda: measure(model, discovery, [inputs]), words)


@pytest.mark.parametrize("name", ["gradients", "relevance", "losses", "gating"])
def test_a_loss_that_is_no_number_is_reported(name: str) -> None:
    model = worded("marian")
    model.model.decoder.layers[-1].fc2.weight.data.fill_(float("nan"))
    given = discover(model), [asking(model, "marian")]
    refuses(lambda: MEASURES[name](model, *given), "not … number")


@pytest.mark.parametrize("name", ["gradients", "relevance"])
def test_a_model_without_words_is_refused(name: str) -> None:
    model = tiny("bert")
    given = discover(model), [asking(model, "bert")]
    words = {"gradients": "language-model head", "relevance": "BertModel predicts no words"}
    refuses(lambda: MEASURES[name](model, *given), words[name])


def test_a_text_that_asks_for_nothing_is_refused() -> None:
    model = worded("gpt2")
    inputs = asking(model, "gpt2")
    nothing = {**inputs, "labels": torch.full_like(inputs["labels"], IGNORED)}
    given = model, discover(model), [nothing]
    found: dict[str, SentenceSums] = gradients(*given)
    for name in GRADIENTS:
        refuses(lambda name=name: found[name].rows(name), "too short")  # type: ignore[misc]
    refuses(lambda: MEASURES["gating"](*given), "the text has no word to predict")
    for batches in ([nothing], []):
        words = "'lrp.cp' cannot be computed: the text has no token"
        refuses(lambda batches=batches: MEASURES["relevance"](*given[:2], batches), words)  # type: ignore[misc]
