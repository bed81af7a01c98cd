"""A residual stream with named parts, and heads that are written as what they look at and what they move.

All parts are orthogonal to each other and turned at random together, so no neuron stands for anything. Two neurons hold
a large constant, +C and −C: the mean is always 0 and the variance nearly the same, so layer norm is nearly the identity
(within about 2 %), as by the massive activations of trained models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

CONSTANT = 60.0  # C
USUAL = 30.0  # the squared norm of the rest of the stream, about
USUAL_WORDS = 12.0  # the squared norm of what embeddings say, about
DOUBT = 0.5
CIRCLES = 6  # a position is an angle on so many circles
ROUND = 64  # tokens after which the slowest circle is complete


class Stream:
    """Named blocks of a residual stream of `width` neurons; `stream[name]` is rows x width, orthonormal rows.

    Blocks are made by their first use: `block(name, rows)`.
    """

    def __init__(self, width: int, generator: torch.Generator) -> None:
        self.width = width
        self.generator = generator
        basis = torch.randn(width - 2, width - 2, generator=generator, dtype=torch.float64)
        basis[:, 0] = 1  # all others are orthogonal to it, so their mean is 0
        turned = torch.linalg.qr(basis).Q[:, 1:].T
        self.free = nn.functional.pad(turned, (2, 0)).float()
        self.used = 0
        self.blocks: dict[str, Tensor] = {}
        self.one = torch.zeros(1, width)  # its product with any state of the stream is 1
        self.one[0, :2] = torch.tensor([1.0, -1.0]) / (2 * CONSTANT)

    def block(self, name: str, rows: int = 1) -> Tensor:
        if name not in self.blocks:
            assert self.used + rows <= len(self.free), f"the stream is too narrow for '{name}'"
            self.blocks[name] = self.free[self.used : self.used + rows]
            self.used += rows
        return self.blocks[name]

    def __getitem__(self, name: str) -> Tensor:
        return self.blocks[name]

    def constant(self) -> Tensor:
        """What every token has."""
        return self.one[0] * 2 * CONSTANT**2

    def norm(self, layer: nn.LayerNorm) -> None:
        """Make a layer norm nearly the identity."""
        nn.init.constant_(layer.weight, ((2 * CONSTANT**2 + USUAL) / self.width) ** 0.5)
        nn.init.zeros_(layer.bias)

    def noise(self, rows: int, size: float) -> Tensor:
        """Random vectors of the stream: rows x width, each coordinate of about `size`."""
        return size * torch.randn(rows, len(self.free), generator=self.generator) @ self.free

    def calm(self, model: nn.Module, second: str) -> None:
        """All but attention and embeddings does next to nothing: norms near the identity, no biases, and feed-forward
        layers whose small random outputs nobody reads. second: the name of the second matrix of each."""
        for parameter in model.parameters():  # no seed of ours decides what transformers drew
            parameter.normal_(0.0, 0.02, generator=self.generator)
        for name, module in model.named_modules():
            bias = getattr(module, "bias", None)
            if isinstance(module, nn.LayerNorm):
                self.norm(module)
            elif isinstance(bias, Tensor):
                bias.zero_()
            if name.endswith(second):
                coefficients = torch.randn(8, len(self["junk"]), generator=self.generator)
                junk = 0.1 * coefficients @ self["junk"]
                weight = module.get_parameter("weight")
                weight.copy_(junk.T if isinstance(module, nn.Linear) else junk)


def position_codes(count: int) -> Tensor:
    """The code of every position: count x 2 CIRCLES."""
    angles = torch.arange(count)[:, None] * circle_frequencies()
    return torch.cat([angles.cos(), angles.sin()], 1)


def shift(offset: int) -> Tensor:
    """The matrix that turns the code of a position into that of the position at an offset."""
    angle = offset * circle_frequencies()
    cos = angle.cos().diag()
    sin = angle.sin().diag()
    return torch.cat([torch.cat([cos, -sin], 1), torch.cat([sin, cos], 1)])


def circle_frequencies() -> Tensor:
    return 2 * torch.pi / ROUND * (1 + 2 * torch.arange(CIRCLES))


class Weights(NamedTuple):
    """The four matrices of a head: query, key, value (size x width), output (width x size)."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


@dataclass
class Wiring:
    """A head. looks: (query rows, key rows, strength): the score of a pair is Σ strength · ⟨query rows x, key rows y⟩,
    in nats. moves: (read rows, write rows, gain): what is read of the attended token is written to the query's."""

    looks: Sequence[tuple[Tensor, Tensor, float]] = ()
    moves: Sequence[tuple[Tensor, Tensor, float]] = ()

    def weights(self, size: int, stream: Stream) -> Weights:
        """For scores divided by √size. The coordinates of the head are turned at random."""
        used = sum(len(rows) for rows, _, _ in self.looks)
        query_rows = []
        key_rows = []
        for queries, keys, strength in (*self.looks, unsure(size - used, stream)):
            query_rows.append(queries * strength * size**0.5)
            key_rows.append(keys)
        value_rows = []
        output_rows = []
        for read, written, gain in self.moves:
            value_rows.append(read)
            output_rows.append(written * gain)

        query = stack_rows(query_rows, size, stream.width)
        key = stack_rows(key_rows, size, stream.width)
        value = stack_rows(value_rows, size, stream.width)
        output = stack_rows(output_rows, size, stream.width)
        turn_looks = random_rotation(size, stream.generator)
        turn_moves = random_rotation(size, stream.generator)
        return Weights(
            turn_looks @ query, turn_looks @ key, turn_moves @ value, (turn_moves @ output).T
        )


def unsure(rows: int, stream: Stream) -> tuple[Tensor, Tensor, float]:
    """Random looks that add noise of about DOUBT nats to scores, so that no head is flat or has a tie."""
    block = torch.cat([stream["position"], stream["class"]])
    queries = torch.randn(rows, len(block), generator=stream.generator) @ block
    keys = torch.randn(rows, len(block), generator=stream.generator) @ block
    return queries, keys, DOUBT / (CIRCLES + 2) / max(rows, 1) ** 0.5


def code(class_number: int) -> Tensor:
    """One of four classes as two signs."""
    return torch.tensor([1.0 - 2 * (class_number & 1), 1.0 - (class_number & 2)])


def stack_rows(rows: Sequence[Tensor], size: int, width: int) -> Tensor:
    """Rows below each other, with zeros up to `size` of them."""
    stacked = torch.cat([torch.zeros(0, width), *rows])
    assert len(stacked) <= size, f"a head of size {size} has no room for {len(stacked)} rows"
    return nn.functional.pad(stacked, (0, 0, 0, size - len(stacked)))


def random_rotation(size: int, generator: torch.Generator) -> Tensor:
    """A random rotation: size x size."""
    drawn = torch.randn(size, size, generator=generator, dtype=torch.float64)
    rotation: Tensor = torch.linalg.qr(drawn).Q
    return rotation.float()
