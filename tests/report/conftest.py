"""A made-up study to draw: 3 layers of 8 heads, three penalties that leave 17, 9 and 4 heads, sentences of our own."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from headwise.heads import Head, HeadMap, HeadMask
from headwise.report import write

HEADS = HeadMap({"encoder-self": (8, 8, 8)})
KEPT = {
    "lambda-0.02": [[0, 1, 3, 4, 6, 7], [0, 2, 3, 5, 7], [0, 1, 2, 4, 5, 6]],
    "lambda-0.05": [[0, 3, 6], [2, 5], [0, 1, 4, 6]],
    "lambda-0.2": [[3], [], [0, 4, 6]],
}
QUALITY = {
    "full": {
        "dev_bleu": 39.02,
        "bleu": 38.21,
        "chrf": 62.4,
        "dev_loss": 1.702,
        "parameters": 9_472_512,
        "tokens_per_second": 1210.4,
    },
    "lambda-0.02": {
        "dev_bleu": 38.9,
        "bleu": 38.3,
        "chrf": 62.5,
        "dev_loss": 1.699,
        "parameters": 9_357_600,
        "tokens_per_second": 1213.1,
    },
    "lambda-0.05": {
        "dev_bleu": 38.61,
        "bleu": 37.9,
        "chrf": 62.0,
        "dev_loss": 1.721,
        "parameters": 9_226_272,
        "tokens_per_second": 1228.9,
    },
    "lambda-0.2": {
        "dev_bleu": 36.4,
        "bleu": 35.77,
        "chrf": 60.1,
        "dev_loss": 1.84,
        "parameters": 9_144_192,
        "tokens_per_second": 1233.6,
    },
}
DIFFERENCE = {
    "lambda-0.02": (-0.26, 0.44, 0.58),
    "lambda-0.05": (-0.71, 0.11, 0.14),
    "lambda-0.2": (-3.05, -1.84, 0.001),
}
NOUNS = [
    ("dog", "le chien"),
    ("teacher", "le professeur"),
    ("river", "la rivière"),
    ("letter", "la lettre"),
    ("garden", "le jardin"),
]
VERBS = [("sees", "voit"), ("likes", "aime"), ("hides", "cache"), ("draws", "dessine")]
PLACES = [
    ("near the old bridge", "près du vieux pont"),
    ("in the morning", "le matin"),
    ("without a word", "sans un mot"),
]


def make_run(folder: Path) -> Path:
    """Write a whole run folder, as the stages of a study leave it; the same numbers every time."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    (folder / "plan.toml").write_text(
        'name = "toy"\n\n[prune]\npenalty = [0.02, 0.05, 0.2]\nmax_drop = 1.0  # a < b & c\n'
    )
    (folder / "run.json").write_text(json.dumps(run_facts(), indent=1))
    training_log(folder / "train" / "log.csv", draw)
    scores(draw).to_csv(folder / "heads.csv", index=False)
    pruning_table().to_csv(folder / "pruning.csv", index=False)
    for setting, kept in KEPT.items():
        mask = HeadMask(HEADS, frozenset(Head("encoder-self", i, h) for i, row in enumerate(kept) for h in row))
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


def scores(draw: random.Random) -> pd.DataFrame:
    """Confidence as the paper draws it: most heads near 0.3, a few near 0.8."""
    strong = {(0, 3): 0.61, (1, 2): 0.84, (1, 5): 0.79, (2, 0): 0.72, (2, 4): 0.88, (0, 0): 0.47}
    rows = []
    for head in HEADS:
        value = strong.get((head.layer, head.head), draw.uniform(0.19, 0.45))
        margin = draw.uniform(0.004, 0.02)
        rows.append((*head, "confidence", round(value, 4), value - margin, value + margin, 12841, None))
    return pd.DataFrame(rows, columns=["kind", "layer", "head", "measure", "value", "low", "high", "n", "baseline"])


def pruning_table() -> pd.DataFrame:
    """pruning.csv: one row a measure."""
    rows: list[tuple[Any, ...]] = []
    for setting, values in QUALITY.items():
        kept = sum(map(len, KEPT[setting])) if setting in KEPT else 24
        start = ("hard-concrete" if setting in KEPT else "none", "encoder-self", setting, 0, kept, 24)
        rows += [(*start, measure, value, None, None) for measure, value in values.items()]
        rows.append((*start, "bytes", values["parameters"] * 4 + 51_200, None, None))
        if setting in DIFFERENCE:
            low, high, p = DIFFERENCE[setting]
            rows.append((*start, "bleu_difference", round(values["bleu"] - QUALITY["full"]["bleu"], 2), low, high))
            rows.append((*start, "p_value", p, None, None))
    columns = ["method", "kinds", "setting", "seed", "kept", "total", "measure", "value", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def gate_log(path: Path, kept: list[list[int]], draw: random.Random) -> None:
    """Gates that start open; those of removed heads shut one after the other."""
    rows = []
    for head in HEADS:
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
    pd.DataFrame(rows, columns=["step", "kind", "layer", "head", "p_open"]).to_csv(path, index=False)


def sentences(folder: Path, draw: random.Random) -> None:
    """Sixty made-up sentences; the fewer heads, the more words go wrong. One has mark-up, to come out as text."""
    lines: dict[str, list[str]] = {name: [] for name in ("source", "reference", "full", *KEPT)}
    for _ in range(60):
        (one, un), (two, deux) = draw.sample(NOUNS, 2)
        (does, fait), (where, la) = draw.choice(VERBS), draw.choice(PLACES)
        lines["source"].append(f"The {one} {does} the {two} {where}.")
        target = f"{un.capitalize()} {fait} {deux} {la}."
        lines["reference"].append(target)
        for name, share in (("full", 0.03), ("lambda-0.02", 0.04), ("lambda-0.05", 0.08), ("lambda-0.2", 0.2)):
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


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A fresh, complete run folder."""
    return make_run(tmp_path / "run")


@pytest.fixture(scope="session")
def report_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The written report of a complete run, for tests that only look at it."""
    return write(make_run(tmp_path_factory.mktemp("study") / "toy-study"))
