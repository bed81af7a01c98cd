"""A made-up study to draw: 3 layers of 8 heads, three penalties that leave 17, 9 and 4 heads, sentences of our own."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headwise.heads import Head, HeadMap, HeadMask
from headwise.report import report
from headwise.report.charts import Figure
from headwise.report.models import MODEL_COLUMNS
from report.made_controls import interactions, untrained
from report.made_rescored import write_rescored
from report.made_roles import write_roles
from report.visits import chromium

HEADS = HeadMap({"encoder-self": (8, 8, 8)})
KEPT = {
    "lambda-0.02": [[0, 1, 3, 4, 6, 7], [0, 2, 3, 5, 7], [0, 1, 2, 4, 5, 6]],
    "lambda-0.05": [[0, 3, 6], [2, 5], [0, 1, 4, 6]],
    "lambda-0.2": [[3], [], [0, 4, 6]],
}
PENALTIES = (0.02, 0.05, 0.2)
MEASURES = ("dev_bleu", "bleu", "chrf", "dev_loss", "parameters", "tokens_per_second")
QUALITY = {
    "full": dict(zip(MEASURES, (39.02, 38.21, 62.4, 1.702, 9_472_512, 1210.4), strict=True)),
    "lambda-0.02": dict(zip(MEASURES, (38.9, 38.3, 62.5, 1.699, 9_357_600, 1213.1), strict=True)),
    "lambda-0.05": dict(zip(MEASURES, (38.61, 37.9, 62.0, 1.721, 9_226_272, 1228.9), strict=True)),
    "lambda-0.2": dict(zip(MEASURES, (36.4, 35.77, 60.1, 1.84, 9_144_192, 1233.6), strict=True)),
}
DIFFERENCE = {
    "lambda-0.02": (-0.26, 0.44, 0.58),
    "lambda-0.05": (-0.71, 0.11, 0.14),
    "lambda-0.2": (-3.05, -1.84, 0.001),
}
NOUNS = (
    ["dog", "le chien"],
    ["teacher", "le professeur"],
    ["river", "la rivière"],
    ["letter", "la lettre"],
)
VERBS = ["sees", "voit"], ["likes", "aime"], ["hides", "cache"], ["draws", "dessine"]
PLACES = (
    ["near the old bridge", "près du vieux pont"],
    ["in the morning", "le matin"],
    ["in silence", "sans un mot"],
)


def data_of(figure: Figure, panel: int = 0) -> list[dict[str, Any]]:
    """All rows that a panel draws."""
    return [
        row for rows in figure.panels[panel].specification()["datasets"].values() for row in rows
    ]


def make_run(folder: Path) -> Path:
    """Write a whole run folder, as the steps of a study leave it; the same numbers every time."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    (folder / "plan.toml").write_text(
        'name = "toy"\n\n[prune]\npenalty = [0.02, 0.05, 0.2]\nmax_drop = 1.0  # a < b & c\n'
    )
    (folder / "run.json").write_text(json.dumps(run_facts(), indent=1))
    training_log(folder / "train" / "log.csv", draw)
    scores(draw).to_csv(folder / "heads.csv", index=False)
    faithfulness().to_csv(folder / "faithfulness.csv", index=False)
    curves().to_csv(folder / "curves.csv", index=False)
    conservation().to_csv(folder / "lrp.csv", index=False)
    write_roles(folder / "roles", HEADS)
    untrained(HEADS).to_csv(folder / "untrained.csv", index=False)
    interactions(HEADS).to_csv(folder / "interactions.csv", index=False)
    pruning_table().to_csv(folder / "pruning.csv", index=False)
    for setting, kept in KEPT.items():
        mask = HeadMask(
            HEADS, frozenset(Head("encoder-self", i, h) for i, row in enumerate(kept) for h in row)
        )
        mask.save(folder / "layouts" / f"{setting}.json")
        gate_log(folder / "gates" / f"{setting}.csv", kept, draw)
    sentences(folder / "translations" / "test", draw)
    return folder


def run_facts() -> dict[str, Any]:
    """What run.json says."""
    return {
        "signature": {"model": "marian-3x8", "data": "toy-3f2a91", "seed": 0},
        "versions": {"headwise": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0"},
        "threads": 2,
        "seconds": {"train": 5123.4, "score": 31.2, "prune": 1840.0, "evaluate": 402.7},
        "chosen": "lambda-0.05",
        "max_drop": 1.0,
        "settings": {
            f"lambda-{penalty:g}": {
                "method": "gates",
                "penalty": penalty,
                "kinds": ["encoder-self"],
                "settle": 0,
            }
            for penalty in PENALTIES
        },
        "bleu_signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
    }


def training_log(path: Path, draw: random.Random) -> None:
    """A loss that falls, with a dev loss every ten logged steps."""
    rows = []
    for step in range(20, 6001, 20):
        smooth = 1.5 + 6.5 * math.exp(-step / 900)
        epoch = step / 600
        rows.append((step, epoch, "loss", smooth + draw.gauss(0, 0.08)))
        rows.append((step, epoch, "learning_rate", 1e-3 * min(step / 800, (800 / step) ** 0.5)))
        if step % 200 == 0:
            rows.append((step, epoch, "dev_loss", smooth + 0.2 + draw.gauss(0, 0.01)))
            rows.append((step, epoch, "tokens_per_second", draw.gauss(3050, 60)))
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows, columns=["step", "epoch", "measure", "value"]).to_csv(path, index=False)


