"""What Voita et al. (2019) and Michel et al. (2019) found, claim by claim, and what a run of a translation model says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from scipy.stats import fisher_exact, mannwhitneyu

from headwise.heads import KINDS, Head, Kind
from headwise.pruning.measured import UNPRUNED
from headwise.qualities import BETTER, BLEU, WORD_ERROR_RATE, WORSE, Number
from headwise.report import charts, models, score_faithfulness
from headwise.report.charts import Figure, Panel, axis, tips
from headwise.report.format import (
    KIND_NAMES,
    capital,
    interval_text,
    listed,
    measure_name,
    percent,
    probability_fact,
    signed,
)
from headwise.report.kept_heads import by_layer, values_by_head
from headwise.report.models import OTHERS, ModelRow, change_text, measured, tested_text
from headwise.report.page import Table, section, table
from headwise.report.role_tables import reads_text
from headwise.report.run_folder import HEAD_COLUMNS, FinishedRun
from headwise.report.summary import does_not_translate
from headwise.roles.role import category
from headwise.statistics import auroc_interval

SUPPORTS = "supports"
CONTRADICTS = "contradicts"
IN_PART = "supports in part"
UNSURE = "cannot tell"
NOT_TESTED = "not tested"
NO_TRANSLATOR = "cannot tell: the model does not translate yet"
MOST_OF_THEM = 0.5  # of the encoder heads: what counts as most of them
FREE_SHARE = 0.2  # of all heads: what Michel et al. removed without training
LITTLE_BLEU = 1.0  # BLEU: a loss is little where the whole interval is above minus this
ENCODER_LOSS = 0.15  # BLEU: theirs, of 38 of 48 encoder heads
JOINT_LOSS = 0.24  # BLEU: theirs, of 86 of 144 heads
AS_GOOD = 0.1  # of an area: how much larger another may be, by its interval, and be as good
CLASSES = ("positional", "syntactic", "rare")
ORDER_OF_LAYERS: dict[Kind, bool] = {"decoder-self": True, "cross": False}  # lowest first
FINE = 0.5  # BLEU: half an interval that is wider cannot show what one head does
PUBLISHED = Path(__file__).parent / "papers" / "voita2019_bleu.csv"  # figure 7 and table 2
THIS_RUN = "this run"


class ClaimOutcome(NamedTuple):
    """What a run says of a claim: in words, and as a verdict."""

    here: str
    verdict: str


class Claim(NamedTuple):
    """A claim of a paper, with its place there, the paper's numbers, what a run needs to test it, and the function that
    asks a run."""

    text: str
    theirs: str
    needs: str
    ask: Callable[[FinishedRun], ClaimOutcome | None]


@section(
    "paper_claims",
    heading="Compared with the papers",
    question="Does what Voita et al. and Michel et al. found hold here?",
    order=115,
    files=("pruning.csv", "roles/", "heads.csv", "faithfulness.csv"),
    papers={"bleu-by-share": "Voita fig. 7, table 2"},
    brought_by="scores, roles and pruned models of an encoder-decoder",
    qualities=("bleu",),
)
def paper_claims_section(run: FinishedRun) -> dict[str, Any] | None:
    """The table of claims; left out for models that are no encoder-decoders of text."""
    kinds = set[str]()
    if run.heads is not None:
        kinds |= set(run.heads["kind"])
    for mask in run.layouts.values():
        kinds |= set(mask.heads.kinds)
    translates = "cross" in kinds or run.quality == BLEU
    hears = run.quality == WORD_ERROR_RATE
    if run.roles is not None and not reads_text(run.roles):
        hears = True
    if not translates or hears or "encoder-self" not in kinds:
        return None
    return {"curves": published_curves(run), "claims": claims_table(run)}


def published_curves(run: FinishedRun) -> Figure | None:
    """BLEU against the share of heads kept: this run's gates among the paper's points, a panel for encoder heads and
    one for all kinds. None where no gates were measured in BLEU, or the model does not translate yet."""
    if run.quality != BLEU or does_not_translate(run):
        return None
    published = pd.read_csv(PUBLISHED)
    panels = []
    for kinds in ((KINDS[0],), KINDS):
        ours = _gated_points(run, kinds)
        if ours:
            theirs = published[published["kinds"] == "+".join(kinds)]
            panels.append(_share_panel(ours, theirs, models.heads_name(kinds)))
    if not panels:
        return None
    return Figure(
        name="bleu-by-share",
        title="BLEU against the share of heads kept, with the paper's points",
        note="without bars: Voita et al. 2019 · bars: 95 % interval of the difference to the full model",
        panels=panels,
        columns=2,
    )


def _gated_points(run: FinishedRun, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """The full model and those that gates left of these kinds, by the share of heads kept."""
    points: list[dict[str, Any]] = []
    for model in run.pruned:
        change = run.change_of(model, UNPRUNED)
        if not model["learned"] or set(model["kinds"]) != set(kinds) or change.value is None:
            continue
        ends = interval_text(change.low, change.high)
        points.append(
            {
                "line": THIS_RUN,
                "share": model["kept"] / model["total"],
                "value": change.value,
                "low": change.low,
                "high": change.high,
                "heads": f"{model['kept']} of {model['total']} heads {ends}",
            }
        )
    full = {"line": THIS_RUN, "share": 1.0, "value": 0.0, "heads": "the full model"}
    return [full, *points] if points else []


def _share_panel(ours: list[dict[str, Any]], theirs: pd.DataFrame, name: str) -> Panel:
    points = []
    for row in theirs.to_dict("records"):
        text = f"{row['kept']} of {row['total']} heads"
        line = f"Voita et al., {row['data']}"
        share = row["kept"] / row["total"]
        points.append({"line": line, "share": share, "value": row["change"], "heads": text})
    x = axis("share:Q", "heads kept", domain=[0, 1.02], nice=False, format="%", grid=False)
    y = axis("value:Q", "BLEU, difference to the full model", zero=False)
    colours = charts.categories("line:N", [THIS_RUN, *(point["line"] for point in points)])
    tip = tips("line:N", "heads:N", "value:Q|BLEU|+.2f")
    marks = [
        *charts.curve(points, x, y, colours, dots=20, width=1.2, opacity=0.6, tip=tip),
        *charts.curve(ours, x, y, colours, width=1.6),
        *charts.intervals(ours, x, y, colours, tip=tip),
    ]
    chart = charts.layered(marks, 260, f"BLEU against the share of {name} kept")
    return Panel(chart, capital(name), width=400, narrowest=270)


def claims_table(run: FinishedRun) -> Table | None:
    """A row for each claim. A model that does not translate yet can neither support nor contradict one."""
    rows = []
    for claim in CLAIMS:
        finding = claim.ask(run) or ClaimOutcome(f"needs {claim.needs}", NOT_TESTED)
        if does_not_translate(run) and finding.verdict != NOT_TESTED:
            finding = ClaimOutcome(finding.here, NO_TRANSLATOR)
        rows.append((claim, finding))
    return table(
        "Compared with the papers",
        rows,
        {
            "claim": lambda row: row[0].text,
            "theirs": lambda row: row[0].theirs,
            "here": lambda row: row[1].here,
            "verdict": lambda row: row[1].verdict,
        },
    )


def most_encoder_heads(run: FinishedRun) -> ClaimOutcome | None:
    """Of the models whose gates removed at least half of the encoder heads, the one that loses least."""
    found = []
    for model in run.pruned:
        removed = 1 - model["kept"] / model["total"]
        if (
            model["learned"]
            and tuple(model["kinds"]) == ("encoder-self",)
            and removed >= MOST_OF_THEM
        ):
            found.append(model)
    return least_loss(run, found, ENCODER_LOSS)


def most_of_all_heads(run: FinishedRun) -> ClaimOutcome | None:
    """The same of models whose gates removed at least half of all heads."""
    found = []
    for model in run.pruned:
        removed = 1 - model["kept"] / model["total"]
        if model["learned"] and len(model["kinds"]) == len(KINDS) and removed >= MOST_OF_THEM:
            found.append(model)
    return least_loss(run, found, JOINT_LOSS)


def least_loss(run: FinishedRun, found: Sequence[ModelRow], theirs: float) -> ClaimOutcome | None:
    """What the best of some models loses to equal further training, or else to the full model."""
    best = None
    for model in found:
        _, change = run.leading_change(model)
        if change.value is None:
            continue
        loss = -run.quality.better * change.value
        if best is None or loss < best[0]:
            best = (loss, model)
    if best is None:
        return None
    model = best[1]
    reference, change = run.leading_change(model)
    moved = tested_text(change, ", ", run.quality.unit)
    removed = model["total"] - model["kept"]
    here = (
        f"{removed} of {model['total']} removed: {run.quality.title} to {OTHERS[reference]} {moved}"
    )
    if measured(model, "settled").value == 0:
        here += "; its gates had not settled"
    return ClaimOutcome(here, of_loss(run, change, theirs))


def of_loss(run: FinishedRun, change: Number, theirs: float) -> str:
    """Whether a model loses little: a loss that the interval does not show may still be large, and one that it shows
    contradicts the paper only where it is above the paper's own."""
    if change.low is None or change.high is None:
        return UNSURE
    if change.verdict(run.quality) == WORSE and change.high < -theirs:
        return CONTRADICTS
    return UNSURE if change.low < -LITTLE_BLEU else SUPPORTS


