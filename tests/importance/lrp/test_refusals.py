"""What relevance propagation refuses, and that the model is as it was afterwards, after an error too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from attention.families import TWO_STACKS, build, tiny
from headwise.attention import Discovery, discover
from headwise.errors import HeadwiseError
from headwise.heads import Site
from headwise.importance.lrp.relevance import relevance
from headwise.importance.lrp.rules import RULES
from headwise.training.token_batches import IGNORED
from importance.asking import asking, broken, state, where, worded
from importance.lrp.test_relevance import main, same, scored


@pytest.mark.parametrize("family", ["marian", "albert", "llama"])
def test_the_model_is_as_before_and_scored_without_dropout(family: str) -> None:
    changes = {"marian": {"dropout": 0.5}, "albert": {"hidden_dropout_prob": 0.5}}.get(family, {})
    model = worded(family, **changes)
    inputs, rule = asking(model, family), RULES["ding"]
    quiet = main(scored(model, inputs, rule), rule)
    model.train()
    before = state(model)
    same(main(scored(model, inputs, rule), rule), quiet, 1e-6)
    assert state(model) == before
    assert not any(part._forward_hooks for part in model.modules())


@pytest.mark.parametrize("family", ["marian", "llama"])
def test_the_model_is_as_before_after_an_error(family: str) -> None:
    model = worded(family)
    discovery, before = discover(model), state(model.train())

    def fail(*_: object) -> None:
        raise ValueError("on purpose")

    last = [part for part in model.modules() if "Norm" in type(part).__name__][-1]
    hook = last.register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match="on purpose"):
        relevance(model, discovery, [asking(model, family)], RULES["cp"])
    hook.remove()
    assert state(model) == before and not any(part._forward_hooks for part in model.modules())


def test_capped_attention() -> None:
    model = worded("gemma2")
    inputs = asking(model, "gemma2")
    for name, rule in RULES.items():
        if name in ("ding", "cp"):
            for values in main(scored(model, inputs, rule), rule).values():
                np.testing.assert_allclose(values.sum(1), 1, atol=1e-5)
        else:
            with pytest.raises(HeadwiseError, match=f"caps its attention logits.*'{name}'"):
                scored(model, inputs, rule)


def test_mixtures_of_experts_name_the_operation() -> None:
    model = worded("gpt_oss")
    with pytest.raises(
        HeadwiseError,
        match=r"Relevance reached the operation '(sum|index_add_|bmm|topk)', for which",
    ):
        scored(model, asking(model, "gpt_oss"), RULES["cp"])


@pytest.mark.parametrize("layer", [0, 1])
def test_numbers_that_are_none_name_the_layer(layer: int) -> None:
    model = worded("marian")
    discovery = discover(model)
    site = Site("decoder-self", layer)
    broken(model, discovery.modules[site])
    with pytest.raises(HeadwiseError, match=f"{where(site)} gave values that are not numbers"):
        relevance(model, discovery, [asking(model, "marian")], RULES["cp"])


def test_numbers_that_are_none_after_the_last_attention() -> None:
    model = worded("marian")
    discovery = discover(model)
    model.model.decoder.layers[-1].fc2.weight.data.fill_(float("nan"))
    with pytest.raises(HeadwiseError, match="not numbers"):
        relevance(model, discovery, [asking(model, "marian")], RULES["cp"])


def test_models_without_words() -> None:
    model = tiny("bert")
    with pytest.raises(HeadwiseError, match="BertModel predicts no words"):
        scored(model, asking(model, "bert"), RULES["cp"])


def test_an_empty_sentence_and_nothing_asked() -> None:
    model, rule = worded("marian"), RULES["cp"]
    inputs = asking(model, "marian")
    empty = {**inputs, "attention_mask": inputs["attention_mask"].clone()}
    empty["attention_mask"][1] = 0
    with pytest.raises(HeadwiseError, match="Sentence 1 of a batch has no token"):
        scored(model, empty, rule)
    nothing = {**inputs, "labels": torch.full_like(inputs["labels"], IGNORED)}
    with_nothing = relevance(model, discover(model), [nothing, inputs], rule)
    same(main(with_nothing, rule), main(scored(model, inputs, rule), rule), 0)
    for batches in ([nothing], []):
        with pytest.raises(
            HeadwiseError, match=r"'lrp\.cp' cannot be computed: the text has no token"
        ):
            relevance(model, discover(model), batches, rule)


def test_layers_outside_the_map() -> None:
    model = worded("marian")
    discovery = discover(model)
    site = Site("encoder-self", 1)
    part = Discovery(
        discovery.heads.only(["decoder-self", "cross"]),
        {s: m for s, m in discovery.modules.items() if s.kind != "encoder-self"},
        discovery.names,
        discovery.head_size,
    )
    assert isinstance(discovery.modules[site], nn.Module)
    with pytest.raises(HeadwiseError, match=r"MarianAttention\) is not in the map of heads"):
        relevance(model, part, [asking(model, "marian")], RULES["cp"])


class ByKeyword(nn.Module):
    """A norm that is given its input by name."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(hidden_states=states)
        return out


def test_a_norm_that_is_given_its_input_by_name() -> None:
    model = worded("llama")
    inputs, rule = asking(model, "llama"), RULES["cp"]
    before = main(scored(model, inputs, rule), rule)
    model.model.norm = ByKeyword(model.model.norm)
    same(main(scored(model, inputs, rule), rule), before, 0)


class Learned(nn.Module):
    """Queries that do not depend on the text."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.ones(1, 1, 32))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.queries.expand(*states.shape[:2], -1)


def test_queries_that_carry_no_relevance() -> None:
    model = worded("bert")
    model.bert.encoder.layer[0].attention.self.query = Learned()
    for values in main(scored(model, asking(model, "bert"), RULES["cp"]), RULES["cp"]).values():
        np.testing.assert_allclose(values.sum(1), 1, atol=1e-5)


def test_embeddings_that_are_added_without_a_factor() -> None:
    model = build("BlenderbotSmallForConditionalGeneration", **TWO_STACKS)
    given = scored(model, asking(model, "marian"), RULES["alpha-beta"])
    assert given.balance["arrived"] == pytest.approx(1, abs=0.01)


def test_under_autocast_relevance_is_handed_on_in_float32() -> None:
    model = worded("bart")
    inputs, rule = asking(model, "bart"), RULES["alpha-beta"]
    with torch.autocast("cpu", torch.bfloat16):
        given = scored(model, inputs, rule)
    assert given.balance["arrived"] == pytest.approx(1, abs=0.01)


def test_a_large_bias_of_the_output_layer_is_booked() -> None:
    """A logit of bias alone: nothing goes to the states, so next to nothing arrives."""
    model = worded("marian")
    model.final_logits_bias[0, 7] = 1e5
    balance = scored(model, asking(model, "marian"), RULES["cp"]).balance
    assert balance["bias"] == pytest.approx(1, abs=0.01) and abs(balance["arrived"]) < 0.01
