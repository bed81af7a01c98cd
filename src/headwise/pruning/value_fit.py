"""Repair of value projections: which part of the states a head reads is fitted in turn with what it makes of it.

A head adds A X V O, with its attention A, the states X that the layer reads, its value rows V and output columns O. For
fixed V the best O is linear, and for fixed O the best V; both need nothing but the sums over tokens of A X, which are
k·M numbers for k heads of a model M wide.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Site
from headwise.models.attention.capture import capture
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.matrices import Matrices, by_output
from headwise.models.attention.offload import set_bias
from headwise.models.attention.removal import layer_at
from headwise.models.evaluation.least_squares import Moments
from headwise.models.model import Model

WIDEST = 2600  # features: their Gram matrix takes as many squared numbers of 8 bytes, twice
STRENGTHS = (1e-4, 1e-3, 1e-2)  # of the ridge
ROUNDS = 4
NEAR = (
    1e-3  # of the largest number: how far apart features may be that were computed in another order
)


@dataclass(frozen=True)
class Values:
    """The value projection of a layer in which each head has a value head of its own.

    rows: of the projection, heads × head size.
    """

    model: Model
    site: Site
    matrices: Matrices
    name: str
    rows: Tensor

    @classmethod
    def of(cls, model: Model, site: Site) -> Values | None:
        """None where values are shared, are not linear in what the layer reads, or are too many to fit."""
        if not model.heads.count(site):
            return None
        modules = dict(model.hf.named_modules())
        try:
            layer = layer_at(modules, model.discovery, site)
        except HeadwiseError:
            return None
        for name, projection in layer.inputs().items():
            for part, rows in layer.parts(name):
                width = by_output(projection).shape[1]
                own = part == "v" and layer.groups == layer.heads
                constant = layer.out.bias is not None or projection.bias is None
                fits = rows.shape[1] == layer.size and len(rows) * width <= WIDEST
                if own and constant and fits:
                    return cls(model, site, layer, f"{layer.name}.{name}", rows)
        return None

    @property
    def projection(self) -> nn.Linear:
        return cast(nn.Linear, self.model.hf.get_submodule(self.name))

    @property
    def width(self) -> int:
        """Numbers in a state that the layer reads: M."""
        return int(by_output(self.projection).shape[1])

    @contextmanager
    def reading(self) -> Iterator[list[Tensor]]:
        """A block in which each call of the layer leaves A X of all heads, B Q (k·M), in a list; nothing where its own code
        computes attention."""
        found: list[Tensor] = []
        given: list[Tensor] = []

        def note(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            given[:] = [args[0]]

        def read(call: AttentionCall) -> None:
            if call.site == self.site and call.formula is not None and given:
                (states,) = given
                heads = call.query.shape[1]
                wide = states[:, None].expand(-1, heads, -1, -1).to(call.query)
                if wide.shape[2] == call.value.shape[2]:
                    found.append(call.attended(value=wide).flatten(2))

        hook = self.projection.register_forward_pre_hook(note)
        try:
            with capture(self.model.hf, self.model.discovery, hook=read):
                yield found
        finally:
            hook.remove()

    def explains(self, attended: Tensor, features: Tensor) -> bool:
        """Whether the output projection gets what these values make of A X, and nothing else."""
        heads = len(self.rows)
        rows = by_output(self.projection)[self.rows].to(attended)
        explained = torch.einsum("bqkm,kdm->bqkd", attended.unflatten(2, (heads, -1)), rows)
        if self.projection.bias is not None:
            explained = explained + self.projection.bias[self.rows].to(attended)
        far = (explained.flatten(2) - features).abs().max()
        return bool(far <= NEAR * features.abs().max())

    def start(self) -> tuple[Tensor, Tensor, Tensor]:
        """The model's own values V, k M D, outputs O, k D M, and constant, M, which holds the biases of both."""
        values = by_output(self.projection).detach().double().cpu()[self.rows].transpose(1, 2)
        out = self.matrices.out
        columns = by_output(out).detach().double().cpu().t()
        outputs = columns.unflatten(0, self.rows.shape)
        constant = torch.zeros(columns.shape[1], dtype=torch.float64)
        if out.bias is not None:
            constant = out.bias.detach().double().cpu() + self.of_bias(outputs)
        return values, outputs, constant

    def of_bias(self, outputs: Tensor) -> Tensor:
        """What outputs make of the biases of the values: M."""
        if self.projection.bias is None:
            return torch.zeros(outputs.shape[2], dtype=torch.float64)
        bias = self.projection.bias.detach().double().cpu()[self.rows]
        return torch.einsum("kd,kdm->m", bias, outputs)

    def write(self, values: Tensor, outputs: Tensor, constant: Tensor) -> None:
        """Give the layer other values, outputs and constant."""
        weight, out = by_output(self.projection), self.matrices.out
        with torch.no_grad():
            weight[self.rows] = values.transpose(1, 2).to(weight)
            by_output(out).copy_(outputs.flatten(0, 1).t().to(out.weight))
            if out.bias is not None:
                set_bias(out, constant - self.of_bias(outputs))


