"""What Voita et al. (2019) and Michel et al. (2019) found, claim by claim, and what a run of a translation model says.

claims.csv has the claims: the function here that asks a run, its place in a paper, the paper's numbers, and what a
run needs.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection
from functools import partial
from math import isnan, nan
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from headwise.core.heads import KINDS, Head, Kind
from headwise.core.measured import UNPRUNED
from headwise.core.qualities import BETTER, BLEU, WORD_ERROR_RATE, WORSE, Number
from headwise.core.statistics import auroc_interval, kept_of_marked, marked_in_groups
from headwise.faces.report import models
from headwise.faces.report.charts import Figure, Panel
from headwise.faces.report.format import (
    KIND_NAMES,
    capital,
    estimate,
    listed,
    measure_name,
    percent,
    probability_fact,
    signed,
)
from headwise.faces.report.head_rows import heads_in, of_kind, of_measure, values_by_head
from headwise.faces.report.kept_heads import by_layer
from headwise.faces.report.models import OTHERS, ModelRow, change_text, measured, tested_text
from headwise.faces.report.page import PageTable, section, table
from headwise.faces.report.quality_curves import run_points, runs_panel
from headwise.faces.report.role_tables import reads_text, with_categories
from headwise.faces.report.run_folder import RunContents
from headwise.faces.report.summary import does_not_translate
from headwise.importance.most_faithful import by_measure, faithfulness_statistics

PAPERS = Path(__file__).parent
ENCODER: Kind = "encoder-self"
SUPPORTS = "supports"
CONTRADICTS = "contradicts"
NOT_REACHED = "not reached"  # with this training: a weaker one cannot contradict that heads can go
IN_PART = "supports in part"
UNSURE = "cannot tell"
NOT_TESTED = "not tested"
NO_TRANSLATOR = "cannot tell: the model does not translate yet"
MOST_OF_THEM = 0.5  # of the encoder heads: what counts as most of them
SURE = 0.05  # p below which a comparison within layers supports a claim
FREE_SHARE = 0.2  # of all heads: what Michel et al. removed without training
ENCODER_LOSS = 0.15  # BLEU: theirs, of 38 of 48 encoder heads
JOINT_LOSS = 0.24  # BLEU: theirs, of 86 of 144 heads
# BLEU: how much more than theirs a model may lose and be no worse. Theirs have no published interval; that of such a
# difference on some 3,000 sentences is ±0.3.
MARGIN = 0.5
AS_GOOD = 0.1  # of an area: how much larger another may be, by its interval, and be as good
CLASSES = ("positional", "syntactic", "rare tokens")
FINE = 0.5  # BLEU: half an interval that is wider cannot show what one head does
THIS_RUN = "this run"


class ClaimOutcome(NamedTuple):
    """What a run says of a claim: in words, and as a verdict."""

    here: str
    verdict: str


def by_parts(here: str, agrees: Collection[bool]) -> ClaimOutcome:
    """The outcome of a claim of several parts, each of which agrees or not."""
    if all(agrees):
        return ClaimOutcome(here, SUPPORTS)
    return ClaimOutcome(here, IN_PART if any(agrees) else CONTRADICTS)


THEIRS = (
    "Theirs: Voita et al. (2019), Transformer-base, English to Russian and German, 48 encoder heads of 144; Michel et al. "
    "(2019), Transformer-big, English to French, 288 heads. One run supports or contradicts a claim for its own model only. "
    "A loss supports one where its whole interval is above theirs less a margin of 0.5 BLEU, and where all of it is below, "
    "theirs was not reached: a weaker training cannot contradict that heads can go. Brackets: 95 % intervals."
)
POINTS = (
    "The thin lines are the paper's points (figure 7, table 2), read from its plots. Both sides are differences to the full "
    "model, so they contain what training on under gates gains or costs."
)


def declare() -> None:
    """Add the section to the pages that this process writes."""
    section(
        "paper_claims",
        heading="Compared with the papers",
        question="Does what Voita et al. and Michel et al. found hold here?",
        order=115,
        files=("pruning.csv", "roles/", "heads.csv", "faithfulness.csv"),
        papers={"bleu-by-share": "Voita fig. 7, table 2"},
        brought_by="scores, roles and pruned models of an encoder-decoder",
        qualities=("bleu",),
    )(paper_claims_section)


def paper_claims_section(run: RunContents) -> dict[str, Any] | None:
    """The table of claims; left out for models that are no encoder-decoders of text."""
    kinds = set(run.heads["kind"])
    for mask in run.layouts.values():
        kinds |= set(mask.heads.kinds)
    translates = "cross" in kinds or run.quality == BLEU
    hears = run.quality == WORD_ERROR_RATE or bool(run.roles and not reads_text(run.roles))
    if not translates or hears or ENCODER not in kinds:
        return None
    curves = published_curves(run)
    return {
        "curves": curves,
        "claims": claims_table(run),
        "theirs": THEIRS,
        "points": POINTS if curves else "",
    }


def published_curves(run: RunContents) -> Figure | None:
    """BLEU against the share of heads kept: this run's gates among the paper's points, a panel for encoder heads and
    one for all kinds. None where no gates were measured in BLEU, or the model does not translate yet."""
    if run.quality != BLEU or does_not_translate(run):
        return None
    published = rows_of_papers("voita2019_bleu.csv")
    panels: list[Panel] = []
    for kinds in ((ENCODER,), KINDS):
        ours = run.model_table[run.model_table.index.isin(gated(run, kinds))].assign(run=THIS_RUN)
        points = run_points(ours, run.quality, run.split)
        if not points:
            continue
        # No table has the full model's difference to itself, where each line begins.
        points.insert(0, {"data": THIS_RUN, "model": "full model", "kept": 100, "value": 0})
        for row in published:
            if row["kinds"] != "+".join(kinds):
                continue
            share = round(100 * int(row["kept"]) / int(row["total"]), 2)
            heads = f"{row['kept']} of {row['total']}"
            line = f"Voita et al., {row['data']}"
            points.append(
                {"data": line, "kept": share, "value": float(row["change"]), "heads": heads}
            )
        title = capital(models.heads_name(kinds))
        data = list(dict.fromkeys(str(point["data"]) for point in points))
        panels.append(runs_panel(pd.DataFrame(points), data, title, run.quality, run.split))
    if not panels:
        return None
    return Figure(
        name="bleu-by-share",
        title="BLEU against the share of heads kept, with the paper's points",
        note="without bars: Voita et al. 2019 · bars: 95 % interval of the difference to the full model",
        panels=panels,
        columns=2,
    )


def rows_of_papers(name: str) -> list[dict[str, str]]:
    """The rows of a table that we made of the papers."""
    with (PAPERS / name).open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file)]


def claims_table(run: RunContents) -> PageTable | None:
    """A row for each claim. A model that does not translate yet can neither support nor contradict one."""
    rows = []
    for claim in rows_of_papers("claims.csv"):
        here, verdict = ASK[claim["name"]](run) or (f"needs {claim['needs']}", NOT_TESTED)
        if does_not_translate(run) and verdict != NOT_TESTED:
            verdict = NO_TRANSLATOR
        rows.append({**claim, "here": here, "verdict": verdict})
    columns = {
        "claim": lambda row: row["claim"],
        "theirs": lambda row: row["theirs"],
        "here": lambda row: row["here"],
        "verdict": lambda row: row["verdict"],
    }
    return table("Compared with the papers", rows, columns)


def gated(run: RunContents, kinds: Collection[str]) -> dict[str, ModelRow]:
    """The models with gates on these kinds of heads, by setting; from many heads to few."""
    return {
        model["setting"]: model
        for model in run.pruned
        if model["learned"] and set(model["kinds"]) == set(kinds)
    }


def most_encoder_heads(run: RunContents) -> ClaimOutcome | None:
    """The model that loses least among those whose gates removed at least half of the encoder heads."""
    return least_loss(run, (ENCODER,), ENCODER_LOSS)


def most_of_all_heads(run: RunContents) -> ClaimOutcome | None:
    """The same of models whose gates removed at least half of all heads."""
    return least_loss(run, KINDS, JOINT_LOSS)


def least_loss(run: RunContents, kinds: Collection[str], theirs: float) -> ClaimOutcome | None:
    """What the best model without most of its heads loses to equal further training, or else to the full model."""
    found = []
    for model in gated(run, kinds).values():
        reference, change = run.leading_change(model)
        if change.value is not None and 1 - model["kept"] / model["total"] >= MOST_OF_THEM:
            # On dev, so that the best of several is not chosen by the numbers that are reported.
            lost = run.lost(model)
            key = -run.quality.better * change.value if lost is None else lost
            found.append((key, model, reference, change))
    if not found:
        return None
    # By the loss alone: at equal losses min would compare dicts, and fail.
    _, model, reference, change = min(found, key=lambda one: one[0])
    removed = f"{model['total'] - model['kept']} of {model['total']} removed"
    moved = tested_text(change, ", ", run.quality.unit)
    here = f"{removed}: {run.quality.title} to {OTHERS[reference]} {moved}"
    if measured(model, "settled").value == 0:
        here += "; its gates had not settled"
    if run.split == "dev" and len(found) > 1:
        return ClaimOutcome(f"{here}; the best of {len(found)} on this text", UNSURE)
    return ClaimOutcome(here, of_loss(change, theirs))


def of_loss(change: Number, theirs: float, beyond: str = NOT_REACHED) -> str:
    """Whether a model loses no more than the paper's and the margin, by its whole interval. beyond: the verdict where all
    of the interval is below them."""
    if change.low is None or change.high is None:
        return UNSURE
    most = -theirs - MARGIN
    if change.high < most:
        return beyond
    return UNSURE if change.low < most else SUPPORTS


def classes_of_heads(run: RunContents) -> ClaimOutcome | None:
    """How many encoder heads are positional, syntactic, and look at rare tokens."""
    if of_kind(run.roles.labels, ENCODER).empty:
        return None
    counts = with_categories(of_kind(run.roles.roles, ENCODER))["category"].value_counts()
    numbers = [int(counts.get(name, 0)) for name in CLASSES]
    here = f"{', '.join(map(str, numbers))} of {len(of_kind(run.roles.labels, ENCODER))}"
    if all(numbers):
        return ClaimOutcome(here, SUPPORTS)
    return ClaimOutcome(here, IN_PART if any(numbers) else "none found")


def encoder_heads_with_roles(run: RunContents) -> tuple[set[Head], set[Head]] | None:
    """The encoder heads that have a role, and the others; None without roles."""
    if not run.roles:
        return None
    having = set(heads_in(of_kind(run.roles.roles, ENCODER)))
    return having, set(heads_in(of_kind(run.roles.labels, ENCODER))) - having


def all_or_none(having: set[Head]) -> ClaimOutcome:
    """Where all encoder heads, or none, have a role."""
    return ClaimOutcome(f"{'every' if having else 'no'} encoder head has a role", NOT_TESTED)


def marked_by_scores(run: RunContents) -> ClaimOutcome | None:
    """How well relevance and confidence tell encoder heads with a role from the others of their layer: the area under the
    ROC curve within layers and over all heads. Figure 1 sorts heads within layers, and relevance adds up to 1 in each, so
    a score that follows the layer marks no head."""
    sides = encoder_heads_with_roles(run)
    if sides is None:
        return None
    having, others = sides
    if not having or not others:
        return all_or_none(having)
    relevance = [name for name in run.heads["measure"].unique() if name.startswith("lrp")]
    texts = []
    p = []
    for measure in (*relevance[:1], "confidence"):
        values = values_by_head(run, measure)
        heads = [head for head in sorted(having | others) if not isnan(values.get(head, nan))]
        scores = np.array([values[head] for head in heads])
        marked = np.array([head in having for head in heads], dtype=bool)
        inside = marked_in_groups(scores, marked, np.array([head.layer for head in heads]))
        if not inside.pairs:
            continue
        whole = marked_in_groups(scores, marked, np.zeros(len(heads)))
        low, high = auroc_interval(whole.share, int(marked.sum()), int((~marked).sum()))
        area = estimate({"value": whole.share, "low": low, "high": high}, "{:.2f}".format)
        won = f"{inside.won:g} of {inside.pairs} pairs, {inside.share:.2f}"
        texts.append(
            f"{measure_name(measure)} {won}, {probability_fact(inside.p)} (over all heads {area})"
        )
        p.append(inside.p)
    if not p:
        return None
    here = f"within layers: {'; '.join(texts)}; {len(having)} heads with a role"
    above = [one < SURE for one in p]
    below = [one > 1 - SURE for one in p]
    return by_parts(here, above) if any(above) or all(below) else ClaimOutcome(here, UNSURE)


def kept_with_roles(run: RunContents) -> ClaimOutcome | None:
    """Whether gates keep encoder heads with a role rather than others of their layer, in the smallest model that they
    left: pruning prefers layers, and so does having a role."""
    sides = encoder_heads_with_roles(run)
    known = [model for model in run.pruned if model["learned"] and ENCODER in model["kinds"]]
    smallest = smallest_with_layout(run, known)
    if sides is None or smallest is None:
        return None
    having, others = sides
    if not having or not others:
        return all_or_none(having)
    left = run.layouts[smallest["setting"]].kept
    heads = sorted(having | others)
    kept, marked = (np.array([head in some for head in heads]) for some in (left, having))
    layers = np.array([head.layer for head in heads])
    # One-sided, as the claim is: heads with a role stay more often.
    ours, expected, p = kept_of_marked(kept, marked, layers)
    _, of_all, p_of_all = kept_of_marked(kept, marked, np.zeros(len(heads)))
    both = f"{ours} of {len(having)} with a role and {int(kept.sum()) - ours} of {len(others)} others stay"
    here = (
        f"{smallest['label']}: {both}; of as many heads of each layer {expected:.1f} with a role would, "
        f"{probability_fact(p)} (of as many of all: {of_all:.1f}, {probability_fact(p_of_all)})"
    )
    return ClaimOutcome(here, SUPPORTS if p < SURE else UNSURE)


def smallest_with_layout(run: RunContents, known: Collection[ModelRow]) -> ModelRow | None:
    """The model with the fewest heads among those whose layout is there."""
    found = [model for model in known if model["setting"] in run.layouts]
    return min(found, key=lambda model: int(model["kept"]), default=None)


def smallest_joint(run: RunContents) -> ModelRow | None:
    """The model with fewest heads that gates left of all kinds together, without a count for each kind."""
    known = gated(run, KINDS).values()
    return smallest_with_layout(run, [one for one in known if not isinstance(one["keep"], dict)])


def order_of_kinds(run: RunContents) -> ClaimOutcome | None:
    """Which kind keeps most and which least where gates removed all kinds together, in the smallest such model."""
    smallest = smallest_joint(run)
    if smallest is None:
        return None
    mask = run.layouts[smallest["setting"]]
    shares = {kind: mask.count(kind) / sum(mask.heads.query[kind]) for kind in KINDS}
    parts = [f"{KIND_NAMES[kind]} {percent(share)}" for kind, share in shares.items()]
    here = f"{smallest['label']}: {listed(parts)} left"
    # This turns the paper's order round, so it cannot support it in part.
    if shares["cross"] <= shares[ENCODER]:
        return ClaimOutcome(here, CONTRADICTS)
    ends = min(shares.values()), max(shares.values())
    return by_parts(here, [shares[ENCODER] == ends[0], shares["cross"] == ends[1]])


def thirds_of_the_decoder(run: RunContents) -> ClaimOutcome | None:
    """Whether the lowest third of the decoder's layers keeps more self-attention than the highest, and less
    cross-attention, in the smallest model that gates left of all kinds."""
    smallest = smallest_joint(run)
    if smallest is None:
        return None
    texts = []
    lower = {}
    # All kinds but the first are the decoder's.
    for kind in KINDS[1:]:
        layers = [left for left, _ in by_layer(run.layouts[smallest["setting"]], kind)]
        if len(layers) < 2:
            return None
        third = max(1, len(layers) // 3)
        low = sum(layers[:third])
        high = sum(layers[-third:])
        texts.append(f"{KIND_NAMES[kind]} {low} in the lowest, {high} in the highest")
        lower[kind] = low - high
    here = f"{smallest['label']}: {'; '.join(texts)} third of the layers"
    return by_parts(here, [lower["decoder-self"] > 0, lower["cross"] < 0])


def better_than_scratch(run: RunContents) -> ClaimOutcome | None:
    """Pruned models against the same layouts trained from random weights."""
    texts = []
    said = set()
    for control in models.model_rows(models.control_models(run.model_table)):
        # The pruned model minus the control: above 0, pruning was better.
        change = run.change_of(control, "pruned")
        if control["control"] == "from-scratch" and change.value is not None:
            texts.append(f"{control['reference']} {change_text(change, run.quality.unit)}")
            said.add(change.finding(run.quality))
    if not texts:
        return None
    here = f"pruned minus from scratch: {'; '.join(texts)}"
    if WORSE in said:
        return ClaimOutcome(here, IN_PART if BETTER in said else CONTRADICTS)
    return ClaimOutcome(here, SUPPORTS if said == {BETTER} else UNSURE)


def one_head_off(run: RunContents) -> ClaimOutcome | None:
    """How many encoder heads change BLEU where one is removed. The paper tests at p < 0.01, an interval here at 0.05."""
    rows = of_kind(of_measure(run.heads, "ablation.bleu"), ENCODER).dropna(subset=["low", "high"])
    if rows.empty:
        return None
    # The measure is the BLEU that is lost: below 0 the model is better without the head.
    better = int((rows["high"] < 0).sum())
    changed = int((rows["low"] > 0).sum()) + better
    half = float((rows["high"] - rows["low"]).median()) / 2
    here = (
        f"{changed} of {len(rows)} change BLEU, {better} for the better (at random about "
        f"{0.05 * len(rows):.1f}); median interval ±{half:.2f}"
    )
    if 2 * changed > len(rows):
        return ClaimOutcome(here, CONTRADICTS)
    return ClaimOutcome(here, SUPPORTS if half <= FINE else UNSURE)


def one_head_left(run: RunContents) -> ClaimOutcome | None:
    """What a layer loses where its best head alone is left: whether the last cross-attention is the worst case.

    The loss cannot say whether one head is enough in the other layers: the paper's numbers are BLEU.
    """
    alone = of_measure(run.heads, "ablation.all-but-one").dropna(subset=["low", "high"])
    if set(alone["kind"]) != set(KINDS):
        return None
    best = alone.loc[alone.groupby(["kind", "layer"])["value"].idxmin()].set_index(
        ["kind", "layer"]
    )
    last = best.loc[("cross", best.loc["cross"].index.max())]
    others = best.drop(index=[last.name])
    ends = f"{signed(others['value'].min())} to {signed(others['value'].max())}"
    here = f"last cross-attention {estimate(last)} nats per token, others {ends}"
    if last["low"] > others["high"].max():
        return ClaimOutcome(f"{here}; the loss cannot say whether one is enough", IN_PART)
    return ClaimOutcome(here, CONTRADICTS if (others["low"] > last["high"]).any() else UNSURE)


def free_without_training(run: RunContents) -> ClaimOutcome | None:
    """The model of greedy removal that has lost about a fifth of its heads of all kinds."""
    greedy = []
    for model in run.pruned:
        untrained = not model["learned"] and measured(model, "updates").value is None
        scored = model["score"] and not models.is_random_order(model)
        if untrained and scored and len(model["kinds"]) == len(KINDS):
            greedy.append((abs(1 - model["kept"] / model["total"] - FREE_SHARE), model))
    if not greedy:
        return None
    off, near = min(greedy, key=lambda one: one[0])
    # Of the sizes that were tried, test is read for the chosen one alone.
    tried = run.only_tried(near)
    change = run.quality_of(near, "dev" if tried else "", UNPRUNED)
    moved = tested_text(change, ", ", run.quality.unit)
    removed = f"{percent(1 - near['kept'] / near['total'])} of {near['total']}"
    here = f"{removed} by {measure_name(str(near['score']))}: {run.quality.title} {moved}"
    if tried:
        here += " on dev"
    # A model that is far from a fifth says nothing about a fifth.
    return ClaimOutcome(here, UNSURE if off > FREE_SHARE / 2 else of_loss(change, 0, CONTRADICTS))


def gradient_as_good(run: RunContents) -> ClaimOutcome | None:
    """The loss along the gradient's order of removal and along that of exact ablation."""
    found = faithfulness_statistics(run.faithfulness)
    areas: Any = by_measure(found, "area").to_dict("index")
    if not {"gradient", "ablation.zero"} <= set(areas):
        return None
    gradient = areas["gradient"]
    ablation = areas["ablation.zero"]
    write = partial(estimate, write="{:.3g}".format)
    both = f"gradient {write(gradient)} and ablation {write(ablation)}"
    here = f"loss while heads are removed: {both}"
    if gradient["low"] > ablation["high"]:
        return ClaimOutcome(here, CONTRADICTS)
    as_good = gradient["high"] <= (1 + AS_GOOD) * ablation["value"]
    return ClaimOutcome(here, SUPPORTS if as_good else UNSURE)


ASK: dict[str, Callable[[RunContents], ClaimOutcome | None]] = {
    ask.__name__: ask
    for ask in (
        most_encoder_heads,
        classes_of_heads,
        marked_by_scores,
        kept_with_roles,
        most_of_all_heads,
        order_of_kinds,
        better_than_scratch,
        thirds_of_the_decoder,
        one_head_off,
        one_head_left,
        free_without_training,
        gradient_as_good,
    )
}
