"""Relevance of models with something special: what is refused by name, and what is followed."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from headwise.importance.lrp.relevance import Relevance, relevance
from headwise.importance.lrp.rules import RULES, Rule
from headwise.models.attention.discover import discover
from headwise.models.token_rows import IGNORED
from importance.asking import asking, state, worded
from importance.lrp.test_relevance import main, same, scored
from models.attention.families import STACK, TWO_STACKS, build
from refusals import refuses

CP = RULES["cp"]


def shares_add_up(given: Relevance, rule: Rule) -> None:
    for values in main(given, rule).values():
        np.testing.assert_allclose(values.sum(1), 1, atol=1e-5)


def test_capped_attention() -> None:
    model = worded("gemma2")
    inputs = asking(model, "gemma2")
    for name, rule in RULES.items():
        if name in ("ding", "cp"):
            shares_add_up(scored(model, inputs, rule), rule)
        else:
            words = f"caps its attention logits … '{name}'"
            refuses(lambda rule=rule: scored(model, inputs, rule), words)  # type: ignore[misc]


def test_mixtures_of_experts_name_the_operation() -> None:
    model = worded("gpt_oss")
    said = refuses(
        lambda: scored(model, asking(model, "gpt_oss"), CP), "Relevance reached the operation"
    )
    assert re.search(r"operation '(sum|index_add_|bmm|topk)', for which", said)


def test_the_hooks_are_gone_after_an_error() -> None:
    model = worded("llama")
    discovery, before = discover(model), state(model.train())

    def fail(*_: object) -> None:
        raise ValueError("on purpose")

    hook = model.model.norm.register_forward_pre_hook(fail)
    with pytest.raises(ValueError, match="on purpose"):
        relevance(model, discovery, [asking(model, "llama")], CP)
    hook.remove()
    assert state(model) == before


def test_an_empty_sentence_and_batches_that_ask_nothing() -> None:
    model = worded("marian")
    inputs = asking(model, "marian")
    empty = {**inputs, "attention_mask": inputs["attention_mask"].clone()}
    empty["attention_mask"][1] = 0
    refuses(lambda: scored(model, empty, CP), "Sentence 1 of a batch has no token")
    nothing = {**inputs, "labels": torch.full_like(inputs["labels"], IGNORED)}
    with_nothing = relevance(model, discover(model), [nothing, inputs], CP)
    same(main(with_nothing, CP), main(scored(model, inputs, CP), CP), 0)


def test_layers_outside_the_map() -> None:
    model = worded("marian")
    discovery = discover(model)
    kinds = ["decoder-self", "cross"]
    some = {site: module for site, module in discovery.modules.items() if site.kind in kinds}
    part = replace(discovery, heads=discovery.heads.only(kinds), modules=some)
    words = "MarianAttention) is not in the map of heads"
    refuses(lambda: relevance(model, part, [asking(model, "marian")], CP), words)


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
    inputs = asking(model, "llama")
    before = main(scored(model, inputs, CP), CP)
    model.model.norm = ByKeyword(model.model.norm)
    same(main(scored(model, inputs, CP), CP), before, 0)


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
    shares_add_up(scored(model, asking(model, "bert"), CP), CP)


def test_a_norm_without_a_scale() -> None:
    """OLMo's."""
    model = build("OlmoForCausalLM", **STACK)
    inputs = asking(model, "llama")
    for rule in RULES.values():
        shares_add_up(scored(model, inputs, rule), rule)


def test_embeddings_that_are_added_without_a_factor_and_autocast() -> None:
    """Under autocast relevance is handed on in float32."""
    added = build("BlenderbotSmallForConditionalGeneration", **TWO_STACKS)
    given = scored(added, asking(added, "marian"), RULES["alpha-beta"])
    assert given.balance["arrived"] == pytest.approx(1, abs=0.01)
    model = worded("bart")
    with torch.autocast("cpu", torch.bfloat16):
        given = scored(model, asking(model, "bart"), RULES["alpha-beta"])
    assert given.balance["arrived"] == pytest.approx(1, abs=0.01)


def test_a_large_bias_of_the_output_layer_is_booked() -> None:
    """A logit of bias alone: nothing goes to the states, so next to nothing arrives."""
    model = worded("marian")
    model.final_logits_bias[0, 7] = 1e5
    balance = scored(model, asking(model, "marian"), CP).balance
    assert balance["bias"] == pytest.approx(1, abs=0.01) and abs(balance["arrived"]) < 0.01
