"""The first screen: what was found, what follows from it, tiles, and the facts of what pruning saved, what it cost and
how it was chosen.

Nothing is decided here: `pruning/verdict.py` does that, and a sentence only says it (`FOLLOWS`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from headwise.core.answers import too_short
from headwise.core.heads import head_of
from headwise.core.measured import FINE_TUNED, UNPRUNED, choose_smallest, is_within
from headwise.core.qualities import (
    AGREEMENT,
    BETTER,
    NEIGHBOURS,
    NO_BREAK,
    NOT_DISTINGUISHABLE,
    WORSE,
    Number,
    QualityMeasure,
)
from headwise.core.statistics import ENOUGH_SENTENCES
from headwise.faces.report import (
    head_words,
    kept_heads,
    models,
    role_tables,
    score_faithfulness,
    score_maps,
)
from headwise.faces.report.format import (
    KIND_NAMES,
    capital,
    count,
    interval_text,
    listed,
    measure_name,
    percent,
    percent_change,
    quantity,
    signed,
    size,
)
from headwise.faces.report.head_rows import heads_in, of_measure, values_by_head
from headwise.faces.report.models import OTHERS, ModelRow, measured, tested_text
from headwise.faces.report.page import section
from headwise.faces.report.run_folder import RunContents
from headwise.pruning.verdict import LEAST_SAVING, SPEED, Outcome, Speed, Verdict, compared_speed

CACHE = "cache_bytes"
SAVED: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "parameters": ("Parameters", quantity),
    "bytes": ("Size on disk", size),
    "memory": ("Weights in memory", size),
    CACHE: ("Key/value cache per token", size),
    SPEED: ("Decoding speed, tokens/s", quantity),
}
Fact = tuple[str, str, str]  # label, text, verdict
NOISE = {  # why two speeds cannot be told apart
    Speed.ONCE: "; one round only",
    Speed.SAME: "; the ranges over the rounds overlap",
}
THAN = {  # by the finding
    NOT_DISTINGUISHABLE: "not distinguishable from",
    BETTER: "better than",
    WORSE: "worse than",
    "": "compared with",
}
LESS_OF = {"parameters": "fewer weights", CACHE: "less key/value cache"}


@section(
    "summary",
    question="What was removed, what did it save and cost, and how was it chosen?",
    order=0,
    files=("run.json", "pruning.csv", "layouts/", "heads.csv"),
)
def summary_section(run: RunContents) -> dict[str, Any]:
    """Headline, what it rests on, what follows and what speaks against it; the map of the heads, tiles and facts; `why` no
    pruned model was chosen."""
    full = run.full
    chosen = run.chosen
    groups = [("Which score is faithful", score_faithfulness.faithfulness_facts(run))]
    tiles: list[Fact] = []
    if full is not None and chosen is not None:
        tiles = tiles_of(run, full, chosen)
        groups = [
            ("What was saved", saved(full, chosen)),
            ("What it cost", cost(run, full, chosen)),
            ("What other orders cost", other_orders(run, chosen)),
            ("How it was chosen", choice(run, full, chosen)),
            *groups,
        ]
    groups = [group for group in groups if group[1]]
    return {
        **lead_of(run),
        "findings": findings(run),
        "tiles": tiles,
        "groups": groups,
        # Where the facts are folded, the fold says what is in it.
        "leads": ", ".join(title[0].lower() + title[1:] for title, _ in groups),
        "doubts": [*text_doubts(run), *doubts(run)],
        "head_map": kept_heads.head_map(run, chosen),
    }


def lead_of(run: RunContents) -> dict[str, str]:
    """The headline, what it rests on, what follows, the finding; and `why` no pruned model was chosen. Empty where there is
    nothing to say."""
    lead = dict.fromkeys(("headline", "basis", "advice", "verdict", "why"), "")
    if run.full is None or run.chosen is None:
        said = {"headline": without_choice(run), "basis": attention_alone(run)}
        return lead | said | {"why": why_no_choice(run)}
    verdict = run.verdict_of(run.chosen)
    if sizes := sizes_tried(run):
        # No limit says which of the sizes is wanted, so none of them leads, and nothing follows for one.
        basis = curve_basis(run, sizes, verdict)
        return lead | {"headline": curve_text(run, sizes), "basis": basis}
    return lead | {
        "headline": finding_text(run, run.chosen, verdict),
        "basis": basis_text(run, verdict),
        "advice": FOLLOWS[verdict.outcome](verdict, run.quality),
        "verdict": verdict.finding,
    }


def lead_sentences(run: RunContents) -> list[str]:
    """What a run found, in sentences: those of `lead_of`."""
    lead = lead_of(run)
    sentences = [f"{lead['headline']}.", lead["basis"], lead["advice"], lead["why"]]
    return [sentence for sentence in sentences if sentence]


def sizes_tried(run: RunContents) -> dict[int, Number]:
    """By heads removed, how the quality changed, where several sizes were tried and no limit chooses one of them; empty
    elsewhere."""
    sizes: dict[int, Number] = {}
    for model in run.candidates:
        change = run.quality_of(model, reference=UNPRUNED)
        removed = model["total"] - model["kept"]
        # Two models of one size are two ways to prune, which a table tells apart.
        if run.limit is not None or not change.finding(run.quality) or removed in sizes:
            return {}
        sizes[removed] = change
    return sizes if len(sizes) > 1 else {}


def curve_text(run: RunContents, sizes: Mapping[int, Number]) -> str:
    """`BLEU −0.3 without 12 of 48 encoder heads, −1.2 without 24`."""
    model = run.candidates[0]
    kind = f" of {model['total']} {models.heads_name(model['kinds'])}"
    parts = []
    for removed, change in sizes.items():
        assert change.value is not None
        parts.append(f"{signed(change.value)}{run.quality.unit} without {removed}{kind}")
        kind = ""
    return f"{capital(run.quality.title)} {', '.join(parts)}"


def curve_basis(run: RunContents, sizes: Mapping[int, Number], verdict: Verdict) -> str:
    """The intervals of `curve_text`, on how much text, which of the changes are found, and what the smallest model saves.
    verdict: of that one."""
    intervals = listed([interval_text(change.low, change.high) for change in sizes.values()])
    sentences = [f"{measured_on(run, verdict)}; 95 % intervals: {intervals}."]
    whole = run.quality_of(run.full).value
    if whole is not None:
        share = " %" if run.quality.is_share else ""
        sentences.append(f"The full model has {run.quality.title} {whole:.1f}{share}.")
    for finding in (BETTER, WORSE):
        found = [
            str(gone) for gone, change in sizes.items() if change.finding(run.quality) == finding
        ]
        if found:
            sentences.append(f"{capital(finding)} than the full model: without {listed(found)}.")
    same = [
        gone for gone, change in sizes.items() if change.finding(run.quality) == NOT_DISTINGUISHABLE
    ]
    if len(same) == len(sizes):
        sentences.append("None of these is distinguishable from the full model.")
    if beside := random_changes(run, sizes):
        sentences.append(beside)
    beaten = [
        str(model["total"] - model["kept"])
        for model in run.candidates
        if run.random_heads_do_better(model)
    ]
    if beaten:
        sentences.append(f"Random heads do better than the chosen ones without {listed(beaten)}.")
    if gains := [text for text in (saving_text(verdict), speed_text(verdict)) if text]:
        sentences.append(f"The smallest saves: {', '.join(gains)}.")
    return " ".join(sentences)


def random_changes(run: RunContents, sizes: Collection[int]) -> str:
    """What as many random heads cost at the same sizes, the mean of all orders; empty where a size has none."""
    found: dict[int, list[float]] = {}
    for model in run.pruned:
        value = run.quality_of(model, reference=UNPRUNED).value
        if models.is_random_order(model) and value is not None:
            found.setdefault(model["total"] - model["kept"], []).append(value)
    if not set(sizes) <= set(found):
        return ""
    means = listed(
        [f"{signed(sum(found[size]) / len(found[size]))}{run.quality.unit}" for size in sizes]
    )
    orders = {len(found[size]) for size in sizes}
    drawn = "in one order" if orders == {1} else f"mean of {min(orders)} orders"
    return f"As many random heads, {drawn}: {means}."


def verdict_sentences(run: RunContents, model: ModelRow) -> list[str]:
    """What was found of a model, what that rests on, and what follows: a sentence each, the last two only where there is
    something to say."""
    verdict = run.verdict_of(model)
    advice = FOLLOWS[verdict.outcome](verdict, run.quality)
    headline = f"{finding_text(run, model, verdict)}."
    return [line for line in (headline, basis_text(run, verdict), advice) if line]


def finding_text(run: RunContents, model: ModelRow, verdict: Verdict) -> str:
    """What was removed, and how the quality changed: `15 of 24 encoder heads removed: BLEU −0.31 [−0.71, +0.11], not
    distinguishable from equal further training`."""
    removed = model["total"] - model["kept"]
    start = f"{removed} of {model['total']} {models.heads_name(model['kinds'])} removed"
    change = verdict.change
    if change.value is None:
        return start
    interval = interval_text(change.low, change.high)
    moved = f"{run.quality.title} {signed(change.value)}{run.quality.unit} {interval}".rstrip()
    return f"{start}: {moved}, {THAN[verdict.finding]} {OTHERS[verdict.reference]}"


def basis_text(run: RunContents, verdict: Verdict) -> str:
    """What the finding rests on, what was saved, and whether the limit was kept, in sentences."""
    sentences = []
    if verdict.change.value is not None and verdict.texts is not None:
        # A change without a finding has no interval: too few texts were read.
        interval = ", with a 95 % interval" if verdict.finding else ", too few for an interval"
        sentences.append(f"{measured_on(run, verdict)}{interval}.")
    if gains := [text for text in (saving_text(verdict), speed_text(verdict)) if text]:
        sentences.append(f"Saved: {', '.join(gains)}.")
    if kept := limit_text(verdict, run.quality):
        sentences.append(f"{kept}.")
    return " ".join(sentences)


def measured_on(run: RunContents, verdict: Verdict) -> str:
    """`Measured on 300 sentences of test`; of agreement also with what."""
    over = run.quality.over if verdict.texts != 1 else run.quality.over.removesuffix("s")
    texts = "" if verdict.texts is None else f"{verdict.texts} {over} of "
    against = (
        ", by BLEU against the full model's own translations" if run.quality == AGREEMENT else ""
    )
    return f"Measured on {texts}{run.split}{against}"


def saving_text(verdict: Verdict) -> str:
    """`2.6 % fewer weights`; empty where nothing is."""
    return f"{percent(verdict.saved, 1)} {LESS_OF[verdict.saving]}" if verdict.saved > 0 else ""


def speed_text(verdict: Verdict) -> str:
    """How the speed compares with that of the full model; empty where it was not measured."""
    share = percent(abs(verdict.speed_up))
    return {
        Speed.NOT_MEASURED: "",
        Speed.ONCE: "speed measured only once",
        Speed.SAME: "no faster",
        Speed.FASTER: f"{share} faster",
        Speed.SLOWER: f"{share} slower",
    }[verdict.speed]


def limit_text(verdict: Verdict, quality: QualityMeasure) -> str:
    """On which texts the model stays within the limit, which counts from the full model; empty without a limit, or where
    dev was not measured."""
    if verdict.limit is None or "dev" not in (*verdict.within, *verdict.over):
        return ""
    limit = the_limit(verdict, quality)
    words = [f"within {limit} on {listed(verdict.within)}"] if verdict.within else []
    if verdict.over:
        words.append(f"over {'it' if words else limit} on {listed(verdict.over)}")
    return f"Compared with {OTHERS[UNPRUNED]} it is {', '.join(words)}"


def the_limit(verdict: Verdict, quality: QualityMeasure) -> str:
    """`the limit of 0.5 BLEU`, of a verdict that has one."""
    assert verdict.limit is not None
    return f"the limit of {amount(verdict.limit, quality)}"


def amount(value: float, quality: QualityMeasure) -> str:
    """A loss in its unit: `0.5 BLEU`, `1 point of accuracy`."""
    return f"{value:.3g} {quality.loss.replace('points', 'point', int(value == 1))}"


def may_lose_text(verdict: Verdict, quality: QualityMeasure) -> str:
    """The most that an interval allows a model to lose: `may lose 0.5 BLEU`."""
    return (
        f"may lose {amount(verdict.most_loss, quality)}"
        if verdict.most_loss > 0
        else "loses nothing"
    )


def gains_text(verdict: Verdict) -> str:
    """What is gained, for a sentence."""
    faster = speed_text(verdict) if verdict.speed == Speed.FASTER else ""
    return listed([text for text in (saving_text(verdict), faster) if text]) or "fewer heads"


def needed_text(verdict: Verdict, quality: QualityMeasure) -> str:
    """How many texts the limit needs."""
    if verdict.limit is None or verdict.needed is None:  # no limit holds on this text
        return f" Give at least {ENOUGH_SENTENCES}."
    limit = amount(verdict.limit, quality)
    if math.isinf(verdict.needed):
        return f" More text alone will not show a loss below {limit}: give a larger limit, or keep more heads."
    return f" To tell a loss of {limit} takes about {rounded_up(int(verdict.needed)):,} {quality.over}."


def rounded_up(number: int) -> int:
    """A number with two digits, which say how rough it is; never below itself, or it would promise too much."""
    step: int = 10 ** max(len(str(number)) - 2, 0)
    return -(-number // step) * step


def too_dear_text(verdict: Verdict, quality: QualityMeasure) -> str:
    least = amount(verdict.least_loss, quality)
    return f"Do not ship: by its interval it loses at least {least}, a larger share than it saves ({gains_text(verdict)})."


def ship_text(verdict: Verdict, quality: QualityMeasure) -> str:
    reason = "it is better"
    if verdict.finding != BETTER and verdict.limit is not None:
        most = amount(verdict.most_loss, quality)
        reason = f"by its interval it loses at most {most}, within {the_limit(verdict, quality)}"
    return f"Ship: {reason}; {gains_text(verdict)}."


# What follows from each outcome, in words. None advises to ship but the one whose interval allows it.
FOLLOWS: Mapping[Outcome, Callable[[Verdict, QualityMeasure], str]] = {
    Outcome.NOT_COMPARED: lambda verdict, quality: "",
    Outcome.NO_BASIS: lambda verdict, quality: (
        "No conclusion while the full model does not translate."
    ),
    Outcome.TOO_DEAR: too_dear_text,
    Outcome.WORSE_AND_LITTLE_SAVED: lambda verdict, quality: (
        f"Do not ship: it is worse, and saves less than {percent(LEAST_SAVING)}."
    ),
    Outcome.OVER_LIMIT: lambda verdict, quality: (
        f"Do not ship: by its interval it loses at least {amount(verdict.least_loss, quality)}, more than "
        f"{the_limit(verdict, quality)}."
    ),
    Outcome.DOUBTED: lambda verdict, quality: (
        "No conclusion yet: there are doubts about this model."
    ),
    Outcome.TOO_SHORT: lambda verdict, quality: (
        f"No conclusion yet: {verdict.texts} {quality.over} are too few to tell.{needed_text(verdict, quality)}"
    ),
    Outcome.UNDECIDED: lambda verdict, quality: (
        f"No conclusion yet: by its interval it may lose {amount(verdict.most_loss, quality)}, more than "
        f"{the_limit(verdict, quality)}.{needed_text(verdict, quality)}"
    ),
    Outcome.OPEN: lambda verdict, quality: (
        f"Whether it is worth {gains_text(verdict)} is yours to say: by its interval it "
        f"{may_lose_text(verdict, quality)}, and the plan sets no limit (max_drop) for it."
    ),
    Outcome.LITTLE_SAVED: lambda verdict, quality: (
        f"Little to gain: less than {percent(LEAST_SAVING)} is saved, and it is no faster."
    ),
    Outcome.SHIP: ship_text,
}


FEWEST_ORDERS = 5  # random ones, that say something about a measure
MOST_NAMED = 3  # heads that a sentence names


def findings(run: RunContents) -> list[str]:
    """Which heads matter, what they do, which score to trust, and which one says little: a sentence each."""
    sentences = [heads_that_matter(run)]
    functions = [*role_tables.role_facts(run), *head_words.word_facts(run)]
    sentences += [f"{label}: {text}." for label, text, _ in functions]
    scores = {label: text for label, text, _ in score_faithfulness.faithfulness_facts(run)}
    if best := scores.get("Most faithful score"):
        sentences.append(
            f"Score to trust: {best[0].lower() + best[1:]}. Removal in its order costs least."
        )
    sentences.append(like_untrained(run))
    return [sentence for sentence in sentences if sentence]


def heads_that_matter(run: RunContents) -> str:
    """The heads without which the loss rises most."""
    values = values_by_head(run, score_maps.LOSS_MEASURE)
    highest = sorted(values, key=values.__getitem__, reverse=True)[:MOST_NAMED]
    named = [f"{head} (+{values[head]:.2g})" for head in highest if values[head] > 0]
    if not named:
        return ""
    sentence = f"Most missed when off, in nats per {run.quality.each}: {listed(named)}."
    rows = of_measure(run.heads, score_maps.LOSS_MEASURE)
    if rows["low"].isna().all():
        sentence += (
            " Too few sentences were read for intervals: other heads may lead on other text."
        )
    left = None if run.chosen is None else run.layouts.get(run.chosen["setting"])
    gone = [
        str(head)
        for head in highest
        if left is not None and values[head] > 0 and head not in left.kept
    ]
    if run.chosen is not None and gone:
        kept = count(run.chosen["kept"], "head")
        sentence += (
            f" The model of {kept} is without {listed(gone)}: its others may make up for that."
        )
    return sentence


def like_untrained(run: RunContents) -> str:
    """How many heads have the relevance of a head of an untrained model."""
    ranges = score_maps.control_ranges(run)
    for measure in ("lrp.ding", *sorted(set(run.heads["measure"]))):
        values = values_by_head(run, measure) if measure.startswith("lrp") else {}
        compared = {head: ranges.get((head.kind, head.layer, measure)) for head in values}
        # The first measure of relevance that untrained models have, too, is the one in the sentence.
        if not any(compared.values()):
            continue
        inside = [head for head, own in compared.items() if own and own.holds(values[head])]
        most = 2 * len(inside) > len(values)
        return (
            f"{capital(measure_name(measure))} of {len(inside)} of {len(values)} heads lies within the range of "
            f"untrained models{': it shows little of what was learned' if most else ''}."
        )
    return ""


def attention_alone(run: RunContents) -> str:
    """A sentence on scores of a model whose answers are not measured; empty for any other."""
    classes = [signature.get("unmeasured") for signature in run.scored]
    named = next((one for one in classes if isinstance(one, str) and one), "")
    if not named:
        return ""
    return (
        f"What a {named} answers is not measured here: these scores say how its heads attend, not what is lost without "
        "them."
    )


def without_choice(run: RunContents) -> str:
    """The headline where no pruned model was chosen."""
    if run.pruned:
        return f"{count(len(run.pruned), 'pruned model')}, none of them chosen"
    return most_important(run) or heads_with_roles(run) or "A study in progress"


def most_important(run: RunContents) -> str:
    """The head that matters most, with its interval: by what the loss gains without it, else by the score that leads the
    figures; empty without scores."""
    measure = score_maps.LOSS_MEASURE
    if of_measure(run.heads, measure).empty:
        measure = next(
            (names[0] for kind in KIND_NAMES if (names := score_maps.leading_measures(run, kind))),
            "",
        )
    rows = of_measure(run.heads, measure).sort_values("value", kind="stable", ascending=False)
    if rows.empty:
        return ""
    row = rows.to_dict("records")[0]
    interval = interval_text(
        row["low"], row["high"], lambda value: f"{value:.2g}".replace("-", "−")
    )
    value = f"{row['value']:.2g} {interval}".strip()
    if measure == score_maps.LOSS_MEASURE:
        if row["value"] <= 0:
            return f"None of {count(len(rows), 'head')} is missed when it alone is off"
        what = f"matters most of {count(len(rows), 'head')}: without it the loss rises by"
        return f"{head_of(row)} {what} {value} nats per {run.quality.each}"
    return f"{head_of(row)} has the highest {measure_name(measure)} of {count(len(rows), 'head')}: {value}"


def heads_with_roles(run: RunContents) -> str:
    """How many heads have a role; empty where none was tested."""
    tested = heads_in(run.roles.labels)
    found = heads_in(run.roles.roles)
    return f"{len(found)} of {count(len(tested), 'head')} have a role" if tested else ""


def why_no_choice(run: RunContents) -> str:
    """Why no pruned model was chosen, in a sentence: the first reason that holds, as those below make no sense then."""
    if not run.pruned:
        return "Nothing has been pruned in this run yet." if run.planned.get("pruning") else ""
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


def losses_on_dev(run: RunContents) -> dict[str, float]:
    """What the models that could be chosen lose on dev, by their settings, as far as it was measured."""
    losses = {model["setting"]: run.lost(model) for model in run.candidates}
    return {setting: lost for setting, lost in losses.items() if lost is not None}


def before_and_after(
    one: ModelRow | None, other: ModelRow, measure: str, split: str = ""
) -> tuple[float, float] | None:
    """A measure of the model before and of the one after; None where one of them was not measured."""
    before = measured(one, measure, split).value
    after = measured(other, measure, split).value
    return None if before is None or after is None else (before, after)


def tiles_of(run: RunContents, full: ModelRow, chosen: ModelRow) -> list[Fact]:
    """Label, value and detail of the numbers to see at a glance: size, speed (or the key/value cache, where that is
    smaller or speed was not measured) and quality; of embeddings also how many keep their nearest neighbour."""
    tiles = [
        *saving_tile(full, chosen, "parameters"),
        *saving_tile(full, chosen, running_cost(full, chosen)),
        *quality_tile(run, full, chosen),
    ]
    neighbours = measured(chosen, NEIGHBOURS.name, run.split)
    if neighbours.value is not None:
        low, high = neighbours.low, neighbours.high
        ends = "" if low is None or high is None else f"[{low:.0f}, {high:.0f}]"
        tiles.append((capital(NEIGHBOURS.title), percent(neighbours.value / 100), ends))
    return tiles


def running_cost(full: ModelRow, chosen: ModelRow) -> str:
    """What says best how much cheaper the chosen model runs: its key/value cache where that shrank, else its speed, as far
    as that was measured."""
    cache = before_and_after(full, chosen, CACHE)
    shrank = cache is not None and cache[1] < cache[0]
    return CACHE if shrank or not before_and_after(full, chosen, SPEED) else SPEED


def saving_tile(full: ModelRow, chosen: ModelRow, measure: str) -> list[Fact]:
    """The tile of one of SAVED; none where a model was not measured."""
    both = before_and_after(full, chosen, measure)
    if not both or not both[0]:
        return []
    label, write = SAVED[measure]
    noise = measure == SPEED and speed_noise(full, chosen)
    change = "no clear change" if noise else percent_change(*both)
    return [(label, change, " → ".join(map(write, both)))]


def quality_tile(run: RunContents, full: ModelRow, chosen: ModelRow) -> list[Fact]:
    """The change of quality, from equal further training where that was measured, else from the full model."""
    quality = run.quality
    label = f"{capital(quality.title)} on {run.split}"
    unit = quality.unit.replace(NO_BREAK, " ")  # a tile is narrow
    both = before_and_after(full, chosen, quality.name, run.split)
    from_full = f"{signed(quality.change(*both))}{unit}" if both else ""
    tuned = run.change_of(chosen, FINE_TUNED)
    if tuned.value is not None:
        details = interval_text(tuned.low, tuned.high)
        details += f" · {from_full} to the full model" if both else ""
        return [(f"{label}, to equal further training", f"{signed(tuned.value)}{unit}", details)]
    if both:
        return [(label, from_full, f"{both[0]:.2f} → {both[1]:.2f}")]
    return []


def saved(full: ModelRow, chosen: ModelRow) -> list[Fact]:
    total = chosen["total"]
    removed = total - chosen["kept"]
    text = f"{removed} of {total} {models.heads_name(chosen['kinds'])} ({percent(removed / total)})"
    facts = [("Heads removed", text, "")]
    for measure, (label, write) in SAVED.items():
        if (both := before_and_after(full, chosen, measure)) and both[0]:
            noise = speed_noise(full, chosen) if measure == SPEED else ""
            text = f"{' → '.join(map(write, both))} ({percent_change(*both)}){noise}"
            facts.append((label, text, NOT_DISTINGUISHABLE if noise else ""))
    return facts


def speed_noise(full: ModelRow, chosen: ModelRow) -> str:
    """Why two speeds cannot be told apart; empty where they can."""
    speed, _ = compared_speed(measured(full, SPEED), measured(chosen, SPEED))
    return NOISE.get(speed, "")


def cost(run: RunContents, full: ModelRow, chosen: ModelRow) -> list[Fact]:
    """The change of quality: first to equal further training, then to the untouched full model."""
    quality = run.quality
    facts = list[Fact]()
    tuned = models.model_rows(
        run.model_table[run.model_table.index == models.against(chosen, FINE_TUNED)]
    )
    others = [(one, FINE_TUNED, "to equal further training without pruning") for one in tuned]
    for other, reference, label in [*others, (full, UNPRUNED, "to the untouched full model")]:
        if both := before_and_after(other, chosen, quality.name, run.split):
            change = run.change_of(chosen, reference)
            moved = tested_text(change, ", ", quality.unit)
            moved = moved or f"{signed(quality.change(*both))}{quality.unit}, no interval"
            text = f"{both[0]:.2f} → {both[1]:.2f}: {moved}"
            facts.append((f"{capital(quality.title)} {label}", text, change.finding(quality)))
    before = measured(chosen, "loss_before_training", "dev").value
    after = measured(chosen, "loss_after_training", "dev").value
    if before is not None and after is not None:
        facts.append(("Recovery", f"dev loss {before:.3f} → {after:.3f} by training", ""))
    return facts or [(capital(quality.title), "not measured for both models yet", "")]


def other_orders(run: RunContents, chosen: ModelRow) -> list[Fact]:
    """The chosen model against those that other orders of removal leave with as many heads: random ones, and the best
    of the other measures. Where it has no such models, as after training, every other result that has some."""
    facts = list[Fact]()
    for model in [chosen] if models.orders_against(chosen) else run.pruned:
        start = "" if model["setting"] == chosen["setting"] else f"{model['label']}: "
        changes = {name: run.change_of(model, name) for name in models.orders_against(model)}
        measured_ones = {name: one for name, one in changes.items() if one.value is not None}
        to_random = []
        for reference, change in measured_ones.items():
            verdict = change.finding(run.quality)
            if models.names_random(reference):
                to_random.append(verdict)
                continue
            label = f"{start}To the best other measure on dev, {measure_name(reference)}"
            moved = tested_text(change, ", ", run.quality.unit)
            facts.append((label, f"{run.quality.title} {moved}", verdict))
        if to_random:
            facts.append((f"{start}Random orders", *against_random(to_random)))
    return facts


def against_random(verdicts: Sequence[str]) -> tuple[str, str]:
    """How an order fares against random ones, in words and as a verdict: it is better only where it beats them all."""
    better = verdicts.count(BETTER)
    if len(verdicts) == 1:
        return "against one random order", verdicts[0]
    text = f"better than {better} of {len(verdicts)}"
    if not better and len(verdicts) >= FEWEST_ORDERS:
        text += ": this measure says nothing about which heads to remove"
    elif not better:
        text += ": random heads do as well here"
    return text, BETTER if better == len(verdicts) else NOT_DISTINGUISHABLE


def choice(run: RunContents, full: ModelRow, chosen: ModelRow) -> list[Fact]:
    """On which text, among how many models and within which limit the model was chosen."""
    quality = run.quality_on("dev")
    known = losses_on_dev(run)
    left = run.heads_left(chosen)
    why = ""
    if has_fewest_heads(run, chosen, known):
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
    both = before_and_after(full, chosen, quality.name, "dev")
    lost = known.get(chosen["setting"])
    if lost is not None and both:
        moved = f"{signed(-quality.better * lost)}{quality.unit}"
        facts.append(("On dev", f"{quality.title} {both[0]:.2f} → {both[1]:.2f} ({moved})", ""))
    return facts


def has_fewest_heads(run: RunContents, chosen: ModelRow, known: Mapping[str, float]) -> bool:
    """Whether no candidate within the limit has fewer heads than the chosen one. A plan may have named another. known: what
    the candidates lose on dev."""
    heads = {model["setting"]: run.heads_left(model) for model in run.candidates}
    smallest = choose_smallest(known, heads, run.limit)
    if smallest is None or chosen["setting"] not in known:
        return False
    return run.heads_left(chosen) == heads[smallest]


def text_doubts(run: RunContents) -> list[str]:
    """Texts that are too short to say much, but for one that the advice speaks of, and that share sentences. A study says
    so before it begins."""
    known = dict(run.facts["sentences"])
    if run.chosen and run.verdict_of(run.chosen).outcome == Outcome.TOO_SHORT:
        known.pop(run.split, None)
    lines = [too_short(text, number, run.quality.over) for text, number in known.items()]
    return [*(line for line in lines if line), *(run.facts.get("shared") or [])]


def doubts(run: RunContents) -> list[str]:
    """What speaks against the headline: a model that does not translate or know its classes, gates that had not
    settled."""
    found = []
    if does_not_translate(run):
        full = run.quality_of(run.full).value
        found.append(
            f"The full model has {full:.1f} BLEU: it does not translate yet. Train it on more text or for more epochs "
            "before heads are removed."
        )
    for model in (run.full, run.chosen):
        if model is not None:
            found += run.doubts_of(model)
    return [*dict.fromkeys(found)]


def does_not_translate(run: RunContents) -> bool:
    """Whether the full model's BLEU is too low for its differences to mean anything."""
    full = run.quality_of(run.full).value
    return full is not None and run.quality.is_too_low(full)
