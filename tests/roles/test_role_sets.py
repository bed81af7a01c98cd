"""Heads of one role together: slow twins of both changes, random sets, patterns by hand, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import headwise as hw
from headwise.core.heads import Head, Kind, Site
from headwise.core.layout import HeadMask
from headwise.core.tables import SETS
from headwise.models.attention.capture import capture, keeping
from headwise.models.attention.kernel import AttentionCall
from headwise.models.tasks.objective import asked_places, losses_of, on_device
from headwise.roles.role_sets import (
    ELSEWHERE,
    RANDOM_SETS,
    RoleSets,
    pattern_outputs,
    role_sets,
    sets_like,
)
from headwise.roles.role_tests import Roles
from models.tasks.askers import asker, embedder, lines, pairs
from refusals import refuses


def having(model: hw.Model, roles: Sequence[tuple[Head, str]]) -> Roles:
    """What `roles` would have found."""
    rows = [{**head._asdict(), "measure": measure} for head, measure in roles]
    empty: Any = pd.DataFrame()
    columns = ["kind", "layer", "head", "measure"]
    return Roles(
        model.heads, empty, pd.DataFrame(rows, columns=columns), empty, empty, [], [], {}, []
    )


def loss(model: hw.Model, text: Any) -> float:
    """Nats a token, batch by batch, without any sharing of work."""
    lost = tokens = 0.0
    with torch.no_grad():
        for batch in model.task.batches(text):
            tensors = on_device(model.hf, batch)
            places = asked_places(tensors["labels"])
            lost += float(losses_of(model.hf, tensors, places).sum())
            tokens += len(places[0])
    return lost / tokens


def looks_at(offset: int, heads: set[Head], visible_from_left: bool) -> Any:
    """Replaces the output of heads by the value of one token, query by query."""

    def outputs(call: AttentionCall) -> torch.Tensor:
        out = call.output.clone()
        for row, query, head in np.ndindex(*out.shape[:3]):
            if Head(call.site.kind, call.site.layer, head) in heads:
                sees = range(query + 1) if visible_from_left else range(out.shape[1])
                if call.mask is not None:
                    allowed = call.mask[row % len(call.mask), 0, query]
                    allowed = allowed if allowed.dtype == torch.bool else allowed > -1
                    sees = [key for key in sees if allowed[key]]  # type: ignore[assignment]
                key = min(sees, key=lambda key: abs(key - query - offset), default=None)
                if key is not None:
                    out[row, query, head] = call.value[row, head, key]
        return out

    return outputs


@pytest.mark.parametrize(
    ("family", "kind", "measure", "offset"),
    [
        ("marian", "encoder-self", "positional.1", 1),
        ("gpt2", "decoder-self", "positional.-1", -1),
        ("gpt2", "decoder-self", "previous-token", -1),
    ],
)
def test_both_changes_against_slow_twins(
    family: str, kind: Kind, measure: str, offset: int
) -> None:
    model = asker(family)
    text = pairs(6) if family == "marian" else lines(6)
    heads = [Head(kind, 0, 1), Head(kind, 1, 0)]
    table = role_sets(model, having(model, [(head, measure) for head in heads]), text).table
    assert list(table.columns) == list(SETS.names) and (table["kind"] == kind).all()
    together = table[table["number"] == 2].set_index("change")["value"]

    whole = loss(model, text)
    with keeping(model.hf, model.discovery, HeadMask.full(model.heads).without(heads)):
        assert together["off"] == pytest.approx(loss(model, text) - whole, abs=2e-5)
    for change, place in (("pattern", offset), ("wrong pattern", offset + ELSEWHERE)):
        outputs = looks_at(place, set(heads), kind == "decoder-self")
        sites = {Site(kind, head.layer): outputs for head in heads}
        with capture(model.hf, model.discovery, replace=sites):
            assert together[change] == pytest.approx(loss(model, text) - whole, abs=2e-5)

    alone = table[table["number"] == 1]
    assert {*alone["heads"]} == {"0/1", "1/0"} and len(alone) == 6
    made = table.dropna(subset=["low", "high"])
    assert (made["low"] <= made["value"]).all() and (made["value"] <= made["high"]).all()
    off = table[table["change"] == "off"]
    assert (off["random_low"] <= off["random"]).all() and off["p"].between(0.04, 1).all()
    assert table.loc[table["change"] != "off", "p"].isna().all()


def test_a_role_without_a_pattern_and_text_of_the_models_own() -> None:
    """Cross attention has no offsets; one-sided text gets the model's own translations."""
    model = asker()
    found = having(model, [(Head("cross", 0, 1), "reading"), (Head("encoder-self", 1, 1), "sink")])
    result = role_sets(model, found, lines(5))
    assert result.table[["role", "change"]].to_numpy().tolist() == [
        ["reading", "off"],
        ["sink", "off"],
        ["sink", "pattern"],
    ]
    said = "\n".join(result.lines())
    assert "cross, reading, heads 0/1: off " in said and "random sets" in said
    assert {*result.files()} == {*RoleSets.FILES} and "own translations" in said


