"""The model of the original implementation (Voita et al. 2019), written out in plain PyTorch in float64.

It knows nothing of transformers: it is the stock the golden numbers are compared with. What is headwise's own are the
gates, which come by site as `HeadGates.by_site()` gives them and are multiplied with the heads' outputs. Letters: B batch,
S source and T target length, M model size, H heads, D head size, V target words.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from headwise.core.heads import HeadMap, Kind, Site

SITES: dict[str, Kind] = {
    "enc_self": "encoder-self",
    "dec_self": "decoder-self",
    "dec_enc": "cross",
}
Gate = Callable[[], Tensor]
Arrays = Mapping[str, np.ndarray]


def tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.float64))


def close(found: Tensor, expected: object, within: float = 1e-10) -> None:
    torch.testing.assert_close(
        found.detach(), torch.as_tensor(np.asarray(expected)), rtol=0, atol=within
    )


class GoldenModel(nn.Module):
    """One case of the golden set: its weights, its configuration, its forward pass and its loss."""

    def __init__(self, case: Path) -> None:
        super().__init__()
        options = json.loads((case / "config.json").read_text())["hp"]
        self.layers, self.heads, self.size = (
            options["num_layers"],
            options["num_heads"],
            options["hid_size"],
        )
        self.norm_first, self.normalize_out = (
            options["res_steps"] == "nlda",
            options["normalize_out"],
        )
        self.rescale, self.tied = options["rescale_emb"], options.get("dwwt", False)
        self.shared, self.smoothing = options["share_emb"], options["label_smoothing"]
        with np.load(case / "weights.npz") as weights:
            self.names = {key: key.removesuffix(":0").replace("/", "_") for key in weights.files}
            for key, name in self.names.items():
                self.register_parameter(name, nn.Parameter(tensor(weights[key])))
        self.gates: Mapping[Site, Gate] = {}
        self.seen: dict[Site, Tensor] = {}

    @property
    def map(self) -> HeadMap:
        return HeadMap({kind: (self.heads,) * self.layers for kind in SITES.values()})

    def weight(self, name: str) -> Tensor:
        return self.get_parameter(self.names[f"{name}:0"])

    def forward(self, source: Tensor, target: Tensor, source_length: Tensor) -> dict[str, Tensor]:
        """Ids B S and B T with their end of sentence; gives logits B T V, `rdo` B T M and `enc_out` B S M."""
        self.seen = {}
        keys = torch.arange(source.shape[1]) < source_length[:, None]
        encoded = self.encode(source, keys[:, None, None, :])
        decoded = self.decode(target, encoded, keys[:, None, None, :])
        output = self.embedding("out").T if self.tied else self.weight("loss_xent_lm/logits/W")
        logits = decoded @ output
        if "loss_xent_lm/logits/b:0" in self.names:
            logits = logits + self.weight("loss_xent_lm/logits/b")
        return {"logits": logits, "rdo": decoded, "enc_out": encoded}

    def encode(self, source: Tensor, keep: Tensor) -> Tensor:
        x = self.embed("inp", source)
        if "mod/emb_inp_bias:0" in self.names:
            x = x + self.weight("mod/emb_inp_bias")
        x = x + positions(source.shape[1], self.size)
        for layer in range(self.layers):
            own = partial(self.attention, Site("encoder-self", layer), None, keep)
            x = self.residual(f"enc_attn-{layer}", x, own)
            x = self.residual(f"enc_ffn-{layer}", x, self.feedforward)
        return self.norm("enc_out_norm", x) if self.normalize_out else x

    def decode(self, target: Tensor, encoded: Tensor, keep: Tensor) -> Tensor:
        shifted = self.embed("out", target)[:, :-1]
        x = torch.cat([shifted.new_zeros(len(target), 1, self.size), shifted], 1)
        x = x + positions(target.shape[1], self.size)
        past = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).tril()
        for layer in range(self.layers):
            own = partial(self.attention, Site("decoder-self", layer), None, past)
            cross = partial(self.attention, Site("cross", layer), encoded, keep)
            x = self.residual(f"dec_attn-{layer}", x, own)
            x = self.residual(f"dec_enc_attn-{layer}", x, cross)
            x = self.residual(f"dec_ffn-{layer}", x, self.feedforward)
        return self.norm("dec_out_norm", x) if self.normalize_out else x

    def embedding(self, side: str) -> Tensor:
        return self.weight(f"mod/emb_{'inp' if self.shared else side}/mat")

    def embed(self, side: str, ids: Tensor) -> Tensor:
        rows = self.embedding(side)[ids.long()]
        return rows * math.sqrt(self.size) if self.rescale else rows

    def residual(self, name: str, x: Tensor, layer: Callable[[str, Tensor], Tensor]) -> Tensor:
        """Pre-norm `x + layer(norm(x))`, or post-norm `norm(x + layer(x))`."""
        if self.norm_first:
            return x + layer(name, self.norm(f"{name}/layer_norm", x))
        return self.norm(f"{name}/layer_norm", x + layer(name, x))

    def norm(self, name: str, x: Tensor) -> Tensor:
        scale, bias = self.weight(f"mod/{name}/scale"), self.weight(f"mod/{name}/bias")
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-6) * scale + bias

    def dense(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weight(f"mod/{name}/W") + self.weight(f"mod/{name}/b")

    def feedforward(self, name: str, x: Tensor) -> Tensor:
        return self.dense(f"{name}/conv2", torch.relu(self.dense(f"{name}/conv1", x)))

    def attention(
        self, site: Site, memory: Tensor | None, keep: Tensor, name: str, x: Tensor
    ) -> Tensor:
        """Queries x B T M, keys from memory B S M, or from x; keep broadcasts to B H T S, as the weights in `seen`."""
        if memory is None:
            q, k, v = self.dense(f"{name}/mem_conv", x).chunk(3, -1)
        else:
            q = self.dense(f"{name}/query_conv", x)
            k, v = self.dense(f"{name}/mem_conv", memory).chunk(2, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) - 1e9 * (~keep).double()
        self.seen[site] = torch.softmax(scores, -1)
        heads = self.seen[site] @ v
        if site in self.gates:
            heads = heads * self.gates[site]()[:, None, None]
        return self.dense(f"{name}/out_conv", heads.transpose(1, 2).flatten(-2))

    def loss(self, logits: Tensor, target: Tensor, target_length: Tensor) -> Tensor:
        """Label-smoothed cross-entropy minus its smallest value, summed over the positions of each sentence: B."""
        others = self.smoothing / (logits.shape[-1] - 1)
        expected = torch.full_like(logits, others).scatter(
            -1, target[..., None].long(), 1 - self.smoothing
        )
        best = (1 - self.smoothing) * math.log(1 - self.smoothing)
        best += (logits.shape[-1] - 1) * others * math.log(others + 1e-20)
        lost = -(expected * logits.log_softmax(-1)).sum(-1) + best
        there = torch.arange(target.shape[1]) < target_length[:, None]
        return torch.sum(lost * there, -1)


def positions(length: int, size: int) -> Tensor:
    """Sines, then cosines: length x size."""
    half = size // 2
    rates = torch.exp(-torch.arange(half).double() * math.log(10000) / (half - 1))
    angles = torch.arange(length).double()[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], -1)


def inputs(forward: Arrays, key: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Source, target and their lengths as a batch: of one sentence (`s0`) or of all four (`batch`)."""
    source, target = (
        torch.from_numpy(np.atleast_2d(forward[f"{key}.{side}"])) for side in ("src", "dst")
    )
    if key == "batch":
        return (
            source,
            target,
            torch.from_numpy(forward["batch.src_len"]),
            torch.from_numpy(forward["batch.dst_len"]),
        )
    return source, target, torch.tensor([source.shape[1]]), torch.tensor([target.shape[1]])
