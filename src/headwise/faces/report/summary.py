"""The first screen: the headline, tiles, and the facts of what pruning saved, what it cost and how it was chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from headwise.core.answers import too_short
from headwise.core.measured import FINE_TUNED, UNPRUNED, choose_smallest, is_within
from headwise.core.progress import about
from headwise.core.qualities import (
    BETTER,
    NEIGHBOURS,
    NO_BREAK,
    NOT_DISTINGUISHABLE,
    WORSE,
    Number,
)
from headwise.faces.report import (
    head_words,
    kept_heads,
    models,
    role_tables,
    score_faithfulness,
    score_maps,
)
from headwise.faces.report.format import (
    capital,
    count,
    flat_settings,
    interval_text,
    listed,
    measure_name,
    percent,
    percent_change,
    quantity,
    signed,
    size,
)
from headwise.faces.report.head_rows import heads_in, values_by_head
from headwise.faces.report.models import OTHERS, ModelRow, measured, tested_text
from headwise.faces.report.page import section
from headwise.faces.report.run_folder import FinishedRun

SPEED = "tokens_per_second"
CACHE = "cache_bytes"
SAVED: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "parameters": ("Parameters", quantity),
    "bytes": ("Size on disk", size),
    "memory": ("Weights in memory", size),
    CACHE: ("Key/value cache per token", size),
    SPEED: ("Decoding speed, tokens/s", quantity),
}
Fact = tuple[str, str, str]  # label, text, verdict
ONE_ROUND = "; one round only"
# Share of the weights or the cache: a model that is no faster and significantly worse should save more.
LITTLE_SAVED = 0.1


@section(
    "summary",
    question="What was removed, what did it save and cost, and how was it chosen?",
    order=0,
    files=("run.json", "pruning.csv", "layouts/", "heads.csv"),
)
def summary_section(run: FinishedRun) -> dict[str, Any]:
    """Headline with its verdict and doubts, the map of the heads, tiles and facts; `why` no pruned model was chosen."""
    full = run.full
    chosen = run.chosen
    groups = [("Which score is faithful", score_faithfulness.faithfulness_facts(run))]
    tiles: list[Fact] = []
    why = ""
    verdict = ""
    advice = ""
    if full is None or chosen is None:
        headline = _without_choice(run)
        why = why_no_choice(run)
    else:
        headline = run_headline(run, chosen)
        verdict = run.leading_change(chosen)[1].verdict(run.quality)
        advice = shipping_advice(run, chosen)
        tiles = _tiles(run, full, chosen)
        groups = [
            ("What was saved", saved(full, chosen)),
            ("What it cost", cost(run, full, chosen)),
            ("What other orders cost", other_orders(run, chosen)),
            ("How it was chosen", choice(run, full, chosen)),
            *groups,
        ]
    groups = [group for group in groups if group[1]]
    return {
        "headline": headline,
        "verdict": verdict,
        "advice": advice,
        "findings": findings(run),
        "why": why,
        "tiles": tiles,
        "groups": groups,
        "leads": ", ".join(lead[0].lower() + lead[1:] for lead, _ in groups),
        "doubts": [*text_doubts(run), *doubts(run)],
        "head_map": kept_heads.head_map(run, chosen),
    }


def shipping_advice(run: FinishedRun, chosen: ModelRow) -> str:
    """Whether to ship a model, in a few words with the reason; empty without a comparison.

    A loss that the plan allows is no reason against it: how much may be lost is the user's choice.
    """
    _, change = run.leading_change(chosen)
    outcome = change.verdict(run.quality)
    if change.value is None or not outcome:
        return ""
    if does_not_translate(run):
        return "Do not ship: the full model does not translate yet"
    allowed = _is_allowed(run, chosen)
    objection = why_not_worth_it(run, chosen)
    if objection and not allowed:
        return f"Do not ship: {objection}"
    if model_doubts(run, chosen):
        return "Do not ship yet: there are doubts about this model"
    share, saving = _largest_saving(run, chosen)
    faster, speed = _faster(run.full, chosen)
    gains = listed([text for text in (saving, speed if faster else "") if text])
    if outcome == WORSE:
        return f"Ship only if the loss is worth {gains or 'fewer heads'}"
    quality_text = "better" if outcome == BETTER else "no significant loss"
    if share < LITTLE_SAVED and not faster:
        return f"Little to gain: {'; '.join(filter(None, [gains, quality_text]))}"
    return f"Ship: {gains}; {quality_text}"


def run_headline(run: FinishedRun, chosen: ModelRow) -> str:
    """The advice, the heads removed, what that saved, and the change of quality with its interval: to equal further
    training where measured, else to the full model; then whether the limit of the plan was kept."""
    advice = shipping_advice(run, chosen)
    facts = removal_facts(run, chosen)
    return f"{advice}. {facts}" if advice else facts


def removal_facts(run: FinishedRun, chosen: ModelRow) -> str:
    """What was removed from a model, what that saved and what it cost, in numbers."""
    removed = chosen["total"] - chosen["kept"]
    start = f"{removed} of {chosen['total']} {models.heads_name(chosen['kinds'])} removed"
    _, saving = _largest_saving(run, chosen)
    _, speed = _faster(run.full, chosen)
    savings = [text for text in (saving, speed) if text]
    if savings:
        start = f"{start}: {', '.join(savings)}"
    quality = run.quality
    reference, change = run.leading_change(chosen)
    if change.value is None:
        return start
    interval = interval_text(change.low, change.high)
    on_split = " on dev" if run.split == "dev" else ""
    preposition = " of" if quality.unit.endswith("points") else ""
    moved = f"{signed(change.value)}{quality.unit}{preposition} {quality.title}{on_split} {interval}".rstrip()
    text = f"{start}; {moved} to {OTHERS[reference]}"
    if change.verdict(quality) == NOT_DISTINGUISHABLE:
        text = f"{text}, {NOT_DISTINGUISHABLE}"
    kept = _limit_kept(run, chosen)
    if kept:
        text = f"{text}; {kept}"
    return text


def why_not_worth_it(run: FinishedRun, chosen: ModelRow) -> str:
    """Why a model is not worth using, in words: it is surely worse and saves little, or surely loses more than it saves;
    empty if it is worth using."""
    _, change = run.leading_change(chosen)
    if change.verdict(run.quality) != WORSE:
        return ""
    saved_share, saving = _largest_saving(run, chosen)
    base = run.quality_of(run.full).value
    # Where the full model's quality is not known, the loss counts as no share of it.
    lost_share = _least_loss(run, change) / (100 if run.quality.relative else base or math.inf)
    if lost_share > saved_share:
        return f"it loses at least {percent(lost_share, 1)}, more than it saves"
    faster, _ = _faster(run.full, chosen)
    if saved_share >= LITTLE_SAVED or faster or not saving:
        return ""
    return f"it is worse, and saves less than {percent(LITTLE_SAVED)}"


MOST_NAMED = 3  # heads that a sentence names


def findings(run: FinishedRun) -> list[str]:
    """Which heads matter, what they do, which score to trust, and which one says little: a sentence each."""
    said = [_heads_that_matter(run)]
    functions = [*role_tables.role_facts(run), *head_words.word_facts(run)]
    said += [f"{label}: {text}." for label, text, _ in functions]
    facts = {label: text for label, text, _ in score_faithfulness.faithfulness_facts(run)}
    if best := facts.get("Most faithful score"):
        said.append(
            f"Score to trust: {best[0].lower() + best[1:]}. Removal in its order costs least."
        )
    said.append(_like_untrained(run))
    return [sentence for sentence in said if sentence]


def _heads_that_matter(run: FinishedRun) -> str:
    """The heads without which the loss rises most."""
    values = values_by_head(run, score_maps.LOSS_MEASURE)
    highest = sorted(values, key=values.__getitem__, reverse=True)[:MOST_NAMED]
    named = [f"{head} (+{values[head]:.2g})" for head in highest if values[head] > 0]
    return f"Most missed when off, in nats per token: {listed(named)}." if named else ""


def _like_untrained(run: FinishedRun) -> str:
    """How many heads have the relevance of a head of an untrained model."""
    ranges = score_maps.control_ranges(run)
    for measure in ("lrp.ding", *sorted(set(run.heads["measure"]))):
        values = values_by_head(run, measure) if measure.startswith("lrp") else {}
        compared = {head: ranges.get((head.kind, head.layer, measure)) for head in values}
        inside = [
            head
            for head, range_of_head in compared.items()
            if range_of_head and range_of_head.holds(values[head])
        ]
        if values and any(compared.values()):
            name = capital(measure_name(measure))
            return (
                f"{name} of {len(inside)} of {len(values)} heads lies within the range of untrained models"
                + (
                    ": it shows little of what was learned."
                    if 2 * len(inside) > len(values)
                    else "."
                )
            )
    return ""


def _least_loss(run: FinishedRun, change: Number) -> float:
    """What a model loses at least, by the end of the interval that is nearer to no loss; 0 without an interval."""
    if change.low is None or change.high is None:
        return 0.0
    return -change.high if run.quality.higher_is_better else change.low


def _is_allowed(run: FinishedRun, model: ModelRow) -> bool:
    """Whether the limit of the plan allows what a model loses on dev, and the main comparison does not surely
    exceed it."""
    lost = run.lost(model)
    if run.limit is None or lost is None or not is_within(lost, run.limit):
        return False
    if run.quality != run.quality_on("dev"):  # no limit is about this measure
        return True
    _, change = run.leading_change(model)
    return is_within(_least_loss(run, change), run.limit)


def _limit_kept(run: FinishedRun, model: ModelRow) -> str:
    """On which texts a model stays within the limit of the plan, which counts from the full model; empty without a limit,
    or where dev was not measured."""
    losses = {split: run.lost(model, split) for split in ("dev", "test")}
    if run.limit is None or losses["dev"] is None:
        return ""
    known = {split: lost for split, lost in losses.items() if lost is not None}
    within = [split for split, lost in known.items() if is_within(lost, run.limit)]
    over = [split for split in known if split not in within]
    limit = f"the limit of {run.limit:g}{run.quality.unit}"
    words = [f"within {limit} on {listed(within)}"] if within else []
    if over:
        words.append(f"over {'it' if within else limit} on {listed(over)}")
    reference, _ = run.leading_change(model)
    start = "" if reference == UNPRUNED else f"compared with {OTHERS[UNPRUNED]} "
    return start + ", ".join(words)


def _faster(full: ModelRow | None, chosen: ModelRow) -> tuple[bool, str]:
    """Whether a model is clearly faster than the full one, and the same in words; no words without a measurement."""
    both = _values_of_both(full, chosen, SPEED)
    if full is None or not both or not both[0]:
        return False, ""
    noise = _speed_noise(full, chosen)
    if noise:
        return False, "speed measured only once" if noise == ONE_ROUND else "no faster"
    share = both[1] / both[0] - 1
    return share > 0, f"{percent(abs(share), 0)} {'faster' if share > 0 else 'slower'}"


def _largest_saving(run: FinishedRun, chosen: ModelRow) -> tuple[float, str]:
    """The share that a model saves of its weights, or of its key/value cache if that is more, and the same in words."""
    shares = []
    for measure, what in (("parameters", "fewer weights"), (CACHE, "less key/value cache")):
        both = _values_of_both(run.full, chosen, measure)
        if both and both[0]:
            text = f"{percent_change(*both).removeprefix('−')} {what}"
            shares.append((1 - both[1] / both[0], text))
    return max(shares, key=lambda share: share[0], default=(0.0, ""))


def _without_choice(run: FinishedRun) -> str:
    if run.pruned:
        return f"{count(len(run.pruned), 'pruned model')}, none of them chosen"
    total = len(heads_in(run.heads))
    return f"{count(total, 'attention head')}, scored" if total else "A study in progress"


def why_no_choice(run: FinishedRun) -> str:
    """Why no pruned model was chosen, in a sentence."""
    if not run.pruned:
        return "Nothing has been pruned in this run yet."
    if run.full is None:
        return "The full model has not been evaluated in this run, so pruned models cannot be compared with it."
    known = losses_on_dev(run)
    nearest = min(known, key=known.__getitem__, default="")
    if nearest and not is_within(known[nearest], run.limit):
        loss = run.quality_on("dev").loss
        model = next(row for row in run.candidates if row["setting"] == nearest)
        change = models.change_text(run.quality_of(model, "dev", UNPRUNED))
        return (
            f"No smaller model loses at most {run.limit:g} {loss} on dev (max_drop); {nearest} comes nearest with "
            f"{change}. Allow more, keep more heads, or try smaller penalties."
        )
    if unsettled := run.facts.get("unsettled"):
        return (
            f"No model was chosen: the gates of {', '.join(unsettled)} had not settled when they were decided, so other "
            "heads might have stayed. Train longer (pruning.epochs), or raise pruning.gate_learning_rate."
        )
    if run.facts.get("chosen") == run.full["setting"]:
        return "The full model was chosen: nothing is saved."
    return "run.json names no chosen model."


def losses_on_dev(run: FinishedRun) -> dict[str, float]:
    """What the models that could be chosen lose on dev, by their settings, as far as it was measured."""
    losses = {model["setting"]: run.lost(model) for model in run.candidates}
    return {setting: lost for setting, lost in losses.items() if lost is not None}


def _values_of_both(
    one: ModelRow | None, other: ModelRow, measure: str, split: str = ""
) -> tuple[float, float] | None:
    """A measure of two models that both have it."""
    before = measured(one, measure, split).value
    after = measured(other, measure, split).value
    return None if before is None or after is None else (before, after)


def _tiles(run: FinishedRun, full: ModelRow, chosen: ModelRow) -> list[Fact]:
    """Label, value and detail of the numbers to see at a glance: size, speed (or the key/value cache, where that is
    smaller or speed was not measured) and quality; of embeddings also how many keep their nearest neighbour."""
    tiles = []
    cached = _values_of_both(full, chosen, CACHE)
    smaller = cached is not None and cached[1] < cached[0]
    for measure in (
        "parameters",
        CACHE if smaller or not _values_of_both(full, chosen, SPEED) else SPEED,
    ):
        label, write = SAVED[measure]
        if (both := _values_of_both(full, chosen, measure)) and both[0]:
            noise = measure == SPEED and _speed_noise(full, chosen)
            change = "no clear change" if noise else percent_change(*both)
            tiles.append((label, change, " → ".join(map(write, both))))

    quality = run.quality
    both = _values_of_both(full, chosen, quality.name, run.split)
    label = f"{capital(quality.title)} on {run.split}"
    tuned = run.change_of(chosen, FINE_TUNED)
    unit = quality.unit.replace(NO_BREAK, " ")  # a tile is narrow
    moved = f"{signed(quality.change(*both))}{unit}" if both else ""
    if tuned.value is not None:
        details = [interval_text(tuned.low, tuned.high)]
        details += [f"{moved} to the full model"] * bool(both)
        value = f"{signed(tuned.value)}{unit}"
        tiles.append((f"{label}, to equal further training", value, " · ".join(details)))
    elif both:
        tiles.append((label, moved, f"{both[0]:.2f} → {both[1]:.2f}"))
    neighbours = measured(chosen, NEIGHBOURS.name, run.split)
    if neighbours.value is not None:
        low, high = neighbours.low, neighbours.high
        ends = "" if low is None or high is None else f"[{low:.0f}, {high:.0f}]"
        tiles.append((capital(NEIGHBOURS.title), percent(neighbours.value / 100), ends))
    return tiles


def saved(full: ModelRow, chosen: ModelRow) -> list[Fact]:
    total = chosen["total"]
    removed = total - chosen["kept"]
    text = f"{removed} of {total} {models.heads_name(chosen['kinds'])} ({percent(removed / total)})"
    facts = [("Heads removed", text, "")]
    for measure, (label, write) in SAVED.items():
        if (both := _values_of_both(full, chosen, measure)) and both[0]:
            noise = _speed_noise(full, chosen) if measure == SPEED else ""
            text = f"{' → '.join(map(write, both))} ({percent_change(*both)}){noise}"
            facts.append((label, text, NOT_DISTINGUISHABLE if noise else ""))
    return facts


def _speed_noise(full: ModelRow, chosen: ModelRow) -> str:
    """Why two speeds cannot be distinguished, if so."""
    before, after = measured(full, SPEED), measured(chosen, SPEED)
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return ONE_ROUND
    if before.low == before.high or after.low == after.high:  # a single round is its own range
        return ONE_ROUND
    overlap = after.low <= before.high and before.low <= after.high
    return "; the ranges over the rounds overlap" if overlap else ""


def cost(run: FinishedRun, full: ModelRow, chosen: ModelRow) -> list[Fact]:
    """The change of quality: first to equal further training, then to the untouched full model."""
    quality = run.quality
    facts = list[Fact]()
    tuned = models.model_rows(
        run.model_table[run.model_table.index == models.against(chosen, FINE_TUNED)]
    )
    others = [(one, FINE_TUNED, "to equal further training without pruning") for one in tuned]
    for other, reference, label in [*others, (full, UNPRUNED, "to the untouched full model")]:
        if both := _values_of_both(other, chosen, quality.name, run.split):
            change = run.change_of(chosen, reference)
            moved = tested_text(change, ", ", quality.unit)
            moved = moved or f"{signed(quality.change(*both))}{quality.unit}, no interval"
            text = f"{both[0]:.2f} → {both[1]:.2f}: {moved}"
            facts.append((f"{capital(quality.title)} {label}", text, change.verdict(quality)))
    before = measured(chosen, "loss_before_training", "dev").value
    after = measured(chosen, "loss_after_training", "dev").value
    if before is not None and after is not None:
        facts.append(("Recovery", f"dev loss {before:.3f} → {after:.3f} by training", ""))
    return facts or [(capital(quality.title), "not measured for both models yet", "")]


def other_orders(run: FinishedRun, chosen: ModelRow) -> list[Fact]:
    """The chosen model against those that other orders of removal leave with as many heads: random ones, and the best
    of the other measures. Where it has no such models, as after training, every other result that has some."""
    facts = list[Fact]()
    for model in [chosen] if models.orders_against(chosen) else run.pruned:
        start = "" if model["setting"] == chosen["setting"] else f"{model['label']}: "
        said = []
        for reference in models.orders_against(model):
            change = run.change_of(model, reference)
            if change.value is None:
                continue
            if reference.startswith("random."):
                said.append(change.verdict(run.quality))
            else:
                label = f"{start}To the best other measure on dev, {measure_name(reference)}"
                moved = tested_text(change, ", ", run.quality.unit)
                verdict = change.verdict(run.quality)
                facts.append((label, f"{run.quality.title} {moved}", verdict))
        if said:
            better = said.count(BETTER)
            text = f"better than {better} of {len(said)}"
            if not better:
                text += ": this measure says nothing about which heads to remove"
            verdict = BETTER if better == len(said) else NOT_DISTINGUISHABLE
            facts.append((f"{start}Random orders", text, verdict))
    return facts


def choice(run: FinishedRun, full: ModelRow, chosen: ModelRow) -> list[Fact]:
    """On which text, among how many models and within which limit the model was chosen."""
    quality = run.quality_on("dev")
    known = losses_on_dev(run)
    heads = {model["setting"]: run.heads_left(model) for model in run.candidates}
    left = run.heads_left(chosen)
    smallest = choose_smallest(known, heads, run.limit)
    why = ""
    if smallest is not None and chosen["setting"] in known and left == heads[smallest]:
        why = f", the fewest{'' if run.limit is None else ' within the limit'}"

    tested = run.quality_of(chosen, "test").value is not None
    test = "test text had no part in it" if tested else "no test text was measured"
    allowed = "no limit" if run.limit is None else f"{run.limit:g} {quality.loss}"
    facts = [
        ("Text", f"dev only; {test}", ""),
        ("Models tried", str(len(run.candidates)), ""),
        ("Loss allowed on dev", allowed, ""),
        ("Chosen", f"{chosen['label']}: {count(left, 'head')} in the whole model{why}", ""),
    ]
    both = _values_of_both(full, chosen, quality.name, "dev")
    lost = known.get(chosen["setting"])
    if lost is not None and both:
        moved = f"{signed(-quality.better * lost)}{quality.unit}"
        facts.append(("On dev", f"{quality.title} {both[0]:.2f} → {both[1]:.2f} ({moved})", ""))
    return facts


def text_doubts(run: FinishedRun) -> list[str]:
    """Texts that are too short to say much. A study says so before it begins."""
    known = run.facts["sentences"]
    lines = [too_short(text, number, run.quality.over) for text, number in known.items()]
    return [line for line in lines if line]


def doubts(run: FinishedRun) -> list[str]:
    """What speaks against the headline: a model that does not translate, gates that had not settled."""
    found = []
    if does_not_translate(run):
        full = run.quality_of(run.full).value
        found.append(
            f"The full model has {full:.1f} BLEU: it does not translate yet. Train it on more text or for more epochs "
            "before heads are removed."
        )
    if run.chosen is not None:
        found += model_doubts(run, run.chosen)
    return found


def model_doubts(run: FinishedRun, model: ModelRow) -> list[str]:
    """What speaks against a pruned model, or the control that it is compared with."""
    known = run.facts["doubts"]
    settings = (model["setting"], models.against(model, FINE_TUNED))
    own = [doubt for setting in settings for doubt in known.get(setting, [])]
    if not own and measured(model, "settled").value == 0:
        own = ["Its gates had not settled when they were decided: train longer."]
    return own


def does_not_translate(run: FinishedRun) -> bool:
    """Whether the full model's BLEU is too low for its differences to mean anything."""
    full = run.quality_of(run.full).value
    return full is not None and run.quality.is_too_low(full)