def classes_of_heads(run: FinishedRun) -> ClaimOutcome | None:
    """How many encoder heads are positional, syntactic, and look at rare tokens."""
    if run.roles is None:
        return None
    roles = run.roles.roles[run.roles.roles["kind"] == "encoder-self"]
    labels = run.roles.labels[run.roles.labels["kind"] == "encoder-self"]
    if labels.empty:
        return None
    heads = roles[HEAD_COLUMNS].assign(category=[category(name) for name in roles["measure"]])
    counts = heads.drop_duplicates()["category"].value_counts().to_dict()
    numbers = [int(counts.get(name, 0)) for name in CLASSES]
    here = f"{', '.join(map(str, numbers))} of {len(labels)}"
    if all(numbers):
        return ClaimOutcome(here, SUPPORTS)
    return ClaimOutcome(here, IN_PART if any(numbers) else "none found")


def encoder_heads_with_roles(run: FinishedRun) -> tuple[set[Head], set[Head]] | None:
    """The encoder heads that have a role, and the others; None without roles."""
    if run.roles is None:
        return None
    every = set[Head]()
    having = set[Head]()
    for frame, heads in ((run.roles.labels, every), (run.roles.roles, having)):
        for row in frame[HEAD_COLUMNS].itertuples(index=False, name=None):
            if row[0] == "encoder-self":
                heads.add(Head(*row))
    return having, every - having


