"""Causal head gating: a harmful, a needed and a useless head are distinguished; samples and refusals."""

from __future__ import annotations

import copy
from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, Site
from headwise.core.layout import HeadMask
from headwise.core.tables import TESTS
from headwise.importance.gating import GATINGS, gate_heads, sample_batches, shuffled_rounds
from headwise.models.attention.capture import keeping
from headwise.models.attention.discover import discover
from headwise.models.tasks.objective import predict, sentence_losses
from importance.asking import asking, worded
from models.attention.families import cut, tiny, whole_layer

START, LENGTH = 3, 8
NEEDED, USELESS, HARMFUL = (
    Head("decoder-self", layer, head) for layer, head in ((0, 0), (0, 2), (1, 1))
)


def copying(rows: int, seed: int) -> dict[str, Tensor]:
    """`START a b c …`: every label is the token before the one that is read, which takes attention to find."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(4, 20, (rows, LENGTH), generator=generator)
    ids = torch.cat([torch.full((rows, 1), START), words], 1)
    labels = torch.cat([torch.full((rows, 2), -100), words[:, :-1]], 1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


@cache
def trained() -> Any:
    """A model that copies through one head. Of the others, one is made to write noise, the rest to write nothing."""
    model = tiny("gpt2")
    discovery = discover(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with keeping(model, discovery, HeadMask(discovery.heads, frozenset([NEEDED]))):
        for step in range(150):
            batch = copying(32, step)
            loss = sentence_losses(predict(model, batch), batch["labels"]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for layer in range(2):
        weight = model.transformer.h[layer].attn.c_proj.weight.data.unflatten(0, (4, 8))
        for head in range(4):
            if (layer, head) not in (NEEDED[1:], HARMFUL[1:]):
                weight[head] = 0
    noise = torch.Generator().manual_seed(0)
    model.transformer.h[1].attn.c_proj.weight.data[8:16] = torch.randn(8, 32, generator=noise) * 8
    return model


def by_head(table: list[dict[str, Any]]) -> dict[Head, dict[str, float]]:
    out: dict[Head, dict[str, float]] = defaultdict(dict)
    for row in table:
        out[Head(row["kind"], row["layer"], row["head"])][row["measure"]] = row["value"]
    return out


def loss_without(model: Any, *gone: Head) -> float:
    """Nats a word on text that was not trained on."""
    discovery, batch = discover(model), copying(64, 999)
    with torch.no_grad(), keeping(model, discovery, HeadMask.full(discovery.heads).without(gone)):
        return float(sentence_losses(predict(model, batch), batch["labels"]).mean()) / (LENGTH - 1)


def test_heads_that_help_hurt_and_do_nothing_are_reported_apart() -> None:
    model = trained()
    whole = loss_without(model)
    assert loss_without(model, NEEDED) > whole + 1 > loss_without(model, HARMFUL) + 2
    assert loss_without(model, USELESS) == pytest.approx(whole, abs=1e-5)
    batches = [copying(32, i) for i in range(4)]
    roles = {NEEDED: "gating.facilitating", HARMFUL: "gating.interfering"}
    edge = 1 / (1 + np.exp(-4))  # a head that does nothing goes as far as gates can go, both ways
    for seed in range(2):
        found = by_head(gate_heads(model, discover(model), batches, seed, steps=40))
        for head, values in found.items():
            role = roles.get(head, "gating.irrelevant")
            assert set(values) == set(GATINGS) and values[role] > 0.7
            assert all(0 <= value < 0.3 for name, value in values.items() if name != role)
        assert found[USELESS]["gating.irrelevant"] == pytest.approx(edge**2, abs=1e-6)


def test_the_table_is_tidy_and_the_same_for_the_same_seed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = trained()
    discovery, batches, said = discover(model), [copying(8, i) for i in range(3)], list[float]()
    report = lambda share, _: said.append(share)  # noqa: E731
    first = gate_heads(model, discovery, iter(batches), 4, steps=6, progress=report)
    assert first == gate_heads(model, discovery, batches, 4, steps=6)
    assert first != gate_heads(model, discovery, batches, 5, steps=6)
    places = [(row["measure"], row["kind"], row["layer"], row["head"]) for row in first]
    assert places == [(measure, *head) for measure in GATINGS for head in discovery.heads]
    assert set(first[0]) == {*TESTS.names} - {"low", "high", "baseline", "units"}
    for row in first:
        assert row["n"] == 3 * 8 * (LENGTH - 1)
    assert said == pytest.approx([update / 18 for update in range(1, 19)])  # of three fits
    assert capsys.readouterr() == ("", "")


def test_two_stacks_and_layers_without_heads() -> None:
    model = worded("marian")
    discovery = discover(model)
    smaller = cut(model, discovery, whole_layer(discovery, Site("cross", 1)))
    table = gate_heads(smaller, discover(smaller), [asking(model, "marian")], steps=2)
    assert len(by_head(table)) == discovery.heads.total - 4


def test_the_weights_are_as_before() -> None:
    model = copy.deepcopy(trained())
    before = {name: p.clone() for name, p in model.named_parameters()}
    gate_heads(model, discover(model), [copying(4, 0)], steps=2)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def numbered(count: int) -> list[dict[str, Tensor]]:
    return [{"labels": torch.tensor([[i]])} for i in range(count)]


def test_batches_are_all_of_a_short_text_and_drawn_evenly_from_a_long_one() -> None:
    assert len(sample_batches(numbered(7), 7, torch.Generator())) == 7
    drawn = np.zeros(20)
    for seed in range(1000):
        generator = torch.Generator().manual_seed(seed)
        for batch in sample_batches(iter(numbered(20)), 5, generator):
            drawn[int(batch["labels"])] += 1
    assert drawn.sum() == 5_000 and abs(drawn / 250 - 1).max() < 0.25


def test_batches_come_in_turn() -> None:
    rounds = shuffled_rounds(numbered(3), 8, torch.Generator().manual_seed(0))
    order = [int(batch["labels"]) for batch in rounds]
    assert [sorted(order[:3]), sorted(order[3:6]), len(order)] == [[0, 1, 2], [0, 1, 2], 8]


def test_batches_ask_for_something() -> None:
    nothing = {"labels": torch.full((2, 3), -100)}
    assert sample_batches([nothing, *numbered(1)], 3, torch.Generator()) == numbered(1)
    for text in ([], [nothing], [{"input_ids": torch.ones(1, 2)}]):
        with pytest.raises(HeadwiseError, match="the text has no word to predict"):
            sample_batches(text, 3, torch.Generator())