MOST_LISTED_STEPS = 25  # steps whose times are listed one by one
SAID_ELSEWHERE = ("settings", "notes", "doubts")  # facts of run.json that other sections say


@section(
    "provenance",
    heading="How it was made",
    question="With which texts, versions and settings was all this made?",
    order=140,
    files=("run.json", "plan.toml"),
)
def provenance(run: FinishedRun) -> dict[str, Any]:
    """Groups of names and values from run.json, and the plan."""
    facts = {name: fact for name, fact in run.facts.items() if name not in SAID_ELSEWHERE}
    seconds = _summed(facts.pop("seconds"))
    groups = [
        ("Signature", [*flat_settings(facts.pop("signature")).items()]),
        ("Versions", [*flat_settings(facts.pop("versions")).items()]),
        ("Time taken", [(name, about(taken)) for name, taken in seconds.items()]),
        ("Evaluation and run", [*flat_settings(facts).items()]),
    ]
    return {"facts": [(title, pairs) for title, pairs in groups if pairs], "plan": run.plan}


def _summed(seconds: Mapping[str, float]) -> Mapping[str, float]:
    """The time of all steps; with many models, the sum of the steps of one name: `prune (9)`."""
    if len(seconds) <= MOST_LISTED_STEPS:
        return seconds
    steps: dict[str, list[float]] = {}
    for name, taken in seconds.items():
        steps.setdefault(name.partition("/")[0], []).append(taken)
    return {
        f"{step} ({len(part)})" if len(part) > 1 else step: sum(part)
        for step, part in steps.items()
    }
