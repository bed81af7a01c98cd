"""Relevance against the numbers of the original implementation: steps, layers, and whole encoder-decoders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headwise.core.heads import Site
from headwise.importance.lrp.relevance import first_rows
from headwise.importance.lrp.rules import RULES, Epsilon
from headwise.importance.lrp.steps import Addition, Linear, rescaled
from headwise.importance.lrp.tape import Walk
from importance.lrp.golden_network import (
    Feedforward,
    GoldenNetwork,
    Heads,
    dense,
    layer_norm,
    record,
)
from pruning.golden_model import SITES, tensor

WITHIN = 1e-8
AB = RULES["alpha-beta"]
# The released code without alpha and beta.
EPSILON = replace(AB, name="epsilon", share=Epsilon(1e-5))
ORIGINAL = {
    "ab": AB,
    "eps": EPSILON,
    "ab_const": replace(AB, attention="jacobian-of-values"),
    "eps_const": replace(EPSILON, attention="jacobian-of-values"),
}


def agree(found: Tensor, expected: np.ndarray, what: str) -> None:
    error = float((found.detach() - torch.from_numpy(expected)).abs().max())
    size = float(np.abs(expected).max())
    assert error <= WITHIN * size, f"{what}: differs by {error / size:.2e} of the largest value"


@pytest.mark.parametrize("name", ["ab", "eps"])
@pytest.mark.parametrize("sign", ["pos", "signed"])
def test_linear_and_addition(golden: Path, name: str, sign: str) -> None:
    rule = ORIGINAL[name]
    with np.load(golden / "lrp_primitives_v2021.npz") as file:
        numbers = dict(file)
    w, b, x, arrived = (tensor(numbers[key]) for key in ("W", "b", "x", f"R_{sign}"))
    for bias, key in ((b, "linear_bias"), (None, "linear_nobias")):
        out = x @ w if bias is None else x @ w + bias
        step = Linear(x, out, weight=w.T, bias=bias)
        (found,) = step.propagate(replace(rule, rescale=False), arrived[None])
        (found,) = rescaled(rule, arrived[None], found)
        agree(found[0], numbers[f"{key}.{name}.{sign}"], key)
    a, b, arrived = (tensor(numbers[key]) for key in ("add_a", "add_b", f"add_R_{sign}"))
    one = replace(rule, rescale=False)
    parts = Addition((a, b), 2).propagate(one, arrived[None])
    for part, key in zip(rescaled(rule, arrived[None], *parts, axes=3), "ab", strict=True):
        held = part.abs().sum()
        part = part * (held / (held + 1e-5))  # the whole tensor at once, as there
        agree(part[0], numbers[f"add.{name}.{sign}.{key}"], f"add {key}")


def small(numbers: dict[str, np.ndarray], name: str) -> nn.Module:
    """A layer of the golden set."""
    weights = {key[2:]: value for key, value in numbers.items() if key.startswith("w:")}
    if name.startswith("attn"):
        return Heads(weights, name, 3)
    if name == "ffn":
        return Feedforward(weights, name)
    if name == "ln":
        return layer_norm(weights, name)
    return nn.Sequential(dense(weights, name), nn.ReLU() if name == "dense_relu" else nn.Identity())


@pytest.mark.parametrize("name", ["ab", "eps"])
@pytest.mark.parametrize("sign", ["pos", "signed"])
@pytest.mark.parametrize("layer", ["dense_lin", "dense_relu", "ffn", "ln"])
def test_layers_of_rows(golden: Path, layer: str, name: str, sign: str) -> None:
    """The golden residual layers are left out: the original couples the two sentences of their batch by one factor,
    here every sentence stands by itself. Whole networks, a sentence at a time, hold the residual rule."""
    with np.load(golden / "layers_v2021.npz") as file:
        numbers = dict(file)
    key = f"{name}.{sign}.{layer}.R_in"
    wide = "ff_" if layer.startswith("dense") else ""
    x, arrived = (tensor(numbers[key]) for key in ("x", f"R_{wide}{sign}"))
    tape, out = record(small(numbers, layer), {}, (x,))
    agree(out.detach(), numbers[f"fwd:{layer}.out"], "forward")
    walk = Walk(tape, ORIGINAL[name], {tape.numbers[id(out)]: arrived[None]}, lambda *_: None)
    agree(walk.leaves[tape.numbers[id(x)]][0], numbers[key], key)


@pytest.mark.parametrize("name", list(ORIGINAL))
@pytest.mark.parametrize("sign", ["pos", "signed"])
@pytest.mark.parametrize("layer", ["attn_self_pad", "attn_self_causal", "attn_cross"])
def test_attention_layers(golden: Path, layer: str, name: str, sign: str) -> None:
    with np.load(golden / "layers_v2021.npz") as file:
        numbers = dict(file)
    module, site = small(numbers, layer), Site("encoder-self", 0)
    x, y, arrived = (tensor(numbers[key]) for key in ("x", "y", f"R_{sign}"))
    cross = layer == "attn_cross"
    masks = {"attn_self_pad": "mask_pad_self", "attn_self_causal": "mask_causal"}
    keep = (tensor(numbers[masks.get(layer, "mask_pad_kv")]) > 0).expand(2, 1, 5, -1)
    given = [(x, y), keep] if cross else [(x,), None, keep]
    tape, out = record(module, {site: module}, *given)
    agree(out.detach(), numbers[f"fwd:{layer}.out"], "forward")
    heads: dict[Site, Tensor] = {}
    walk = Walk(tape, ORIGINAL[name], {tape.numbers[id(out)]: arrived[None]}, heads.__setitem__)
    key = f"{name}.{sign}.{layer}"
    agree(heads[site][0].flatten(2), numbers[f"{key}.R_out_conv"], f"{key}, neurons")
    agree(heads[site][0].sum((1, 3)), numbers[f"{key}.R_heads"], f"{key}, heads")
    inputs = [(x, "R_query_inp"), (y, "R_kv_inp")] if cross else [(x, "R_in")]
    for leaf, name in inputs:
        # constant weights hand nothing on to queries and keys
        found = walk.leaves.get(tape.numbers[id(leaf)], torch.zeros_like(leaf)[None])
        agree(found[0], numbers[f"{key}.{name}"], f"{key}, {name}")


@pytest.mark.parametrize("name", list(ORIGINAL))
@pytest.mark.parametrize("sentence", ["s0", "s1", "s2", "s3"])
def test_whole_network(golden: Path, name: str, sentence: str) -> None:
    with np.load(golden / f"lrp_v2021_{name}.npz") as file:
        numbers = {key: file[key] for key in file.files if key.startswith(f"{sentence}.")}
    with np.load(golden / "forward.npz") as file:
        sides = (file[f"{sentence}.{side}"] for side in ("src", "dst"))
        source, target = (torch.from_numpy(side)[None] for side in sides)
    network = GoldenNetwork(golden)
    x, y = network.sums(source, target)
    keep = torch.ones_like(source, dtype=torch.bool)
    tape, (logits, states, _) = record(network, network.places(), (x, y), keep)
    rule = ORIGINAL[name]
    number, rows = first_rows(tape, network, logits, rule)
    assert number == tape.numbers[id(states)]
    start = torch.diag_embed(rows[0].T).permute(2, 1, 0)[:, None]  # P B T M
    if f"{sentence}.R_rdo" in numbers:
        agree(start[:, 0], numbers[f"{sentence}.R_rdo"], "R_rdo")
    heads: dict[Site, Tensor] = {}
    walk = Walk(tape, rule, {number: start}, heads.__setitem__)
    layers = network.options["num_layers"]
    made = {}
    for key, kind in SITES.items():
        found = [heads[Site(kind, layer)][:, 0] for layer in range(layers)]
        of_kind = torch.stack(found, 1)  # P L Q H D
        made[f"neuron.{key}"] = of_kind.flatten(-2)
        made[f"head_sum.{key}"] = of_kind.sum((2, 4))
        made[f"head_abs.{key}"] = of_kind.abs().sum((2, 4))
    for leaf, key in ((x, "R_emb_inp"), (y, "R_emb_out_before_crop")):
        made[key] = walk.leaves[tape.numbers[id(leaf)]][:, 0]
    for key, relevance in made.items():
        if key.startswith(("head", "R_emb_inp")) or f"{sentence}.{key}" in numbers:
            agree(relevance, numbers[f"{sentence}.{key}"], key)
