"""The first screen: the headline, tiles, and the facts of what pruning saved, what it cost and how it was chosen."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import parse_qs

from headwise.data.text import DATASETS
from headwise.heads import HeadMask, Site
from headwise.pruning.measured import FINE_TUNED, UNPRUNED, choose_smallest, is_within
from headwise.qualities import BETTER, NOT_DISTINGUISHABLE, WORSE, Number
from headwise.report import head_words, kept_heads, models, role_tables, score_faithfulness
from headwise.report.format import (
    KIND_NAMES,
    capital,
    count,
    duration,
    interval_text,
    listed,
    measure_name,
    percent,
    percent_change,
    quantity,
    signed,
    size,
)
from headwise.report.models import OTHERS, ModelRow, measured, tested_text
from headwise.report.page import section
from headwise.report.run_folder import FinishedRun

SPEED = "tokens_per_second"
SAVED: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("parameters", "Parameters", quantity),
    ("bytes", "Size on disk", size),
    ("memory", "Weights in memory", size),
    ("cache_bytes", "Key/value cache per token", size),
    (SPEED, "Decoding speed, tokens/s", quantity),
)
Fact = tuple[str, str, str]  # label, text, verdict
ENOUGH_SENTENCES = 50  # sentences of a text; on fewer, an interval says little
# Of the weights or the cache: a model that is no faster and surely worse should save more.
LITTLE_SAVED = 0.1


@section(
    "summary",
    question="What was removed, what did it save and cost, and how was it chosen?",
    order=0,
    files=("run.json", "pruning.csv", "layouts/", "heads.csv"),
)
def summary_section(run: FinishedRun) -> dict[str, Any]:
    """Headline with its verdict and doubts, the map of the heads, tiles and facts; without a chosen pruned model `why`
    says why not."""
    full = run.full
    chosen = run.chosen
    groups = [
        ("Which score is faithful", score_faithfulness.faithfulness_facts(run)),
        ("What the heads do", [*role_tables.role_facts(run), *head_words.word_facts(run)]),
    ]
    start: dict[str, Any] = {
        "why": "",
        "limit": run.limit,
        "unit": run.quality_on("dev").loss,
        "tiles": [],
    }
    start["verdict"] = ""
    if full is None or chosen is None:
        start |= {"headline": _without_choice(run), "why": _why(run)}
    else:
        start |= {"headline": run_headline(run, chosen), "tiles": _tiles(run, full, chosen)}
        _, change = run.leading_change(chosen)
        start["verdict"] = change.verdict(run.quality)
        groups = [
            ("What was saved", saved(full, chosen)),
            ("What it cost", cost(run, full, chosen)),
            ("What other orders cost", other_orders(run, chosen)),
            ("How it was chosen", choice(run, full, chosen)),
            ("What is left", _left(run, chosen) if chosen["setting"] in run.layouts else []),
            *groups,
        ]
    groups = [group for group in groups if group[1]]
    start["groups"] = groups
    start["leads"] = ", ".join(lead[0].lower() + lead[1:] for lead, _ in groups)
    start["doubts"] = doubts(run)
    start["head_map"] = kept_heads.head_map(run, chosen)
    return start


def run_headline(run: FinishedRun, chosen: ModelRow) -> str:
    """The heads removed, what that saved, and the change of quality with its interval: to equal further training where
    measured, else to the full model; then whether the limit of the plan was kept.

    A bad bargain is called one, with the reason. But a loss that the plan allows is only called a small saving: how much
    may be lost is the user's choice.
    """
    removed = chosen["total"] - chosen["kept"]
    start = f"{removed} of {chosen['total']} {models.heads_name(chosen['kinds'])} removed"
    _, saving = _largest_saving(run, chosen)
    _, speed = _faster(run.full, chosen)
    bad = why_not_worth_it(run, chosen)
    allowed = bad and _is_allowed(run, chosen)
    if allowed and saving:
        saving = f"only {saving}"
    savings = [text for text in (saving, speed) if text]
    if savings:
        start = f"{start}: {', '.join(savings)}"
    quality = run.quality
    reference, change = run.leading_change(chosen)
    if change.value is None:
        return start
    ends = interval_text(change.low, change.high)
    on = " on dev" if run.split == "dev" else ""
    of = " of" if quality.unit.endswith("points") else ""
    text = f"{start}; {signed(change.value)}{quality.unit}{of} {quality.title}{on} {ends}".rstrip()
    text = f"{text} to {OTHERS[reference]}"
    if change.verdict(quality) == NOT_DISTINGUISHABLE:
        text = f"{text}, {NOT_DISTINGUISHABLE}"
    kept = _limit_kept(run, chosen)
    if kept:
        text = f"{text}; {kept}"
    return f"Not worth shipping ({bad}): {text}" if bad and not allowed else text


def why_not_worth_it(run: FinishedRun, chosen: ModelRow) -> str:
    """Why a model is a bad bargain, in words: it is surely worse and saves little, or surely loses more than it saves;
    empty where it is none."""
    _, change = run.leading_change(chosen)
    saved_share, saving = _largest_saving(run, chosen)
    if change.verdict(run.quality) != WORSE:
        return ""
    lost_share = _sure_loss(run, change)
    if lost_share > saved_share:
        return f"a sure loss of at least {percent(lost_share, 1)}, more than it saves"
    faster, speed = _faster(run.full, chosen)
    if saved_share >= LITTLE_SAVED or faster or not saving:
        return ""
    return f"less than {percent(LITTLE_SAVED)} saved, {speed or 'speed not measured'}, surely worse"


def _is_allowed(run: FinishedRun, model: ModelRow) -> bool:
    """Whether the limit of the plan allows what a model loses on dev, and the comparison that leads does not surely
    exceed it."""
    lost = run.lost(model)
    if run.limit is None or lost is None or not is_within(lost, run.limit):
        return False
    _, change = run.leading_change(model)
    least_loss = change.low
    if run.quality.better > 0:
        least_loss = None if change.high is None else -change.high
    return least_loss is None or is_within(least_loss, run.limit)


def _limit_kept(run: FinishedRun, model: ModelRow) -> str:
    """On which texts a model stays within the limit of the plan, which counts from the full model; empty without a limit,
    or where dev was not measured."""
    on_dev = run.lost(model)
    if run.limit is None or on_dev is None:
        return ""
    within: list[str] = []
    over: list[str] = []
    for text, lost in (("dev", on_dev), ("test", run.lost(model, "test"))):
        if lost is None:
            continue
        if is_within(lost, run.limit):
            within.append(text)
        else:
            over.append(text)

    named = f"the limit of {run.limit:g}{run.quality.unit}"
    reference, _ = run.leading_change(model)
    start = "" if reference == UNPRUNED else f"compared with {OTHERS[UNPRUNED]} "
    if not over:
        return f"{start}within {named} on {listed(within)}"
    if not within:
        return f"{start}over {named} on {listed(over)}"
    return f"{start}within {named} on {within[0]}, over it on {over[0]}"


def _faster(full: ModelRow | None, chosen: ModelRow) -> tuple[bool, str]:
    """Whether a model is surely faster than the full one, and the same in words; no words without a measurement."""
    both = _both(full, chosen, SPEED)
    if full is None or not both or not both[0]:
        return False, ""
    if _speed_noise(full, chosen):
        return False, "no faster"
    share = both[1] / both[0] - 1
    return share > 0, f"{percent(abs(share), 0)} {'faster' if share > 0 else 'slower'}"


def _largest_saving(run: FinishedRun, chosen: ModelRow) -> tuple[float, str]:
    """The share that a model saves of its weights, or of its key/value cache if that is more, and the same in words."""
    share = 0.0
    text = ""
    for measure, what in {
        "parameters": "fewer weights",
        "cache_bytes": "less key/value cache",
    }.items():
        both = _both(run.full, chosen, measure)
        if not both or not both[0]:
            continue
        own_share = 1 - both[1] / both[0]
        if not text or own_share > share:
            share = own_share
            text = f"{percent_change(*both).removeprefix('−')} {what}"
    return share, text


def _sure_loss(run: FinishedRun, change: Number) -> float:
    """The share of its quality that a model loses at least, by the end of the interval that is nearer to no loss."""
    quality = run.quality
    base = run.quality_of(run.full).value
    if change.low is None or change.high is None or not base:
        return 0.0
    least = -change.high if quality.higher_is_better else change.low
    return least / 100 if quality.relative else least / base


def _without_choice(run: FinishedRun) -> str:
    if run.pruned:
        return f"{count(len(run.pruned), 'pruned model')}, none of them chosen"
    total = 0 if run.heads is None else len(run.heads[["kind", "layer", "head"]].drop_duplicates())
    return f"{count(total, 'attention head')}, scored" if total else "A study in progress"


def _why(run: FinishedRun) -> str:
    """Why there is no chosen model: a word for which the template has a sentence."""
    if not run.pruned:
        return "nothing pruned"
    if run.full is None:
        return "no full model"
    losses = [run.lost(model) for model in run.candidates]
    known = [lost for lost in losses if lost is not None]
    if known and not is_within(min(known), run.limit):
        return "over the limit"
    if run.facts.get("unsettled"):
        return "not settled"
    return "full chosen" if run.facts.get("chosen") == run.full["setting"] else "not named"


def _both(
    one: ModelRow | None, other: ModelRow, measure: str, split: str = ""
) -> tuple[float, float] | None:
    """A measure of two models that both have it."""
    before = measured(one, measure, split).value
    after = measured(other, measure, split).value
    return None if before is None or after is None else (before, after)


def _tiles(run: FinishedRun, full: ModelRow, chosen: ModelRow) -> list[Fact]:
    """Label, value and detail of three numbers to see at a glance: size, speed (or the key/value cache, where that is
    smaller or speed was not measured) and quality."""
    tiles = []
    parameters, _, _, cache, speed = SAVED
    cached = _both(full, chosen, cache[0])
    smaller = cached is not None and cached[1] < cached[0]
    second = cache if smaller or not _both(full, chosen, SPEED) else speed
    for measure, label, write in (parameters, second):
        if (both := _both(full, chosen, measure)) and both[0]:
            noise = measure == SPEED and _speed_noise(full, chosen)
            change = "no sure change" if noise else percent_change(*both)
            tiles.append((label, change, " → ".join(map(write, both))))

    quality = run.quality
    both = _both(full, chosen, quality.name, run.split)
    label = f"{capital(quality.title)} on {run.split}"
    tuned = run.change_of(chosen, FINE_TUNED)
    moved = f"{signed(quality.change(*both))}{quality.unit}" if both else ""
    if tuned.value is not None:
        whole = f" · {moved} to the full model" if both else ""
        tiles.append(
            (
                f"{label}, to equal further training",
                f"{signed(tuned.value)}{quality.unit}",
                f"{interval_text(tuned.low, tuned.high)}{whole}",
            )
        )
    elif both:
        tiles.append((label, moved, f"{both[0]:.2f} → {both[1]:.2f}"))
    return tiles


def saved(full: ModelRow, chosen: ModelRow) -> list[Fact]:
    removed = chosen["total"] - chosen["kept"]
    total = chosen["total"]
    text = f"{removed} of {total} {models.heads_name(chosen['kinds'])} ({percent(removed / total)})"
    facts = [("Heads removed", text, "")]
    for measure, label, write in SAVED:
        if (both := _both(full, chosen, measure)) and both[0]:
            noise = _speed_noise(full, chosen) if measure == SPEED else ""
            text = f"{' → '.join(map(write, both))} ({percent_change(*both)}){noise}"
            facts.append((label, text, NOT_DISTINGUISHABLE if noise else ""))
    return facts


def _speed_noise(full: ModelRow, chosen: ModelRow) -> str:
    """Why two speeds cannot be distinguished, if so."""
    before, after = measured(full, SPEED), measured(chosen, SPEED)
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return "; one round only"
    if before.low == before.high or after.low == after.high:  # a single round is its own range
        return "; one round only"
    overlap = after.low <= before.high and before.low <= after.high
    return "; the ranges over the rounds overlap" if overlap else ""


def cost(run: FinishedRun, full: ModelRow, chosen: ModelRow) -> list[Fact]:
    """The change of quality: first to equal further training, then to the untouched full model."""
    quality = run.quality
    facts = list[Fact]()
    tuned = models.model_rows(run.models[run.models.index == models.against(chosen, FINE_TUNED)])
    others = [(one, FINE_TUNED, "to equal further training without pruning") for one in tuned]
    for other, reference, label in [*others, (full, UNPRUNED, "to the untouched full model")]:
        if both := _both(other, chosen, quality.name, run.split):
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
    results = [chosen] if models.orders_against(chosen) else run.pruned
    facts = list[Fact]()
    for model in results:
        start = "" if model["setting"] == chosen["setting"] else f"{model['label']}: "
        for label, text, said in orders_of(run, model):
            facts.append((f"{start}{label}", text, said))
    return facts


def orders_of(run: FinishedRun, model: ModelRow) -> list[Fact]:
    """One result of greedy removal against the models of other orders."""
    quality = run.quality
    known = {str(other["setting"]): other for other in models.model_rows(run.models)}
    facts = list[Fact]()
    better = 0
    random = 0
    for reference in models.orders_against(model):
        other = known.get(models.against(model, reference))
        its = run.quality_of(other).value
        if other is None or its is None:
            continue
        change = run.change_of(model, reference)
        said = change.verdict(quality)
        label = f"Best other measure on dev: {measure_name(str(other['score']))}"
        if models.is_random_order(other):
            random += 1
            better += said == BETTER
            label = f"Random order {random}"
        moved = tested_text(change, ", ", quality.unit)
        facts.append((label, f"{quality.title} {its:.2f}; the result differs by {moved}", said))
    if random:
        text = f"better than {better} of {random}"
        if not better:
            text += ": this measure says nothing about which heads to remove"
        said = BETTER if better == random else NOT_DISTINGUISHABLE
        facts.insert(0, ("Random orders", text, said))
    return facts


def choice(run: FinishedRun, full: ModelRow, chosen: ModelRow) -> list[Fact]:
    """On which text, among how many models and within which limit the model was chosen."""
    quality = run.quality_on("dev")
    tried = run.candidates
    losses: dict[str, float] = {}
    for model in tried:
        lost = run.lost(model)
        if lost is not None:
            losses[model["setting"]] = lost

    measured_models = [model for model in tried if model["setting"] in losses]
    heads = {model["setting"]: run.heads_left(model) for model in measured_models}
    # Is it the model of the fewest heads among those within the limit?
    smallest = choose_smallest(losses, heads, run.limit)
    left = run.heads_left(chosen)
    fewest = chosen["setting"] in losses and smallest is not None and left == heads[smallest]
    why = f", the fewest{'' if run.limit is None else ' within the limit'}" if fewest else ""

    tested = run.quality_of(chosen, "test").value is not None
    test = "test text had no part in it" if tested else "no test text was measured"
    allowed = "no limit" if run.limit is None else f"{run.limit:g} {quality.loss}"
    facts = [
        ("Text", f"dev only; {test}", ""),
        ("Models tried", str(len(tried)), ""),
        ("Loss allowed on dev", allowed, ""),
        ("Chosen", f"{chosen['label']}: {count(left, 'head')} in the whole model{why}", ""),
    ]
    both = _both(full, chosen, quality.name, "dev")
    own = losses.get(chosen["setting"])
    if own is not None and both:
        moved = f"{signed(-quality.better * own)}{quality.unit}"
        facts.append(("On dev", f"{quality.title} {both[0]:.2f} → {both[1]:.2f} ({moved})", ""))

    smaller = []
    for model in measured_models:
        alike = model["learned"] and model["kinds"] == chosen["kinds"]
        if alike and model["kept"] < chosen["kept"]:
            moved = signed(-quality.better * losses[model["setting"]])
            smaller.append(f"{moved}{quality.unit} with {model['kept']}")

    if fewest and smaller:
        facts.append(("Fewer heads, on dev", " · ".join(smaller), ""))

    return facts


def doubts(run: FinishedRun) -> list[str]:
    """What speaks against the headline: little text, a model that does not translate, gates that had not settled."""
    found = []
    for text, number in (run.facts.get("sentences") or {}).items():
        if number < ENOUGH_SENTENCES:
            those = count(number, run.quality.over.removesuffix("s"))
            found.append(
                f"The {text} text has {those}: too few to tell. Give at least {ENOUGH_SENTENCES}."
            )
    if does_not_translate(run):
        full = run.quality_of(run.full).value
        found.append(
            f"The full model has {full:.1f} BLEU: it does not translate yet. Train it on more text or for more epochs "
            "before heads are removed."
        )
    chosen = run.chosen
    if chosen is not None:
        doubted = run.facts.get("doubts") or {}
        own = doubted.get(chosen["setting"], []) + doubted.get(
            models.against(chosen, FINE_TUNED), []
        )
        if not own and measured(chosen, "settled").value == 0:
            own = ["Its gates had not settled when they were decided: train longer."]
        found += own
    return found


def does_not_translate(run: FinishedRun) -> bool:
    """Whether the full model's BLEU is too low for its differences to mean anything."""
    full = run.quality_of(run.full).value
    return full is not None and run.quality.is_too_low(full)


