"""Prompts in pairs: ablation, patching and gradients by a logit difference agree with plain hooks on a tiny GPT-2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.core.heads import Head, Site
from headwise.data.text import PromptPairs
from headwise.importance.measures import resolve_measures
from headwise.importance.passes import usual_measures
from headwise.models.evaluation.corrupted_outputs import corrupted_outputs
from headwise.models.tasks import objective
from models.tasks.askers import asker, lines

ROWS = [
    ("a b c", "a d c", "e", "f"),
    ("a b c d e", "g b c d e", "h", "i"),
    ("k l m", "k l n", "o", "p"),
    ("q", "r", "s", "t"),
]


def gpt2() -> hw.Model:
    model = asker("gpt2")
    model.hf.double()
    return model


def prompts() -> PromptPairs:
    return PromptPairs.from_rows(ROWS)


def ids_of(model: hw.Model, text: str) -> list[int]:
    """The tokens of a text, without the end of the sentence."""
    ids: list[int] = model.tokenizer(text)["input_ids"]
    return ids[:-1] if ids[-1] == model.tokenizer.eos_token_id else ids


@contextmanager
def projection_inputs(model: hw.Model, change: Any) -> Iterator[None]:
    """A block in which `change(layer, x)` sees, and may replace, what the output projection of each layer gets."""
    handles = []
    for layer, block in enumerate(model.hf.transformer.h):

        def hook(_: Any, given: tuple[Tensor, ...], layer: int = layer) -> tuple[Tensor, ...]:
            return (change(layer, given[0]),)

        handles.append(block.attn.c_proj.register_forward_pre_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def difference(model: hw.Model, row: tuple[str, ...], which: int, change: Any) -> Tensor:
    """The logit of the answer less that of the wrong answer after one prompt of a pair, without padding."""
    tokenizer = model.tokenizer
    ids = torch.tensor([tokenizer(row[which])["input_ids"][:-1]])  # without the end of the sentence
    right, wrong = (tokenizer.convert_tokens_to_ids(word) for word in row[2:])
    with projection_inputs(model, change):
        logits = model.hf(ids).logits[0, -1]
    return logits[right] - logits[wrong]


@torch.no_grad()
def twin(model: hw.Model, replaced: Any) -> np.ndarray:
    """What each head's replacement takes from the mean difference, layers x heads. replaced(own, corrupted): the new
    output of a head from its own and that for the corrupted prompt."""
    heads = model.hf.config.n_head
    lost = np.zeros((model.hf.config.n_layer, heads))
    for row in ROWS:
        seen: dict[int, Tensor] = {}
        whole = difference(model, row, 0, lambda layer, states: states)
        difference(model, row, 1, lambda layer, states, seen=seen: seen.setdefault(layer, states))
        for head in model.heads:

            def change(layer: int, states: Tensor, head: Head = head, seen: Any = seen) -> Tensor:
                if layer == head.layer:
                    states = states.clone()
                    own, other = (
                        each.unflatten(-1, (heads, -1))[..., head.head, :]
                        for each in (states, seen[layer])
                    )
                    own[:] = replaced(own.clone(), other)
                return states

            lost[head.layer, head.head] += float(whole - difference(model, row, 0, change))
    return lost / len(ROWS)


def measured(model: hw.Model, names: list[str]) -> dict[str, np.ndarray]:
    table = hw.score(model, prompts(), names).table
    return {
        name: rows.sort_values(["layer", "head"])["value"].to_numpy().reshape(2, -1)
        for name, rows in table.groupby("measure")
    }


def test_patching_and_ablation_agree_with_plain_hooks() -> None:
    model = gpt2()
    found = measured(model, ["ablation.zero", "ablation.counterpart"])
    silent = twin(model, lambda own, _: torch.zeros_like(own))
    patched = twin(model, lambda _, corrupted: corrupted)
    np.testing.assert_allclose(found["ablation.zero"], silent, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found["ablation.counterpart"], patched, rtol=1e-6, atol=1e-9)
    assert np.abs(patched).min() > 1e-6


def test_attribution_is_the_slope_of_patching() -> None:
    """A thousandth of the way to the corrupted output, and to silence, by plain hooks."""
    model = gpt2()
    found = measured(model, ["attribution.zero", "attribution.counterpart"])
    near = 1e-4
    slope = twin(model, lambda own, corrupted: own + near * (corrupted - own)) / near
    np.testing.assert_allclose(found["attribution.counterpart"], slope, rtol=1e-3, atol=1e-6)
    fading = twin(model, lambda own, _: (1 - near) * own) / near
    np.testing.assert_allclose(found["attribution.zero"], fading, rtol=1e-3, atol=1e-6)


def test_few_logits_at_a_time_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["ablation.counterpart", "attribution.counterpart", "gradient"]
    model = gpt2()
    at_once = measured(model, names)
    monkeypatch.setattr(objective, "CHUNK", 8)
    in_parts = measured(model, names)
    for name in names:
        np.testing.assert_allclose(in_parts[name], at_once[name], rtol=1e-9)


def test_the_usual_measures_of_prompts_have_patching() -> None:
    model = gpt2()
    names = usual_measures(model, model.task.batches(prompts()))
    assert {"ablation.counterpart", "attribution.counterpart"} < {*names}
    assert "ablation.counterpart" not in usual_measures(model, model.task.batches(lines(3)))
    assert not {"ablation.counterpart", "attribution.counterpart"} & {*resolve_measures(["all"])}


def test_a_layer_without_heads_is_left_out() -> None:
    model = asker("gpt2")
    smaller = model.without(head for head in model.heads if head.layer == 0)
    table = hw.score(smaller, prompts(), ["ablation.counterpart", "attribution.counterpart"]).table
    assert set(table["layer"]) == {1}


def test_the_signature_says_what_heads_are_scored_by() -> None:
    model = asker("gpt2")
    scores = hw.score(model, prompts(), ["ablation.counterpart"])
    assert scores.signature["objective"] == "logit of the answer − logit of the wrong answer"
    assert set(scores.table["n"]) == {len(ROWS)}
    on_text = hw.score(model, lines(3), ["gradient"]).signature
    assert on_text["objective"] == "log likelihood"


def test_every_site_has_its_corrupted_output() -> None:
    model = gpt2()
    (batch,) = model.task.batches(prompts())
    outputs = corrupted_outputs(model.hf, model.discovery, batch)
    assert [*outputs] == [Site("decoder-self", 0), Site("decoder-self", 1)]
