"""Halves of a text: documents stay whole, both halves are about as large, and the seed decides between equal ones."""

from __future__ import annotations

import random

import pytest

from headwise.roles.halves import SMALLEST, halve, halves_of

# The documents of the first 120 sentences of EWT dev. By a hash of their names 9 sentences are in one half.
EWT = [20, 18, 16, 14, 12, 10, 9, 6, 5, 5, 5]


def documents(sizes: list[int]) -> list[str]:
    names: list[str] = []
    for number, size in enumerate(sizes):
        names += [f"document {number}"] * size
    return names


@pytest.mark.parametrize("sizes", [EWT, [1] * 121, [30, 1, 1, 1, 27], [60, 20]])
def test_halves_are_about_as_large_and_documents_are_whole(sizes: list[int]) -> None:
    names = documents(sizes)
    halves, block = halve(names, seed=3)
    assert sorted(set(halves)) == [0, 1] and block is None
    difference = abs(halves.count(0) - halves.count(1))
    assert difference <= max(2 * max(sizes) - sum(sizes), min(sizes))
    half_of_document = dict(zip(names, halves, strict=True))
    assert halves == [half_of_document[name] for name in names] == halves_of(names, 3)


def test_the_order_of_the_text_and_other_documents_of_a_seed() -> None:
    names = documents([3] * 40)
    halves = dict(zip(names, halves_of(names), strict=True))
    mixed = random.Random(0).sample(names, len(names))
    assert dict(zip(mixed, halves_of(mixed), strict=True)) == halves
    assert dict(zip(names, halves_of(names, 1), strict=True)) != halves


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([7], [0, 1, 0, 1, 0, 1, 0]), ([40], ([0] * 4 + [1] * 4) * 5), ([210], None), ([90, 9], None)],
)
def test_blocks_alternate_where_one_document_is_nearly_the_whole_text(
    sizes: list[int], expected: list[int] | None
) -> None:
    names = documents(sizes)
    halves, block = halve(names)
    assert block is not None and 1 <= block <= 10
    assert min(halves.count(0), halves.count(1)) >= SMALLEST * len(names)
    assert halves == [number // block % 2 for number in range(len(names))]
    if expected is not None:
        assert halves == expected
