"""Progress of parts as progress of the whole."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from headwise.progress import part, silent
from headwise.study import Progress


def test_parts_of_parts() -> None:
    seen: list[tuple[float, str]] = []
    second = part(lambda share, what: seen.append((share, what)), 0.5, 1.0)
    part(second, 0.0, 0.5)(0.5, "half of the third quarter")
    silent(1.0, "nothing")
    assert seen == [(0.625, "half of the third quarter")]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_long_name_leaves_the_share_and_the_time_on_the_line(width: int) -> None:
    progress, out = Progress(), io.StringIO()
    progress.console = Console(file=out, width=width)
    bars = progress.bars()
    for name in ("train", "prune/encoder-cross.keep-encoder-self-10+cross-12"):
        bars.add_task(name, total=1.0, completed=0.3, note="epoch 3 of 40, loss 3.21, 12 heads are open")
    progress.console.print(bars.get_renderable())
    lines = out.getvalue().splitlines()
    assert len(lines) == 2 and all(" 30% " in line and " left " in line and len(line) <= width for line in lines)
