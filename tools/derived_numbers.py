"""What the pages of results compute from their tables, such as means over seeds: docs/results/derived.csv.

python tools/derived_numbers.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import fisher_exact, hypergeom, spearmanr

from headwise.core.statistics import (
    auroc_interval,
    marked_in_groups,
    proportion_interval,
    rank_interval,
    t_margin,
)

RESULTS = Path(__file__).parents[1] / "docs" / "results"
WITHOUT = ("no known role", "sink")
ENCODER = "encoder-self"
Row = dict[str, Any]


def read(file: str) -> pd.DataFrame:
    return pd.read_csv(RESULTS / file, keep_default_na=False, na_values=[""])


def number(page: str, name: str, value: float, low: Any = None, high: Any = None) -> Row:
    return {"page": page, "name": name, "value": value, "low": low, "high": high}


def seeds_of_students() -> Iterator[Row]:
    """BLEU lost by the models of one way to choose heads: the mean, and the range."""
    for model in ("en-pt", "pt-en"):
        curve = read(f"firefox/{model}/curve.csv")
        curve = curve[curve["split"] == "test"]
        way = curve["chosen"].str.split().str[0]
        for (kept, chosen), rows in curve.groupby(["kept", way]):
            if len(rows) > 1:
                lost = rows["difference"]
                name = f"{model} {kept} {chosen} of seeds or draws"
                yield number("firefox", name, lost.mean(), lost.min(), lost.max())


def roles_and_costs() -> Iterator[Row]:
    """What the heads of a role cost one by one: the area under the ROC curve, and their share of the costs above 0."""
    for model, name in (("en-pt", "S"), ("pt-en", "T")):
        scores = read(f"firefox/{model}/heads-own.csv")
        labels = read(f"firefox/{model}/labels.csv")
        rows = scores[(scores["kind"] == ENCODER) & (scores["measure"] == "ablation.zero")]
        labels = labels[labels["kind"] == ENCODER]
        other = (*WITHOUT, "positional")
        syntactic = labels[~labels["label"].str.startswith(other)]
        heads = set(zip(syntactic["layer"], syntactic["head"], strict=True))
        marked = np.array([one in heads for one in zip(rows["layer"], rows["head"], strict=True)])
        values = rows["value"].to_numpy()
        area = marked_in_groups(values, marked, np.zeros(len(values))).share
        ends = auroc_interval(area, int(marked.sum()), int((~marked).sum()))
        yield number("firefox papers", f"{name} syntactic heads AUROC of ablation", area, *ends)
        costs = np.maximum(values, 0)
        share = costs[marked].sum() / costs.sum()
        yield number("papers", f"{name} syntactic heads share of single encoder heads cost", share)
        inside = marked_in_groups(values, marked, rows["layer"].to_numpy())
        yield number("firefox papers", f"{name} syntactic heads within layers p", inside.p)


def one_head_more() -> Iterator[Row]:
    """Within layers, with S's 0/6 among the heads with a function, whose role six of ten random halves confirmed."""
    scores = read("firefox/en-pt/heads.csv")
    labels = read("firefox/en-pt/labels.csv")
    labels = labels[labels["kind"] == ENCODER]
    named = labels[~labels["label"].str.startswith(WITHOUT)]
    heads = {*zip(named["layer"], named["head"], strict=True), (0, 6)}
    for measure in ("confidence", "lrp.ding.pooled"):
        rows = scores[(scores["kind"] == ENCODER) & (scores["measure"] == measure)]
        marked = np.array([one in heads for one in zip(rows["layer"], rows["head"], strict=True)])
        inside = marked_in_groups(rows["value"].to_numpy(), marked, rows["layer"].to_numpy())
        yield number("papers", f"S with 0/6 {measure} within layers", inside.share)
        yield number("papers", f"S with 0/6 {measure} within layers p", inside.p)


