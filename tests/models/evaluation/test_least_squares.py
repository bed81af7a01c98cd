"""Least squares from sums over tokens, against the same on the stacked rows."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from headwise.models.evaluation.least_squares import Moments, held_out_fit, without_blocks

WIDE = torch.float64


def rows(tokens: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Features of 6 numbers, targets of 3, and how much each token counts."""
    draw = torch.Generator().manual_seed(seed)
    features = torch.randn(tokens, 6, generator=draw, dtype=WIDE)
    features[:, 4] += features[:, 0]  # not independent
    mixed = torch.randn(6, 3, generator=draw, dtype=WIDE)
    targets = features @ mixed + 0.3 * torch.randn(tokens, 3, generator=draw, dtype=WIDE) + 1.0
    return features, targets, torch.rand(tokens, generator=draw, dtype=WIDE) + 0.1


def moments_of(features: Tensor, targets: Tensor, weights: Tensor, constant: bool) -> Moments:
    moments = Moments.empty(features.shape[1], targets.shape[1], constant)
    for part in torch.arange(len(features)).split(7):
        moments.add(features[part], targets[part], weights[part])
    return moments


def stacked(features: Tensor, weights: Tensor, constant: bool) -> Tensor:
    ones = features.new_ones(len(features), int(constant))
    return torch.cat([features, ones], 1) * weights[:, None]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("strength", [1e-6, 1e-1])
def test_the_fit_is_that_of_the_stacked_rows(constant: bool, strength: float) -> None:
    features, targets, weights = rows(40)
    moments = moments_of(features, targets, weights, constant)
    start = torch.randn(6 + constant, 3, dtype=WIDE, generator=torch.Generator().manual_seed(3))
    found = moments.fitted(start, strength)
    # The ridge as rows of their own: √r (W − start) = 0.
    ridge = torch.diag(moments.ridges(strength).sqrt())
    matrix = torch.cat([stacked(features, weights, constant), ridge])
    wanted = torch.cat([targets * weights[:, None], ridge @ start])
    assert torch.allclose(found, torch.linalg.lstsq(matrix, wanted).solution, atol=1e-9)
    lost = stacked(features, weights, constant) @ found - targets * weights[:, None]
    assert moments.missed(found) == pytest.approx(float(lost.square().sum()))
    assert moments.tokens == 40


def test_what_is_right_already_stays() -> None:
    features, _, weights = rows(40)
    start = torch.randn(6, 3, dtype=WIDE)
    moments = moments_of(features, features @ start, weights, False)
    assert torch.allclose(held_out_fit(moments, moments, start)[1], start, atol=1e-12)


def test_the_held_out_tokens_choose() -> None:
    """Held-out tokens of another world, where the start is right: nothing moves."""
    features, targets, weights = rows(40)
    start = torch.randn(6, 3, dtype=WIDE)
    held = moments_of(features, features @ start, weights, False)
    assert held_out_fit(moments_of(features, targets, weights, False), held, start)[1] is start


@pytest.mark.parametrize("constant", [False, True])
def test_features_without_a_number_other_than_zero(constant: bool) -> None:
    """Dead heads: their weights stay as they are."""
    features, targets, weights = rows(20)
    features[:, 2:] = 0
    start = torch.randn(6 + constant, 3, dtype=WIDE)
    moments = moments_of(features, targets, weights, constant)
    assert torch.allclose(moments.fitted(start, 1e-3)[2:6], start[2:6])
    nothing = moments_of(torch.zeros_like(features), targets, weights, constant)
    assert torch.allclose(nothing.fitted(start, 1e-3)[:6], start[:6])


@pytest.mark.parametrize("constant", [False, True])
def test_backward_removal_fits_every_subset_again(constant: bool) -> None:
    """The slow way: at each step every smaller subset is fitted anew."""
    features, targets, weights = rows(60)
    moments = moments_of(features, targets, weights, constant)
    ridge = torch.diag(moments.ridges(1e-3))
    size = 2

    def fitted(blocks: tuple[int, ...]) -> tuple[float, Tensor]:
        index = [block * size + place for block in blocks for place in range(size)]
        index += [6] * constant
        part = torch.tensor(index, dtype=torch.long)
        solved = torch.linalg.solve((moments.gram + ridge)[part][:, part], moments.cross[part])
        whole = torch.zeros_like(moments.cross)
        whole[part] = solved
        return moments.square - float((solved * moments.cross[part]).sum()), whole

    left: tuple[int, ...] = (0, 1, 2)
    found = without_blocks(moments, size, 1e-3)
    gone, error, made = next(found)
    assert gone is None
    for gone, following, made_next in itertools.chain(found):
        expected, block = min((fitted(tuple(b for b in left if b != one))[0], one) for one in left)
        assert gone == block
        left = tuple(b for b in left if b != block)
        assert following == pytest.approx(expected) and following >= error - 1e-9
        assert torch.allclose(made_next, fitted(left)[1], atol=1e-8)
        error, made = following, made_next
    assert left == () and made.shape == moments.cross.shape