def marked_by_scores(run: FinishedRun) -> ClaimOutcome | None:
    """How well relevance and confidence tell encoder heads with a role from the others (area under the ROC curve)."""
    sides = encoder_heads_with_roles(run)
    if sides is None or run.heads is None:
        return None
    having, others = sides
    if not having or not others:
        return all_or_none(having)
    relevance = [name for name in dict.fromkeys(run.heads["measure"]) if name.startswith("lrp")]
    texts = []
    lows = []
    highs = []
    for measure in (*relevance[:1], "confidence"):
        values = values_by_head(run, measure)
        ours = [values[head] for head in having if head in values]
        rest = [values[head] for head in others if head in values]
        if not ours or not rest:
            continue
        area = float(mannwhitneyu(ours, rest).statistic) / (len(ours) * len(rest))
        low, high = auroc_interval(area, len(ours), len(rest))
        texts.append(f"{measure_name(measure)} {area:.2f} [{low:.2f}, {high:.2f}]")
        lows.append(low)
        highs.append(high)
    if not texts:
        return None
    here = f"area under the curve: {listed(texts)}, {len(having)} heads with a role"
    if min(lows) > MOST_OF_THEM:
        return ClaimOutcome(here, SUPPORTS)
    if max(highs) < MOST_OF_THEM:
        return ClaimOutcome(here, CONTRADICTS)
    return ClaimOutcome(here, IN_PART if max(lows) > MOST_OF_THEM else UNSURE)