def six_layers_areas() -> Iterator[Row]:
    for name, file, heads in (
        ("B two heads", "six-layers/heads.csv", {(2, 1), (3, 7)}),
        ("D one and the three most positional", "six-layers/longer/scores.csv", None),
    ):
        scores = read(file)
        scores = scores[scores["kind"] == ENCODER]
        if heads is None:
            heads = {(0, 0), (1, 1), (1, 2), (3, 0)}
        costs: dict[str, Any] = {}
        for measure in ("lrp.ding", "lrp.ding.pooled", "confidence", "ablation.zero"):
            rows = scores[scores["measure"] == measure]
            if rows.empty:
                continue
            pairs = zip(rows["layer"], rows["head"], strict=True)
            marked = np.array([one in heads for one in pairs])
            values = rows["value"].to_numpy()
            area = marked_in_groups(values, marked, np.zeros(len(values))).share
            ends = auroc_interval(area, int(marked.sum()), int((~marked).sum()))
            yield number("papers", f"{name} {measure} area under the curve", area, *ends)
            inside = marked_in_groups(values, marked, rows["layer"].to_numpy())
            yield number("papers", f"{name} {measure} within layers", inside.share)
            yield number("papers", f"{name} {measure} within layers p", inside.p)
            costs[measure] = values, marked
        values, marked = costs["ablation.zero"]
        values = np.maximum(values, 0)
        share = values[marked].sum() / values.sum()
        yield number("papers", f"{name} carry share of single encoder heads cost", share)
        others = np.sort(values[~marked])[-3:].sum() / values.sum()
        yield number("papers", f"{name} three without a known function carry", others)


def claim_5_corrected() -> Iterator[Row]:
    """The smallest p of relevance and confidence of B, S and T within layers, by Holm."""
    found = [
        row["value"]
        for row in six_layers_areas()
        if row["name"].startswith("B two heads") and "layers p" in row["name"]
    ]
    every = found[:2]  # not of ablation
    for model in ("en-pt", "pt-en"):
        rows = read(f"firefox/{model}/within-layers.csv").set_index("measure")
        every += [rows.loc[measure, "p"] for measure in ("confidence", "lrp.ding.pooled")]
    yield number("papers", "B, S, T within layers smallest p corrected", min(every) * len(every))


def kept_by_chance() -> Iterator[Row]:
    yield number("papers", "B ten heads keep both chance", hypergeom(48, 2, 10).sf(1))
    yield number("papers", "B four keep one chance", hypergeom(48, 2, 4).sf(0))
    # of four heads in a layer: two of two and one of one are kept where layers 1 and 3 keep two and three
    both = hypergeom(4, 2, 2).sf(1) * hypergeom(4, 1, 3).sf(0)
    yield number("papers", "D 11 of 24 keep those four given the layers", both)
    three = hypergeom(4, 2, 1).sf(0) * hypergeom(4, 1, 1).sf(0)
    yield number("papers", "D seven keep three given the layers", three)


def of_the_papers_size() -> Iterator[Row]:
    """Half of the interval that a loss like ours, with 24 and 10 heads on 697 sentences, would have on some 3,000."""
    curve = read("firefox/en-pt/curve.csv")
    rows = curve[(curve["split"] == "test") & (curve["chosen"] == "gradient")]
    rows = rows[rows["kept"].isin([24, 10])]
    half = ((rows["difference_high"] - rows["difference_low"]) / 2).mean()
    name = "such a loss on 3,000 sentences half of the interval"
    yield number("papers", name, half * np.sqrt(697 / 3000))


def kinds_left() -> Iterator[Row]:
    for name, kind, kept, total in (
        ("S encoder", "encoder", 17, 48),
        ("S cross", "cross", 15, 16),
        ("T encoder", "encoder", 19, 48),
        ("T cross", "cross", 13, 16),
    ):
        low, high = (float(end) for end in proportion_interval(kept, total))
        yield number("papers", f"{name} {kind} share left with 32", kept / total, low, high)


def changed_heads() -> Iterator[Row]:
    """By Michel et al.'s own test 8 of 96."""
    for name, count in (("S", 5), ("T", 17)):
        p = float(fisher_exact([[count, 48 - count], [8, 88]]).pvalue)
        yield number("papers", f"{name} of 48 Fisher to 8 of 96 p", p)
    # Table 5 of the paper: 9 of 18 layers at p < 0.01.
    for name, model in (("S", "en-pt"), ("T", "pt-en")):
        rows = read(f"firefox/{model}/michel.csv")
        rows = rows[rows["table"] == "one head left"]
        worse = int((rows["p"] < 0.01).sum())
        p = float(fisher_exact([[worse, len(rows) - worse], [9, 9]]).pvalue)
        yield number("papers", f"{name} one head left, layers worse", worse)
        yield number("papers", f"{name} one head left, Fisher to 9 of 18 p", p)


