"""Every score and every test of roles on models whose heads are planted, how often each is right, and the tables of
the documentation's page about it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from headwise.core.errors import HeadwiseError
from headwise.core.folders import write_text
from headwise.core.heads import Head
from headwise.core.options import Gates, Greedy, Training
from headwise.core.progress import OnProgress, part, silent
from headwise.core.removal_units import left_by_step
from headwise.core.statistics import clustered_proportion_interval, t_margin
from headwise.importance.measures import facts, resolve_measures
from headwise.importance.scores import score
from headwise.pruning.greedy import RemovalScore, mask_without, removal_orders
from headwise.roles.alignment import read_links
from headwise.roles.observation import RoleOptions
from headwise.roles.role_data import RoleTexts, token_counts
from headwise.roles.role_tests import find_roles
from headwise.study.prune import prune

from . import (
    planted_causal,
    planted_palindromes,
    planted_templates,
    planted_translation,
)
from .planted_heads import DISTRACTOR, PlantedModel

MODELS: Mapping[str, Callable[[int, Path], PlantedModel]] = {
    "translation": planted_translation.plant_translation_model,
    "language model": planted_causal.plant_causal_model,
    "templates": planted_templates.plant_template_model,
}
SEEDS = 5
FEW = 2  # sentences that slow scores read
GATED = 2000  # sentences that gates read, about four an update
PENALTY = 0.02  # nats per token
RESCORED = "ablation.zero"  # what greedy removal is ordered by
SCORED = ("model", "seed", "kind", "layer", "head", "planted", "truth", "measure", "value")
TESTED = ("model", "seed", "kind", "layer", "head", "planted", "role", "found", "true")
MARK = "<!-- {}: made by `make truth` -->"
ENDS = "<!-- end -->"
SHOWN = (
    "saturated",
    "redundant 1",
    "backup",
    "quiet",
    "induction",
    "sink",
    "loud",
    "unread",
    "harmful",
)


@dataclass
class SuiteResult:
    """heads: a row for each head and score, columns SCORED; more of a value is more important. roles: a row for each
    head and role that was found or is true of it, columns TESTED. palindromes: `palindrome_scores` of each seed."""

    heads: pd.DataFrame
    roles: pd.DataFrame
    palindromes: pd.DataFrame


def run_suite(
    seeds: Sequence[int] = range(SEEDS),
    measures: Iterable[str] = ("all",),
    models: Sequence[str] = tuple(MODELS),
    progress: OnProgress = silent,
) -> SuiteResult:
    """Score and test all heads of each model, built once for every seed. Raises HeadwiseError for unknown measures."""
    if not seeds:
        raise HeadwiseError("The truth suite was given no seed: give at least one.")
    names = resolve_measures(measures)
    builds = [(model, seed) for model in models for seed in seeds]
    scores: list[pd.DataFrame] = []
    tests: list[pd.DataFrame] = []
    for done, (model, seed) in enumerate(builds):
        share = part(progress, done / len(builds), (done + 1) / len(builds))
        with tempfile.TemporaryDirectory() as folder:
            planted = MODELS[model](seed, Path(folder))
            table = score_planted(planted, names, seed, part(share, 0.0, 0.9))
            scores.append(table.assign(model=model, seed=seed))
            tests.append(tested(planted).assign(model=model, seed=seed))
    palindromes = pd.concat([planted_palindromes.palindrome_scores(seed) for seed in seeds])
    return SuiteResult(pd.concat(scores)[list(SCORED)], pd.concat(tests)[list(TESTED)], palindromes)


def score_planted(
    planted: PlantedModel, measures: Sequence[str], seed: int, progress: OnProgress
) -> pd.DataFrame:
    """The scores of all heads, with what is true of them. The slow ones read only the first FEW sentences, which ask
    every question, too. With RESCORED comes what is no score but a way to prune: greedy removal and gates."""
    slow = [name for name in measures if facts(name).expensive or facts(name).family == "lrp"]
    fast = [name for name in measures if name not in slow]
    passes = [
        (fast, planted.text, part(progress, 0.0, 0.3)),
        (slow, planted.text.head(FEW), part(progress, 0.4, 1.0)),
    ]
    columns = ["kind", "layer", "head", "measure", "value"]
    tables = []
    for names, text, report in passes:
        if names:
            scores = score(planted.model, text, names, seed=seed, progress=report)
            tables.append(scores.table[columns])
    table = pd.concat(tables, ignore_index=True)
    table["value"] *= [facts(name).sign for name in table["measure"]]
    if RESCORED in fast:
        table = pd.concat([table, removed(planted, seed), gated(planted, seed)], ignore_index=True)
    return with_planted_truth(planted, table)


def removed(planted: PlantedModel, seed: int) -> pd.DataFrame:
    """How long each head stays in greedy removal, a tenth at a time, scored again by exact ablation: its worth is the
    number of the step before which it is still there."""
    model = planted.model
    sweep = Greedy(kinds=model.heads.kinds, measure=RESCORED, rescore=True)
    removal_score = RemovalScore(model, model.task.batches(planted.text), RESCORED, True, seed)
    order, *_ = removal_orders(removal_score, sweep)
    total = model.heads.total
    masks = [
        mask_without(model.heads, order, total - left) for left in left_by_step(model.heads, sweep)
    ]
    rows = []
    for head in model.heads:
        steps = sum(head in mask.kept for mask in masks)
        rows.append({**head._asdict(), "value": float(steps)})
    return pd.DataFrame(rows).assign(measure=f"greedy.{RESCORED}")


def gated(planted: PlantedModel, seed: int) -> pd.DataFrame:
    """How long the gate of each head stays open under λ = PENALTY with all weights frozen: the mean of P(open)."""
    gates = Gates(
        penalty=PENALTY,
        kinds=planted.model.heads.kinds,
        train="gates",
        epochs=GATED // len(planted.text),
        gate_learning_rate=0.1,
    )
    # Ignored: the warning that gates are not decided yet.
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        prune(
            planted.model,
            planted.text,
            gates,
            dev=planted.text,
            training=Training(batch_tokens=170, dtype="float32"),
            seed=seed,
            work=folder,
            progress=silent,
        )
        log = pd.read_csv(Path(folder) / "gates.csv")
    means = log.groupby(["kind", "layer", "head"])["p_open"].mean()
    return means.reset_index(name="value").assign(measure="gates")


def with_planted_truth(planted: PlantedModel, table: pd.DataFrame) -> pd.DataFrame:
    """Rows of heads with the columns planted (a name) and truth."""
    names = []
    truths = []
    for address in table[["kind", "layer", "head"]].itertuples(index=False):
        head = Head(*address)
        names.append(planted.name(head))
        truths.append(planted.truth(head))
    return table.assign(planted=names, truth=truths)


def tested(planted: PlantedModel) -> pd.DataFrame:
    """The roles that were found and those that are true.

    A role that a head may have as well is left out.
    """
    texts = RoleTexts(
        planted.treebank,
        pairs=None if planted.pairs is None else list(planted.pairs),
        gold=None if planted.links is None else read_links(planted.links),
        frequencies=token_counts(planted.model, planted.training),
    )
    result = find_roles(planted.model, texts, options=RoleOptions(top=planted.top))
    measured = set(result.table["measure"])  # those of rare cases are not
    found = set()
    columns = ["kind", "layer", "head", "measure"]
    for *address, measure in result.roles[columns].itertuples(index=False):
        found.add((Head(*address), measure))

    true = set()
    uncertain = set()
    for head, own_head in planted.heads.items():
        true |= {(head, name) for name in own_head.roles if name in measured}
        uncertain |= {(head, name) for name in own_head.also}

    kinds = set(result.table["kind"])
    rows = []
    for head, name in sorted((found | true) - uncertain):
        if head.kind in kinds:
            outcome = {"found": (head, name) in found, "true": (head, name) in true}
            rows.append({**head._asdict(), "role": name, **outcome})
    return with_planted_truth(planted, pd.DataFrame(rows))


def areas(heads: pd.DataFrame) -> pd.DataFrame:
    """AUROC of every score: how often a head that matters has more of it than one that does not (idle or harmful).

    Columns model (`all`: the mean over models), measure, value, low, high, seeds; 95 % t-intervals over seeds.
    """
    groups = heads.groupby(["measure", "model", "seed"], sort=False)
    by_seed = groups[["truth", "value"]].apply(auroc)
    rows = []
    for measure, values in by_seed.groupby("measure", sort=False):
        by_model: dict[str, np.ndarray] = {}
        for model, of_model in values.groupby("model", sort=False):
            by_model[str(model)] = of_model.to_numpy()
        by_model["all"] = np.mean([*by_model.values()], 0)
        for name, shares in by_model.items():
            rows.append((name, measure, *with_interval(shares), len(shares)))
    return pd.DataFrame(rows, columns=["model", "measure", "value", "low", "high", "seeds"])


def auroc(heads: pd.DataFrame) -> float:
    """The share of pairs, of a head that matters and one that does not, in which the first has more of a score."""
    matters = heads["truth"] == "matters"
    return float(above(heads["value"][matters], heads["value"][~matters]).mean())


def above(values: pd.Series, compared: pd.Series) -> np.ndarray:
    """The share of the compared values that each value is above; half of those that equal it."""
    left = values.to_numpy()[:, None]
    right = compared.to_numpy()[None]
    shares: np.ndarray = ((left > right) + 0.5 * (left == right)).mean(1)
    return shares


def with_interval(values: np.ndarray) -> tuple[float, float | None, float | None]:
    """Mean and 95 % t-interval of shares."""
    value = float(values.mean())
    if len(values) < 2:
        return value, None, None
    margin = float(t_margin(values))
    return value, max(0.0, value - margin), min(1.0, value + margin)


def right_side_shares(heads: pd.DataFrame) -> pd.DataFrame:
    """By score and planted head, the share of heads on its right side, mean over seeds: of those that do not matter,
    below a head that does; of those that matter, above one that does not. Half is chance."""
    rows = []
    columns = ["model", "planted", "truth", "measure"]
    for _, group in heads.groupby(["measure", "model", "seed"], sort=False):
        values = group["value"]
        matters = group["truth"] == "matters"
        shares = pd.Series(index=group.index, dtype=float)
        shares[matters] = above(values[matters], values[~matters])
        shares[~matters] = 1 - above(values[~matters], values[matters])
        rows.append(group[columns].assign(value=shares))
    means = pd.concat(rows).groupby(columns, sort=False)["value"].mean()
    return means.reset_index()


def hits(roles: pd.DataFrame) -> pd.DataFrame:
    """Precision and recall of every role: role, statistic, value, low, high, n; 95 % intervals over all heads, of
    which those of one model and seed are alike (`clustered_proportion_interval`)."""
    rows = []
    for name, group in [("all", roles), *roles.groupby("role")]:
        with_right = group.assign(right=group["found"] & group["true"])
        by_model = with_right.groupby(["model", "seed"])[["right", "found", "true"]].sum()
        right = by_model["right"].to_numpy()
        for statistic, divisor in (("precision", "found"), ("recall", "true")):
            counts = by_model[divisor].to_numpy()
            count = int(counts.sum())
            if count:
                low, high = clustered_proportion_interval(right, counts)
                share = right.sum() / count
                rows.append((name, statistic, share, float(low), float(high), count))
    return pd.DataFrame(rows, columns=["role", "statistic", "value", "low", "high", "n"])


def palindrome_means(scores: pd.DataFrame) -> pd.DataFrame:
    """What each ablation says of the heads of the model of palindromes, in nats an answer: head, measure, value, low,
    high, seeds; means and 95 % t-intervals over seeds."""
    rows = []
    for (head, measure), group in scores.groupby(["head", "measure"], sort=False):
        values = group["value"].to_numpy()
        mean = float(values.mean())
        margin = float(t_margin(values)) if len(values) > 1 else np.nan
        rows.append((head, measure, mean, mean - margin, mean + margin, len(values)))
    return pd.DataFrame(rows, columns=["head", "measure", "value", "low", "high", "seeds"])


def markdown(table: pd.DataFrame) -> str:
    """A table of strings."""
    rows: list[list[str]] = [
        list(table.columns),
        ["---"] * len(table.columns),
        *table.to_numpy().tolist(),
    ]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


def with_bounds(row: pd.Series) -> str:
    bounds = f" [{row['low']:z.2f}, {row['high']:z.2f}]" if pd.notna(row["low"]) else ""
    return f"{row['value']:z.2f}{bounds}"


def auroc_table(areas: pd.DataFrame) -> pd.DataFrame:
    """AUROC by score, the best first: all models, and each."""
    shown = areas.assign(text=areas.apply(with_bounds, axis=1))
    of_all = areas[areas["model"] == "all"]
    best = of_all.sort_values("value", ascending=False, kind="stable")["measure"]
    wide = shown.pivot_table(
        index="measure", columns="model", values="text", aggfunc="first", sort=False
    )
    models = ["all", *(name for name in wide.columns if name != "all")]
    table: pd.DataFrame = wide.loc[best, models].reset_index()
    return table.fillna("").assign(measure="`" + table["measure"] + "`")


def trap_table(sides: pd.DataFrame) -> pd.DataFrame:
    """By score, the share of heads on the right side of some planted heads, mean over models; 1 is right, 0 is wrong."""
    shown = sides[sides["planted"].isin(SHOWN)]
    mean = shown.pivot_table(index="measure", columns="planted", values="value", sort=False)
    columns = [name for name in SHOWN if name in mean]
    table = mean[columns].map(lambda value: f"{value:.2f}").reset_index()
    return table.assign(measure="`" + table["measure"] + "`")


def role_table(hits: pd.DataFrame) -> pd.DataFrame:
    """Precision and recall by role."""
    shown = hits.assign(text=hits.apply(with_bounds, axis=1))
    wide = shown.pivot_table(
        index="role", columns="statistic", values="text", aggfunc="first", sort=False
    )
    heads = hits[hits["statistic"] == "recall"].set_index("role")["n"]
    counts = heads.reindex(wide.index).fillna(0).astype(int)
    table: pd.DataFrame = wide.assign(heads=counts).reset_index().fillna("–")
    return table


def palindrome_table(means: pd.DataFrame) -> pd.DataFrame:
    """By ablation, the worth of each head of the model of palindromes."""
    shown = means.assign(text=means.apply(with_bounds, axis=1))
    wide = shown.pivot_table(
        index="measure", columns="head", values="text", aggfunc="first", sort=False
    )
    table: pd.DataFrame = wide[[*chain(*planted_palindromes.NAMES)]].reset_index()
    return table.assign(measure="`" + table["measure"] + "`")


def head_table(sides: pd.DataFrame) -> pd.DataFrame:
    """The planted heads of all models, with what is true of them."""
    heads = sides.drop_duplicates(["model", "planted"])
    planted = heads[heads["planted"] != DISTRACTOR]
    models = planted.groupby(["planted", "truth"], sort=False)["model"].agg(", ".join)
    return models.reset_index()[["planted", "truth", "model"]]


def page_tables(
    areas: pd.DataFrame, sides: pd.DataFrame, hits: pd.DataFrame, palindromes: pd.DataFrame
) -> dict[str, str]:
    """The tables by the name of their mark."""
    return {
        "heads": markdown(head_table(sides)),
        "scores": markdown(auroc_table(areas)),
        "traps": markdown(trap_table(sides)),
        "palindromes": markdown(palindrome_table(palindromes)),
        "roles": markdown(role_table(hits)),
    }


MARKS = ("heads", "scores", "traps", "palindromes", "roles")  # of `page_tables`


def check_page(page: Path) -> None:
    """Raise HeadwiseError for a page that `fill_tables` would refuse after all the work."""
    with_tables(page, dict.fromkeys(MARKS, ""))


def fill_tables(page: Path, tables: Mapping[str, str]) -> None:
    """Put every table between its mark and the next end. Raises HeadwiseError for a page without the marks."""
    write_text(page, with_tables(page, tables))


def with_tables(page: Path, tables: Mapping[str, str]) -> str:
    """The text of a page with every table between its mark and the next end."""
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise HeadwiseError(
            f"The page {page} cannot be read ({reason}): give a Markdown file with marks for the tables."
        ) from None
    for name, table in tables.items():
        before, mark, rest = text.partition(MARK.format(name))
        _, end, after = rest.partition(ENDS)
        if not mark or not end:
            raise HeadwiseError(
                f"{page} has no '{MARK.format(name)}' with '{ENDS}' below it: write both there."
            )
        text = f"{before}{mark}\n\n{table}\n{end}{after}"
    return text
