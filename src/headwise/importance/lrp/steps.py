"""The steps of a forward pass, and how each propagates relevance from its output to its inputs.

Letters: P starts of relevance that are propagated together, N rows (all axes before the last), O outputs and I inputs
of a row. Relevance has the shape of its tensor with P in front.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from headwise.importance.lrp.rules import AlphaBeta, Rule
from headwise.models.marian.network import recur

SLICE_NUMBERS = (
    1 << 21
)  # largest rows x outputs x inputs tensor, in elements; on a GPU AT_ONCE times as large
AT_ONCE = 8
Absorber = Literal["bias", "norm", "softmax", "other"]


class RecordedOperation(Protocol):
    """One recorded operation. `propagate` gives the relevance of every input, P and the input's shape; None of an input
    that gets none."""

    absorber: ClassVar[Absorber] = "other"  # the entry of the balance for relevance that it absorbs

    def propagate(self, rule: Rule, relevance: Tensor) -> tuple[Tensor | None, ...]: ...


def absolute_relevance(relevance: Tensor, axes: int = 2) -> Tensor:
    """Σ |R| over all but the first axes (P and the batch), kept for broadcasting."""
    return relevance.abs().sum(tuple(range(axes, relevance.dim())), keepdim=True)


def rescaled(rule: Rule, wanted: Tensor, *parts: Tensor, axes: int = 2) -> tuple[Tensor, ...]:
    """The parts, scaled by one factor per index of the first axes, so that their Σ |R| is that of `wanted`."""
    total = torch.stack([absolute_relevance(part, axes).flatten(axes) for part in parts]).sum(0)
    # ε, because all parts may be zero
    factor = absolute_relevance(wanted, axes).flatten(axes) / (total + rule.share.epsilon)
    return tuple(
        part * factor.reshape(factor.shape[:axes] + (1,) * (part.dim() - axes)) for part in parts
    )


def unbroadcast(relevance: Tensor, shape: torch.Size) -> Tensor:
    """The relevance of a broadcast operand: summed over the axes along which it was repeated."""
    extra = relevance.dim() - 1 - len(shape)
    if extra:
        relevance = relevance.sum(tuple(range(1, 1 + extra)))
    repeated = [
        axis + 1 for axis, size in enumerate(shape) if size == 1 and relevance.shape[axis + 1] != 1
    ]
    return relevance.sum(repeated, keepdim=True) if repeated else relevance


def spans(rows: int, each: int, device: torch.device) -> Iterator[slice]:
    """Slices of rows with at most SLICE_NUMBERS elements, `each` per row."""
    size = max(1, SLICE_NUMBERS * (1 if device.type == "cpu" else AT_ONCE) // each)
    return (slice(start, start + size) for start in range(0, rows, size))


@dataclass
class Rows(RecordedOperation):
    """Base of maps on rows (last axis): rescaling in the row, then in the sentence."""

    x: Tensor
    out: Tensor
    absorber: ClassVar[Absorber] = "bias"

    def settle(self, rule: Rule, relevance: Tensor, found: Tensor) -> tuple[Tensor]:
        if rule.rescale:
            (found,) = rescaled(rule, relevance, found, axes=relevance.dim() - 1)
            (found,) = rescaled(rule, relevance, found)
        return (found,)

    def dense(
        self, rule: Rule, relevance: Tensor, sums: Tensor, absolute: Callable[[slice], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """(Σ_o c2[o] · |z[o, i]|, c1), with |z| built for some rows at a time: `absolute(rows)` gives N O I."""
        flat, sums = relevance.flatten(1, -2), sums.flatten(0, -2)
        found = flat.new_empty(*flat.shape[:2], self.x.shape[-1])
        first = torch.empty_like(flat)
        for rows in spans(flat.shape[1], flat.shape[2] * self.x.shape[-1], flat.device):
            impact = absolute(rows)
            # sums: Σ z of a row's output; impact.sum: Σ |z|
            c1, c2 = rule.share(flat[:, rows], sums[rows], impact.sum(-1))
            assert c2 is not None
            first[:, rows] = c1
            found[:, rows] = torch.bmm(c2.transpose(0, 1), impact).transpose(0, 1)
        return found.unflatten(1, self.x.shape[:-1]), first.unflatten(1, self.x.shape[:-1])


@dataclass
class Linear(Rows):
    """out = x Wᵀ + b (Ding et al. 2017, eq. for linear maps; eq. 8 of Achtibat et al. 2024). weight O I, bias O."""

    weight: Tensor
    bias: Tensor | None = None

    def propagate(self, rule: Rule, relevance: Tensor) -> tuple[Tensor, ...]:
        weight = self.weight.detach().to(relevance.dtype)
        x = self.x.detach().to(relevance.dtype)
        out = self.out.detach().to(relevance.dtype)
        bias = None if self.bias is None else self.bias.detach().to(relevance.dtype)
        # z[o, i] then has b[o] / I in it, and is no product of weight and input any more
        if bias is not None and rule.bias == "spread":
            return self.settle(rule, relevance, self.spread(rule, relevance, x, out, weight, bias))
        absolutes = None
        if rule.share.absolute:
            absolutes = x.abs() @ weight.abs().T
            absolutes = absolutes if bias is None else absolutes + bias.abs()
        c1, c2 = rule.share(relevance, out, absolutes)
        # Σ_o c1[o] W[o, i] x[i]: no tensor of rows × outputs × inputs is needed
        found = (c1 @ weight) * x
        if c2 is not None:
            # |W x| = |W| |x|, so absolute impacts need none either
            found = found + (c2 @ weight.abs()) * x.abs()
        return self.settle(rule, relevance, found)

    def spread(
        self, rule: Rule, relevance: Tensor, x: Tensor, out: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        """Impacts z[o, i] = W[o, i] x[i] + b[o] / I."""
        # an even share for each input, also for inputs of zero
        each, inputs = bias[:, None] / x.shape[-1], x.flatten(0, -2)[:, None, :]
        if rule.share.absolute:
            found, c1 = self.dense(
                rule, relevance, out, lambda rows: torch.addcmul(each, weight, inputs[rows]).abs_()
            )
        else:
            (c1, _), found = rule.share(relevance, out, None), torch.zeros_like(x)
        return found + (c1 @ weight) * x + c1 @ each


@dataclass
class LayerNorm(Rows):
    """out = γ (x − mean) / σ + β over the last axis. γ and β have the size of that axis, or are None."""

    scale: Tensor | None = None
    bias: Tensor | None = None
    epsilon: float = 1e-5
    absorber: ClassVar[Absorber] = "norm"

    def propagate(self, rule: Rule, relevance: Tensor) -> tuple[Tensor, ...]:
        x, out = self.x.to(relevance.dtype), self.out.to(relevance.dtype)
        size = x.shape[-1]
        scale = x.new_ones(size) if self.scale is None else self.scale.to(x.dtype)
        bias = x.new_zeros(size) if self.bias is None else self.bias.to(x.dtype)
        # the linear part of the norm
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        if rule.norm == "jacobian":
            return self.settle(
                rule, relevance, self.jacobian(rule, relevance, x, centred, variance, scale, bias)
            )
        if rule.norm == "centring":
            # the part that centres is linear: z[o, i] = (δ[o, i] − 1/D) x[i]
            c1, _ = rule.share(relevance, centred, None)
            return self.settle(rule, relevance, x * (c1 - c1.mean(-1, keepdim=True)))
        # the deviation is a constant, so the norm is a linear map of x with the slopes of this row
        steep = scale * (variance + self.epsilon).rsqrt()
        absolutes = None
        if rule.share.absolute:
            both = x.abs()
            absolutes = (
                # Σ_i |z[o, i]|: x[o] has the slope 1 − 1/D, all others −1/D: summed by hand, nothing of D × D is built
                steep.abs() * ((1 - 2 / size) * both + both.mean(-1, keepdim=True)) + bias.abs()
            )
        c1, c2 = rule.share(relevance, out, absolutes)
        steep1 = c1 * steep
        found = x * (steep1 - steep1.mean(-1, keepdim=True))
        if c2 is not None:
            steep2 = c2 * steep.abs()
            found = found + x.abs() * ((1 - 2 / size) * steep2 + steep2.mean(-1, keepdim=True))
        return self.settle(rule, relevance, found)

    def jacobian(
        self,
        rule: Rule,
        relevance: Tensor,
        x: Tensor,
        centred: Tensor,
        variance: Tensor,
        scale: Tensor,
        bias: Tensor,
    ) -> Tensor:
        """Impacts z[o, i] = β[o]/D + γ[o] ((δ[o, i] − 1/D)/√v − c[o] c[i] (v + ε)^(−3/2)/D) x[i], c = x − mean.

        As in the released code, the first root is of the bare variance.
        """
        size = x.shape[-1]
        # a constant row has no deviation
        root = variance.clamp_min(torch.finfo(x.dtype).tiny).rsqrt()
        curve = (variance + self.epsilon).pow(-1.5) / size
        sums = bias + scale * centred * (root - curve * centred.square().sum(-1, keepdim=True))
        if rule.share.absolute:
            c = centred.flatten(0, -2)
            inputs = x.flatten(0, -2)
            roots = root.flatten(0, -2)
            curves = curve.flatten(0, -2)

            def absolute(rows: slice) -> Tensor:
                impact = torch.einsum("no,ni->noi", -curves[rows] * c[rows], c[rows])
                impact -= roots[rows, :, None] / size
                impact.diagonal(dim1=1, dim2=2).add_(roots[rows])
                impact *= scale[:, None]
                impact *= inputs[rows, None, :]
                return impact.add_(bias[:, None] / size).abs_()

            found, c1 = self.dense(rule, relevance, sums, absolute)
        else:
            c1, _ = rule.share(relevance, sums, None)
            found = torch.zeros_like(x)
        steep = c1 * scale
        direct = root * (steep - steep.mean(-1, keepdim=True)) - curve * centred * (
            steep * centred
        ).sum(-1, keepdim=True)
        return found + x * direct + (c1 @ (bias / size))[..., None]


@dataclass
class RootMeanSquareNorm(Rows):
    """out = γ x / √(mean x² + ε). Prop. 3.4 of Achtibat et al. 2024: with the root held fixed, relevance passes."""

    scale: Tensor | None = None
    epsilon: float = 1e-6
    absorber: ClassVar[Absorber] = "norm"

    def propagate(self, rule: Rule, relevance: Tensor) -> tuple[Tensor, ...]:
        # without a mean, every output has one input
        if rule.norm != "jacobian":
            return (relevance,)
        x = self.x.to(relevance.dtype)
        scale = x.new_ones(x.shape[-1]) if self.scale is None else self.scale.to(x.dtype)
        # 1 / rms
        root = (x.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()
        curve = (
            root.square() * x.square() / x.shape[-1]
        )  # z[o, i] = γ[o] x[o] / rms · (δ[o, i] − curve[i])
        direct = scale * x * root
        absolutes = (
            direct.abs() * (1 - 2 * curve + curve.sum(-1, keepdim=True))
            if rule.share.absolute
            else None
        )
        c1, c2 = rule.share(relevance, direct * (1 - curve.sum(-1, keepdim=True)), absolutes)
        # Σ_o c1[o] z[o, i] = part[i] − curve[i] Σ_o part[o]
        part = c1 * direct
        found = part - curve * part.sum(-1, keepdim=True)
        if c2 is not None:
            part = c2 * direct.abs()
            found = found + part * (1 - 2 * curve) + curve * part.sum(-1, keepdim=True)
        return self.settle(rule, relevance, found)


@dataclass
class Addition(RecordedOperation):
    """out = a + b, or a plus a constant that absorbs its share. `operands`: those that carry relevance come first."""

    operands: tuple[Tensor, Tensor]
    carried: int
    absorber: ClassVar[Absorber] = "bias"

    def propagate(self, rule: Rule, relevance: Tensor) -> tuple[Tensor, ...]:
        a = self.operands[0].to(relevance.dtype)
        b = self.operands[1].to(relevance.dtype)
        # two operands need no tensor of impacts: the signs of a and b say which are positive
        if isinstance(rule.share, AlphaBeta):
            a_above, a_below = a.clamp(min=0), a.clamp(max=0)
            b_above, b_below = b.clamp(min=0), b.clamp(max=0)
            positive, negative = rule.share.parts(relevance, a_above + b_above, a_below + b_below)
            of_a = positive * a_above + negative * a_below
            of_b = positive * b_above + negative * b_below
        else:
            c1, _ = rule.share(relevance, a + b, None)
            of_a = c1 * a
            of_b = c1 * b
        # a constant keeps its share: it is absorbed
        parts = [of_a, of_b][: self.carried]
        if rule.rescale:
            scaled = rescaled(rule, relevance, *parts, axes=relevance.dim() - 1)
            parts = []
            for part in scaled:
                size = absolute_relevance(part)
                parts.append(part * (size / (size + rule.share.epsilon)))
        operands = self.operands[: self.carried]
        return tuple(
            unbroadcast(part, operand.shape) for part, operand in zip(parts, operands, strict=True)
        )


@dataclass
class Product(RecordedOperation):
    """out = a · b, both carrying relevance: half each (Prop. 3.2 of Achtibat et al. 2024; shares by Jacobian agree)."""

    operands: tuple[Tensor, Tensor]

    def propagate(self, rule: Rule, relevance: Tensor) -> tuple[Tensor, ...]:
        return tuple(unbroadcast(relevance / 2, operand.shape) for operand in self.operands)


@dataclass
class Recurrence(RecordedOperation):
    """c_t = keep_t c_{t−1} + (1 − keep_t) new_t from a state of zero (an SSRU), B T W. Gates are constants, as in Arras
    et al. 2017, section 3.1: so c is linear in `new`, and none arrives at the gates."""

    keep: Tensor
    new: Tensor
    out: Tensor

    def propagate(self, rule: Rule, relevance: Tensor) -> tuple[Tensor | None, ...]:
        keep = self.keep.detach().to(relevance.dtype)
        new = self.new.detach().to(relevance.dtype)
        # keep and 1 − keep are never negative, so |z| runs through the same recurrence
        # Σ |z| of each state
        absolutes = recur(keep, new.abs(), torch.zeros_like(new[:, 0]))
        c1, c2 = rule.share(relevance, self.out.detach().to(relevance.dtype), absolutes)
        found = new * self.back(keep, c1)
        if c2 is not None:
            found = found + new.abs() * self.back(keep, c2)
        if rule.rescale:
            (found,) = rescaled(rule, relevance, found)
        return None, found

    def back(self, keep: Tensor, c: Tensor) -> Tensor:
        """(1 − keep_s) Σ_t c_t Π keep_r, over t from s on and r between them: P B T W."""
        later = torch.zeros_like(c[:, :, 0])
        found = []
        for place in reversed(range(keep.shape[1])):
            later = later + c[:, :, place]
            found.append((1 - keep[:, place]) * later)
            # what a step keeps of the state before it, its inputs share in
            later = later * keep[:, place]
        return torch.stack(found[::-1], 2)


@dataclass
class Passing(RecordedOperation):
    """Relevance passes unchanged, element by element: activations (Ding et al. 2017; eq. 9 of Achtibat et al. 2024),
    scaling by a constant, dropout in evaluation mode."""

    shape: torch.Size

    def propagate(self, rule: Rule, relevance: Tensor) -> tuple[Tensor, ...]:
        return (unbroadcast(relevance, self.shape),)


@dataclass
class Reshaping(RecordedOperation):
    """The same numbers in the same order under another shape."""

    shape: torch.Size

    def propagate(self, rule: Rule, relevance: Tensor) -> tuple[Tensor, ...]:
        return (relevance.reshape(relevance.shape[0], *self.shape),)


@dataclass
class Moving(RecordedOperation):
    """Elements that were selected, permuted, joined or repeated: relevance goes back to their sources."""

    function: Callable[..., Tensor]  # from inputs that carry relevance to one output
    inputs: tuple[Tensor, ...]

    def propagate(self, rule: Rule, relevance: Tensor) -> tuple[Tensor, ...]:
        inputs = tuple(x.detach().to(relevance.dtype) for x in self.inputs)
        # moving is linear, so its transpose is its gradient
        # the product with the transposed Jacobian, which here has only zeros and ones
        back = torch.func.vjp(self.function, *inputs)[1]
        found: tuple[Tensor, ...] = torch.vmap(back)(relevance)
        return found