def all_or_none(having: set[Head]) -> ClaimOutcome:
    """Where all encoder heads, or none, have a role."""
    return ClaimOutcome(f"{'every' if having else 'no'} encoder head has a role", NOT_TESTED)


def kept_with_roles(run: FinishedRun) -> ClaimOutcome | None:
    """Whether gates keep encoder heads with a role rather than others, in the smallest model that they left."""
    sides = encoder_heads_with_roles(run)
    gated = []
    for model in run.pruned:
        if (
            model["learned"]
            and "encoder-self" in model["kinds"]
            and model["setting"] in run.layouts
        ):
            gated.append(model)
    if sides is None or not gated:
        return None
    having, others = sides
    if not having or not others:
        return all_or_none(having)
    smallest = min(gated, key=lambda model: int(model["kept"]))
    kept = set(run.layouts[smallest["setting"]].kept)
    ours = len(having & kept)
    rest = len(others & kept)
    counts = [[ours, len(having) - ours], [rest, len(others) - rest]]
    p = float(fisher_exact(counts, alternative="greater").pvalue)
    here = (
        f"{smallest['label']}: {ours} of {len(having)} with a role and {rest} of {len(others)} others stay, "
        f"{probability_fact(p)}"
    )
    return ClaimOutcome(here, SUPPORTS if p < 0.05 else UNSURE)


def smallest_joint(run: FinishedRun) -> ModelRow | None:
    """The model with fewest heads that gates left of all kinds together."""
    joint = []
    for model in run.pruned:
        together = set(model["kinds"]) == set(KINDS) and not isinstance(model["keep"], dict)
        if model["learned"] and together and model["setting"] in run.layouts:
            joint.append(model)
    return min(joint, key=lambda model: int(model["kept"]), default=None)


def order_of_kinds(run: FinishedRun) -> ClaimOutcome | None:
    """Which kind keeps most and which least where gates removed all kinds together, in the smallest such model."""
    smallest = smallest_joint(run)
    if smallest is None:
        return None
    mask = run.layouts[smallest["setting"]]
    shares = {}
    for kind in KINDS:
        shares[kind] = mask.count(kind) / sum(mask.heads.query[kind])
    parts = [f"{KIND_NAMES[kind]} {percent(share)}" for kind, share in shares.items()]
    here = f"{smallest['label']}: {listed(parts)} left"
    if shares["cross"] <= shares["encoder-self"]:
        return ClaimOutcome(here, CONTRADICTS)
    first = shares["encoder-self"] == min(shares.values())
    last = shares["cross"] == max(shares.values())
    if first and last:
        return ClaimOutcome(here, SUPPORTS)
    return ClaimOutcome(here, IN_PART if first or last else CONTRADICTS)


