"""What fewer heads cost: tables of all models, what controls say, and example translations.

The examples are some that pruning left as they were, and those it changed most, the differing words marked.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

from headwise.core.layout import HeadMask
from headwise.core.measured import FINE_TUNED, UNPRUNED
from headwise.core.qualities import (
    AGREEMENT,
    BLEU,
    FINDINGS,
    NEIGHBOURS,
    SIMILARITY,
    Number,
)
from headwise.data.scripts import letters_of, word_units
from headwise.faces.report import models
from headwise.faces.report.captions import interval_of
from headwise.faces.report.format import capital, kinds_among, percent, quantity, size
from headwise.faces.report.models import ModelRow, tested_text
from headwise.faces.report.page import Columns, PageTable, chosen_badge, section, table
from headwise.faces.report.quality_curves import greedy_figures, quality_figures
from headwise.faces.report.run_folder import RunContents
from headwise.pruning.controls import Control, compared_by_all, control_facts

SHORT_KINDS = {"encoder-self": "enc", "decoder-self": "dec", "cross": "cross"}
UNREPAIRED = Control(
    name="unrepaired",
    title="removal without repair",
    better="repair makes up for a part of the removed heads",
    worse="repair does harm",
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
LIKE_CONTROLS = {facts.name: facts for facts in (UNREPAIRED, RANDOM_ORDER, OTHER_MEASURE)}


@section(
    "cost",
    heading="What fewer heads cost",
    question="How much quality does each number of heads cost?",
    story=True,
    order=80,
    files=("pruning.csv",),
    papers={
        "bleu-by-heads*": "Voita fig. 7",
        "greedy-curves*": "Michel fig. 3",
        "greedy-by-kind": "Michel fig. 4",
    },
    brought_by="pruned models: a plan with [pruning], or headwise prune",
)
def cost_section(run: RunContents) -> dict[str, Any] | None:
    """Curves and the table of all models; the section is left out where nothing was pruned."""
    if run.model_table.empty:
        return None
    return {
        "quality": quality_figures(run.model_table, run.facts),
        "greedy": greedy_figures(run.model_table, run.facts),
        "all_models": models_table(run.model_table, run.split, layouts=run.layouts),
        "text": run.split,
        "measured": run.quality.title,
        "interval_of": interval_of(run.quality),
        "higher_is_better": run.quality.higher_is_better,
        "controls": set(run.model_table["control"].dropna()),
        "random": any(models.is_random_order(model) for model in run.pruned),
    }


def heads_text(layouts: Mapping[str, HeadMask], model: ModelRow) -> str:
    """`12 of 24`; of a model of several kinds also how many of each; of several seeds the mean and the range."""
    if model["method"] == "none":  # the kinds that its heads are of differ between seeds
        return str(model["total"])
    kept = str(model["kept"])
    # Only means over seeds have these columns: else None equals None.
    if model.get("kept_low") != model.get("kept_high"):
        kept = f"{model['mean_kept']:.1f}, from {model['kept_low']} to {model['kept_high']},"
    text = f"{kept} of {model['total']}"
    mask = layouts.get(model["setting"])
    if mask is None or len(model["kinds"]) < 2:
        return text
    each = [f"{SHORT_KINDS[kind]} {mask.count(kind)}" for kind in kinds_among(model["kinds"])]
    return f"{text}\n{' · '.join(each)}"


def models_table(
    frame: pd.DataFrame,
    split: str,
    references: Iterable[str] = (FINE_TUNED, UNPRUNED),
    label: str = "All models",
    layouts: Mapping[str, HeadMask] | None = None,
) -> PageTable | None:
    """Every model: of a run, or of several side by side, which a column `run` names. layouts: where they are known, the
    heads of each kind are counted. Without test text, quality is that of dev; where some models were only tried on dev,
    their changes there are shown too. The loss is shown where some models have no BLEU or agreement, and the size of
    weights in memory where some were not saved."""
    dev = "dev " if split == "dev" else ""
    quality = models.quality_on(frame, split)
    chosen_by = models.quality_on(frame, "dev")

    columns: Columns = {
        "model": lambda model: model["label"],
        # In a grid the column `run` holds the names of data sets.
        "data" if "seeds" in frame else "run": lambda model: model.get("run", ""),
        "seeds": lambda model: str(model.get("seeds", "")),
        "heads kept": partial(heads_text, layouts or {}),
        f"{dev}{quality.title}": models.quality_column(quality, split),
        **models.change_columns(quality, split, references, write=tested_text),
        f"{dev}chrF": models.number_column("{:.2f}".format, "chrf", split),
        f"{dev}{NEIGHBOURS.title}, %": models.number_column(
            "{:.1f}".format, NEIGHBOURS.name, split
        ),
        # without test text, the column above
        f"dev {chosen_by.title}": models.quality_column(chosen_by, "dev"),
    }
    if split == "test" and models.split_of_all(frame) == "dev":
        on_dev = models.change_columns(chosen_by, "dev", [UNPRUNED], write=tested_text)
        columns |= {f"dev {title}": cell for title, cell in on_dev.items()}
    searched = chosen_by in (BLEU, AGREEMENT)
    if not searched or models.values(frame, chosen_by.name, "dev").isna().any():
        columns["dev loss"] = models.number_column("{:.4f}".format, "loss", "dev")
    columns["parameters"] = models.number_column(quantity, "parameters")
    if models.values(frame, "bytes").notna().all():
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

    def change(self, run: RunContents) -> Number:
        """The change from the control to the model."""
        return run.change_of(self.measured_model, self.reference) if self.reference else Number()


@section(
    "controls",
    heading="Would something simpler have done?",
    question="Are pruned models better than their controls?",
    order=90,
    files=("pruning.csv",),
    papers={"*trained from scratch": "Voita table 2"},
    brought_by="pruning.compare (greedy) or pruning.controls (gates)",
)
def build_controls(run: RunContents) -> dict[str, Any] | None:
    """Every comparison as a row, and for each kind of control how often it says something; None without any."""
    comparisons = model_comparisons(run)
    if not comparisons:
        return None
    return {
        "counts": verdict_counts_table(run, comparisons),
        "compared": comparison_table(run, comparisons),
        "text": run.split,
        "measured": run.quality.title,
        "over": run.quality.over,
        "interval_of": interval_of(run.quality),
        "scratch": any("scratch" in str(one) for one in run.model_table["control"].dropna()),
        "better": "above" if run.quality.higher_is_better else "below",
        "trained": bool(run.model_table["control"].isin([f.name for f in compared_by_all()]).any()),
    }


def model_comparisons(run: RunContents) -> list[ControlComparison]:
    """Every pruned model (or the best head of each layer) with everything it was compared with on the reported text.
    Differences are model minus control.
    """
    known = {model["setting"]: model for model in models.model_rows(run.model_table)}
    controls = models.model_rows(models.control_models(run.model_table))
    # On the reported text they say nothing.
    controls = [control for control in controls if not run.only_tried(control)]
    found: list[ControlComparison] = []

    def add(kind: str, model: ModelRow, reference: str) -> None:
        """A model beside the one that its change of this reference is from."""
        control = known.get(models.against(model, reference))
        if control is not None and not run.only_tried(model):
            found.append(ControlComparison(kind, model, control, model, reference))

    for facts in compared_by_all():
        for model in run.pruned:
            add(facts.reference, model, facts.reference)

    for control in controls:
        # The model that it is a control of; a sweep's own controls have none.
        own = known.get(control["reference"] or "")
        if own is not None:
            found.append(ControlComparison(control["control"], own, control, control, "pruned"))
        else:
            against = control_facts(control["control"]).against
            add(control["control"], control, control_facts(against).reference)

    for model in run.pruned:
        # Not a control of the plan, but read like one.
        add(UNREPAIRED.name, model, UNREPAIRED.name)

    for model in run.pruned:
        for name in models.orders_against(model):
            is_random = name.startswith("random.")
            add(RANDOM_ORDER.name if is_random else OTHER_MEASURE.name, model, name)

    paired = set[str]()
    for comparison in found:
        paired.update(one["setting"] for one in (comparison.model, comparison.control) if one)
    for control in controls:
        if control["setting"] not in paired:
            found.append(ControlComparison(control["control"], None, control, control, ""))
    return found


def compared_with(control_name: str) -> Control:
    """The facts of a comparison: a control, or what is compared like one."""
    return LIKE_CONTROLS.get(control_name) or control_facts(control_name)


def compared_name(control_name: str) -> str:
    """What the other model of a comparison is called."""
    facts = compared_with(control_name)
    return control_facts(facts.against).title if facts.against else facts.title


def verdict_counts_table(
    run: RunContents, comparisons: list[ControlComparison]
) -> PageTable | None:
    """For each kind of control in how many comparisons the pruned models are better, worse, or not distinguishable."""
    found: dict[str, list[str]] = {}
    for comparison in comparisons:
        # Without an interval there is no verdict to count.
        if word := comparison.change(run).finding(run.quality):
            found.setdefault(comparison.kind, []).append(word)

    def meaning(kind: str) -> str:
        facts = compared_with(kind)
        # Not strict: the third verdict, not distinguishable, allows no conclusion.
        said = zip((facts.better, facts.worse), FINDINGS, strict=False)
        return "; ".join(text for text, word in said if text and word in found[kind])

    columns: Columns = {"compared with": lambda kind: capital(compared_name(kind))}
    for word in FINDINGS:
        columns[word] = partial(lambda word, kind: str(found[kind].count(word)), word)
    columns["conclusion"] = meaning
    return table("How often a comparison says something", found, columns)


def comparison_table(run: RunContents, comparisons: list[ControlComparison]) -> PageTable | None:
    """A row per comparison (Voita et al. 2019, table 2)."""
    name = run.quality.title
    unit = run.quality.in_unit
    written = models.quality_column(run.quality, run.split)
    tuned = run.model_table["control"].eq("fine-tuned").any()

    def control_name(comparison: ControlComparison) -> str:
        control = comparison.control
        own = comparison.model is None or compared_with(comparison.kind).against
        if own or control["comparison"] or models.is_random_order(control):
            return str(control["label"])
        return compared_name(comparison.kind)

    columns: Columns = {
        "pruned model": lambda comparison: comparison.model["label"] if comparison.model else "",
        "heads": lambda comparison: heads_text(run.layouts, comparison.model or comparison.control),
        "control": control_name,
        f"its {name}": lambda comparison: written(comparison.model),
        f"{name} of the control": lambda comparison: written(comparison.control),
        f"pruned against control{unit}": lambda comparison: tested_text(comparison.change(run)),
        f"control to the full model{unit}": lambda comparison: tested_text(
            run.change_of(comparison.control, UNPRUNED)
        ),
        f"control to equal further training{unit}": lambda comparison: (
            tested_text(run.change_of(comparison.control, FINE_TUNED)) if tuned else ""
        ),
    }
    scratched = any(comparison.kind == "from-scratch" for comparison in comparisons)
    return table(
        f"Pruned models and their controls{', also trained from scratch' * scratched}",
        comparisons,
        columns,
        lambda comparison: chosen_badge(comparison.model),
        lambda comparison: str(comparison.control["setting"]),
    )


EXAMPLES_SEED = 1
UNCHANGED_EXAMPLES = 3
CHANGED_EXAMPLES = 5
LONGEST_SOURCE = 40  # words: a longer source makes a card nobody reads


class Piece(NamedTuple):
    """Some words, whether the other translation lacks them, and what stands behind them."""

    text: str
    differs: bool
    behind: str


class Example(NamedTuple):
    """One sentence with its two translations, in pieces; `number` is its line in the text, counted from 1; an empty
    reference is the full model's own translation."""

    number: int
    source: str
    reference: str
    full: list[Piece]
    pruned: list[Piece]
    same: bool