def _left(run: FinishedRun, chosen: ModelRow) -> list[Fact]:
    """The heads left in each layer, the first layer first."""
    mask = run.layouts[chosen["setting"]]
    facts = []
    for kind in run.pruned_kinds(chosen):
        left, counts = zip(*kept_heads.by_layer(mask, kind), strict=True)
        alike = len(set(counts)) == 1
        parts = []
        for kept, total in zip(left, counts, strict=True):
            parts.append(str(kept) if alike else f"{kept} of {total}")

        text = f"{sum(left)} of {sum(counts)} heads; layer by layer {' · '.join(parts)}"
        facts.append((capital(KIND_NAMES[kind]), text + (f" of {counts[0]}" if alike else ""), ""))
    return facts


MOST_LISTED_STEPS = 25  # steps whose times are listed one by one


@section(
    "provenance",
    heading="How it was made",
    question="With which texts, versions and settings was all this made?",
    order=140,
    files=("run.json", "plan.toml"),
)
def provenance(run: FinishedRun) -> dict[str, Any]:
    """Groups of names and values from run.json, and the plan."""
    facts = {}
    for name, fact in run.facts.items():
        if name not in ("settings", "notes", "doubts"):
            facts[name] = fact

    groups = [
        ("Signature", _written_settings(facts.pop("signature", None))),
        ("Versions", _written_settings(facts.pop("versions", None))),
        ("Time taken", _written_settings(_summed(facts.pop("seconds", None)), number=duration)),
        ("Evaluation and run", _written_settings(facts)),
    ]
    return {"facts": [(title, pairs) for title, pairs in groups if pairs], "plan": run.plan}


