"""The network of the original implementation as plain PyTorch modules, in float64, without anything of transformers.

What relevance propagation needs to know of it are its attention layers, which call headwise's own attention function.
Letters: B batch, S source and T target length, M model size.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from headwise.core.heads import Site
from headwise.importance.lrp.tape import Tape
from headwise.models.attention import kernel
from headwise.models.attention.kernel import AttentionCall, Hooks, HookState, attend, patched
from pruning.golden_model import positions, tensor

Arrays = Mapping[str, np.ndarray]


def dense(weights: Arrays, name: str) -> nn.Linear:
    weight, bias = tensor(weights[f"{name}/W"]).T, weights.get(f"{name}/b")
    layer = nn.Linear(*weight.shape[::-1], bias=bias is not None, dtype=torch.float64)
    layer.weight.data = weight
    if bias is not None:
        layer.bias.data = tensor(bias)
    return layer


def layer_norm(weights: Arrays, name: str) -> nn.LayerNorm:
    scale = tensor(weights[f"{name}/scale"])
    norm = nn.LayerNorm(len(scale), eps=1e-6, dtype=torch.float64)
    norm.weight.data, norm.bias.data = scale, tensor(weights[f"{name}/bias"])
    return norm


class Heads(nn.Module):
    """Self-attention with one projection for query, key and value, or cross attention."""

    def __init__(self, weights: Arrays, name: str, heads: int) -> None:
        super().__init__()
        self.heads = heads
        apart = f"{name}/query_conv/W" in weights
        self.query = dense(weights, f"{name}/query_conv") if apart else None
        self.memory = dense(weights, f"{name}/mem_conv")
        self.out = dense(weights, f"{name}/out_conv")

    def forward(self, x: Tensor, memory: Tensor | None, mask: Tensor) -> Tensor:
        if self.query is None:  # noqa: SIM108 - one line would be too long
            parts = self.memory(x).chunk(3, -1)
        else:
            parts = (self.query(x), *self.memory(memory).chunk(2, -1))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        return self.out(attend(self, q, k, v, mask)[0].flatten(2))


class Feedforward(nn.Module):
    def __init__(self, weights: Arrays, name: str) -> None:
        super().__init__()
        self.first, self.second = dense(weights, f"{name}/conv1"), dense(weights, f"{name}/conv2")

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class Residual(nn.Module):
    """Pre-norm x + layer(norm(x)), or post-norm norm(x + layer(x))."""

    def __init__(self, weights: Arrays, name: str, layer: nn.Module, norm_first: bool) -> None:
        super().__init__()
        self.layer, self.norm_first = layer, norm_first
        self.norm = layer_norm(weights, f"{name}/layer_norm")

    def forward(self, x: Tensor, *more: Tensor | None) -> Tensor:
        if self.norm_first:
            return x + self.layer(self.norm(x), *more)
        return self.norm(x + self.layer(x, *more))


class GoldenNetwork(nn.Module):
    """One case of the golden set, from the sums of embeddings and positions to the logits."""

    def __init__(self, case: Path) -> None:
        super().__init__()
        self.options = json.loads((case / "config.json").read_text())["hp"]
        with np.load(case / "weights.npz") as file:
            names = {key: key.removesuffix(":0").removeprefix("mod/") for key in file.files}
            self.weights = {name: file[key] for key, name in names.items()}
        first, layers = self.options["res_steps"] == "nlda", range(self.options["num_layers"])

        def block(name: str) -> Residual:
            made = Feedforward(self.weights, name) if "ffn" in name else self.attention(name)
            return Residual(self.weights, name, made, first)

        def stack(*names: str) -> nn.ModuleList:
            blocks = [[block(f"{name}-{i}") for name in names] for i in layers]
            return nn.ModuleList(map(nn.ModuleList, blocks))

        self.encoder = stack("enc_attn", "enc_ffn")
        self.decoder = stack("dec_attn", "dec_enc_attn", "dec_ffn")
        sides = ("enc", "dec") if self.options["normalize_out"] else ()
        norms = [layer_norm(self.weights, f"{side}_out_norm") for side in sides]
        self.norms = nn.ModuleList(norms)
        if self.options.get("dwwt"):
            words = self.embedding("out")
            self.output = nn.Linear(*words.shape[::-1], bias=False, dtype=torch.float64)
            self.output.weight.data = words
        else:
            self.output = dense(self.weights, "loss_xent_lm/logits")

    def attention(self, name: str) -> Heads:
        return Heads(self.weights, name, self.options["num_heads"])

    def get_output_embeddings(self) -> nn.Module:
        return self.output

    def embedding(self, side: str) -> Tensor:
        return tensor(self.weights[f"emb_{'inp' if self.options['share_emb'] else side}/mat"])

    def sums(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The inputs of the first layers: B S M and B T M."""
        size = self.options["hid_size"]
        scale = math.sqrt(size) if self.options["rescale_emb"] else 1.0
        x = self.embedding("inp")[source.long()] * scale
        if "emb_inp_bias" in self.weights:
            x = x + tensor(self.weights["emb_inp_bias"])
        y = (self.embedding("out")[target.long()] * scale)[:, :-1]
        y = torch.cat([y.new_zeros(len(y), 1, size), y], 1)
        return x + positions(x.shape[1], size), y + positions(y.shape[1], size)

    def forward(self, x: Tensor, y: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits B T V, states B T M and the encoder's output B S M; keep B S: which source tokens are there."""
        mask = keep[:, None, None, :]
        past = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).tril()[None, None]
        for attention, feedforward in self.encoder:
            x = feedforward(attention(x, None, mask.expand(-1, -1, x.shape[1], -1)))
        x = self.norms[0](x) if self.norms else x
        for own, cross, feedforward in self.decoder:
            y = feedforward(cross(own(y, None, past), x, mask.expand(-1, -1, y.shape[1], -1)))
        y = self.norms[1](y) if self.norms else y
        return self.output(y), y, x

    def places(self) -> dict[Site, nn.Module]:
        found: dict[Site, nn.Module] = {}
        for layer, (attention, _) in enumerate(self.encoder):
            found[Site("encoder-self", layer)] = attention.layer
        for layer, (own, cross, _) in enumerate(self.decoder):
            found[Site("decoder-self", layer)], found[Site("cross", layer)] = own.layer, cross.layer
        return found


def record(
    network: nn.Module, places: Mapping[Site, nn.Module], leaves: tuple[Tensor, ...], *more: Tensor
) -> tuple:
    """The tape of one forward of any network whose attention layers call headwise's attention function."""
    tape = Tape()

    def show(seen: AttentionCall) -> None:
        tape.shown = seen

    states: dict[nn.Module, HookState] = {}
    for site, module in places.items():
        states[module] = HookState()
        states[module].passes.append((site, [Hooks(hook=show, weights=True)]))
    for leaf in leaves:
        tape.track(leaf)
    with torch.no_grad(), patched(kernel.INTERFACE_NAME, states), tape.recording(network):
        out = network(*leaves, *more)
    return tape, out
