"""Heads of two models, paired by what they attend to."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import evaluating
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.output import run_layers
from headwise.models.tasks.objective import inputs_of
from headwise.roles import matching
from headwise.roles.matching import match
from models.tasks.askers import asker, lines, pairs

TEXTS = {"marian": pairs, "bert": lines, "llama": lines}


def swapped(model: hw.Model) -> hw.Model:
    """A BERT whose first two heads of layer 0 have changed places: it computes the same."""
    other = copy.deepcopy(model.hf)
    layer = other.base_model.encoder.layer[0].attention
    size = layer.self.attention_head_size
    order = torch.arange(layer.self.all_head_size)
    order[: 2 * size] = order[: 2 * size].roll(size)
    with torch.no_grad():
        for name in ("query", "key", "value"):
            linear = getattr(layer.self, name)
            linear.weight.copy_(linear.weight[order])
            linear.bias.copy_(linear.bias[order])
        layer.output.dense.weight.copy_(layer.output.dense.weight[:, order])
    return hw.Model(other, model.tokenizer, "swapped")


def test_heads_that_changed_places_are_paired() -> None:
    model = asker("bert")
    found = match(model, swapped(model), lines(300))
    places = {}
    for row in found.table.to_dict("records"):
        places[row["layer"], row["head"]] = row["other_layer"], row["other_head"]
    changed = {(0, 0): (0, 1), (0, 1): (0, 0)}
    assert places == {place: changed.get(place, place) for place in places}
    assert len(places) == model.heads.total
    np.testing.assert_allclose(found.table["affinity"], 1, atol=1e-5)
    assert (found.table["runner_up"] < 1).all() and (found.table["shuffled"] < 1).all()
    assert len(found.confirmed) == len(places)


@pytest.mark.parametrize("family", TEXTS)
def test_affinity_is_that_of_a_slow_recount(family: str) -> None:
    """Sentence by sentence, query by query."""
    model = asker(family)
    torch.manual_seed(5)
    other = copy.deepcopy(model.hf)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    second = hw.Model(other, model.tokenizer, "noisy")
    text = TEXTS[family](200)
    row = match(model, second, text).table.iloc[-1]

    total = 0.0
    queries = 0
    for batch in model.task.batches(text).intact():
        for place in range(len(batch["rows"])):
            if batch["rows"][place] % 2 == 0:
                continue
            one = {name: tensor[place : place + 1] for name, tensor in batch.items()}
            mine = weights_of(model, one, row["kind"], row["layer"])[0, row["head"]]
            theirs = weights_of(second, one, row["other_kind"], row["other_layer"])[
                0, row["other_head"]
            ]
            for query in words_of(model, one, row["kind"]):
                total += float((mine[query].sqrt() * theirs[query].sqrt()).sum())
                queries += 1
    assert row["n"] == queries
    assert row["affinity"] == pytest.approx(total / queries, abs=1e-5)
    assert row["low"] <= row["affinity"] <= row["high"]


def weights_of(model: hw.Model, batch: dict, kind: str, layer: int) -> torch.Tensor:
    found = []

    def hook(call: AttentionCall) -> None:
        if (call.site.kind, call.site.layer) == (kind, layer):
            assert call.weights is not None
            found.append(call.weights.clone())

    observing = capture(model.hf, model.discovery, hook=hook, weights=True)
    with evaluating(model.hf), torch.no_grad(), observing:
        run_layers(model.hf, inputs_of(batch))
    return found[0]


def words_of(model: hw.Model, batch: dict, kind: str) -> list[int]:
    """The places of tokens that are words: of a decoder's input all but the start; no special tokens."""
    special = set(model.tokenizer.all_special_ids) - {model.tokenizer.unk_token_id}
    translates = "decoder_input_ids" in batch
    if translates and kind != "encoder-self":
        ids = batch["decoder_input_ids"][0].tolist()
        length = int((batch["labels"][0] != -100).sum())
        return [place for place in range(1, length) if ids[place] not in special]
    ids = batch["input_ids"][0].tolist()
    seen = batch["attention_mask"][0].tolist()
    return [place for place, token in enumerate(ids) if seen[place] and token not in special]


def test_models_of_other_weights_are_no_pairs() -> None:
    """Heads of random models attend alike in no way that depends on the words."""
    first, second = asker("bert"), asker("bert")
    torch.manual_seed(1)
    for parameter in second.hf.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    found = match(first, second, lines(300, seed=4))
    same = match(first, first, lines(300, seed=4))
    assert found.table["difference"].max() < same.table["difference"].min()


def test_partners_have_the_same_length_and_half() -> None:
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 1, 1]])
    labels = torch.where(mask == 1, 7, -100)
    rows = torch.tensor([0, 2, 4, 5, 6])
    batch = {"attention_mask": mask, "labels": labels, "rows": rows}
    assert matching.partners_of(batch).tolist() == [2, 4, 0, -1, 1]


def test_a_batch_in_pieces_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = asker("bert")
    whole = match(model, swapped(model), lines(300)).table
    monkeypatch.setattr(matching, "WEIGHTS_IN_MEMORY", 20 * model.heads.total * 12**2)
    pieces = match(model, swapped(model), lines(300)).table
    keys = ["kind", "layer", "head"]
    for column in ("affinity", "runner_up", "n"):
        np.testing.assert_allclose(
            whole.sort_values(keys)[column], pieces.sort_values(keys)[column], rtol=1e-5
        )


def test_heads_are_paired_on_one_half_and_measured_on_the_other() -> None:
    """On the half that is measured, twice as many tokens say that the heads have changed places."""
    same, changed = np.eye(2), np.eye(2)[::-1]
    first = [number % 2 == 0 for number in range(40)]
    affinity = [5 * same if pairs_them else 10 * changed for pairs_them in first]
    control = [np.zeros((2, 2))] * 40
    sums = matching.Sums(affinity, control, [10] * 40, first)
    heads = [hw.Head("decoder-self", 0, number) for number in range(2)]
    rows = matching.matched_rows(heads, heads, sums, 0)
    assert rows["head"].tolist() == rows["other_head"].tolist() == [0, 1]
    assert rows["affinity"].tolist() == [0, 0]
    assert rows["runner_up"].tolist() == [1, 1]
