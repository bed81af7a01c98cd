"""The first screen in plain sentences, made from the numbers: what pruning saved, what it cost, how it was chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headwise.heads import Site
from headwise.report import roles
from headwise.report.faithfulness import in_short
from headwise.report.run import Run
from headwise.report.setting import Setting
from headwise.report.wording import (
    KIND_NAMES,
    change,
    count,
    interval,
    listed,
    percent,
    probability,
    quantity,
    signed,
    size,
)

RANDOM_ORDER = "greedy.random"  # never chosen, unless nothing else was asked for


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
        Paragraph("What it cost", _cost(run, full, chosen)),
        Paragraph("How it was chosen", _choice(run, full, chosen)),
    ]
    if chosen.name in run.layouts:
        paragraphs.append(Paragraph("What is left", _left(run, chosen)))
    return Summary(_headline(run, full, chosen), _tiles(run, full, chosen), [*paragraphs, *last])


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


def _headline(run: Run, full: Setting, chosen: Setting) -> str:
    start, where = f"{chosen.removed} of {chosen.total} {chosen.heads} removed", " on dev" if run.part else ""
    before, after = full.value(f"{run.part}bleu"), chosen.value(f"{run.part}bleu")
    if before is None or after is None:
        return start
    lost = round(before - after, 1)
    change = chosen.measures.get(f"{run.part}bleu_difference")
    if change and change.low is not None and change.high is not None and change.low <= 0 <= change.high:
        return f"{start}; no measurable change in BLEU{where}"
    if lost < 0:
        return f"{start}; BLEU rose by {-lost:.1f}{where}"
    return f"{start} for {lost:.1f} BLEU{where}" if lost > 0 else f"{start}; BLEU stayed where it was{where}"


def _headline_without_choice(run: Run) -> str:
    if run.pruned:
        return f"{count(len(run.pruned), 'pruned model')}, none of them chosen"
    total = 0 if run.heads is None else len(run.heads[["kind", "layer", "head"]].drop_duplicates())
    return f"{total} attention heads, scored" if total else "A study in progress"


def _why_no_choice(run: Run) -> str:
    if not run.pruned:
        return "Nothing has been pruned in this run yet, so there is nothing saved to report."
    if run.full is None:
        return (
            "The full model has not been evaluated in this run, so there is nothing to hold the pruned models against."
        )
    limit, losses = _limit(run), [_lost(run.full, s) for s in run.pruned if s.method != RANDOM_ORDER]
    known = [loss for loss in losses if loss is not None]
    if limit is not None and known and min(known) > limit:
        return (
            f"No pruned model stayed within {limit:g} {_unit(run.full)} of the full one on dev text: it was kept, "
            "nothing is saved."
        )
    if run.facts.get("chosen") == run.full.name:
        return "run.json names the full model as the chosen one: nothing is saved. The table below holds them all."
    return "run.json names no chosen setting: the table below holds them all."


def _tiles(run: Run, full: Setting, chosen: Setting) -> list[Tile]:
    tiles = []
    for label, measure, write in (
        ("Parameters", "parameters", quantity),
        ("Size on disk", "bytes", size),
        ("Decoding speed", "tokens_per_second", quantity),
    ):
        before, after = full.value(measure), chosen.value(measure)
        if before is not None and after is not None:
            speed = measure == "tokens_per_second"
            told = "no sure change" if speed and _speed_is_noise(full, chosen) else change(before, after)
            tiles.append(Tile(label, told, f"{write(before)} → {write(after)}{' tokens/s' if speed else ''}"))
    before, after = full.value(f"{run.part}bleu"), chosen.value(f"{run.part}bleu")
    if before is not None and after is not None:
        tiles.append(Tile(f"BLEU on {run.text}", signed(after - before), f"{before:.2f} → {after:.2f}"))
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
        return (
            "It was measured in one round, and one machine varies from run to run: no real difference can be claimed."
        )
    if after.low <= before.high and before.low <= after.high:
        return "The ranges of the two speeds over the rounds overlap, so no real difference can be claimed."
    return ""


def _cost(run: Run, full: Setting, chosen: Setting) -> str:
    """What was lost on test text; without any on dev text, which flatters."""
    part, before, after = run.part, full.value(f"{run.part}bleu"), chosen.value(f"{run.part}bleu")
    where = "the test text" if not part else "dev text, on which it was chosen (no test text was translated),"
    if before is None or after is None:
        told = _perplexity(full, chosen)
        return told or f"Not both models have translated {where.partition(',')[0]} yet, so the cost is not known."
    told = f"BLEU on {where} went from {before:.2f} to {after:.2f}: {signed(after - before)}"
    difference, p = chosen.measures.get(f"{part}bleu_difference"), chosen.value(f"{part}p_value")
    if difference is None or p is None:
        return f"{told}. No interval was measured for this difference."
    bounds = f"95 % interval {interval(difference.low, difference.high)}"
    told += f" ({bounds}, paired bootstrap, p\u00a0{'' if p < 0.001 else '= '}{probability(p)})."
    if chosen.beyond_chance(f"{part}bleu_difference", f"{part}p_value"):
        return f"{told} Chance alone would hardly make a difference this large: it is real."
    if difference.low is not None and difference.high is not None and not difference.low <= 0 <= difference.high:
        return f"{told} The interval leaves 0 out, the test does not reach 5\u202f%: on the edge of what chance makes."
    return f"{told} A difference of this size can be chance; the interval says how large the true one may be."


def _perplexity(full: Setting, chosen: Setting) -> str:
    """What a language model lost; nothing of one that translates."""
    for part, where in (("", "the test text"), ("dev_", "dev text")):
        before, after = full.value(f"{part}perplexity"), chosen.value(f"{part}perplexity")
        found = chosen.measures.get(f"{part}perplexity_change")
        if before is not None and after is not None and found is not None:
            told = f"Perplexity on {where} went from {before:.2f} to {after:.2f}: {signed(found.value)}\u202f%"
            return f"{told}, 95 % interval {interval(found.low, found.high)}." if found.low is not None else f"{told}."
    return ""


def _choice(run: Run, full: Setting, chosen: Setting) -> str:
    tried = [s for s in run.pruned if s.method != RANDOM_ORDER or chosen.method == RANDOM_ORDER]
    settings = "One setting was tried" if len(tried) == 1 else f"{len(tried)} settings were tried"
    told = f"On dev text only: test text had no part in it. {settings}. "
    if chosen.value("settled") == 0:
        told = f"Its gates had not settled when they were decided (see Gates): train longer. {told}"
    losses = {s: loss for s in tried if (loss := _lost(full, s)) is not None}
    limit, own = _limit(run), losses.get(chosen)
    fitting = [s for s, loss in losses.items() if limit is None or loss <= limit + 1e-9]
    if own is None or _size(run, chosen) != min((_size(run, s) for s in fitting), default=None):
        return f"{told}run.json names {chosen.label}."
    many = len({s.kinds for s in tried}) > 1
    heads = f"leaves {_size(run, chosen)} heads in the whole model" if many else f"has {count(chosen.kept, 'head')}"
    unit, before, after = _unit(full), full.value("dev_bleu"), chosen.value("dev_bleu")
    told += f"{chosen.label} {heads}, the fewest"
    told += (
        " of all: no limit to the loss was set"
        if limit is None
        else f" of those that lose at most {limit:g} {unit} on dev"
    )
    lost = f"{signed(-own)}" if unit == "BLEU" else f"{signed(own)}\u202f%"
    if before is None or after is None:
        told += f"; there perplexity changed by {lost}."
    else:
        told += f"; on dev BLEU went from {before:.2f} to {after:.2f} ({lost})."
    smaller = [s for s in losses if s.kinds == chosen.kinds and s.kept < chosen.kept and s.learned]
    cost = [f"{signed(-losses[s])} with {count(s.kept, 'head')}" for s in smaller]
    return f"{told} Fewer heads cost more: {listed(cost)}." if smaller else told


def _lost(full: Setting, setting: Setting) -> float | None:
    """What a setting loses on dev, in what limits are given in: BLEU, or % of the perplexity of a language model."""
    before, after = full.value("dev_bleu"), setting.value("dev_bleu")
    if before is None and after is None:
        return setting.value("dev_perplexity_change")
    return None if before is None or after is None else before - after


def _unit(full: Setting) -> str:
    """What losses are told in."""
    return "% of perplexity" if full.value("dev_perplexity") is not None else "BLEU"


def _size(run: Run, setting: Setting) -> int:
    """The heads that the whole model has left, which is what choices compare; without a layout, of its own kinds."""
    mask = run.layouts.get(setting.name)
    return setting.kept if mask is None else len(mask)


def _limit(run: Run) -> float | None:
    """What a pruned model may lose on dev text; None where nothing was said of it."""
    found = run.facts.get("max_drop")
    return float(found) if isinstance(found, int | float) else None
