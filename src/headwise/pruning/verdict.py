"""What a pruned model is worth, as data: what was found, what is saved, and whether the numbers allow to ship it.

The rule reads numbers alone, so that it can be tried without a sentence; `faces/report/summary.py` has the words. Two
things are told apart. The finding is the change of quality with its interval. The outcome is what follows for somebody
who wants to use the model: nothing does while the interval reaches past the limit, or the text is too short to tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from headwise.core.measured import UNPRUNED, ModelNumbers, is_within
from headwise.core.qualities import (
    BETTER,
    NOT_DISTINGUISHABLE,
    WORSE,
    Number,
    QualityMeasure,
)
from headwise.core.statistics import ENOUGH_SENTENCES, units_for_share

# Share of the weights or the cache: saving less, a model that is no faster is of little use.
LEAST_SAVING = 0.1
SPEED = "tokens_per_second"
SAVINGS = ("parameters", "cache_bytes")  # the larger saving of both counts


class Outcome(StrEnum):
    """What follows from the numbers, in the order in which the rule asks."""

    NOT_COMPARED = "there is no comparison with an interval"
    NO_BASIS = "the full model is too poor for differences to mean anything"
    TOO_DEAR = "it surely loses a larger share than it saves"
    WORSE_AND_LITTLE_SAVED = "it is surely worse, and saves little"
    OVER_LIMIT = "it surely loses more than the limit"
    DOUBTED = "something speaks against the model"
    TOO_SHORT = "the text is too short to tell"
    UNDECIDED = "the interval reaches past the limit"
    OPEN = "no limit holds on this text, and it may be worse"
    LITTLE_SAVED = "it saves little"
    SHIP = "it is better, or stays within the limit"


class Speed(StrEnum):
    """How two speeds compare, by the ranges of their rounds."""

    NOT_MEASURED = "not measured"
    ONCE = "measured in one round only"
    SAME = "the ranges over the rounds overlap"
    FASTER = "faster"
    SLOWER = "slower"


@dataclass(frozen=True)
class Verdict:
    """What the rule found.

    reference, change: the comparison that leads, to equal further training or to the full model. finding: one of
    FINDINGS (core/qualities.py), empty without an interval. least_loss, most_loss: what is lost by both ends of the
    interval, in the unit of the change; with a limit, each is the larger one of the two comparisons. within, over: the
    splits (dev, test) on which the loss is within the limit, or over it. texts: how many sentences the change is measured
    on; needed: how many the limit needs, infinite where no number would do, None where no limit holds on this text.
    saving: of SAVINGS the largest, empty without one; saved: its share. speed_up: the share by which it is faster.
    doubts: sentences on the model.
    """

    outcome: Outcome
    reference: str
    change: Number
    finding: str
    least_loss: float
    most_loss: float
    limit: float | None
    within: tuple[str, ...]
    over: tuple[str, ...]
    texts: int | None
    needed: float | None
    saving: str
    saved: float
    speed: Speed
    speed_up: float
    doubts: tuple[str, ...]


def verdict_on(
    full: ModelNumbers | None,
    model: ModelNumbers,
    *,
    quality: QualityMeasure,
    quality_on_dev: QualityMeasure,
    split: str,
    limit: float | None = None,
    counts: Mapping[str, int] | None = None,
    doubts: Sequence[str] = (),
) -> Verdict:
    """The verdict on a model. full: the numbers of the one before pruning; None where it was not measured. quality, split:
    what and which text is reported. quality_on_dev: what models are compared by on dev; the limit is in its unit.
    limit: what may be lost. counts: how many sentences each split has. doubts: what speaks against the model."""
    full = ModelNumbers() if full is None else full
    reference, change = model.leading_change(quality.name, split)
    finding = change.finding(quality)
    # A limit in BLEU says nothing of agreement with own translations: where dev has another measure than the text that is
    # reported, the limit holds on dev alone.
    limited = limit is not None and quality == quality_on_dev
    # The limit counts from the full model; what equal further training would have gained is lost, too.
    changes = [change]
    if limited and reference != UNPRUNED:
        changes.append(model.of(quality.name, split, UNPRUNED))
    ends = [ends_of_loss(one, quality) for one in changes if one.has_interval]
    least, most = map(max, zip(*ends, strict=True)) if ends else (0.0, math.inf)
    lost = losses(full, model, quality, quality_on_dev, split)
    saved, saving = largest_saving(full, model)
    speed, speed_up = compared_speed(full.of(SPEED), model.of(SPEED))
    base = full.of(quality.name, split).value
    texts = (counts or {}).get(split)
    if texts is None and change.units is not None:
        texts = round(change.units)
    # A loss within its limit was agreed to: it need not pay for itself. Without a limit none was. The limit holds on dev,
    # by which the model was chosen, and on the text that is reported, as far as its interval is sure.
    agreed_to = limit is not None and "dev" in lost and is_within(lost["dev"], limit)
    if limited:
        agreed_to = agreed_to and is_within(least, limit)
    # A change in % is a share already. Where the full model's quality is not known, the loss counts as no share of it.
    whole = 100 if quality.relative else (base or math.inf)
    share_lost = least / whole
    # Twice as fast is half of the time.
    time_saved = 1 - 1 / (1 + speed_up) if speed == Speed.FASTER else 0.0
    saving_was_measured = bool(saving) or speed not in (Speed.NOT_MEASURED, Speed.ONCE)
    saves_little = saving_was_measured and saved < LEAST_SAVING and speed != Speed.FASTER

    def what_follows() -> Outcome:
        """The first that is true, in the order of Outcome."""
        if not finding:
            return Outcome.NOT_COMPARED
        if base is not None and quality.is_too_low(base):
            return Outcome.NO_BASIS
        # What is not within a limit has to save something for what it surely loses.
        if finding == WORSE and not agreed_to and saving_was_measured:
            if share_lost > max(saved, time_saved):
                return Outcome.TOO_DEAR
            if saves_little:
                return Outcome.WORSE_AND_LITTLE_SAVED
        # Of the text that is reported; the loss on dev was asked for when the model was chosen.
        if limited and not is_within(least, limit):
            return Outcome.OVER_LIMIT
        if doubts:
            return Outcome.DOUBTED
        if texts is not None and texts < ENOUGH_SENTENCES:
            return Outcome.TOO_SHORT
        if limited and not is_within(most, limit):
            return Outcome.UNDECIDED
        # Without a limit on this text only a model that is surely better is no loss.
        if not limited and finding != BETTER:
            return Outcome.OPEN
        return Outcome.LITTLE_SAVED if saves_little else Outcome.SHIP

    return Verdict(
        outcome=what_follows(),
        reference=reference,
        change=change,
        finding=finding,
        least_loss=least,
        most_loss=most,
        limit=limit,
        within=tuple(text for text in lost if limit is not None and is_within(lost[text], limit)),
        over=tuple(text for text in lost if not is_within(lost[text], limit)),
        texts=texts,
        needed=texts_needed(changes, quality, limit, texts)
        if limited and limit is not None
        else None,
        saving=saving,
        saved=saved,
        speed=speed,
        speed_up=speed_up,
        doubts=tuple(doubts),
    )


def ends_of_loss(change: Number, quality: QualityMeasure) -> tuple[float, float]:
    """What is lost at least and at most, by the ends of the interval of a change; below 0 where something is gained."""
    assert change.low is not None and change.high is not None
    least, most = change.low, change.high
    if quality.higher_is_better:
        least, most = -change.high, -change.low
    # p may doubt what the interval leaves out: then nothing is surely lost.
    if change.finding(quality) == NOT_DISTINGUISHABLE:
        least = min(least, 0.0)
    return least, most


def losses(
    full: ModelNumbers,
    model: ModelNumbers,
    quality: QualityMeasure,
    quality_on_dev: QualityMeasure,
    split: str,
) -> dict[str, float]:
    """What a model loses on dev and on the reported text, in the unit of the limit, as far as it was measured there in
    the measure of dev."""
    found = {}
    for text in dict.fromkeys(("dev", split)):
        before = full.of(quality_on_dev.name, text).value
        after = model.of(quality_on_dev.name, text).value
        comparable = text == "dev" or quality == quality_on_dev
        if before is not None and after is not None and comparable:
            found[text] = -quality_on_dev.better * quality_on_dev.change(before, after)
    return found


def largest_saving(full: ModelNumbers, model: ModelNumbers) -> tuple[float, str]:
    """The share that a model saves of its weights, or of its key/value cache if that is more, and which it is."""
    shares = [(0.0, "")]
    for measure in SAVINGS:
        before, after = full.of(measure).value, model.of(measure).value
        if before and after is not None:
            shares.append((1 - after / before, measure))
    # The first of equal ones; a model that saves nothing has a saving of 0 of its weights.
    return max(shares[1:] or shares, key=lambda share: share[0])


def compared_speed(before: Number, after: Number) -> tuple[Speed, float]:
    """How a speed compares with another one, and by which share it is above it."""
    if not before.value or after.value is None:
        return Speed.NOT_MEASURED, 0.0
    share = after.value / before.value - 1
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return Speed.ONCE, share
    if before.low == before.high or after.low == after.high:  # a single round is its own range
        return Speed.ONCE, share
    if after.low <= before.high and before.low <= after.high:
        return Speed.SAME, share
    return (Speed.FASTER if share > 0 else Speed.SLOWER), share


def texts_needed(
    changes: Sequence[Number], quality: QualityMeasure, limit: float, texts: int | None = None
) -> float:
    """About how many texts it takes until the interval ends at the limit, if the change stays as it is. Infinite where it
    is at the limit already, so that no number would do. texts: how many it was measured on, of which an interval may
    count fewer: texts differ in length.

    The way from a change to the end of its interval shrinks as 1 / √n with n texts. Where a share is measured (accuracy)
    and no text has changed it shrinks as 1 / n (`units_for_share`): no fewer texts are enough, whatever changes.
    """
    needed: float = ENOUGH_SENTENCES
    if quality.is_share:
        # Of a limit of 0 no number of texts is sure: it counts as a thousandth of a point.
        needed = max(needed, units_for_share(min(1.0, max(limit, 1e-3) / 100)))
    for change in changes:
        if not change.has_interval or change.units is None or change.value is None:
            continue
        lost = -quality.better * change.value
        _, most = ends_of_loss(change, quality)
        if is_within(most, limit):
            continue
        if lost >= limit:
            return math.inf
        # Where no text has changed, the number above is all that is needed.
        if not (quality.is_share and change.value == 0 and change.p == 1):
            ratio = (most - lost) / (limit - lost)
            needed = max(needed, math.ceil((texts or change.units) * ratio**2))
    return needed