def _summed(seconds: Mapping[str, float] | None) -> Mapping[str, float] | None:
    """The time of all steps; with many models, the sum of the steps of one name: `prune (9)`."""
    if seconds is None or len(seconds) <= MOST_LISTED_STEPS:
        return seconds
    by_kind: dict[str, list[float]] = {}
    for name, taken in seconds.items():
        by_kind.setdefault(name.partition("/")[0], []).append(taken)

    sums: dict[str, float] = {}
    for step, part in by_kind.items():
        sums[f"{step} ({len(part)})" if len(part) > 1 else step] = sum(part)
    return sums


def _written_settings(
    value: Any, name: str = "", number: Callable[[float], str] = json.dumps
) -> list[tuple[str, str]]:
    """Nested settings as names with dots; `number` writes the numbers."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        inner = []
        for key, below in value.items():
            inner.append((f"{name}.{key}" if name else str(key), below))

        pairs: list[tuple[str, str]] = []
        for key, below in inner:
            for pair in _written_settings(below, key, number):
                pairs.append(pair)
        return pairs
    if isinstance(value, str):
        return [(name, value)]
    return [
        (
            name,
            number(value)
            if isinstance(value, int | float)
            else json.dumps(value, ensure_ascii=False),
        )
    ]


FactRows = Sequence[tuple[str, str]]
MADE = (
    "method",
    "kinds",
    "unit",
    "penalty",
    "keep",
    "score",
    "train",
    "compensate",
)  # of the facts of a setting


def kept_table(mask: HeadMask) -> str:
    """How many heads of every layer are left, a row a layer and a column a kind of attention."""
    kinds = mask.heads.kinds
    lines = [["layer", *kinds], ["---"] * (1 + len(kinds))]
    for layer in range(max(len(mask.heads.query[kind]) for kind in kinds)):
        line = [str(layer)]
        for kind in kinds:
            site = Site(kind, layer)
            is_there = site in mask.heads.sites
            line.append(f"{len(mask.of(site))} of {mask.heads.count(site)}" if is_there else "")

        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sections(run: FinishedRun, model: ModelRow) -> list[tuple[str, str]]:
    """Title and text of every section about a model of a run."""
    full = run.full
    groups = list[tuple[str, FactRows]]()
    if full is not None:
        groups += [("What was saved", fact_rows(saved(full, model)))]
        groups += [("What it cost (95 % intervals)", fact_rows(cost(run, full, model)))]
        if model["chosen"]:
            groups += [("How it was chosen", fact_rows(choice(run, full, model)))]
    groups.append(("How it was made", made(run, model)))
    doubts = (run.facts.get("doubts") or {}).get(model["setting"]) or []
    found = []
    for title, rows in groups:
        if rows:
            found.append((title, card_table(rows)))
    return [*found, ("Doubts", "\n".join(f"- {line}" for line in doubts))] if doubts else found


def card_headline(run: FinishedRun, model: ModelRow) -> str:
    """The heads removed, and what that cost."""
    return run_headline(run, model)


def fact_rows(facts: Sequence[Fact]) -> FactRows:
    return [(label, f"{text} ({verdict})" if verdict else text) for label, text, verdict in facts]


def made(run: FinishedRun, model: ModelRow) -> FactRows:
    """The original model, method, texts by name, seed, signature and versions."""
    settings = (run.facts.get("settings") or {}).get(model["setting"]) or {}
    signature: Mapping[str, Any] = run.facts.get("signature") or {}
    original = plan_of_run(run).get("model")
    rows = [("original model", PurePath(original).name)] if isinstance(original, str) else []
    for name in MADE:
        if settings.get(name) not in (None, False, []):
            rows.append((name, words(settings[name])))

    rows += [(f"{split} text", name) for split, name in texts(run).items()]
    for name, known in signature.items():
        if known not in (None, []):
            rows.append((f"signature: {name}", words(known)))

    for name in ("bleu_signature", "chrf_signature"):
        rows += (
            [(name.replace("_signature", " (sacreBLEU)"), str(run.facts[name]))]
            if run.facts.get(name)
            else []
        )

    versions: Mapping[str, Any] = run.facts.get("versions") or {}
    return [
        *rows,
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
    ]


def words(known: Any) -> str:
    if isinstance(known, Mapping):
        return ", ".join(f"{name} {number}" for name, number in known.items())
    return ", ".join(map(str, known)) if isinstance(known, list | tuple) else str(known)


def plan_of_run(run: FinishedRun) -> dict[str, Any]:
    """The plan of a run; empty where it is none."""
    try:
        return tomllib.loads(run.plan or "")
    except tomllib.TOMLDecodeError:
        return {}


def texts(run: FinishedRun) -> dict[str, str]:
    """The text of each split by name: files without their folders, which are nobody's business."""
    data = plan_of_run(run).get("data") or {}
    found = dict[str, str]()
    for split in ("train", "dev", "test"):
        spec = data.get(split) or ("embedded corpus of headwise" if data.get("embedded") else None)
        files = [spec] if isinstance(spec, str) else spec or []
        if files:
            found[split] = ", ".join(
                name if name.startswith(DATASETS) else PurePath(name).name for name in files
            )
    return found