class Examples(NamedTuple):
    """The examples of a report, and how many translations there are and are the same word for word; split: of which text."""

    shown: list[Example]
    total: int
    same: int
    split: str


@section(
    "translations",
    heading="Translations side by side",
    question="What do the changed translations look like?",
    story=True,
    order=120,
    files=("translations/",),
    brought_by="a pruned model that was chosen",
    qualities=("bleu", "agreement"),
)
def translation_examples_section(run: RunContents) -> dict[str, Any] | None:
    """The section is left out where no text has been translated by the full and by a chosen pruned model."""
    if run.model_table.empty or run.quality not in (BLEU, AGREEMENT):
        return None
    examples = choose_examples(run)
    return None if examples is None else {"examples": examples, "chosen": run.chosen}


@section(
    "worse",
    heading="Texts that became worse",
    question="On which texts is the smaller model worse?",
    story=True,
    order=125,
    files=("run.json",),
    brought_by="a pruned model that was chosen",
    qualities=("perplexity", "accuracy", "similarity", "wer"),
)
def worse_texts_section(run: RunContents) -> dict[str, Any]:
    """A row for each text; empty where none became worse, and of translations, which stand side by side."""
    chosen = run.chosen
    rows = [] if chosen is None else worse_rows(run, chosen)
    if chosen is None or not rows:
        return {}
    name = "nearest neighbour" if run.quality == SIMILARITY else run.quality.title
    columns: Columns = {
        "line": lambda row: row[0],
        "text": lambda row: row[1],
        f"{name}, full model": lambda row: row[2],
        f"{name}, {chosen['kept']} heads": lambda row: row[3],
    }
    how = "have another nearest neighbour" if run.quality == SIMILARITY else "became worse most"
    said = f"Texts of {run.split} that {how} without the other heads: not the typical ones."
    found = table("Texts that became worse", rows, columns)
    return {"found": found, "said": said, "chosen": chosen, "continued": continued(run, chosen)}


