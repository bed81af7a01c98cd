"""λ that a sweep gets between those of its plan (`refine`): which were filled in before, and which is the next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from headwise.study.stage import RunFolder
from headwise.study.sweep import Pruning, titled


def filled_before(run: RunFolder, sweep: Pruning) -> list[float]:
    """λ that the plan does not name, but this run has made (or has failed to make), in ascending order.

    They are told by their names, which hold them whole: `steepest` gives them three digits.
    """
    start = titled(sweep, "lambda-")
    records = [run.place(f"prune/{start}*"), run.failed(f"prune/{start}*")]
    paths = [path for record in records for path in record.parent.glob(record.name)]
    found = {number(path.stem.removeprefix(f"prune.{start}")) for path in paths}
    named = {f"{penalty:g}" for penalty in sweep.penalties}
    return sorted(penalty for penalty in found if penalty is not None and f"{penalty:g}" not in named)


def number(text: str) -> float | None:
    """A λ as it stands in a name; None for what is none, such as `0.02.random`."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if float(f"{value:.3g}") == value else None


def steepest(points: Mapping[float, tuple[int, float]], taken: Sequence[float] = ()) -> float | None:
    """The λ in the middle (of the logarithms) of the two neighbours between which BLEU changes most; neighbours with
    no number of heads between them are left alone, and so are λ that were tried. points: heads kept and BLEU by λ."""
    order = sorted(points)
    gaps = {
        (low, high): abs(points[high][1] - points[low][1])
        for low, high in pairwise(order)
        if abs(points[high][0] - points[low][0]) > 1
    }
    for low, high in sorted(gaps, key=lambda gap: -gaps[gap]):
        middle = float(f"{math.sqrt(low * high) if low > 0 else high / 2:.3g}")
        if f"{middle:g}" not in {f"{penalty:g}" for penalty in taken}:
            return middle
    return None
