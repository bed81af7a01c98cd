"""The first screen: the headline, tiles, and the facts of what pruning saved, what it cost and how it was chosen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from headwise.heads import Site
from headwise.report import models
from headwise.report.models import DIFFERENCE, RANDOM, Model, P, bounds, value, verdict
from headwise.report.parts import Section
from headwise.report.run import Run
from headwise.report.sections import believe, roles
from headwise.report.words import KIND_NAMES, capital, change, interval, percent, quantity, signed, size

TUNED, P_TUNED = "bleu_difference_to_fine-tuned", "p_value_to_fine-tuned"
SAVED: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("parameters", "Parameters", quantity),
    ("bytes", "Size on disk", size),
    ("memory", "Weights in memory", size),
    ("tokens_per_second", "Decoding speed, tokens/s", quantity),
)
Fact = tuple[str, str, str]  # label, text, verdict


def build(run: Run) -> dict[str, Any]:
    """Headline, tiles and facts; without a chosen pruned model `why` says why not."""
    full, chosen = run.full, run.chosen
    judged = [("Which score to believe", facts)] if (facts := believe.in_short(run)) else []
    known = [("What the heads do", facts)] if (facts := roles.in_short(run)) else []
    start: dict[str, Any] = {"why": "", "limit": _limit(run), "unit": _unit(full), "tiles": []}
    if full is None or chosen is None:
        return start | {"headline": _without_choice(run), "why": _why(run), "groups": [*judged, *known]}
    groups = [
        ("What was saved", _saved(full, chosen)),
        ("What it cost", _cost(run, full, chosen)),
        ("How it was chosen", _choice(run, full, chosen)),
        *([("What is left", _left(run, chosen))] if chosen["setting"] in run.layouts else []),
    ]
    return start | {
        "headline": _headline(run, chosen),
        "tiles": _tiles(run, full, chosen),
        "groups": [*groups, *judged, *known],
    }


def _headline(run: Run, chosen: Model) -> str:
    """The heads removed and the change of BLEU: to equal further training where measured, else to the full model."""
    start = f"{chosen['total'] - chosen['kept']} of {chosen['total']} {models.heads_name(chosen['kinds'])} removed"
    tuned = value(chosen, run.part + TUNED) is not None
    measure, other = (TUNED, "equal further training") if tuned else (DIFFERENCE, "the full model")
    found, (low, high) = value(chosen, run.part + measure), bounds(chosen, run.part + measure)
    bleu = "BLEU on dev" if run.part else "BLEU"
    if found is None:
        return start
    if low is not None and high is not None and low <= 0 <= high:
        return f"{start}; {bleu} not distinguishable from {other}"
    return f"{start}; {abs(found):.1f} {bleu} {'more' if found > 0 else 'less'} than {other}"


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
    return "full chosen" if run.facts.get("chosen") == run.full["setting"] else "not named"


def _tiles(run: Run, full: Model, chosen: Model) -> list[Fact]:
    """Label, value and detail of each number to see at a glance."""
    tiles = []
    for measure, label, write in (SAVED[0], SAVED[1], SAVED[3]):
        before, after = value(full, measure), value(chosen, measure)
        if before is not None and after is not None:
            noise = measure == "tokens_per_second" and _speed_noise(full, chosen)
            tiles.append(
                (label, "no sure change" if noise else change(before, after), f"{write(before)} → {write(after)}")
            )
    before, after = value(full, f"{run.part}bleu"), value(chosen, f"{run.part}bleu")
    tuned, text = value(chosen, run.part + TUNED), "dev" if run.part else "test"
    if tuned is not None:
        whole = "" if before is None or after is None else f" · {signed(after - before)} to the full model"
        ends = interval(*bounds(chosen, run.part + TUNED))
        tiles.append((f"BLEU on {text}, to equal further training", signed(tuned), f"{ends}{whole}"))
    elif before is not None and after is not None:
        tiles.append((f"BLEU on {text}", signed(after - before), f"{before:.2f} → {after:.2f}"))
    return tiles


def _saved(full: Model, chosen: Model) -> list[Fact]:
    removed, total = chosen["total"] - chosen["kept"], chosen["total"]
    facts = [
        ("Heads removed", f"{removed} of {total} {models.heads_name(chosen['kinds'])} ({percent(removed / total)})", "")
    ]
    for measure, label, write in SAVED:
        before, after = value(full, measure), value(chosen, measure)
        if before is not None and after is not None:
            noise = _speed_noise(full, chosen) if measure == "tokens_per_second" else ""
            text = f"{write(before)} → {write(after)} ({change(before, after)}){noise}"
            facts.append((label, text, "not distinguishable" if noise else ""))
    return facts


def _speed_noise(full: Model, chosen: Model) -> str:
    """Why two speeds cannot be distinguished, if so."""
    (low, high), (after_low, after_high) = (bounds(model, "tokens_per_second") for model in (full, chosen))
    if low is None or high is None or after_low is None or after_high is None:
        return "; one round only"
    return "; the ranges over the rounds overlap" if after_low <= high and low <= after_high else ""


def _cost(run: Run, full: Model, chosen: Model) -> list[Fact]:
    """The change of BLEU (or perplexity): first to equal further training, then to the untouched full model."""
    part, facts = run.part, list[Fact]()
    tuned = models.rows(run.models[run.models.index == models.against(chosen, "fine-tuned")])
    others = [("to equal further training without pruning", one, TUNED, P_TUNED) for one in tuned]
    for label, other, measure, p in [*others, ("to the untouched full model", full, DIFFERENCE, P)]:
        before, after = value(other, f"{part}bleu"), value(chosen, f"{part}bleu")
        if before is not None and after is not None:
            moved = (
                models.difference(chosen, part + measure, part + p, ", ") or f"{signed(after - before)}, no interval"
            )
            word = verdict(chosen, part + measure, part + p)
            facts.append((f"BLEU {label}", f"{before:.2f} → {after:.2f}: {moved}", word))
    for start, where in () if facts else (("", "test"), ("dev_", "dev")):
        before, after = value(full, f"{start}perplexity"), value(chosen, f"{start}perplexity")
        found = value(chosen, f"{start}perplexity_change")
        if before is not None and after is not None and found is not None:
            ends = interval(*bounds(chosen, f"{start}perplexity_change"))
            text = f"{before:.2f} → {after:.2f}: {signed(found)}\u202f% {ends}".strip()
            facts.append((f"Perplexity on {where}, to the full model", text, ""))
    if part and facts:
        facts.append(("Text", "dev, on which it was chosen: no test text was translated", ""))
    return facts or [("BLEU", "not measured for both models yet", "")]


def _choice(run: Run, full: Model, chosen: Model) -> list[Fact]:
    tried = [model for model in run.pruned if model["method"] != RANDOM or chosen["method"] == RANDOM]
    losses = {model["setting"]: loss for model in tried if (loss := _lost(full, model)) is not None}
    limit, own, size_of = _limit(run), losses.get(chosen["setting"]), partial(_heads, run)
    fits = [
        size_of(m) for m in tried if m["setting"] in losses and (limit is None or losses[m["setting"]] <= limit + 1e-9)
    ]
    fewest = own is not None and size_of(chosen) == min(fits, default=None)
    several = " in the whole model" if len({model["kinds"] for model in tried}) > 1 else ""
    why = f"{several}: the fewest{'' if limit is None else ' within the limit'}" if fewest else ""
    facts = [
        ("Text", "dev only; test text had no part in it", ""),
        ("Models tried", str(len(tried)), ""),
        ("Loss allowed on dev", "no limit" if limit is None else f"{limit:g} {_unit(full)}", ""),
        ("Chosen", f"{chosen['label']}, {size_of(chosen)} heads left{why}", ""),
    ]
    before, after = value(full, "dev_bleu"), value(chosen, "dev_bleu")
    if own is not None and before is not None and after is not None:
        facts.append(("On dev", f"BLEU {before:.2f} → {after:.2f} ({signed(-own)})", ""))
    elif own is not None:
        facts.append(("On dev", f"perplexity {signed(own)}\u202f%", ""))
    smaller = [m for m in tried if m["learned"] and m["kinds"] == chosen["kinds"] and m["kept"] < chosen["kept"]]
    cost = [f"{signed(-losses[m['setting']])} with {m['kept']}" for m in smaller if m["setting"] in losses]
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
        counts = mask.heads.query[kind]
        left = [len(mask.of(Site(kind, layer))) for layer in range(len(counts))]
        alike = len(set(counts)) == 1
        parts = [str(kept) if alike else f"{kept} of {count}" for kept, count in zip(left, counts, strict=True)]
        text = f"{sum(left)} of {sum(counts)} heads; layer by layer {' · '.join(parts)}"
        text += f" of {counts[0]}" if alike else ""
        facts.append((capital(KIND_NAMES[kind]), text, ""))
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