def scores(draw: random.Random, heads: HeadMap = HEADS) -> pd.DataFrame:
    """Confidence as the paper draws it, most heads near 0.3 and a few near 0.8, and other scores that agree with it.

    But for the first layer's h6: most relevant there, and not confident, as the paper's rare-token head.
    """
    strong = {(0, 3): 0.61, (1, 2): 0.84, (1, 5): 0.79, (2, 0): 0.72, (2, 4): 0.88, (0, 0): 0.47}
    confident = {
        head: strong.get((head.layer, head.head), draw.uniform(0.19, 0.45)) for head in heads
    }
    matters = {head: value + draw.gauss(0, 0.08) for head, value in confident.items()}
    matters[Head("encoder-self", 0, 6)] = 0.9
    confident[Head("encoder-self", 0, 6)] = 0.2
    rows: list[tuple[Any, ...]] = []
    for head in heads:
        layer = [math.exp(matters[other]) for other in heads if other[:2] == head[:2]]
        share = math.exp(matters[head]) / sum(layer)
        values = {
            "confidence": confident[head],
            "lrp.ding": share,
            "lrp.ding.pooled": share + draw.gauss(0, 0.008),
            "lrp.alpha-beta": share + draw.gauss(0, 0.02),
            "gradient": 0.004 * max(matters[head], 0.02) ** 2,
            "ablation.zero": 0.05 * (matters[head] - 0.28) + draw.gauss(0, 0.003),
        }
        for measure, value in values.items():
            margin = draw.uniform(0.01, 0.06) * abs(value)
            rows.append(
                (*head, measure, round(value, 6), value - margin, value + margin, 12841, None)
            )
    return pd.DataFrame(
        rows, columns=["kind", "layer", "head", "measure", "value", "low", "high", "n", "baseline"]
    )


SCORES = ("gradient", "lrp.ding", "lrp.alpha-beta", "confidence", "-entropy", "ablation.zero")
RANKS = dict(zip(SCORES, (0.71, 0.66, 0.61, 0.42, 0.33, 0.9), strict=True))
AREAS = dict(zip(SCORES, (0.31, 0.34, 0.42, 0.71, 0.9, 0.38), strict=True))


def faithfulness() -> pd.DataFrame:
    """faithfulness.csv: the judge's statistics of six scores, ablation's ceiling and the areas of the curves."""
    rows: list[tuple[Any, ...]] = []
    for name, value in {"": 0.93, ".half": 0.87, ".within": 0.88, ".within.half": 0.79}.items():
        rows.append(
            (
                "ablation.zero",
                "ablation.zero",
                "encoder-self",
                f"ceiling{name}",
                value,
                None,
                None,
                24,
            )
        )
    for measure, rank in RANKS.items():
        start = (measure, "ablation.zero", "encoder-self")
        for name, share in {
            "spearman": 1.0,
            "kendall": 0.78,
            "spearman.within": 0.9,
            "kendall.within": 0.72,
        }.items():
            value = round(rank * share, 4)
            rows.append((*start, name, value, value - 0.09, min(value + 0.07, 1), 24))
        for name, value in {
            "precision@10%": 0.5,
            "precision@25%": round(rank, 1),
            "precision@50%": 0.75,
        }.items():
            rows.append((*start, name, value, value - 0.2, min(value + 0.2, 1), 24))
        rows.append((measure, measure, "encoder-self", "stability", 0.97, None, None, 24))
        area = AREAS[measure]
        rows.append(
            (measure, "all heads", "encoder-self", "area", area, 0.93 * area, 1.08 * area, 500)
        )
    rows.append(("gradient", "all heads", "encoder-self", "area.rescored", 0.25, 0.23, 0.27, 500))
    rows.append(("random", "all heads", "encoder-self", "area", 0.8, 0.63, 0.98, 5))
    rows.append(("lrp.ding", "confidence", "encoder-self", "spearman", 0.55, None, None, 24))
    return pd.DataFrame(
        rows, columns=["measure", "against", "kinds", "statistic", "value", "low", "high", "n"]
    )


