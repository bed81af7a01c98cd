"""The first screen in plain sentences, made from the numbers: what pruning saved, what it cost, how it was chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headwise.heads import Site
from headwise.report import roles
from headwise.report.faithfulness import in_short
from headwise.report.run import Run
from headwise.report.setting import Setting
from headwise.report.wording import KIND_NAMES, change, interval, listed, percent, probability, quantity, signed, size


@dataclass(frozen=True)
class Tile:
    """One number to see at a glance, and what it stands on."""

    label: str
    value: str
    detail: str


@dataclass(frozen=True)
class Paragraph:
    """A few sentences under a lead word."""

    lead: str
    text: str


@dataclass(frozen=True)
class Summary:
    """The opening of the report."""

    headline: str
    tiles: list[Tile]
    paragraphs: list[Paragraph]


def summarise(run: Run) -> Summary:
    """The opening of the report. Without a chosen pruned model it says so, and tells what there is."""
    full, chosen, judged = run.full, run.chosen, in_short(run)
    last = [Paragraph("Which score to believe", judged)] if judged else []
    does = roles.in_short(run)
    last += [Paragraph("What the heads do", does)] if does else []
    if full is None or chosen is None:
        return Summary(_headline_without_choice(run), [], [Paragraph("Pruning", _why_no_choice(run)), *last])
    paragraphs = [
        Paragraph("What was saved", _saved(full, chosen)),
        Paragraph("What it cost", _cost(full, chosen)),
        Paragraph("How it was chosen", _choice(run, full, chosen)),
    ]
    if chosen.name in run.layouts:
        paragraphs.append(Paragraph("What is left", _left(run, chosen)))
    return Summary(_headline(full, chosen), _tiles(full, chosen), [*paragraphs, *last])


def _left(run: Run, setting: Setting) -> str:
    """`9 of 24 encoder heads. Encoder self-attention, layer by layer: 3, 2 and 4 of 8 heads.`"""
    mask = run.layouts[setting.name]
    told = [f"{setting.kept} of {setting.total} {setting.heads}."]
    for kind in run.pruned_kinds(setting):
        counts = mask.heads.query[kind]
        left = [len(mask.of(Site(kind, layer))) for layer in range(len(counts))]
        if len(set(counts)) == 1:
            parts = f"{listed([str(kept) for kept in left])} of {counts[0]}"
        else:
            parts = listed([f"{kept} of {count}" for kept, count in zip(left, counts, strict=True)])
        told.append(f"{KIND_NAMES[kind].capitalize()}, from the first layer to the last: {parts} heads.")
    return " ".join(told)


def _headline(full: Setting, chosen: Setting) -> str:
    start = f"{chosen.removed} of {chosen.total} {chosen.heads} removed"
    before, after = full.value("bleu"), chosen.value("bleu")
    if before is None or after is None:
        return start
    lost = round(before - after, 1)
    change = chosen.measures.get("bleu_difference")
    if change and change.low is not None and change.high is not None and change.low <= 0 <= change.high:
        return f"{start}; no measurable change in BLEU"
    if lost < 0:
        return f"{start}; BLEU rose by {-lost:.1f}"
    return f"{start} for {lost:.1f} BLEU" if lost > 0 else f"{start}; BLEU stayed where it was"


def _headline_without_choice(run: Run) -> str:
    if run.pruned:
        return f"{len(run.pruned)} pruned models, none of them chosen"
    total = 0 if run.heads is None else len(run.heads[["kind", "layer", "head"]].drop_duplicates())
    return f"{total} attention heads, scored" if total else "A study in progress"


def _why_no_choice(run: Run) -> str:
    if not run.pruned:
        return "Nothing has been pruned in this run yet, so there is nothing saved to report."
    if run.full is None:
        return (
            "The full model has not been evaluated in this run, so there is nothing to hold the pruned models against."
        )
    limit = _limit(run)
    if run.facts.get("chosen") == run.full.name and limit is not None:
        return (
            f"No pruned model stayed within {limit:g} BLEU of the full one on dev text: it was kept, nothing is saved."
        )
    return "run.json names no chosen setting: the table below holds them all."


def _tiles(full: Setting, chosen: Setting) -> list[Tile]:
    tiles = []
    for label, measure, write in (
        ("Parameters", "parameters", quantity),
        ("Size on disk", "bytes", size),
        ("Decoding speed", "tokens_per_second", quantity),
    ):
        before, after = full.value(measure), chosen.value(measure)
        if before is not None and after is not None:
            unit = " tokens/s" if measure == "tokens_per_second" else ""
            tiles.append(Tile(label, change(before, after), f"{write(before)} → {write(after)}{unit}"))
    before, after = full.value("bleu"), chosen.value("bleu")
    if before is not None and after is not None:
        tiles.append(Tile("BLEU on test", signed(after - before), f"{before:.2f} → {after:.2f}"))
    return tiles


def _saved(full: Setting, chosen: Setting) -> str:
    before, after = full.value("parameters"), chosen.value("parameters")
    small = before is not None and after is not None and after > 0.85 * before
    why = "Heads are a small part of a Transformer: the" if small else "The"
    told = [
        f"{chosen.removed} of {chosen.total} {chosen.heads} ({percent(chosen.removed / chosen.total)}) were cut out.",
        _then(full, chosen, "parameters", f"{why} model went from {{}} to {{}} parameters ({{}}).", quantity),
        _then(full, chosen, "bytes", "On disk it went from {} to {} ({}).", size),
        _then(full, chosen, "memory", "In memory its weights went from {} to {} ({}).", size),
        _then(full, chosen, "tokens_per_second", "Measured, decoding went from {} to {} tokens/s ({}).", quantity),
        _speed_is_noise(full, chosen),
    ]
    return " ".join(part for part in told if part)


def _then(full: Setting, chosen: Setting, measure: str, sentence: str, write: Callable[[float], str]) -> str:
    """A sentence about a measure before and after, or nothing where one of the two was not measured."""
    before, after = full.value(measure), chosen.value(measure)
    if before is None or after is None:
        return ""
    return sentence.format(write(before), write(after), change(before, after))


def _speed_is_noise(full: Setting, chosen: Setting) -> str:
    """What may be concluded from the two speeds."""
    before, after = full.measures.get("tokens_per_second"), chosen.measures.get("tokens_per_second")
    if before is None or after is None or not before.value:
        return ""
    if before.low is None or before.high is None or after.low is None or after.high is None:
        if abs(after.value / before.value - 1) >= 0.05:
            return ""
        return "A difference below 5\u202f% is not to be counted on: one machine varies as much from run to run."
    if after.low <= before.high and before.low <= after.high:
        return "The ranges of the two speeds over the rounds overlap, so no real gain can be claimed."
    return ""


def _cost(full: Setting, chosen: Setting) -> str:
    before, after = full.value("bleu"), chosen.value("bleu")
    if before is None or after is None:
        return "The test text has not been translated by both models yet, so the cost is not known."
    told = f"BLEU on the test text went from {before:.2f} to {after:.2f}: {signed(after - before)}"
    difference, p = chosen.measures.get("bleu_difference"), chosen.value("p_value")
    if difference is None or p is None:
        return f"{told}. No interval was measured for this difference."
    bounds = f"95 % interval {interval(difference.low, difference.high)}"
    told += f" ({bounds}, paired bootstrap, p\u00a0{'' if p < 0.001 else '= '}{probability(p)})."
    if p < 0.05:
        return f"{told} Chance alone would hardly make a difference this large: it is real."
    return f"{told} A difference of this size can be chance; the interval says how large the true one may be."


def _choice(run: Run, full: Setting, chosen: Setting) -> str:
    limit, before = _limit(run), full.value("dev_bleu")
    told = f"On dev text only; the test text was read once, at the end. Settings tried: {len(run.pruned)}. "
    losses = {
        s: before - after
        for s in run.pruned
        if s.kinds == chosen.kinds and before is not None and (after := s.value("dev_bleu")) is not None
    }
    fitting = [s for s, loss in losses.items() if limit is not None and loss <= limit + 1e-9]
    if limit is None or chosen.kept != min((s.kept for s in fitting), default=None):
        return f"{told}run.json names {chosen.label}."
    told += (
        f"{chosen.label} has {chosen.kept} heads, the fewest of those that lose at most {limit:g} BLEU on dev; "
        f"there BLEU went from {before:.2f} to {chosen.value('dev_bleu'):.2f} ({signed(-losses[chosen])})."
    )
    smaller = [
        f"{signed(-loss)} with {s.kept} heads" for s, loss in losses.items() if s.kept < chosen.kept and s.learned
    ]
    return f"{told} Fewer heads cost more: {listed(smaller)}." if smaller else told


def _limit(run: Run) -> float | None:
    """The BLEU that a pruned model may lose on dev text, as the plan had it."""
    found = run.facts.get("max_drop")
    return float(found) if isinstance(found, int | float) else None
