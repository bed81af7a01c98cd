"""What a model does worse without a head, and how that is said: what a role of a language model is for, and lost words.

This module needs no torch: reports say what `roles.causal` and `roles.lost_words` measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwise.core.result import ends

FALSE_WORDS = 0.05  # at most this share of the words that are confirmed is false, on average


@dataclass(frozen=True)
class Behaviour:
    """What a model predicts on a text that asks for some roles.

    unit: of what is lost. sign: 1 of a loss, which is higher
    when the model predicts worse; −1 of a logit difference, which is lower.
    """

    name: str
    unit: str
    sign: int = 1


BEHAVIOURS = {  # by text (`roles.causal.BATCHES`)
    "repeats": Behaviour("loss of repeated tokens", "nats per token"),
    "names": Behaviour("logit difference of IO and S", "logits", sign=-1),
    "needle": Behaviour("loss of the answer", "nats per token"),
}
NAMED = {behaviour.name: behaviour for behaviour in BEHAVIOURS.values()}


def effect_sentence(row: Mapping[Any, Any]) -> str:
    """A row of `causal_effects` in words: `confirmed: switching it off raises the loss of the answer from 0.28 to 4.08
    nats per token (+3.80 [+3.20, +4.50])`."""
    verdict = "confirmed" if row["confirmed"] == 1 else "not confirmed"
    change, low, high = change_without(row)
    verb = "raises" if change > 0 else "lowers"
    before = row["with_all"]
    moved = f"{row['behaviour']} from {before:.2f} to {before + change:.2f}"
    unit = NAMED[row["behaviour"]].unit
    text = f"{verdict}: switching it off {verb} the {moved} {unit} ({change:+.2f} {ends(low, high, '+.2f')})"
    return text.replace("-", "−")


def change_without(row: Mapping[Any, Any]) -> tuple[float, float, float]:
    """The change of the behaviour of a row of `causal_effects` with the head off, and the ends of its interval: of a
    head that is of use, a loss rises and a logit difference falls."""
    sign = NAMED[row["behaviour"]].sign
    low, high = sorted([sign * row["low"], sign * row["high"]])
    return sign * row["value"], low, high
