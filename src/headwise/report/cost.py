"""What fewer heads cost: tables of all models, what controls say, and example translations.

The examples are some that pruning left as they were, and those it changed most, the differing words marked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from typing import Any

from headwise.pruning.controls import Control, compared_by_all, control_facts
from headwise.qualities import BLEU
from headwise.report import models
from headwise.report.format import capital, kinds_among, percent, probability, quantity, size
from headwise.report.models import P_TUNED, TUNED, Model, P, value, verdict
from headwise.report.page import Columns, Table, chosen_badge, section, table
from headwise.report.quality_curves import greedy_figures, quality_figures
from headwise.report.run_folder import FinishedRun

SHORT = {"encoder-self": "enc", "decoder-self": "dec", "cross": "cross"}
UNCOMPENSATED = Control(
    name="uncompensated",
    title="removal without mean outputs",
    better="mean outputs make up for a part of the removed heads",
    worse="mean outputs do harm",
)  # no control of its own, but compared like one
VERDICTS = ("better", "worse", "not distinguishable")
Column = Callable[[Any], str]
two_digits = "{:.2f}".format


@section(
    "cost",
    menu="Cost",
    heading="What fewer heads cost",
    question="How much quality does each number of heads cost?",
    order=80,
    files=("pruning.csv",),
)
def cost_section(run: FinishedRun) -> dict[str, Any] | None:
    """Curves and tables; the section is left out where nothing was pruned."""
    if run.models.empty:
        return None
    return {
        "quality": quality_figures(run.models, run.facts),
        "greedy": greedy_figures(run.models),
        "compared": compared_tables(run),
        "scratched": bool(run.models["control"].eq("from-scratch").any()),
        "by_kind": bool(run.models["keep"].map(lambda keep: isinstance(keep, Mapping)).any()),
        "all_models": models_table(run),
        "text": "dev" if run.part else "test",
        "measured": run.quality.name,
    }


def compared_tables(run: FinishedRun) -> list[Table]:
    """Table 2 of Voita et al. (2019) for every set of kinds that has several kinds, or models trained from scratch."""
    controls = models.model_rows(models.control_models(run.models))
    scratch = {}
    for control in controls:
        if control["control"] == "from-scratch":
            scratch[control["reference"]] = control

    found = []
    for kinds in models.groups(run.models):
        pruned = models.model_rows(models.of_kinds(models.pruned(run.models), kinds))
        shown = [m for m in pruned if m["learned"] or m["setting"] in scratch] or pruned
        compared = any(m["setting"] in scratch for m in shown)
        if shown and (len(kinds) > 1 or compared):
            compared_models = _compared(run, kinds, shown, scratch if compared else {})
            if compared_models is not None:
                found.append(compared_models)
    return found


def _compared(
    run: FinishedRun,
    kinds: tuple[str, ...],
    shown: list[dict[str, Any]],
    scratch: Mapping[Any, Model],
) -> Table | None:
    """The full model, then each model: its heads kind by kind, its quality, and that of its layout from scratch."""
    named = kinds_among(kinds)
    total = shown[0]["total"]
    quality = run.quality
    change = run.part + quality.change
    p = run.part + P
    unit = quality.in_unit
    whole = next(iter(run.layouts.values()), None)

    def counts(model: Model) -> str:
        mask = run.layouts.get(model["setting"])
        if model["method"] == "none":
            return (
                "/".join(str(sum(whole.heads.query.get(kind, ()))) for kind in named)
                if whole
                else ""
            )
        return "/".join(str(mask.count(kind)) for kind in named) if mask else ""

    def of_scratch(write: Column) -> Column:
        return lambda model: write(scratch.get(model["setting"]))

    measured = partial(models.cell_text, run.part + quality.measure, two_digits)
    columns: Columns = {"model": lambda model: model["label"]}
    columns |= {"/".join(SHORT[kind] for kind in named): counts} if len(named) > 1 else {}
    columns |= {
        f"heads of {total}": lambda model: str(
            total if model["method"] == "none" else model["kept"]
        ),
        f"{quality.name} from trained" if scratch else quality.name: measured,
        "from scratch": of_scratch(measured),
        f"difference{unit}": of_scratch(_moved(f"{change}_to_pruned", f"{p}_to_pruned")),
        f"to equal further training{unit}": _moved(change + TUNED, p + TUNED),
        f"to the full model{unit}": _moved(change, p),
    }
    what = "Trained and pruned, or trained from scratch" if scratch else "Heads left of each kind"
    rows = ([run.full] if run.full else []) + shown
    return table(f"{what}: {models.group_name(kinds)}", rows, columns, chosen_badge)


def _moved(measure: str, p: str = "") -> Column:
    """A column of differences to another model; the full model has none."""
    return lambda model: (
        "" if model and model["method"] == "none" else models.difference_text(model, measure, p)
    )


def models_table(run: FinishedRun) -> Table | None:
    """Every model. Without test text, quality is that of dev. The loss is shown where some models have no BLEU."""
    part = run.part
    dev = "dev " if run.part else ""
    number = partial(partial, models.cell_text)
    quality = run.quality
    lossy = any(value(model, "dev_bleu") is None for model in models.model_rows(run.models))
    change = part + quality.change
    unit = quality.in_unit
    columns: Columns = {
        "model": lambda model: model["label"],
        "heads kept": lambda model: f"{model['kept']} ({percent(model['kept'] / model['total'])})",
        f"{dev}{quality.name}": number(part + quality.measure, two_digits),
        f"to equal further training{unit}": _moved(change + TUNED),
        f"to the full model{unit}": _moved(change),
        "p": number(part + P, probability),
        f"{dev}chrF": number(f"{part}chrf", two_digits),
        f"dev {quality.name}": number(
            f"dev_{quality.measure}", two_digits
        ),  # without test text, the column above
        "dev loss": number("dev_loss" if lossy else "", "{:.4f}".format),
        "parameters": number("parameters", quantity),
        "size": number("bytes", size),
        "tokens/s": number("tokens_per_second", quantity),
    }
    return table(
        "All models",
        models.ordered(run.models),
        columns,
        chosen_badge,
        lambda model: str(model["setting"]),
    )


# What is compared, model, control, whose measures they are, and the ending of the measures' names.
Comparison = tuple[str, Model | None, Model, Model, str]


@section(
    "controls",
    menu="Controls",
    heading="Would something simpler have done?",
    question="Are pruned models better than their controls?",
    order=90,
    files=("pruning.csv",),
)
def build_controls(run: FinishedRun) -> dict[str, Any] | None:
    """Every comparison as a row, and for each kind of control how often it says something; None without any."""
    pairs = model_comparisons(run)
    tables = {"counts": verdict_counts_table(run, pairs), "compared": comparison_table(run, pairs)}
    return (
        {**tables, "text": "dev" if run.part else "test", "measured": run.quality.name}
        if pairs
        else None
    )


def model_comparisons(run: FinishedRun) -> list[Comparison]:
    """Every pruned model (or the best head of each layer) with everything it was compared with. The ending is that of
    the measure's name; differences are model minus control.
    """
    known = {}
    for model in models.model_rows(run.models):
        known[model["setting"]] = model

    controls = models.model_rows(models.control_models(run.models))
    found: list[Comparison] = []
    by_all = [facts.ending for facts in compared_by_all()]
    for what in (*by_all, "", "uncompensated"):
        for model in run.pruned if what else ():
            if (control := known.get(models.against(model, what))) is not None:
                found.append((what, model, control, model, f"_to_{what}"))

        for control in controls if not what else ():
            if (reference := known.get(control["reference"] or "")) is not None:
                found.append((control["control"], reference, control, control, "_to_pruned"))
                continue
            ending = control_facts(control_facts(control["control"]).against).ending
            if (other := known.get(models.against(control, ending))) is not None:
                found.append((control["control"], control, other, control, f"_to_{ending}"))

    shown = set()
    for comparison in found:
        for compared in comparison[1:3]:
            if compared is not None:
                shown.add(compared["setting"])

    rest = [control for control in controls if control["setting"] not in shown]
    return found + [(control["control"], None, control, control, "") for control in rest]


def compared_with(what: str) -> Control:
    """The facts of a comparison: a control, or removal without mean outputs."""
    return UNCOMPENSATED if what == UNCOMPENSATED.name else control_facts(what)


def compared_name(what: str) -> str:
    """What the other model of a comparison is called."""
    facts = compared_with(what)
    return control_facts(facts.against).title if facts.against else facts.title


def verdict_counts_table(run: FinishedRun, pairs: list[Comparison]) -> Table | None:
    """For each kind of control in how many comparisons the pruned models are better, worse, or not distinguishable."""
    found: dict[str, list[str]] = {}
    for what, _, _, holder, end in pairs:
        word = (
            verdict(holder, f"{run.part}{run.quality.change}{end}", f"{run.part}{P}{end}")
            if end
            else ""
        )
        found.setdefault(what, []).extend([word] if word else [])

    def meaning(what: str) -> str:
        facts = compared_with(what)
        said = zip((facts.better, facts.worse), VERDICTS, strict=False)
        return "; ".join(text for text, word in said if text and word in found[what])

    columns: Columns = {"compared with": lambda what: capital(compared_name(what))}
    for word in VERDICTS:
        columns[word] = partial(lambda word, what: str(found[what].count(word)), word)

    columns["so"] = meaning
    return table(
        "How often a comparison says something", [what for what in found if found[what]], columns
    )


def comparison_table(run: FinishedRun, pairs: list[Comparison]) -> Table | None:
    """A row a comparison."""
    part = run.part
    name = run.quality.name
    moved = run.quality.change
    tuned = run.models["control"].eq("fine-tuned").any()
    measured = partial(models.cell_text, part + run.quality.measure, two_digits)

    def change(pair: Comparison) -> str:
        _, _, _, holder, end = pair
        return (
            models.difference_text(holder, f"{part}{moved}{end}", f"{part}{P}{end}") if end else ""
        )

    columns: Columns = {
        "pruned model": lambda pair: pair[1]["label"] if pair[1] else "",
        "control": lambda pair: (
            pair[2]["label"]
            if pair[1] is None or compared_with(pair[0]).against
            else compared_name(pair[0])
        ),
        "heads": lambda pair: str(pair[2]["kept"]),
        f"its {name}": lambda pair: measured(pair[1]),
        f"{name} of the control": lambda pair: measured(pair[2]),
        "pruned − control" if run.quality == BLEU else "pruned to control, in %": change,
        f"control to the full model{run.quality.in_unit}": lambda pair: models.difference_text(
            pair[2], part + moved, part + P
        ),
        f"control to equal further training{run.quality.in_unit}": lambda pair: (
            models.difference_text(pair[2], f"{part}{moved}_to_fine-tuned", part + P_TUNED)
            if tuned
            else ""
        ),
    }
    return table(
        "Controls",
        pairs,
        columns,
        lambda pair: chosen_badge(pair[1]),
        lambda pair: str(pair[2]["setting"]),
    )


SEED = 1
SAME = 3
DIFFERENT = 5
LONGEST_SOURCE = 40  # words: a longer source makes a card nobody reads


@dataclass(frozen=True)
class Piece:
    """Some words, and whether the other translation has them too."""

    text: str
    differs: bool


@dataclass(frozen=True)
class Example:
    """One sentence with its two translations, in pieces; `number` is its line in the test text, counted from 1."""

    number: int
    source: str
    reference: str
    full: list[Piece]
    pruned: list[Piece]
    same: bool


@dataclass(frozen=True)
class Examples:
    """The examples of a report, and how many translations there are and are the same word for word."""

    shown: list[Example]
    total: int
    same: int


@section(
    "translations",
    menu="Translations",
    heading="Translations side by side",
    question="What do the changed translations look like?",
    order=120,
    files=("translations/test/",),
)
def translation_examples_section(run: FinishedRun) -> dict[str, Any] | None:
    """The section is left out where nothing was pruned, and for models that do not translate."""
    return (
        None
        if run.models.empty or run.quality != BLEU
        else {"examples": choose_examples(run), "chosen": run.chosen}
    )


def choose_examples(run: FinishedRun) -> Examples | None:
    """Three seeded draws from the unchanged translations, then the five most changed; None with nothing to compare."""
    texts = run.translations
    chosen = run.chosen
    if chosen is None or not {"source", "reference", "full", chosen["setting"]} <= set(texts):
        return None
    full = texts["full"]
    pruned = texts[chosen["setting"]]
    alike = [similarity(one, other) for one, other in zip(full, pruned, strict=True)]
    unchanged = []
    changed = []
    for i, source in enumerate(texts["source"]):
        if not 0 < len(source.split()) <= LONGEST_SOURCE:
            continue
        if alike[i] == 1:
            unchanged.append(i)
        else:
            changed.append(i)

    picked = sorted(random.Random(SEED).sample(unchanged, min(SAME, len(unchanged))))
    picked += sorted(changed, key=lambda i: (alike[i], i))[:DIFFERENT]

    shown = []
    for i in picked:
        shown.append(
            Example(
                i + 1,
                texts["source"][i],
                texts["reference"][i],
                *word_differences(full[i], pruned[i]),
                alike[i] == 1,
            )
        )
    return Examples(shown, len(full), alike.count(1))


def similarity(one: str, other: str) -> float:
    """How alike two sentences are as rows of words: 1 for the same words, 0 for no word in common."""
    if one.split() == other.split():
        return 1.0
    return SequenceMatcher(None, one.split(), other.split(), autojunk=False).ratio()


def word_differences(one: str, other: str) -> tuple[list[Piece], list[Piece]]:
    """Two sentences in pieces: words that both have, in the same order, and words that differ."""
    left = one.split()
    right = other.split()
    pieces: tuple[list[Piece], list[Piece]] = ([], [])
    for what, i, j, k, m in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for side, words in zip(pieces, (left[i:j], right[k:m]), strict=True):
            if words:
                side.append(Piece(" ".join(words), what != "equal"))
    return pieces