def continued(run: RunContents, model: ModelRow) -> list[Example]:
    """How the full model and a smaller one continue the first halves of the texts that became worse."""
    return [
        Example(
            one.number, one.begin, "", *word_differences(one.full, one.own), one.full == one.own
        )
        for one in run.worse_texts(model)
        if one.begin
    ]


def worse_rows(run: RunContents, model: ModelRow) -> list[tuple[str, str, str, str]]:
    """The number and words of some texts on which a model is worse than the full one, and what both make of them."""
    return [
        (str(one.number), one.text, made_text(run, one.before), made_text(run, one.after))
        for one in run.worse_texts(model)
    ]


def made_text(run: RunContents, made: float | str) -> str:
    """What a model makes of a text: `right` and `wrong` of one class, `75 %` of several, a number, or another text."""
    if isinstance(made, str):
        return made
    if run.quality.is_share:
        return {0.0: "wrong", 100.0: "right"}.get(made) or percent(made / 100)
    return f"{made:.3g}{run.quality.scale.strip()}"


def choose_examples(run: RunContents) -> Examples | None:
    """Three seeded draws from the unchanged translations, then the five most changed, of the test text or else of dev; None
    with nothing to compare."""
    split = "test" if run.translations else "dev"
    texts = run.translations or run.dev_translations
    chosen = run.chosen
    if chosen is None or not {"source", "reference", "full", chosen["setting"]} <= set(texts):
        return None
    full = texts["full"]
    pruned = texts[chosen["setting"]]
    # 1 where both say the same, word for word.
    alike = [similarity(one, other) for one, other in zip(full, pruned, strict=True)]
    # An empty source is left out as well: there is nothing to read in it.
    short = [
        i for i, text in enumerate(texts["source"]) if 0 < len(word_units(text)) <= LONGEST_SOURCE
    ]
    unchanged = [i for i in short if alike[i] == 1]
    changed = sorted((i for i in short if alike[i] < 1), key=lambda i: (alike[i], i))
    # Seeded, so a report that is made again shows the same sentences.
    some = random.Random(EXAMPLES_SEED).sample(unchanged, min(UNCHANGED_EXAMPLES, len(unchanged)))
    # The references of one-sided text are the full model's own translations.
    own = texts["reference"] == full
    shown = []
    for i in [*sorted(some), *changed[:CHANGED_EXAMPLES]]:
        said = texts["source"][i], "" if own else texts["reference"][i]
        shown.append(Example(i + 1, *said, *word_differences(full[i], pruned[i]), alike[i] == 1))
    return Examples(shown, len(full), alike.count(1), split)


def similarity(one: str, other: str) -> float:
    """How alike two sentences are as rows of words: 1 for the same words, 0 for no word in common. Words that no blanks
    part are compared letter by letter."""
    left, right, _ = units_of_both(one, other)
    if left == right:
        return 1.0
    # By default difflib ignores frequent words of a long sentence as junk.
    return SequenceMatcher(None, left, right, autojunk=False).ratio()


def units_of_both(one: str, other: str) -> tuple[list[str], list[str], str]:
    """The words of two sentences, or their letters, and what stands between two of them."""
    unspaced = letters_of(one + other).unspaced
    return word_units(one, unspaced), word_units(other, unspaced), "" if unspaced else " "


def word_differences(one: str, other: str) -> tuple[list[Piece], list[Piece]]:
    """Two sentences in pieces: words that both have, in the same order, and words that differ."""
    left, right, between = units_of_both(one, other)
    pieces: tuple[list[Piece], list[Piece]] = ([], [])
    for opcode, i, j, k, m in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for side, words in zip(pieces, (left[i:j], right[k:m]), strict=True):
            if words:
                side.append(Piece(between.join(words), opcode != "equal", between))
    return pieces
