"""What fewer heads cost: tables of all models, what controls say, and example translations.

The examples are some that pruning left as they were, and those it changed most, the differing words marked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from typing import Any, NamedTuple

from headwise.pruning.controls import Control, compared_by_all, control_facts
from headwise.qualities import BLEU
from headwise.report import models
from headwise.report.format import capital, kinds_among, percent, probability, quantity, size
from headwise.report.models import P_TUNED, TUNED, ModelRow, P, value, verdict
from headwise.report.page import Columns, Table, chosen_badge, section, table
from headwise.report.quality_curves import greedy_figures, quality_figures
from headwise.report.run_folder import FinishedRun

SHORT_KINDS = {"encoder-self": "enc", "decoder-self": "dec", "cross": "cross"}
UNCOMPENSATED = Control(
    name="uncompensated",
    title="removal without mean outputs",
    better="mean outputs make up for a part of the removed heads",
    worse="mean outputs do harm",
)
RANDOM_ORDER = Control(
    name="random-order",
    title="random order of removal",
    better="which heads are removed matters",
    worse="random heads do better",
)
OTHER_MEASURE = Control(
    name="other-measure",
    title="order of another measure",
    better="the other measure is a worse guide",
    worse="another measure is a better guide",
)
# no controls of their own, but compared like them
LIKE_CONTROLS = {facts.name: facts for facts in (UNCOMPENSATED, RANDOM_ORDER, OTHER_MEASURE)}
VERDICTS = ("better", "worse", "not distinguishable")
Column = Callable[[Any], str]
two_digits = "{:.2f}".format


@section(
    "cost",
    heading="What fewer heads cost",
    question="How much quality does each number of heads cost?",
    story=True,
    order=80,
    files=("pruning.csv",),
    papers={
        "bleu-by-heads*": "Voita fig. 7",
        "Trained and pruned, or trained from scratch*": "Voita table 2",
        "greedy-curves": "Michel fig. 3",
        "greedy-by-kind": "Michel fig. 4",
    },
    brought_by="pruned models: a plan with [pruning], or headwise prune",
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
        "higher_is_better": run.quality.higher_is_better,
        "over": run.quality.over,
        "controls": set(run.models["control"].dropna()),
        "tuned": (run.part + run.quality.change + TUNED) in run.models,
        "limited": run.facts.get("max_drop") is not None,
        "learned": any(model["learned"] for model in run.pruned),
        "random": any(models.is_random_order(model) for model in run.pruned),
    }


def compared_tables(run: FinishedRun) -> list[Table]:
    """Table 2 of Voita et al. (2019) for every set of kinds that has several kinds, or models trained from scratch."""
    controls = models.model_rows(models.control_models(run.models))
    from_scratch_by_setting = {}
    for control in controls:
        if control["control"] == "from-scratch":
            from_scratch_by_setting[control["reference"]] = control

    found = []
    for kinds in models.groups(run.models):
        pruned = models.model_rows(models.of_kinds(models.pruned(run.models), kinds))
        rows = [
            m for m in pruned if m["learned"] or m["setting"] in from_scratch_by_setting
        ] or pruned
        compared = any(m["setting"] in from_scratch_by_setting for m in rows)
        if rows and (len(kinds) > 1 or compared):
            compared_table = layouts_table(
                run, kinds, rows, from_scratch_by_setting if compared else {}
            )
            if compared_table is not None:
                found.append(compared_table)
    return found


def layouts_table(
    run: FinishedRun,
    kinds: tuple[str, ...],
    rows: list[dict[str, Any]],
    from_scratch_by_setting: Mapping[Any, ModelRow],
) -> Table | None:
    """The full model, then each model: its heads kind by kind, its quality, and that of its layout from scratch."""
    named = kinds_among(kinds)
    total = rows[0]["total"]
    quality = run.quality
    change_measure = run.part + quality.change
    p_measure = run.part + P
    unit = quality.in_unit
    any_layout = next(iter(run.layouts.values()), None)

    def counts(model: ModelRow) -> str:
        mask = run.layouts.get(model["setting"])
        if model["method"] == "none":
            return (
                "/".join(str(sum(any_layout.heads.query.get(kind, ()))) for kind in named)
                if any_layout
                else ""
            )
        return "/".join(str(mask.count(kind)) for kind in named) if mask else ""

    def from_scratch_column(write: Column) -> Column:
        return lambda model: write(from_scratch_by_setting.get(model["setting"]))

    measured = partial(models.cell_text, run.part + quality.measure, two_digits)
    columns: Columns = {"model": lambda model: model["label"]}
    columns |= {"/".join(SHORT_KINDS[kind] for kind in named): counts} if len(named) > 1 else {}
    columns |= {
        f"heads of {total}": lambda model: str(
            total if model["method"] == "none" else model["kept"]
        ),
        f"{quality.name} from trained" if from_scratch_by_setting else quality.name: measured,
        "from scratch": from_scratch_column(measured),
        f"difference{unit}": from_scratch_column(
            difference_column(f"{change_measure}_to_pruned", f"{p_measure}_to_pruned")
        ),
        f"to equal further training{unit}": difference_column(
            change_measure + TUNED, p_measure + TUNED
        ),
        f"to the full model{unit}": difference_column(change_measure, p_measure),
    }
    title = (
        "Trained and pruned, or trained from scratch"
        if from_scratch_by_setting
        else "Heads left of each kind"
    )
    full = [run.full] if run.full else []
    return table(f"{title}: {models.group_name(kinds)}", full + rows, columns, chosen_badge)


def difference_column(change_measure: str, p_measure: str = "") -> Column:
    """A column of differences to another model; the full model has none."""
    return lambda model: (
        ""
        if model and model["method"] == "none"
        else models.difference_text(model, change_measure, p_measure)
    )


def models_table(run: FinishedRun) -> Table | None:
    """Every model. Without test text, quality is that of dev. The loss is shown where some models have no BLEU, and the
    size of weights in memory where some were not saved."""
    prefix = run.part
    dev = "dev " if run.part else ""
    quality = run.quality
    on_disk = all(value(model, "bytes") is not None for model in models.model_rows(run.models))
    lossy = any(value(model, "dev_bleu") is None for model in models.model_rows(run.models))
    change_measure = prefix + quality.change
    unit = quality.in_unit

    def number_column(measure: str, write: Callable[[float], str]) -> Column:
        return partial(models.cell_text, measure, write)

    columns: Columns = {
        "model": lambda model: model["label"],
        "heads kept": lambda model: f"{model['kept']} ({percent(model['kept'] / model['total'])})",
        f"{dev}{quality.name}": number_column(prefix + quality.measure, two_digits),
        f"to equal further training{unit}": difference_column(change_measure + TUNED),
        f"to the full model{unit}": difference_column(change_measure),
        "p": number_column(prefix + P, probability),
        f"{dev}chrF": number_column(f"{prefix}chrf", two_digits),
        f"dev {quality.name}": number_column(
            f"dev_{quality.measure}", two_digits
        ),  # without test text, the column above
        "dev loss": number_column("dev_loss" if lossy else "", "{:.4f}".format),
        "parameters": number_column("parameters", quantity),
        "size on disk": number_column("bytes" if on_disk else "", size),
        "weights in memory": number_column("" if on_disk else "memory", size),
        "tokens/s": number_column("tokens_per_second", quantity),
    }
    return table(
        "All models",
        models.ordered(run.models),
        columns,
        chosen_badge,
        lambda model: str(model["setting"]),
    )


class ControlComparison(NamedTuple):
    """A model and its control, or a control alone.

    kind: the name of the control. measured_row: the row of `pruning.csv` whose measures compare the two. ending: that
    of the measures' names; empty for a control alone.
    """

    kind: str
    model: ModelRow | None
    control: ModelRow
    measured_row: ModelRow
    ending: str


@section(
    "controls",
    heading="Would something simpler have done?",
    question="Are pruned models better than their controls?",
    order=90,
    files=("pruning.csv",),
    brought_by="pruning.compare (greedy) or pruning.controls (gates)",
)
def build_controls(run: FinishedRun) -> dict[str, Any] | None:
    """Every comparison as a row, and for each kind of control how often it says something; None without any."""
    comparisons = model_comparisons(run)
    tables = {
        "counts": verdict_counts_table(run, comparisons),
        "compared": comparison_table(run, comparisons),
    }
    return (
        {
            **tables,
            "text": "dev" if run.part else "test",
            "measured": run.quality.name,
            "over": run.quality.over,
            "better": "above" if run.quality.higher_is_better else "below",
            "trained": bool(run.models["control"].isin([f.name for f in compared_by_all()]).any()),
        }
        if comparisons
        else None
    )


def model_comparisons(run: FinishedRun) -> list[ControlComparison]:
    """Every pruned model (or the best head of each layer) with everything it was compared with. Differences are
    model minus control.
    """
    known = {}
    for model in models.model_rows(run.models):
        known[model["setting"]] = model

    controls = models.model_rows(models.control_models(run.models))
    found: list[ControlComparison] = []
    by_all = [facts.ending for facts in compared_by_all()]
    for control_name in (*by_all, "", "uncompensated"):
        for model in run.pruned if control_name else ():
            if (control := known.get(models.against(model, control_name))) is not None:
                found.append(
                    ControlComparison(control_name, model, control, model, f"_to_{control_name}")
                )

        for control in controls if not control_name else ():
            if (reference := known.get(control["reference"] or "")) is not None:
                kind = control["control"]
                found.append(ControlComparison(kind, reference, control, control, "_to_pruned"))
                continue
            ending = control_facts(control_facts(control["control"]).against).ending
            if (other := known.get(models.against(control, ending))) is not None:
                kind = control["control"]
                found.append(ControlComparison(kind, control, other, control, f"_to_{ending}"))

    for model in run.pruned:
        for ending in models.orders_against(model):
            if (other := known.get(models.against(model, ending))) is not None:
                is_random = models.is_random_order(other)
                kind = RANDOM_ORDER.name if is_random else OTHER_MEASURE.name
                found.append(ControlComparison(kind, model, other, model, f"_to_{ending}"))

    paired_settings = set()
    for comparison in found:
        for compared in (comparison.model, comparison.control):
            if compared is not None:
                paired_settings.add(compared["setting"])

    for control in controls:
        if control["setting"] not in paired_settings:
            found.append(ControlComparison(control["control"], None, control, control, ""))
    return found


def compared_with(control_name: str) -> Control:
    """The facts of a comparison: a control, or what is compared like one."""
    return LIKE_CONTROLS.get(control_name) or control_facts(control_name)


def compared_name(control_name: str) -> str:
    """What the other model of a comparison is called."""
    facts = compared_with(control_name)
    return control_facts(facts.against).title if facts.against else facts.title


def verdict_counts_table(run: FinishedRun, comparisons: list[ControlComparison]) -> Table | None:
    """For each kind of control in how many comparisons the pruned models are better, worse, or not distinguishable."""
    found: dict[str, list[str]] = {}
    for comparison in comparisons:
        ending = comparison.ending
        word = (
            verdict(
                comparison.measured_row,
                f"{run.part}{run.quality.change}{ending}",
                f"{run.part}{P}{ending}",
            )
            if ending
            else ""
        )
        found.setdefault(comparison.kind, []).extend([word] if word else [])

    def meaning(control_name: str) -> str:
        facts = compared_with(control_name)
        said = zip((facts.better, facts.worse), VERDICTS, strict=False)
        return "; ".join(text for text, word in said if text and word in found[control_name])

    columns: Columns = {"compared with": lambda control_name: capital(compared_name(control_name))}
    for word in VERDICTS:
        columns[word] = partial(
            lambda word, control_name: str(found[control_name].count(word)), word
        )

    columns["conclusion"] = meaning
    return table(
        "How often a comparison says something",
        [control_name for control_name in found if found[control_name]],
        columns,
    )


def comparison_table(run: FinishedRun, comparisons: list[ControlComparison]) -> Table | None:
    """A row a comparison."""
    prefix = run.part
    name = run.quality.name
    change_measure = prefix + run.quality.change
    tuned = run.models["control"].eq("fine-tuned").any()
    measured = partial(models.cell_text, prefix + run.quality.measure, two_digits)

    def change_text(comparison: ControlComparison) -> str:
        ending = comparison.ending
        if not ending:
            return ""
        return models.difference_text(
            comparison.measured_row, f"{change_measure}{ending}", f"{prefix}{P}{ending}"
        )

    columns: Columns = {
        "pruned model": lambda comparison: comparison.model["label"] if comparison.model else "",
        "control": lambda comparison: (
            comparison.control["label"]
            if comparison.model is None
            or compared_with(comparison.kind).against
            or comparison.control["comparison"]
            or models.is_random_order(comparison.control)
            else compared_name(comparison.kind)
        ),
        "heads": lambda comparison: str(comparison.control["kept"]),
        f"its {name}": lambda comparison: measured(comparison.model),
        f"{name} of the control": lambda comparison: measured(comparison.control),
        "pruned − control"
        if run.quality == BLEU
        else f"pruned to control{run.quality.in_unit}": change_text,
        f"control to the full model{run.quality.in_unit}": lambda comparison: (
            models.difference_text(comparison.control, change_measure, prefix + P)
        ),
        f"control to equal further training{run.quality.in_unit}": lambda comparison: (
            models.difference_text(comparison.control, change_measure + TUNED, prefix + P_TUNED)
            if tuned
            else ""
        ),
    }
    return table(
        "Controls",
        comparisons,
        columns,
        lambda comparison: chosen_badge(comparison.model),
        lambda comparison: str(comparison.control["setting"]),
    )


EXAMPLES_SEED = 1
UNCHANGED_EXAMPLES = 3
CHANGED_EXAMPLES = 5
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
    heading="Translations side by side",
    question="What do the changed translations look like?",
    story=True,
    order=120,
    files=("translations/test/",),
    brought_by="a test text (data.test), and a pruned model that was chosen",
    qualities=("bleu",),
)
def translation_examples_section(run: FinishedRun) -> dict[str, Any] | None:
    """The section is left out where the test text has not been translated by the full and by a chosen pruned model."""
    if run.models.empty or run.quality != BLEU:
        return None
    examples = choose_examples(run)
    return None if examples is None else {"examples": examples, "chosen": run.chosen}


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

    picked = sorted(
        random.Random(EXAMPLES_SEED).sample(unchanged, min(UNCHANGED_EXAMPLES, len(unchanged)))
    )
    picked += sorted(changed, key=lambda i: (alike[i], i))[:CHANGED_EXAMPLES]

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
    for opcode, i, j, k, m in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for side, words in zip(pieces, (left[i:j], right[k:m]), strict=True):
            if words:
                side.append(Piece(" ".join(words), opcode != "equal"))
    return pieces
