"""Every score and every test of roles on models whose heads are planted, how often each is right, and the tables of
the documentation's page about it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from headwise.errors import HeadwiseError
from headwise.heads import Head, write_text
from headwise.importance.measures import facts, resolve_measures
from headwise.importance.scores import score
from headwise.options import Gates, Greedy, Training
from headwise.progress import Report, part, silent
from headwise.pruning.greedy import RemovalScore, greedy_masks
from headwise.pruning.prune import prune
from headwise.roles.alignment import read_links
from headwise.roles.passes import Reading
from headwise.roles.role import role, role_of
from headwise.roles.role_tests import RoleTexts, find_roles, token_counts
from headwise.statistics import clustered_proportion_interval, t_margin
from headwise.truth import planted_causal, planted_templates, planted_translation
from headwise.truth.planted_heads import DISTRACTOR, PlantedModel

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
    head and role that was found or is true of it, columns TESTED."""

    heads: pd.DataFrame
    roles: pd.DataFrame


def run_suite(
    seeds: Sequence[int] = range(SEEDS),
    measures: Iterable[str] = ("all",),
    models: Sequence[str] = tuple(MODELS),
    progress: Report = silent,
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
    return SuiteResult(pd.concat(scores)[list(SCORED)], pd.concat(tests)[list(TESTED)])


def score_planted(
    planted: PlantedModel, measures: Sequence[str], seed: int, progress: Report
) -> pd.DataFrame:
    """The scores of all heads, with what is true of them. The slow ones read only the first FEW sentences, which ask
    every question, too. With RESCORED comes what is no score but a way to prune: greedy removal and gates."""
    slow = [name for name in measures if facts(name).expensive or facts(name).family == "lrp"]
    fast = [name for name in measures if name not in slow]
    texts = [
        (planted.text, fast, part(progress, 0.0, 0.3)),
        (planted.text.head(FEW), slow, part(progress, 0.4, 1.0)),
    ]
    columns = ["kind", "layer", "head", "measure", "value"]
    tables = [
        score(planted.model, text, some, seed=seed, progress=report).table[columns]
        for text, some, report in texts
        if some
    ]
    table = pd.concat(tables, ignore_index=True)
    table["value"] *= [facts(name).sign for name in table["measure"]]
    if RESCORED in fast:
        table = pd.concat([table, removed(planted, seed), gated(planted, seed)], ignore_index=True)
    return with_planted_truth(planted, table)


def removed(planted: PlantedModel, seed: int) -> pd.DataFrame:
    """How long each head stays in greedy removal, a tenth at a time, scored again by exact ablation: its worth is the
    number of the step before which it is still there."""
    model = planted.model
    sweep = Greedy(kinds=model.heads.kinds, score=RESCORED, rescore=True)
    masks = greedy_masks(
        RemovalScore(model, model.task.batches(planted.text), RESCORED, True, seed), sweep
    ).values()
    rows = [
        {**head._asdict(), "value": float(sum(head in mask.kept for mask in masks))}
        for head in model.heads
    ]
    return pd.DataFrame(rows).assign(measure=f"greedy.{RESCORED}")


def gated(planted: PlantedModel, seed: int) -> pd.DataFrame:
    """How long the gate of each head stays open under λ = PENALTY with all weights frozen: the mean of P(open)."""
    with (
        tempfile.TemporaryDirectory() as folder,
        warnings.catch_warnings(action="ignore"),
    ):  # that it has not settled
        prune(
            planted.model,
            planted.text,
            Gates(
                penalty=PENALTY,
                kinds=planted.model.heads.kinds,
                train="gates",
                epochs=GATED // len(planted.text),
                gate_learning_rate=0.1,
            ),
            dev=planted.text,
            training=Training(batch_tokens=170, dtype="fp32"),
            seed=seed,
            work=folder,
            progress=silent,
        )
        log = pd.read_csv(Path(folder) / "gates.csv")
    return (
        log.groupby(["kind", "layer", "head"])["p_open"]
        .mean()
        .reset_index(name="value")
        .assign(measure="gates")
    )


def with_planted_truth(planted: PlantedModel, table: pd.DataFrame) -> pd.DataFrame:
    """Rows of heads with the columns planted (a name) and truth."""
    heads = [Head(*row) for row in table[["kind", "layer", "head"]].itertuples(index=False)]
    names = [planted.name(head) for head in heads]
    return table.assign(planted=names, truth=[planted.truth(head) for head in heads])


def tested(planted: PlantedModel) -> pd.DataFrame:
    """The roles that were found and those that are true.

    A role that a head may have as well is left out, and so is a role of a user's own that names no planted heads:
    nobody knows which of them have it.
    """
    texts = RoleTexts(
        planted.treebank,
        pairs=None if planted.pairs is None else list(planted.pairs),
        gold=None if planted.links is None else read_links(planted.links),
        frequencies=token_counts(planted.model, planted.training),
    )
    result = find_roles(planted.model, texts, reading=Reading(top=planted.top))
    judged = {measure for measure in result.table["measure"] if is_judged(measure)}
    found = set()
    columns = ["kind", "layer", "head", "measure"]
    for *address, measure in result.roles[columns].itertuples(index=False):
        if measure in judged:
            found.add((Head(*address), measure))

    true = set()
    uncertain = set()
    for head, own_head in planted.heads.items():
        names = [name for name, entry in role.added.items() if own_head.name in entry.planted]
        true |= {(head, name) for name in (*own_head.roles, *names) if name in judged}
        uncertain |= {(head, name) for name in own_head.also}

    kinds = set(result.table["kind"])
    rows = []
    for head, name in sorted((found | true) - uncertain):
        if head.kind in kinds:
            outcome = {"found": (head, name) in found, "true": (head, name) in true}
            rows.append({**head._asdict(), "role": name, **outcome})
    return with_planted_truth(planted, pd.DataFrame(rows))


def is_judged(measure: str) -> bool:
    """Whether it is known of every planted head if it has the role of a measure."""
    test = role_of(measure)
    return test is not None and (test.name not in role.added or bool(test.planted))


def areas(heads: pd.DataFrame) -> pd.DataFrame:
    """AUROC of every score: how often a head that matters has more of it than one that does not (idle or harmful).

    Columns model (`all`: the mean over models), measure, value, low, high, seeds; 95 % t-intervals over seeds.
    """
    by_seed = heads.groupby(["measure", "model", "seed"], sort=False)[["truth", "value"]].apply(
        auroc
    )
    rows = []
    for measure, values in by_seed.groupby("measure", sort=False):
        models = {model: some.to_numpy() for model, some in values.groupby("model", sort=False)}
        for model, some in {**models, "all": np.mean([*models.values()], 0)}.items():
            rows.append((model, measure, *with_interval(some), len(some)))
    return pd.DataFrame(rows, columns=["model", "measure", "value", "low", "high", "seeds"])


def auroc(some: pd.DataFrame) -> float:
    return float(
        above(
            some["value"][some["truth"] == "matters"], some["value"][some["truth"] != "matters"]
        ).mean()
    )


def above(values: pd.Series, others: pd.Series) -> np.ndarray:
    """The share of the others that each value is above; half of those that equal it."""
    left = values.to_numpy()[:, None]
    right = others.to_numpy()[None]
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
    for _, some in heads.groupby(["measure", "model", "seed"], sort=False):
        matters = some["truth"] == "matters"
        shares = pd.Series(index=some.index, dtype=float)
        shares[matters] = above(some["value"][matters], some["value"][~matters])
        shares[~matters] = 1 - above(some["value"][~matters], some["value"][matters])
        rows.append(some[["model", "planted", "truth", "measure"]].assign(value=shares))
    mean = (
        pd.concat(rows)
        .groupby(["model", "planted", "truth", "measure"], sort=False)["value"]
        .mean()
    )
    return mean.reset_index()


def hits(roles: pd.DataFrame) -> pd.DataFrame:
    """Precision and recall of every role: role, statistic, value, low, high, n; 95 % intervals over all heads, of
    which those of one model and seed are alike (`clustered_proportion_interval`)."""
    rows = []
    for name, some in [("all", roles), *roles.groupby("role")]:
        both = some.assign(right=some["found"] & some["true"])
        built = both.groupby(["model", "seed"])[["right", "found", "true"]].sum()
        for statistic, asked in (("precision", "found"), ("recall", "true")):
            count = int(built[asked].sum())
            if count:
                right, counts = built["right"].to_numpy(), built[asked].to_numpy()
                bounds = clustered_proportion_interval(right, counts)
                rows.append((name, statistic, right.sum() / count, *bounds, count))
    return pd.DataFrame(rows, columns=["role", "statistic", "value", "low", "high", "n"])


def markdown(table: pd.DataFrame) -> str:
    """A table of strings."""
    rows: list[list[str]] = [
        list(table.columns),
        ["---"] * len(table.columns),
        *table.to_numpy().tolist(),
    ]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


def with_bounds(row: pd.Series) -> str:
    bounds = f" [{row['low']:.2f}, {row['high']:.2f}]" if pd.notna(row["low"]) else ""
    return f"{row['value']:.2f}{bounds}"


def auroc_table(areas: pd.DataFrame) -> pd.DataFrame:
    """AUROC by score, the best first: all models, and each."""
    shown = areas.assign(text=areas.apply(with_bounds, axis=1))
    best = areas[areas["model"] == "all"].sort_values("value", ascending=False, kind="stable")[
        "measure"
    ]
    wide = shown.pivot_table(
        index="measure", columns="model", values="text", aggfunc="first", sort=False
    )
    models = ["all", *(name for name in wide.columns if name != "all")]
    found: pd.DataFrame = wide.loc[best, models].reset_index()
    return found.fillna("").assign(measure="`" + found["measure"] + "`")


def trap_table(sides: pd.DataFrame) -> pd.DataFrame:
    """By score, the share of heads on the right side of some planted heads, mean over models; 1 is right, 0 is wrong."""
    some = sides[sides["planted"].isin(SHOWN)]
    mean = some.pivot_table(index="measure", columns="planted", values="value", sort=False)
    columns = [name for name in SHOWN if name in mean]
    text = mean[columns].map(lambda value: f"{value:.2f}").reset_index()
    return text.assign(measure="`" + text["measure"] + "`")


def role_table(hits: pd.DataFrame) -> pd.DataFrame:
    """Precision and recall by role."""
    shown = hits.assign(text=hits.apply(with_bounds, axis=1))
    wide = shown.pivot_table(
        index="role", columns="statistic", values="text", aggfunc="first", sort=False
    )
    heads = hits[hits["statistic"] == "recall"].set_index("role")["n"]
    found: pd.DataFrame = (
        wide.assign(heads=heads.reindex(wide.index).fillna(0).astype(int)).reset_index().fillna("–")
    )
    return found


def head_table(sides: pd.DataFrame) -> pd.DataFrame:
    """The planted heads of all models, with what is true of them."""
    heads = sides.drop_duplicates(["model", "planted"])
    named = (
        heads[heads["planted"] != DISTRACTOR]
        .groupby(["planted", "truth"], sort=False)["model"]
        .agg(", ".join)
    )
    return named.reset_index()[["planted", "truth", "model"]]


def page_tables(areas: pd.DataFrame, sides: pd.DataFrame, hits: pd.DataFrame) -> dict[str, str]:
    """The tables by the name of their mark."""
    made = {
        "heads": head_table(sides),
        "scores": auroc_table(areas),
        "traps": trap_table(sides),
        "roles": role_table(hits),
    }
    return {name: markdown(table) for name, table in made.items()}


def fill_tables(page: Path, made: dict[str, str]) -> None:
    """Put every table between its mark and the next end. Raises HeadwiseError for a page without the marks."""
    text = page.read_text(encoding="utf-8")
    for name, table in made.items():
        before, mark, rest = text.partition(MARK.format(name))
        _, end, after = rest.partition(ENDS)
        if not mark or not end:
            raise HeadwiseError(
                f"{page} has no '{MARK.format(name)}' with '{ENDS}' below it: write both there."
            )
        text = f"{before}{mark}\n\n{table}\n{end}{after}"
    write_text(page, text)