def believed_scores() -> Iterator[Row]:
    """Rank correlation of a score with the BLEU that each head costs."""
    for model, name in (("en-pt", "S"), ("pt-en", "T")):
        off = read(f"firefox/{model}/michel.csv")
        lost = -off[off["table"] == "one head off"].set_index("name")["change"]
        for file, text in (("heads", "references"), ("heads-own", "own")):
            scores = read(f"firefox/{model}/{file}.csv")
            address = scores["kind"] + "/" + scores["layer"].astype(str)
            scores["address"] = address + "/" + scores["head"].astype(str)
            for measure in ("ablation.zero", "gradient", "lrp.ding.pooled", "confidence"):
                values = scores[scores["measure"] == measure].set_index("address")["value"]
                both = pd.concat([values, lost], axis=1).dropna().to_numpy()
                r = float(spearmanr(both).statistic)
                ends = rank_interval(r, len(both))
                yield number("papers", f"{name} {text} {measure} rank correlation", r, *ends)


def demo_seeds() -> Iterator[Row]:
    runs = read("demo/runs.csv")
    for (kernels, seed), rows in runs.groupby(["kernels", "seed"]):
        weights = rows[rows["measure"] == "parameters"].set_index("setting")["value"]
        for setting in ("lambda-0.006", "lambda-0.012"):
            change = weights[setting] / weights["full"] - 1
            yield number("demo", f"{kernels} {seed} {setting} parameters", change)
    lost = runs[(runs["kernels"] == "default") & (runs["split"] == "test")]
    lost = lost[(lost["reference"] == "fine-tuned") & (lost["measure"] == "bleu")]
    for setting in ("lambda-0.006", "lambda-0.012"):
        yield from over_seeds("demo", setting, lost[lost["setting"] == setting]["value"])


def over_seeds(page: str, name: str, values: pd.Series) -> Iterator[Row]:
    """A loss as the mean over seeds, with the interval of Student's t."""
    found = -values.to_numpy()
    mean = float(found.mean())
    margin = float(np.max(t_margin(found[:, None])))
    yield number(page, f"{name} loss over five seeds", mean, mean - margin, mean + margin)


def grid() -> Iterator[Row]:
    table = read("multi30k-en-de-grid/grid.csv")
    weights = table[table["measure"] == "parameters"].drop_duplicates(["setting", "seed"])
    full = weights[weights["setting"] == "full"].set_index("seed")["value"].to_dict()
    changes = weights.assign(change=weights["value"] / weights["seed"].map(full) - 1)
    for setting, seed, change in changes[["setting", "seed", "change"]].itertuples(index=False):
        yield number("multi30k-en-de-grid", f"{setting} seed {seed} parameters", change)
    for setting in ("encoder.lambda-0.01", "encoder.lambda-0.05"):
        change = float(changes[changes["setting"] == setting]["change"].mean())
        yield number("multi30k-en-de-grid", f"{setting} mean of seeds parameters", change)
    test = table[(table["setting"] == "full") & (table["split"] == "test")]
    bleu = test[(test["measure"] == "bleu") & test["reference"].isna()]["value"]
    yield number("papers", "A mean test BLEU of seeds 1 to 3", bleu.mean())