def results(run: FinishedRun, model: ModelRow) -> list[dict[str, Any]]:
    """What was measured on a test text that is a data set of the hub: its id, its task, value and notes; else nothing.

    The task is named after the data set's configuration: there is no better name.
    """
    spec = (plan_of_run(run).get("data") or {}).get("test")
    if not isinstance(spec, str) or not spec.startswith(DATASETS):
        return []
    name, _, query = spec.removeprefix(DATASETS).partition("?")
    task = parse_qs(query).get("config", ["default"])[0]
    for measure in ("bleu", "perplexity"):
        tested = measured(model, measure, "test")
        if tested.value is None:
            continue
        ends = interval_text(tested.low, tested.high).replace("+", "")
        notes = [
            measure,
            f"95 % interval {ends}" if ends else "",
            str(run.facts.get(f"{measure}_signature") or ""),
        ]
        text = "; ".join(note for note in notes if note)
        value = round(tested.value, 4)
        return [{"dataset_id": name, "task_id": task, "value": value, "notes": text}]
    return []


def card_table(rows: FactRows) -> str:
    """Two columns without a heading."""
    lines = ["| | |", "|---|---|"]
    for row in rows:
        label, text = (" ".join(cell.split()).replace("|", "\\|") for cell in row)
        lines.append(f"| {label} | {text} |")
    return "\n".join(lines)
