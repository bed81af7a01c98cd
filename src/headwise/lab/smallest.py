"""The smallest set of heads without which the output is another one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headwise.attention import evaluating
from headwise.errors import HeadwiseError
from headwise.heads import Head
from headwise.lab.bench import Bench, refuse_nobody
from headwise.lab.changes import Ablation, Check
from headwise.progress import Report, silent


def smallest(
    bench: Bench,
    text: str,
    gates: Mapping[str, float] | None = None,
    ablation: Ablation = "zero",
    beam: int = 5,
    place: int | None = None,
    begun: Sequence[str] = (),
    steps: int | None = None,
    check: Check = refuse_nobody,
    progress: Report = silent,
) -> dict[str, Any]:
    """A small set of heads that changes the output when it is switched off, on top of the gates given.

    Greedy: each step switches off the head that lowers the output's log-probability most; once the output is another
    one, each head that is not needed is switched on again. No head of the set can be spared, but another set may be
    smaller. found: False where the output stays even without any head.

    steps: the most steps that are made; where they did not suffice, the answer says `unfinished`, and another call with
    its heads as `begun` goes on: so a notebook can stop in between.
    """
    if bench.task == "embedding":
        raise HeadwiseError(
            "This model writes no output that could change: look at the similarity instead."
        )
    began, first = time.perf_counter(), bench.gates(gates or {})
    with evaluating(bench.model.hf), torch.no_grad():
        base = bench.base(text, beam, place, check)
        base = replace(base, columns=tuple(column for column in base.columns if column.counted))

        def output_with(vector: Tensor) -> str:
            return bench.written(base, vector, ablation, beam, check)

        start, now = output_with(first), bench.gates({**(gates or {}), **dict.fromkeys(begun, 0.0)})
        chosen = [bench.heads.index(Head.parse(name)) for name in begun]
        output = output_with(now) if chosen else start
        while output == start and bool((now > 0).any()):
            if len(chosen) - len(begun) == steps:
                return {"unfinished": True, "heads": [str(bench.heads[head]) for head in chosen]}
            note = f"{len(chosen)} heads off, trying the next"
            values = bench.without_each(
                base, now, ablation, check, lambda share, _, note=note: progress(share, note)
            )  # type: ignore[misc]
            cost = values.sum(1)
            cost[now == 0] = math.inf
            chosen.append(int(cost.argmin()))
            now[chosen[-1]] = 0
            output = output_with(now)
        if output != start:
            now, chosen, output = spared(now, first, chosen, start, output, output_with)
    return {
        "heads": [str(bench.heads[head]) for head in chosen],
        "found": output != start,
        "before": start,
        "after": output,
        "seconds": time.perf_counter() - began,
    }


def spared(
    now: Tensor,
    first: Tensor,
    chosen: list[int],
    start: str,
    output: str,
    output_with: Callable[[Tensor], str],
) -> tuple[Tensor, list[int], str]:
    """Switch heads on again, one after the other, as long as the output stays another one than `start`."""
    for head in chosen if len(chosen) > 1 else ():
        again = now.clone()
        again[head] = first[head]
        if (other := output_with(again)) != start:
            rest = [one for one in chosen if one != head]
            return spared(again, first, rest, start, other, output_with)
    return now, chosen, output