def curves() -> pd.DataFrame:
    """curves.csv: the losses behind the areas, in steps of a tenth of 24 heads."""
    orders: list[tuple[str, str, int | None, float]] = [
        (measure, "once", None, area) for measure, area in AREAS.items()
    ]
    orders += [("gradient", "rescored", None, 0.25)]
    orders += [("random", "random", seed, 0.63 + 0.0875 * seed) for seed in range(5)]
    rows: list[tuple[Any, ...]] = []
    removed = [0, 3, 5, 8, 10, 12, 15, 17, 20, 22]
    shape = [(gone / 24) ** 2.5 for gone in removed]
    for measure, order, seed, area in orders:
        for gone, height in zip(removed, shape, strict=True):
            loss = 1.702 + area * height / (sum(shape) / 9)
            around = 0.04 + 0.05 * height
            rows.append(
                (measure, order, seed, gone, 24, round(loss, 5), loss - around, loss + around)
            )
    return pd.DataFrame(
        rows, columns=["measure", "ranking", "seed", "removed", "total", "loss", "low", "high"]
    )


def conservation() -> pd.DataFrame:
    """lrp.csv: where the relevance went."""
    shares = {
        ("lrp.ding", "per-step"): (1.0, 0.962, 0.041, -0.003, 0.0, 0.0),
        ("lrp.ding", "pooled"): (1.0, 0.958, 0.044, -0.002, 0.0, 0.0),
        ("lrp.alpha-beta", "per-step"): (1.0, 0.871, 0.093, 0.021, 0.015, 0.0),
    }
    what = ("started", "arrived", "bias", "norm", "softmax", "other")
    rows = [
        (*key, name, value, None, None)
        for key, values in shares.items()
        for name, value in zip(what, values, strict=True)
    ]
    return pd.DataFrame(rows, columns=["measure", "mode", "what", "value", "low", "high"])


def pruning_table() -> pd.DataFrame:
    """pruning.csv: one row a measure."""
    rows: list[tuple[Any, ...]] = []
    for setting, values in QUALITY.items():
        kept = sum(map(len, KEPT[setting])) if setting in KEPT else 24
        penalty = float(setting.partition("-")[2]) if setting in KEPT else None
        start = (
            "gates" if setting in KEPT else "none",
            "encoder-self",
            setting,
            penalty,
            0,
            kept,
            24,
        )
        rows += [(*start, measure, value, None, None) for measure, value in values.items()]
        rows.append((*start, "bytes", values["parameters"] * 4 + 51_200, None, None))
        if setting in DIFFERENCE:
            low, high, p = DIFFERENCE[setting]
            rows.append(
                (
                    *start,
                    "bleu_difference",
                    round(values["bleu"] - QUALITY["full"]["bleu"], 2),
                    low,
                    high,
                )
            )
            rows.append((*start, "p_value", p, None, None))
    return pd.DataFrame(rows, columns=list(MODEL_COLUMNS))


def gate_log(
    path: Path, kept: list[list[int]], draw: random.Random, heads: HeadMap = HEADS
) -> None:
    """Gates that start open; those of removed heads shut one after the other."""
    rows = []
    for head in heads:
        stays = head.head in kept[head.layer]
        middle, slope = draw.uniform(250, 1500), draw.uniform(40, 160)
        dip = draw.uniform(0, 0.35)
        for step in range(0, 2001, 20):
            if stays:
                opened = 0.985 - dip * math.exp(-(((step - middle) / 300) ** 2))
            else:
                opened = 0.985 / (1 + math.exp((step - middle) / slope))
            rows.append((step, *head, round(opened, 4)))
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows, columns=["step", "kind", "layer", "head", "p_open"]).to_csv(
        path, index=False
    )


def sentences(folder: Path, draw: random.Random) -> None:
    """Sixty made-up sentences; the fewer heads, the more words go wrong. One has mark-up, to come out as text."""
    lines: dict[str, list[str]] = {name: [] for name in ("source", "reference", "full", *KEPT)}
    for _ in range(60):
        (one, un), (two, deux) = draw.sample(NOUNS, 2)
        (does, fait), (where, la) = draw.choice(VERBS), draw.choice(PLACES)
        lines["source"].append(f"The {one} {does} the {two} {where}.")
        target = f"{un.capitalize()} {fait} {deux} {la}."
        lines["reference"].append(target)
        for name, share in (
            ("full", 0.03),
            ("lambda-0.02", 0.04),
            ("lambda-0.05", 0.08),
            ("lambda-0.2", 0.2),
        ):
            words = [
                draw.choice(["la", "une", "voit", "jardin"]) if draw.random() < share else word
                for word in target.split()
            ]
            lines[name].append(" ".join(words))
    lines["source"][7] = "The <b>dog</b> & the </script> letter."
    lines["lambda-0.05"][7] = "tout <i>autre</i> chose que prévu, et bien plus long"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in lines.items():
        (folder / f"{name}.txt").write_text("\n".join(text) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with rescored models, for tests that only read it."""
    folder = make_run(tmp_path_factory.mktemp("whole") / "run")
    write_rescored(folder)
    return folder


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A fresh, complete run folder."""
    return make_run(tmp_path / "run")


@pytest.fixture(scope="session")
def report_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The written report of a complete run, for tests that only look at it."""
    return report(make_run(tmp_path_factory.mktemp("study") / "toy-study"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started
