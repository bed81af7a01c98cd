"""Numbers as a reader wants them: signs, per cent, sizes, durations, and the names of attention kinds."""

from __future__ import annotations

from collections.abc import Sequence

KIND_NAMES = {
    "encoder-self": "encoder self-attention",
    "decoder-self": "decoder self-attention",
    "cross": "cross-attention",
}
HEADS_OF_KIND = {"encoder-self": "encoder heads", "decoder-self": "decoder heads", "cross": "cross-attention heads"}
NO_BREAK = "\u202f"


def signed(value: float, digits: int = 2) -> str:
    """With a real minus sign, and a plus: `−0.31`, `+0.08`; a zero has no sign."""
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return f"{'−' if value < 0 else '+'}{text}"


def percent(share: float, digits: int = 0) -> str:
    """A share as per cent: 0.62 is `62 %`."""
    return f"{100 * share:.{digits}f}{NO_BREAK}%"


def change(before: float, after: float) -> str:
    """What became of a number, in per cent of it: `−3.2 %`; without a number to start from, `n/a`."""
    return f"{signed(100 * (after - before) / before, 1)}{NO_BREAK}%" if before else "n/a"


def quantity(value: float) -> str:
    """A count for reading: `9,472,512` below ten million as it is, above as `12.3 million`."""
    return f"{value:,.0f}" if abs(value) < 1e7 else f"{value / 1e6:,.1f}{NO_BREAK}million"


def size(count: float) -> str:
    """Bytes in decimal units: `37.9 MB`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f}{NO_BREAK}{unit}"
    return f"{count:.0f}{NO_BREAK}bytes"


def duration(seconds: float) -> str:
    """`48 s`, `5 min 12 s`, `2 h 7 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def probability(p: float) -> str:
    """A p value: two digits, three below 0.1, and never a false zero."""
    if p < 0.001:
        return "< 0.001"
    return f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def interval(low: float | None, high: float | None) -> str:
    """`[−0.71, +0.11]`, or nothing where there is no interval."""
    return "" if low is None or high is None else f"[{signed(low)}, {signed(high)}]"


def listed(items: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)