def chrf_lost() -> Iterator[Row]:
    """What models of claims that BLEU decides lose in chrF, to the full model of the same seed: the mean over seeds."""
    grid, six = "multi30k-en-de-grid/grid.csv", "six-layers"
    for name, file, setting in (
        ("claim 1 A", grid, "encoder.lambda-0.01"),
        ("claim 1 B", f"{six}/pruning.csv", "encoder.keep-10"),
        ("claim 1 C", "multi30k-en-de/pruning.csv", "lambda-0.015"),
        ("claim 1 D", f"{six}/longer/pruning.csv", "encoder.lambda-0.03"),
        ("claim 1 E", f"{six}/converged/pruning.csv", "encoder.lambda-0.03"),
        ("claim 3 A", grid, "counted.keep-4"),
        ("claim 3 B", f"{six}/pruning.csv", "encoder.keep-4"),
        ("claim 3 C", "multi30k-en-de/pruning.csv", "lambda-0.04"),
        ("claim 3 D", f"{six}/longer/pruning.csv", "encoder.lambda-0.1"),
        ("claim 8 A", grid, "dense.keep-24"),
        ("claim 8 B", f"{six}/pruning.csv", "all.keep-20"),
    ):
        table = read(file)
        table = table[(table["measure"] == "chrf") & (table["split"] == "test")]
        full = table[table["setting"] == "full"].set_index("seed")["value"].to_dict()
        rows = table[table["setting"] == setting]
        yield number(
            "papers", f"{name} chrF", float((rows["value"] - rows["seed"].map(full)).mean())
        )


def most_positional() -> Iterator[Row]:
    """Of the heads of a training, the best shares and what the best dependency has above its baseline."""
    table = read("six-layers/longer/heads.csv")
    for step, rows in table.groupby("step"):
        loss = rows["dev_loss"].dropna()
        if len(loss):
            yield number("six-layers", f"{step:,} dev loss", loss.iloc[0])
        for offset, name in ((-1, "token before"), (1, "token after"), (0, "the token itself")):
            values = rows[rows["name"] == f"positional.{offset}"]["value"].nlargest(3)
            for place, value in enumerate(values, 1):
                yield number("six-layers", f"{step:,} {name} {place}", value)
        syntactic = rows[rows["class"] == "syntactic"]["value"]
        yield number("six-layers", f"{step:,} best dependency above its baseline", syntactic.max())
    other = read("six-layers/converged/heads.csv")
    before = other[other["name"] == "positional.-1"]["value"].max()
    yield number("six-layers papers", "E converged token before best", before)


def costs_of_kinds() -> Iterator[Row]:
    """What the 24 heads of each kind cost one by one in nats, and the part of cross heads that is the last layer's."""
    grid = "multi30k-en-de-grid/seed-"
    files = {"A": f"{grid}1", "A2": f"{grid}2", "A3": f"{grid}3", "C": "multi30k-en-de-scores"}
    for name, file in files.items():
        scores = read(f"{file}/heads.csv")
        scores = scores[scores["measure"] == "ablation.zero"]
        for kind, rows in scores.groupby("kind"):
            yield number("papers", f"{name} {kind} heads cost one by one", rows["value"].sum())
        cross = scores[scores["kind"] == "cross"]
        last = cross[cross["layer"] == cross["layer"].max()]["value"].sum()
        share = last / cross["value"].sum()
        yield number("papers", f"{name} share of the last layer in what cross heads cost", share)


def repaired_gemma() -> Iterator[Row]:
    """Nats a token that Gemma with fewer heads, repaired, loses on two texts."""
    found = read("repair/gemma-3-270m.csv").dropna(subset="reference")
    for row in found.to_dict("records"):
        removed = 72 - int(row["model"].rsplit("-", 1)[-1])
        tokens, text = int(row["tokens"]), row["text"].upper()
        name = f"Gemma {removed} of 72 heads removed, {tokens} tokens, {text} nats"
        nats = np.log1p(np.array([row["value"], row["low"], row["high"]]) / 100)
        yield number("repair", name, *nats)


MADE = (
    seeds_of_students,
    roles_and_costs,
    one_head_more,
    six_layers_areas,
    claim_5_corrected,
    kept_by_chance,
    of_the_papers_size,
    kinds_left,
    changed_heads,
    believed_scores,
    demo_seeds,
    grid,
    chrf_lost,
    most_positional,
    costs_of_kinds,
    repaired_gemma,
)


def derived() -> pd.DataFrame:
    return pd.DataFrame([row for make in MADE for row in make()])


def main() -> None:
    derived().to_csv(RESULTS / "derived.csv", index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