@pytest.mark.parametrize("offset", [-2, -1, 0, 1, float("inf"), float("-inf")])
def test_a_head_that_has_its_pattern_keeps_its_output(offset: float) -> None:
    """Causal attention on padded text: all weight on the visible token nearest to the pattern's, also at the edges."""
    torch.manual_seed(0)
    there = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)
    value = torch.randn(2, 2, 5, 3)
    weights = torch.zeros(2, 4, 5, 5)
    for row, length in enumerate((5, 3)):
        for query in range(length):
            wanted = max(0, min(query, query + offset))
            weights[row, :, query, int(wanted)] = 1
    output = (weights @ value.repeat_interleave(2, 1)).transpose(1, 2)
    call = AttentionCall(Site("decoder-self", 0), value, value, value, None, None, output)
    found = pattern_outputs(call, dict.fromkeys(range(4), offset), there, there)
    assert torch.equal(found[there], output[there])
    one = pattern_outputs(replace(call, output=output + 1), {2: offset}, there, there)
    assert torch.equal(one[there][:, [0, 1, 3]], (output + 1)[there][:, [0, 1, 3]])


def test_random_sets_have_as_many_heads_of_the_same_layers() -> None:
    model, random = asker("gpt2"), np.random.default_rng(0)
    assert model.heads.total == 8
    one = (Head("decoder-self", 0, 0),)
    assert {*sets_like(one, model, random)} == {(Head("decoder-self", 0, n),) for n in (1, 2, 3)}
    own = tuple(Head("decoder-self", layer, n) for layer in (0, 1) for n in range(layer + 1))
    drawn = sets_like(own, model, random)
    assert len({*drawn}) == len(drawn) <= RANDOM_SETS and own not in drawn
    assert all([head.layer for head in each] == [0, 1, 1] for each in drawn)
    assert not {*own} & {head for each in drawn for head in each}, "there are enough others"
    most = tuple(Head("decoder-self", 0, n) for n in range(3))
    assert len(sets_like(most, model, random)) == 3, "of all heads of the layer, but not itself"
    whole = tuple(Head("decoder-self", 0, n) for n in range(4))
    assert sets_like(whole, model, random) == []


def test_no_role_and_no_loss() -> None:
    model = asker("gpt2")
    nothing = role_sets(model, having(model, []), lines(5))
    assert nothing.table.empty and "No head has a role" in nothing.lines()[0]
    refuses(lambda: role_sets(model, having(model, []), "file.txt"), "no file 'file.txt'")
    refuses(lambda: role_sets(model, lines(3), lines(5)), "in place of what hw.roles")  # type: ignore[arg-type]
    refuses(lambda: role_sets(model, having(model, []), lines(5), seed=-1), "The seed is -1")
    silent = embedder()
    found = having(silent, [(Head("encoder-self", 0, 0), "positional.1")])
    refuses(lambda: role_sets(silent, found, lines(5)), "predicts nothing")
