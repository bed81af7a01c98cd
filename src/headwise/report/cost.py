"""What fewer heads cost: tables of all models, what controls say, and example translations.

The examples are some that pruning left as they were, and those it changed most, the differing words marked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from headwise.pruning.controls import Control, compared_by_all, control_facts
from headwise.pruning.measured import FINE_TUNED, UNPRUNED
from headwise.qualities import AGREEMENT, BLEU, VERDICTS, Number
from headwise.report import models
from headwise.report.format import capital, kinds_among, percent, probability, quantity, size
from headwise.report.models import ModelRow, has, measured, tested_text
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
Column = Callable[[Any], str]


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
        "all_models": models_table(run.models, run.split),
        "text": run.split,
        "measured": run.quality.title,
        "higher_is_better": run.quality.higher_is_better,
        "over": run.quality.over,
        "controls": set(run.models["control"].dropna()),
        "tuned": has(run.models, run.quality.name, run.split, FINE_TUNED),
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
    written = models.quality_column(quality, run.split)
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

    def from_scratch(model: ModelRow) -> ModelRow | None:
        return from_scratch_by_setting.get(model["setting"])

    columns: Columns = {"model": lambda model: model["label"]}
    columns |= {"/".join(SHORT_KINDS[kind] for kind in named): counts} if len(named) > 1 else {}
    columns |= {
        f"heads of {total}": lambda model: str(
            total if model["method"] == "none" else model["kept"]
        ),
        f"{quality.title} from trained" if from_scratch_by_setting else quality.title: written,
        "from scratch": lambda model: written(from_scratch(model)),
        f"difference{quality.in_unit}": lambda model: tested_text(
            run.change_of(from_scratch(model), "pruned")
        ),
        **models.change_columns(quality, run.split, write=tested_text),
    }
    title = (
        "Trained and pruned, or trained from scratch"
        if from_scratch_by_setting
        else "Heads left of each kind"
    )
    full = [run.full] if run.full else []
    return table(f"{title}: {models.group_name(kinds)}", full + rows, columns, chosen_badge)


def models_table(
    frame: pd.DataFrame,
    split: str,
    references: Iterable[str] = (FINE_TUNED, UNPRUNED),
    label: str = "All models",
) -> Table | None:
    """Every model: of a run, or of several side by side, which a column `run` names. Without test text, quality is that
    of dev. The loss is shown where some models have no BLEU or agreement, and the size of weights in memory where some
    were not saved."""
    dev = "dev " if split == "dev" else ""
    quality = models.quality_on(frame, split)
    on_disk = bool(models.values(frame, "bytes").notna().all())
    chosen_by = models.quality_on(frame, "dev")
    searched = chosen_by in (BLEU, AGREEMENT)
    lossy = not searched or bool(models.values(frame, chosen_by.name, "dev").isna().any())

    def p_text(model: ModelRow) -> str:
        p = measured(model, quality.name, split, UNPRUNED).p
        return "" if p is None else probability(p)

    def kept_text(model: ModelRow) -> str:
        if model["method"] == "none":  # the kinds that its heads are of differ between seeds
            return f"{model['total']} ({percent(1)})"
        kept = str(model["kept"])
        if model.get("kept_low") != model.get("kept_high"):
            kept = f"{model['mean_kept']:.1f}, from {model['kept_low']} to {model['kept_high']}"
        return f"{kept} ({percent(model['mean_kept'] / model['total'])})"

    columns: Columns = {
        "model": lambda model: model["label"],
        "data" if "seeds" in frame else "run": lambda model: model.get("run", ""),
        "seeds": lambda model: str(model.get("seeds", "")),
        "heads kept": kept_text,
        f"{dev}{quality.title}": models.quality_column(quality, split),
        **models.change_columns(quality, split, references),
        "p": p_text,
        f"{dev}chrF": models.number_column("{:.2f}".format, "chrf", split),
        # without test text, the column above
        f"dev {chosen_by.title}": models.quality_column(chosen_by, "dev"),
    }
    if lossy:
        columns["dev loss"] = models.number_column("{:.4f}".format, "loss", "dev")
    columns["parameters"] = models.number_column(quantity, "parameters")
    if on_disk:
        columns["size on disk"] = models.number_column(size, "bytes")
    else:
        columns["weights in memory"] = models.number_column(size, "memory")
    columns["tokens/s"] = models.number_column(quantity, "tokens_per_second")
    return table(
        label, models.ordered(frame), columns, chosen_badge, lambda model: str(model["setting"])
    )


class ControlComparison(NamedTuple):
    """A model and its control, or a control alone.

    kind: the name of the control. measured_model: the one of the two that has the comparison among its numbers, by
    reference; empty for a control alone.
    """

    kind: str
    model: ModelRow | None
    control: ModelRow
    measured_model: ModelRow
    reference: str

    def change(self, run: FinishedRun) -> Number:
        """The change from the control to the model."""
        return run.change_of(self.measured_model, self.reference) if self.reference else Number()


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
            "text": run.split,
            "measured": run.quality.title,
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
    by_all = [facts.reference for facts in compared_by_all()]
    for reference in (*by_all, "", "uncompensated"):
        for model in run.pruned if reference else ():
            if (control := known.get(models.against(model, reference))) is not None:
                found.append(ControlComparison(reference, model, control, model, reference))

        for control in controls if not reference else ():
            kind = control["control"]
            if (own := known.get(control["reference"] or "")) is not None:
                found.append(ControlComparison(kind, own, control, control, "pruned"))
                continue
            name = control_facts(control_facts(kind).against).reference
            if (other := known.get(models.against(control, name))) is not None:
                found.append(ControlComparison(kind, control, other, control, name))

    for model in run.pruned:
        for name in models.orders_against(model):
            if (other := known.get(models.against(model, name))) is not None:
                is_random = models.is_random_order(other)
                kind = RANDOM_ORDER.name if is_random else OTHER_MEASURE.name
                found.append(ControlComparison(kind, model, other, model, name))

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
        word = comparison.change(run).verdict(run.quality)
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
    name = run.quality.title
    unit = run.quality.in_unit
    written = models.quality_column(run.quality, run.split)
    tuned = run.models["control"].eq("fine-tuned").any()
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
        f"its {name}": lambda comparison: written(comparison.model),
        f"{name} of the control": lambda comparison: written(comparison.control),
        "pruned − control"
        if run.quality == BLEU
        else f"pruned to control{unit}": lambda comparison: tested_text(comparison.change(run)),
        f"control to the full model{unit}": lambda comparison: tested_text(
            run.change_of(comparison.control, UNPRUNED)
        ),
        f"control to equal further training{unit}": lambda comparison: (
            tested_text(run.change_of(comparison.control, FINE_TUNED)) if tuned else ""
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