def held_out_values(
    fit: Moments, held: Moments, start: tuple[Tensor, Tensor, Tensor]
) -> tuple[float, tuple[Tensor, Tensor, Tensor]]:
    """Values, outputs and constant with the ridge that is best on tokens held out, fitted on all of them; and what those
    of the fit alone miss of the tokens held out."""
    tried = []
    for strength in STRENGTHS:
        missed = held.missed(joined(*alternated(fit, start, strength), held.constant))
        tried.append((missed, strength))
    missed, strength = min(tried)
    return missed, alternated(fit + held, start, strength)


def alternated(
    moments: Moments, start: tuple[Tensor, Tensor, Tensor], strength: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs given values and values given outputs, in turn, ridge towards the present ones.

    moments: of A X and a constant, to what the layer should add. start: V k M D, O k D M, constant M.
    """
    values, outputs, constant = (one.clone() for one in start)
    heads, width, size = values.shape
    eye = torch.eye(width, dtype=torch.float64)
    for turn in range(ROUNDS):
        low = Moments.empty(heads * size, outputs.shape[2], moments.constant)
        half = through_values(moments.gram, values, moments.constant)
        low.gram = through_values(half.t(), values, moments.constant)
        low.cross = through_values(moments.cross.t(), values, moments.constant).t()
        before = torch.cat([outputs.flatten(0, 1), constant[None]])
        best = low.fitted(before[: len(low.gram)], strength)
        outputs = best[: heads * size].unflatten(0, (heads, size))
        constant = best[-1] if moments.constant else constant
        if turn == ROUNDS - 1:
            break
        for head in range(heads):
            rows = slice(head * width, (head + 1) * width)
            gram = moments.gram[rows, rows]
            # What all values and outputs make of these rows is never as wide as the model: outputs meet those of the head.
            inner = best @ outputs[head].t()
            by_all = through_values(moments.gram[rows], values, moments.constant) @ inner
            wanted = moments.cross[rows] @ outputs[head].t() - by_all
            ridge = strength * float(gram.diagonal().mean()) or 1.0
            own = inner[head * size : (head + 1) * size]
            floor = 1e-4 * float(own.diagonal().mean()) or 1.0
            step = torch.linalg.solve(gram + ridge * eye, wanted)
            share = own + floor * torch.eye(size, dtype=torch.float64)
            values[head] += torch.linalg.solve(share, step.t()).t()
    return values, outputs, constant


def through_values(sums: Tensor, values: Tensor, has_constant: bool) -> Tensor:
    """Sums over A X of all heads and the constant, N (k·M + 1), as those over the heads' values, N (k·D + 1): their
    product with the block diagonal of V."""
    heads, width, _ = values.shape
    parts = [sums[:, head * width : (head + 1) * width] @ values[head] for head in range(heads)]
    return torch.cat([*parts, sums[:, -1:]] if has_constant else parts, 1)


def joined(values: Tensor, outputs: Tensor, constant: Tensor, has_constant: bool) -> Tensor:
    """One map from A X of all heads and the constant to what the layer adds: (k·M + 1) M."""
    whole = (values @ outputs).flatten(0, 1)
    return torch.cat([whole, constant[None]]) if has_constant else whole