def thirds_of_the_decoder(run: FinishedRun) -> ClaimOutcome | None:
    """Whether the lowest third of the decoder's layers keeps more self-attention than the highest, and less
    cross-attention, in the smallest model that gates left of all kinds."""
    smallest = smallest_joint(run)
    if smallest is None:
        return None
    mask = run.layouts[smallest["setting"]]
    texts = []
    agrees = []
    for kind, lower in ORDER_OF_LAYERS.items():
        layers = by_layer(mask, kind)
        if len(layers) < 2:
            return None
        third = max(1, len(layers) // 3)
        low = sum(left for left, _ in layers[:third])
        high = sum(left for left, _ in layers[-third:])
        texts.append(f"{KIND_NAMES[kind]} {low} in the lowest, {high} in the highest")
        agrees.append(low > high if lower else high > low)
    here = f"{smallest['label']}: {'; '.join(texts)} third of the layers"
    if all(agrees):
        return ClaimOutcome(here, SUPPORTS)
    return ClaimOutcome(here, IN_PART if any(agrees) else CONTRADICTS)


def better_than_scratch(run: FinishedRun) -> ClaimOutcome | None:
    """Pruned models against the same layouts trained from random weights."""
    texts = []
    said = []
    for control in models.model_rows(models.control_models(run.models)):
        # The pruned model minus the control: above 0, pruning was better.
        change = run.change_of(control, "pruned")
        if control["control"] != "from-scratch" or change.value is None:
            continue
        texts.append(f"{control['reference']} {change_text(change, run.quality.unit)}")
        said.append(change.verdict(run.quality))
    if not texts:
        return None
    here = f"pruned minus from scratch: {'; '.join(texts)}"
    if all(one == BETTER for one in said):
        return ClaimOutcome(here, SUPPORTS)
    if WORSE in said:
        return ClaimOutcome(here, IN_PART if BETTER in said else CONTRADICTS)
    return ClaimOutcome(here, UNSURE)


def one_head_off(run: FinishedRun) -> ClaimOutcome | None:
    """How many encoder heads change BLEU where one is removed. The paper tests at p < 0.01, an interval here at 0.05."""
    rows = encoder_rows(run, "ablation.bleu")
    if rows is None:
        return None
    worse = int((rows["low"] > 0).sum())
    better = int((rows["high"] < 0).sum())
    half = float((rows["high"] - rows["low"]).median()) / 2
    here = (
        f"{worse + better} of {len(rows)} change BLEU, {better} for the better (by chance about "
        f"{0.05 * len(rows):.1f}); median interval ±{half:.2f}"
    )
    if 2 * (worse + better) > len(rows):
        return ClaimOutcome(here, CONTRADICTS)
    return ClaimOutcome(here, SUPPORTS if half <= FINE else UNSURE)


def encoder_rows(run: FinishedRun, measure: str) -> pd.DataFrame | None:
    """The values of a measure for encoder heads, with intervals; None where there are none."""
    if run.heads is None:
        return None
    chosen = (run.heads["measure"] == measure) & (run.heads["kind"] == "encoder-self")
    rows = run.heads[chosen].dropna(subset=["value", "low", "high"])
    return None if rows.empty else rows


def one_head_left(run: FinishedRun) -> ClaimOutcome | None:
    """What a layer loses where its best head alone is left: whether the last cross-attention is the worst case.

    The loss cannot say whether one head is enough in the other layers: the paper's numbers are BLEU.
    """
    if run.heads is None:
        return None
    alone = run.heads[run.heads["measure"] == "ablation.all-but-one"]
    alone = alone.dropna(subset=["value", "low", "high"])
    if set(alone["kind"]) != set(KINDS):
        return None
    best = alone.loc[alone.groupby(["kind", "layer"])["value"].idxmin()]
    best = best.set_index(["kind", "layer"])
    last = best.loc[("cross", best.loc["cross"].index.max())]
    others = best.drop(index=[last.name])
    here = (
        f"last cross-attention {signed(last['value'])} {interval_text(last['low'], last['high'])} nats a token, "
        f"others {signed(others['value'].min())} to {signed(others['value'].max())}"
    )
    if last["low"] > others["high"].max():
        return ClaimOutcome(f"{here}; the loss cannot say whether one is enough", IN_PART)
    return ClaimOutcome(here, CONTRADICTS if (others["low"] > last["high"]).any() else UNSURE)


def free_without_training(run: FinishedRun) -> ClaimOutcome | None:
    """The model of greedy removal that has lost about a fifth of its heads of all kinds."""
    greedy = []
    for model in run.pruned:
        random = models.is_random_order(model)
        untrained = measured(model, "updates").value is None
        scored = model["score"] and untrained and not random and not model["learned"]
        if scored and len(model["kinds"]) == len(KINDS):
            greedy.append(model)
    if not greedy:
        return None
    near = min(greedy, key=lambda model: abs(1 - model["kept"] / model["total"] - FREE_SHARE))
    removed = 1 - near["kept"] / near["total"]
    change = run.change_of(near, UNPRUNED)
    moved = tested_text(change, ", ", run.quality.unit)
    order = measure_name(str(near["score"]))
    here = f"{percent(removed)} of {near['total']} by {order}: {run.quality.title} {moved}"
    if abs(removed - FREE_SHARE) > FREE_SHARE / 2:
        return ClaimOutcome(here, UNSURE)
    return ClaimOutcome(here, of_loss(run, change, 0))


def gradient_as_good(run: FinishedRun) -> ClaimOutcome | None:
    """The loss along the gradient's order of removal and along that of exact ablation."""
    found = score_faithfulness.faithfulness_statistics(run)
    if found is None:
        return None
    areas: pd.DataFrame = score_faithfulness.of(found, "area")
    if not {"gradient", "ablation.zero"} <= set(areas.index):
        return None
    gradient = areas.loc["gradient"]
    ablation = areas.loc["ablation.zero"]
    texts = []
    for name, row in (("gradient", gradient), ("ablation", ablation)):
        texts.append(f"{name} {row['value']:.3g} [{row['low']:.3g}, {row['high']:.3g}]")
    here = f"loss while heads are removed: {listed(texts)}"
    if gradient["low"] > ablation["high"]:
        return ClaimOutcome(here, CONTRADICTS)
    as_good = gradient["high"] <= (1 + AS_GOOD) * ablation["value"]
    return ClaimOutcome(here, SUPPORTS if as_good else UNSURE)


CLAIMS = (
    Claim(
        "Most encoder heads can be removed (Voita, figure 7)",
        "38 of 48: −0.15 BLEU",
        "gates that remove half of the encoder heads",
        most_encoder_heads,
    ),
    Claim(
        "Positional, syntactic and rare-token heads (Voita, figures 1, 2)",
        "5, 9, 1 of 48",
        "roles",
        classes_of_heads,
    ),
    Claim(
        "Relevance and confidence mark the heads with a role (Voita, figure 1)",
        "by eye",
        "scores and roles",
        marked_by_scores,
    ),
    Claim(
        "Heads with a role stay longest (Voita, figure 8)",
        "with 17 of 48, every role",
        "roles and gates on the encoder",
        kept_with_roles,
    ),
    Claim(
        "More than half of all heads can be removed (Voita, table 2)",
        "58 of 144 left: −0.24 BLEU",
        "gates that remove half of all heads",
        most_of_all_heads,
    ),
    Claim(
        "Encoder heads are removed first, cross attention last (Voita, figure 9)",
        "12, 21, 25 of 48 left",
        "gates on all kinds together",
        order_of_kinds,
    ),
    Claim(
        "Pruned is better than the same layout from scratch (Voita, table 2)",
        "+0.01 to +0.50 BLEU",
        "the control from-scratch",
        better_than_scratch,
    ),
    Claim(
        "Low decoder layers keep self-attention, high ones cross-attention (Voita, figure 10)",
        "10, 9, 2 and 5, 10, 10 of 16 left",
        "gates on all kinds together",
        thirds_of_the_decoder,
    ),
    Claim(
        "Few encoder heads change BLEU where one is removed (Michel, table 1)",
        "8 of 96, four for the better",
        "the measure ablation.bleu",
        one_head_off,
    ),
    Claim(
        "One head is enough in most layers, not in the last cross-attention (Michel, table 2)",
        "−13.56 BLEU there",
        "the measure ablation.all-but-one",
        one_head_left,
    ),
    Claim(
        "A fifth of the heads can be removed without training (Michel, figure 3)",
        "20 % of 288",
        "greedy removal from all kinds",
        free_without_training,
    ),
    Claim(
        "The gradient's order is as good as that of ablation (Michel, section 4)",
        "better",
        "scores with a judge",
        gradient_as_good,
    ),
)
