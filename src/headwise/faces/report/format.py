"""Numbers as a reader wants them: signs, per cent, sizes, durations, and the names of attention kinds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headwise.core.heads import KINDS, Kind
from headwise.core.qualities import NO_BREAK
from headwise.importance.measures import facts

KIND_NAMES = {
    "encoder-self": "encoder self-attention",
    "decoder-self": "decoder self-attention",
    "cross": "cross-attention",
}
HEADS_OF_KIND = {
    "encoder-self": "encoder heads",
    "decoder-self": "decoder heads",
    "cross": "cross-attention heads",
}
NONE = "–"


def kinds_among(names: Iterable[object]) -> list[Kind]:
    """The kinds of heads among some names, each once: the encoder's, the decoder's, cross-attention."""
    known = set(names)
    return [kind for kind in KINDS if kind in known]


def signed(value: float, digits: int = 2) -> str:
    """With a real minus sign, and a plus: `−0.31`, `+0.08`; a zero has no sign."""
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return f"{'−' if value < 0 else '+'}{text}"


def number(value: float, scale: float, more: int = 0) -> str:
    """With as many decimals as show two digits of `scale`, and `more`: 0.0023 on a scale to 0.05 is `0.002`."""
    place = math.floor(math.log10(scale)) if scale > 0 else 0
    decimals = max(0, 1 - place) + more
    minus = "−" if value < 0 else ""
    if decimals - more > 5:
        # Nobody counts so many zeros behind the point.
        return f"{minus}{abs(value):.{1 + more}e}".replace("e-", "e−")
    text = f"{abs(value):.{decimals}f}"
    # A small negative number may be rounded to 0, which has no minus.
    return f"{minus}{text}" if float(text) else text


def percent(share: float, digits: int = 0) -> str:
    """A share as per cent: 0.62 is `62 %`."""
    return f"{100 * share:.{digits}f}{NO_BREAK}%"


def percent_change(before: float, after: float) -> str:
    """The change of a number in per cent: `−3.2 %`; `n/a` where it starts at 0."""
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


def probability(p: float) -> str:
    """A p value: two digits, three below 0.1, and never a false zero."""
    if p < 0.001:
        return "< 0.001"
    return f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def probability_fact(p: float) -> str:
    """`p = 0.14`, `p < 0.001`."""
    return f"p\u00a0{'' if p < 0.001 else '= '}{probability(p)}"


def interval_text(
    low: float | None, high: float | None, write: Callable[[float], str] = signed
) -> str:
    """`[−0.71, +0.11]`, or nothing where there is no interval. write: writes its ends."""
    # A Number that lacks an interval has None, a row of a table NaN.
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return ""
    return f"[{write(low)}, {write(high)}]"


def estimate(
    row: Mapping[Any, Any], write: Callable[[float], str] = signed, join: str = " "
) -> str:
    """The value of a row with its interval, where it has one: `0.84 [0.81, 0.87]`."""
    return join.join(
        filter(None, [write(row["value"]), interval_text(row["low"], row["high"], write)])
    )


def two_decimals(value: float) -> str:
    """A score of a role, a share: `0.84`."""
    return f"{value:.2f}"


def thousandths(value: float) -> str:
    """A loss in thousandths of a nat: `+31.0`."""
    return signed(1000 * value, 1)


def measure_name(measure: str) -> str:
    """A measure as a reader says it: `lrp.ding.pooled` is `LRP-Ding, pooled`, `-entropy` is `entropy, low first`."""
    low_first = measure.startswith("-")
    name = measure.removeprefix("-")
    declared = facts(name)
    # The script that declared a measure need not be there when its run is read.
    title = name.replace("-", " ") if declared.name == "undeclared" else declared.title
    return f"{title}, low first" if low_first else title


def count(number: int, what: str) -> str:
    """`1 head`, `4 heads`; of a word that takes another plural: `1 study`, `4 studies`."""
    if number == 1:
        return f"1 {what}"
    return f"{number} {what[:-1]}ies" if what.endswith("y") else f"{number} {what}s"


def capital(text: str) -> str:
    """With a capital first letter; the rest stays as it is."""
    return text[:1].upper() + text[1:]


def listed(items: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else "".join(items)


def flat_settings(value: Any, name: str = "") -> dict[str, str]:
    """Nested settings as names with dots; tables of a list by their own name, or their number."""
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        # By name, so that sweeps in another order are no difference.
        value = {one.get("name", at): one for at, one in enumerate(value)}
    if isinstance(value, dict):
        flat: dict[str, str] = {}
        for key, below in value.items():
            flat |= flat_settings(below, f"{name}.{key}" if name else str(key))
        return flat
    if value is None:
        return {}
    return {name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}
