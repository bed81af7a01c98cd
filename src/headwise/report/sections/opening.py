"""The first screen: the headline, tiles, and the facts of what pruning saved, what it cost and how it was chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headwise.report import models
from headwise.report.models import DIFFERENCE, P_TUNED, RANDOM, TUNED, Model, P, bounds, value, verdict
from headwise.report.parts import Section
from headwise.report.run import Run
from headwise.report.sections import believe, layers, roles
from headwise.report.words import KIND_NAMES, capital, change, interval, percent, quantity, signed, size

SPEED = "tokens_per_second"
SAVED: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("parameters", "Parameters", quantity),
    ("bytes", "Size on disk", size),
    ("memory", "Weights in memory", size),
    ("cache_bytes", "Key/value cache per token", size),
    (SPEED, "Decoding speed, tokens/s", quantity),
)
Fact = tuple[str, str, str]  # label, text, verdict


def build(run: Run) -> dict[str, Any]:
    """Headline, tiles and facts; without a chosen pruned model `why` says why not."""
    full, chosen = run.full, run.chosen
    groups = [("Which score to believe", believe.in_short(run)), ("What the heads do", roles.in_short(run))]
    start: dict[str, Any] = {"why": "", "limit": _limit(run), "unit": _unit(full), "tiles": []}
    if full is None or chosen is None:
        start |= {"headline": _without_choice(run), "why": _why(run)}
    else:
        start |= {"headline": headline(run, chosen), "tiles": _tiles(run, full, chosen)}
        groups = [
            ("What was saved", saved(full, chosen)),
            ("What it cost", cost(run, full, chosen)),
            ("How it was chosen", choice(run, full, chosen)),
            ("What is left", _left(run, chosen) if chosen["setting"] in run.layouts else []),
            *groups,
        ]
    return start | {"groups": [group for group in groups if group[1]]}


def headline(run: Run, chosen: Model) -> str:
    """The heads removed and the change of BLEU with its interval: to equal further training where measured, else to the
    full model."""
    start = f"{chosen['total'] - chosen['kept']} of {chosen['total']} {models.heads_name(chosen['kinds'])} removed"
    tuned = value(chosen, run.part + TUNED) is not None
    measure, p, other = (TUNED, P_TUNED, "equal further training") if tuned else (DIFFERENCE, P, "the full model")
    found, ends = value(chosen, run.part + measure), interval(*bounds(chosen, run.part + measure))
    bleu = "BLEU on dev" if run.part else "BLEU"
    if found is None:
        return start
    unsure = verdict(chosen, run.part + measure, run.part + p) == "not distinguishable"
    text = f"{start}; {signed(found)} {bleu} {ends}".rstrip()
    return f"{text} to {other}{', not distinguishable' if unsure else ''}"


def _without_choice(run: Run) -> str:
    if run.pruned:
        return f"{len(run.pruned)} pruned {'model' if len(run.pruned) == 1 else 'models'}, none of them chosen"
    total = 0 if run.heads is None else len(run.heads[["kind", "layer", "head"]].drop_duplicates())
    return f"{total} attention heads, scored" if total else "A study in progress"


def _why(run: Run) -> str:
    """Why there is no chosen model: a word for which the template has a sentence."""
    if not run.pruned:
        return "nothing pruned"
    if run.full is None:
        return "no full model"
    limit, losses = _limit(run), [_lost(run.full, model) for model in run.pruned if model["method"] != RANDOM]
    known = [loss for loss in losses if loss is not None]
    if limit is not None and known and min(known) > limit:
        return "over the limit"
    if run.facts.get("unsettled"):
        return "not settled"
    return "full chosen" if run.facts.get("chosen") == run.full["setting"] else "not named"


def _both(one: Model | None, other: Model, measure: str) -> tuple[float, float] | None:
    """A measure of two models that both have it."""
    before, after = value(one, measure), value(other, measure)
    return None if before is None or after is None else (before, after)


def _tiles(run: Run, full: Model, chosen: Model) -> list[Fact]:
    """Label, value and detail of each number to see at a glance."""
    tiles = []
    for measure, label, write in (SAVED[0], SAVED[1], SAVED[3]):
        if both := _both(full, chosen, measure):
            noise = measure == SPEED and _speed_noise(full, chosen)
            tiles.append((label, "no sure change" if noise else change(*both), " → ".join(map(write, both))))
    both = _both(full, chosen, f"{run.part}bleu")
    tuned, label = value(chosen, run.part + TUNED), f"BLEU on {'dev' if run.part else 'test'}"
    if tuned is not None:
        whole = f" · {signed(both[1] - both[0])} to the full model" if both else ""
        ends = interval(*bounds(chosen, run.part + TUNED))
        tiles.append((f"{label}, to equal further training", signed(tuned), f"{ends}{whole}"))
    elif both:
        tiles.append((label, signed(both[1] - both[0]), f"{both[0]:.2f} → {both[1]:.2f}"))
    for end, to in (("_to_fine-tuned", ", to equal further training"), ("", "")):
        measure = f"{'' if value(chosen, 'perplexity_change') is not None else 'dev_'}perplexity_change"
        if (moved := value(chosen, measure + end)) is not None:
            where = "dev" if measure.startswith("dev_") else "test"
            ends = interval(*bounds(chosen, measure + end))
            tiles.append((f"Perplexity on {where}{to}", f"{signed(moved)}\u202f%", ends))
            break
    return tiles


def saved(full: Model, chosen: Model) -> list[Fact]:
    removed, total = chosen["total"] - chosen["kept"], chosen["total"]
    text = f"{removed} of {total} {models.heads_name(chosen['kinds'])} ({percent(removed / total)})"
    facts = [("Heads removed", text, "")]
    for measure, label, write in SAVED:
        if (both := _both(full, chosen, measure)) and both[0]:
            noise = _speed_noise(full, chosen) if measure == SPEED else ""
            text = f"{' → '.join(map(write, both))} ({change(*both)}){noise}"
            facts.append((label, text, "not distinguishable" if noise else ""))
    return facts


def _speed_noise(full: Model, chosen: Model) -> str:
    """Why two speeds cannot be distinguished, if so."""
    (low, high), (after_low, after_high) = (bounds(model, SPEED) for model in (full, chosen))
    if low is None or high is None or after_low is None or after_high is None:
        return "; one round only"
    return "; the ranges over the rounds overlap" if after_low <= high and low <= after_high else ""


def cost(run: Run, full: Model, chosen: Model) -> list[Fact]:
    """The change of BLEU (or perplexity): first to equal further training, then to the untouched full model."""
    part, facts = run.part, list[Fact]()
    tuned = models.rows(run.models[run.models.index == models.against(chosen, "fine-tuned")])
    others = [("to equal further training without pruning", one, TUNED, P_TUNED) for one in tuned]
    for label, other, measure, p in [*others, ("to the untouched full model", full, DIFFERENCE, P)]:
        if both := _both(other, chosen, f"{part}bleu"):
            moved = models.difference(chosen, part + measure, part + p, ", ")
            text = f"{both[0]:.2f} → {both[1]:.2f}: {moved or f'{signed(both[1] - both[0])}, no interval'}"
            facts.append((f"BLEU {label}", text, verdict(chosen, part + measure, part + p)))
    compared = [("to equal further training without pruning", one, "_to_fine-tuned") for one in tuned]
    for start, where in () if facts else (("", "test"), ("dev_", "dev")):
        for label, other, end in [*compared, ("to the full model", full, "")]:
            measure = f"{start}perplexity_change{end}"
            both, found = _both(other, chosen, f"{start}perplexity"), value(chosen, measure)
            if both and found is not None:
                text = f"{both[0]:.2f} → {both[1]:.2f}: {signed(found)}\u202f% {interval(*bounds(chosen, measure))}"
                facts.append((f"Perplexity on {where}, {label}", text.strip(), verdict(chosen, measure)))
    return facts or [("BLEU", "not measured for both models yet", "")]


def choice(run: Run, full: Model, chosen: Model) -> list[Fact]:
    tried = [model for model in run.pruned if model["method"] != RANDOM or chosen["method"] == RANDOM]
    losses = {model["setting"]: loss for model in tried if (loss := _lost(full, model)) is not None}
    limit, own, left = _limit(run), losses.get(chosen["setting"]), _heads(run, chosen)
    known = [model for model in tried if model["setting"] in losses]
    fits = [_heads(run, model) for model in known if limit is None or losses[model["setting"]] <= limit + 1e-9]
    fewest = own is not None and left == min(fits, default=None)
    why = f", the fewest{'' if limit is None else ' within the limit'}" if fewest else ""
    tested = any(value(chosen, measure) is not None for measure in ("bleu", "perplexity"))
    facts = [
        ("Text", f"dev only; {'test text had no part in it' if tested else 'no test text was measured'}", ""),
        ("Models tried", str(len(tried)), ""),
        ("Loss allowed on dev", "no limit" if limit is None else f"{limit:g} {_unit(full)}", ""),
        ("Chosen", f"{chosen['label']}: {left} {'head' if left == 1 else 'heads'} in the whole model{why}", ""),
    ]
    if own is not None and (both := _both(full, chosen, "dev_bleu")):
        facts.append(("On dev", f"BLEU {both[0]:.2f} → {both[1]:.2f} ({signed(-own)})", ""))
    elif own is not None:
        facts.append(("On dev", f"perplexity {signed(own)}\u202f%", ""))
    smaller = [m for m in known if m["learned"] and m["kinds"] == chosen["kinds"] and m["kept"] < chosen["kept"]]
    cost = [f"{signed(-losses[model['setting']])} with {model['kept']}" for model in smaller]
    facts += [("Fewer heads, on dev", " · ".join(cost), "")] if fewest and cost else []
    doubts = (run.facts.get("doubts") or {}).get(chosen["setting"], [])
    if not doubts and value(chosen, "settled") == 0:
        doubts = ["Its gates had not settled when they were decided: train longer."]
    return facts + ([("Doubt", " ".join(doubts), "")] if doubts else [])


def _left(run: Run, chosen: Model) -> list[Fact]:
    """The heads left in each layer, the first layer first."""
    mask = run.layouts[chosen["setting"]]
    facts = []
    for kind in run.pruned_kinds(chosen):
        left, counts = zip(*layers.by_layer(mask, kind), strict=True)
        alike = len(set(counts)) == 1
        parts = [str(kept) if alike else f"{kept} of {count}" for kept, count in zip(left, counts, strict=True)]
        text = f"{sum(left)} of {sum(counts)} heads; layer by layer {' · '.join(parts)}"
        facts.append((capital(KIND_NAMES[kind]), text + (f" of {counts[0]}" if alike else ""), ""))
    return facts


def _lost(full: Model | None, model: Model) -> float | None:
    """What a model loses on dev, in the unit of the limit: BLEU, or % of the perplexity of a language model."""
    before, after = value(full, "dev_bleu"), value(model, "dev_bleu")
    if before is None and after is None:
        return value(model, "dev_perplexity_change")
    return None if before is None or after is None else before - after


def _unit(full: Model | None) -> str:
    return "% of perplexity" if value(full, "dev_perplexity") is not None else "BLEU"


def _heads(run: Run, model: Model) -> int:
    """The heads that the whole model has left, which is what choices compare; without a layout, of its own kinds."""
    mask = run.layouts.get(model["setting"])
    return int(model["kept"]) if mask is None else len(mask)


def _limit(run: Run) -> float | None:
    found = run.facts.get("max_drop")
    return float(found) if isinstance(found, int | float) else None


SECTION = Section("opening", "", "", build)
