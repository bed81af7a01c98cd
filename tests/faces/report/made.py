"""Made-up runs to draw: a base run, and every other one as its differences to it.

The base: 3 layers of 8 encoder heads, three penalties that leave 17, 9 and 4 of them, sentences of our own.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from faces.report.made_roles import interactions, role_files, rows_of, untrained, words
from headwise.core.heads import KINDS, Head, HeadMap
from headwise.core.layout import HeadMask
from headwise.core.tables import CAUSAL, MODELS, TESTS
from headwise.faces.report.run_folder import RunContents

HEADS = HeadMap({"encoder-self": (8, 8, 8)})
KEPT = {
    "lambda-0.02": [[0, 1, 3, 4, 6, 7], [0, 2, 3, 5, 7], [0, 1, 2, 4, 5, 6]],
    "lambda-0.05": [[0, 3, 6], [2, 5], [0, 1, 4, 6]],
    "lambda-0.2": [[3], [], [0, 4, 6]],
}
LABELS = [f"λ\u00a0=\u00a0{penalty}" for penalty in ("0.02", "0.05", "0.2")]


def read(path: Path) -> Any:
    """A file of a run: a table, what its JSON says, or text."""
    if path.suffix == ".csv":
        return pd.read_csv(path)
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else text


def change(folder: Path, differences: Mapping[str, Any]) -> Path:
    """Change files of a run, by their names in its folder.

    None removes a file or folder; a function is given what the file says, and returns what it says now; a dictionary is
    put over the one in the file; anything else is written.
    """
    for name, value in differences.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(value):
            value = value(read(path))
        if value is None:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        elif isinstance(value, HeadMask):
            value.save(path)
        elif isinstance(value, pd.DataFrame):
            value.to_csv(path, index=False)
        elif isinstance(value, str):
            path.write_text(value, encoding="utf-8")
        else:
            merged = (
                {**read(path), **value} if path.is_file() and isinstance(value, dict) else value
            )
            path.write_text(json.dumps(merged, indent=1), encoding="utf-8")
    return folder


def cells(value: Any = None, **where: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """A change of a table: other cells in some rows.

    value: the new cells by their columns; a number alone is the value, several are value, low, high and p. where: columns
    and what they hold in these rows, one or a list; None is an empty cell.
    """
    if not isinstance(value, Mapping):
        numbers = value if isinstance(value, tuple) else (value,)
        value = dict(zip(("value", "low", "high", "p"), numbers, strict=False))

    def changed(table: pd.DataFrame) -> pd.DataFrame:
        rows = chosen_rows(table, where)
        assert rows.any(), where
        for column, cell in value.items():
            table.loc[rows, column] = cell
        return table

    return changed


def without(**where: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """A change of a table: fewer rows."""
    return lambda table: table[~chosen_rows(table, where)]


def chosen_rows(table: pd.DataFrame, where: Mapping[str, Any]) -> pd.Series[bool]:
    rows = pd.Series(True, table.index)
    for column, cell in where.items():
        wanted = cell if isinstance(cell, list) else [cell]
        rows &= table[column].isin([word for word in wanted if word is not None]) | (
            table[column].isna() & (None in wanted)
        )
    return rows


def make_run(folder: Path, differences: Mapping[str, Any] | None = None) -> Path:
    """Write a whole run folder, as the steps of a study leave it; the same numbers every time."""
    return change(change(folder, base()), differences or {})


@cache
def base() -> dict[str, Any]:
    """What the files of the base run say."""
    draw = random.Random(0)
    files: dict[str, Any] = {
        "plan.toml": 'name = "toy"\n\n[prune]\npenalty = [0.02, 0.05, 0.2]\n'
        "max_drop = 1.0  # a < b & c\n",
        "run.json": run_facts(),
        "train/log.csv": training_log(draw),
        "heads.csv": scores(draw),
        "faithfulness.csv": faithfulness(),
        "curves.csv": curves(),
        "lrp.csv": conservation(),
        **role_files(HEADS),
        "untrained.csv": untrained(HEADS),
        "interactions.csv": interactions(HEADS),
        "words.csv": words(),
        "pruning.csv": pruning_table(),
    }
    for setting, kept in KEPT.items():
        files[f"layouts/{setting}.json"] = layout(kept)
        files[f"gates/{setting}.csv"] = gate_log(kept, draw)
    return {**files, **translations(draw)}


def layout(kept: list[list[int]], heads: HeadMap = HEADS) -> HeadMask:
    """Of each layer the heads that stay, in every kind."""
    return HeadMask(heads, frozenset(head for head in heads if head.head in kept[head.layer]))


def run_facts() -> dict[str, Any]:
    """What run.json says."""
    settings = {}
    for penalty in (0.02, 0.05, 0.2):
        facts = {"method": "gates", "penalty": penalty, "kinds": ["encoder-self"], "settle": 0}
        settings[f"lambda-{penalty:g}"] = facts
    return {
        "signature": {"model": "marian-3x8", "data": "toy-3f2a91", "seed": 0},
        "versions": {"headwise": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0"},
        "threads": 2,
        "seconds": {"train": 5123.4, "score": 31.2, "prune": 1840.0, "evaluate": 402.7},
        "chosen": "lambda-0.05",
        "max_drop": 1.0,
        "settings": settings,
        "bleu_signature": "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0",
    }


def training_log(draw: random.Random) -> pd.DataFrame:
    """A loss that falls, with a dev loss every ten logged steps."""
    rows = []
    for step in range(20, 6001, 20):
        smooth = 1.5 + 6.5 * math.exp(-step / 900)
        measures = {
            "loss": smooth + draw.gauss(0, 0.08),
            "learning_rate": 1e-3 * min(step / 800, (800 / step) ** 0.5),
        }
        if step % 200 == 0:
            measures["dev_loss"] = smooth + 0.2 + draw.gauss(0, 0.01)
            measures["tokens_per_second"] = draw.gauss(3050, 60)
        rows += [(step, step / 600, measure, value) for measure, value in measures.items()]
    return pd.DataFrame(rows, columns=["step", "epoch", "measure", "value"])


def scores(draw: random.Random, heads: HeadMap = HEADS) -> pd.DataFrame:
    """Confidence as the paper draws it, most heads near 0.3 and a few near 0.8, and other scores that agree with it.

    But for the first layer's h6: most relevant there, and not confident, as the paper's rare-token head.
    """
    strong = {(0, 3): 0.61, (1, 2): 0.84, (1, 5): 0.79, (2, 0): 0.72, (2, 4): 0.88, (0, 0): 0.47}
    confident = {head: strong.get(head[1:], draw.uniform(0.19, 0.45)) for head in heads}
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
            ends = (value - margin, value + margin)
            rows.append((*head, measure, round(value, 6), *ends, 12841, None, 200.0))
    return pd.DataFrame(rows, columns=list(TESTS.names))


# Of each score: its rank correlation with ablation, and the area under its curve.
JUDGED = {
    "gradient": (0.71, 0.31),
    "lrp.ding": (0.66, 0.34),
    "lrp.alpha-beta": (0.61, 0.42),
    "confidence": (0.42, 0.71),
    "-entropy": (0.33, 0.9),
    "ablation.zero": (0.9, 0.38),
}


def faithfulness() -> pd.DataFrame:
    """The judge's statistics of six scores, ablation's ceiling and the areas of the curves."""
    rows: list[tuple[Any, ...]] = []

    def add(measure: str, against: str, statistic: str, *numbers: float | None, n: int) -> None:
        rows.append((measure, against, "encoder-self", statistic, *numbers, n))

    for name, value in {"": 0.93, ".half": 0.87, ".within": 0.88, ".within.half": 0.79}.items():
        add("ablation.zero", "ablation.zero", f"ceiling{name}", value, None, None, n=24)
    for measure, (rank, area) in JUDGED.items():
        for name, share in {"": 1.0, ".within": 0.9}.items():
            for statistic, part in (("spearman", share), ("kendall", 0.78 if not name else 0.72)):
                value = round(rank * part, 4)
                ends = (value - 0.09, min(value + 0.07, 1))
                add(measure, "ablation.zero", f"{statistic}{name}", value, *ends, n=24)
        for percent, value in {10: 0.5, 25: round(rank, 1), 50: 0.75}.items():
            ends = (value - 0.2, min(value + 0.2, 1))
            add(measure, "ablation.zero", f"precision@{percent}%", value, *ends, n=24)
        add(measure, measure, "stability", 0.97, None, None, n=24)
        add(measure, "all heads", "area", area, 0.93 * area, 1.08 * area, n=500)
    add("gradient", "all heads", "area.rescored", 0.25, 0.23, 0.27, n=500)
    add("random", "all heads", "area", 0.8, 0.63, 0.98, n=5)
    add("lrp.ding", "confidence", "spearman", 0.55, None, None, n=24)
    names = ["measure", "against", "kinds", "statistic", "value", "low", "high", "n"]
    return pd.DataFrame(rows, columns=names)


def curves() -> pd.DataFrame:
    """The losses behind the areas, in steps of a tenth of 24 heads."""
    orders: list[tuple[str, str, int | None, float]] = []
    orders += [(measure, "once", None, area) for measure, (_, area) in JUDGED.items()]
    orders += [("gradient", "rescored", None, 0.25)]
    orders += [("random", "random", seed, 0.63 + 0.0875 * seed) for seed in range(5)]
    removed = [0, 3, 5, 8, 10, 12, 15, 17, 20, 22]
    shape = [(gone / 24) ** 2.5 for gone in removed]
    rows: list[tuple[Any, ...]] = []
    for measure, order, seed, area in orders:
        for gone, height in zip(removed, shape, strict=True):
            loss = 1.702 + area * height / (sum(shape) / 9)
            ends = (loss - 0.04 - 0.05 * height, loss + 0.04 + 0.05 * height)
            rows.append((measure, order, seed, gone, 24, round(loss, 5), *ends))
    names = ["measure", "ranking", "seed", "removed", "total", "loss", "low", "high"]
    return pd.DataFrame(rows, columns=names)


def conservation() -> pd.DataFrame:
    """Where the relevance went."""
    shares = {
        ("lrp.ding", "per-step"): (1.0, 0.962, 0.041, -0.003, 0.0, 0.0),
        ("lrp.ding", "pooled"): (1.0, 0.958, 0.044, -0.002, 0.0, 0.0),
        ("lrp.alpha-beta", "per-step"): (1.0, 0.871, 0.093, 0.021, 0.015, 0.0),
    }
    what = ("started", "arrived", "bias", "norm", "softmax", "other")
    rows: list[tuple[Any, ...]] = []
    for key, values in shares.items():
        rows += [(*key, *named, None, None) for named in zip(what, values, strict=True)]
    return pd.DataFrame(rows, columns=["measure", "mode", "what", "value", "low", "high"])


# By split and measure.
MEASURES = (
    ("dev", "bleu"),
    ("test", "bleu"),
    ("test", "chrf"),
    ("dev", "loss"),
    (None, "parameters"),
    (None, "tokens_per_second"),
)
QUALITY = {
    "full": (39.02, 38.21, 62.4, 1.702, 9_472_512, 1210.4),
    "lambda-0.02": (38.9, 38.3, 62.5, 1.699, 9_357_600, 1213.1),
    "lambda-0.05": (38.61, 37.9, 62.0, 1.721, 9_226_272, 1228.9),
    "lambda-0.2": (36.4, 35.77, 60.1, 1.84, 9_144_192, 1233.6),
}
# The ends of the difference to the full model in BLEU, and p.
DIFFERENCE = {
    "lambda-0.02": (-0.26, 0.44, 0.58),
    "lambda-0.05": (-0.71, 0.11, 0.14),
    "lambda-0.2": (-3.05, -1.84, 0.001),
}


def pruning_table() -> pd.DataFrame:
    """A row a measure."""
    rows: list[tuple[Any, ...]] = []
    for setting, numbers in QUALITY.items():
        values = dict(zip(MEASURES, numbers, strict=True))
        start: tuple[Any, ...] = ("none", "encoder-self", "full", None, 0, 24, 24)
        if setting in KEPT:
            penalty = float(setting.partition("-")[2])
            kept = sum(map(len, KEPT[setting]))
            start = ("gates", "encoder-self", setting, penalty, 0, kept, 24)
        values[None, "bytes"] = values[None, "parameters"] * 4 + 51_200
        for key, value in values.items():
            rows.append((*start, *key, None, value, None, None, None, None))
        if setting in DIFFERENCE:
            change = round(values["test", "bleu"] - 38.21, 2)
            rows.append((*start, "test", "bleu", "full", change, *DIFFERENCE[setting], 60))
    return pd.DataFrame(rows, columns=list(MODELS.names))


def gate_log(kept: list[list[int]], draw: random.Random, heads: HeadMap = HEADS) -> pd.DataFrame:
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
    return pd.DataFrame(rows, columns=["step", "kind", "layer", "head", "p_open"])


NOUNS = {
    "dog": "le chien",
    "teacher": "le professeur",
    "river": "la rivière",
    "letter": "la lettre",
}
VERBS = {"sees": "voit", "likes": "aime", "hides": "cache", "draws": "dessine"}
PLACES = {
    "near the old bridge": "près du vieux pont",
    "in the morning": "le matin",
    "in silence": "sans un mot",
}
# Of each model, the share of its words that are wrong.
WRONG = {"full": 0.03, "lambda-0.02": 0.04, "lambda-0.05": 0.08, "lambda-0.2": 0.2}


def translations(draw: random.Random) -> dict[str, str]:
    """Sixty sentences; the fewer heads, the more words go wrong. One has mark-up, to come out as text."""
    lines: dict[str, list[str]] = {name: [] for name in ("source", "reference", *WRONG)}
    for _ in range(60):
        (one, un), (two, deux) = draw.sample(list(NOUNS.items()), 2)
        (does, fait), (where, la) = (
            draw.choice(list(VERBS.items())),
            draw.choice(list(PLACES.items())),
        )
        lines["source"].append(f"The {one} {does} the {two} {where}.")
        target = f"{un.capitalize()} {fait} {deux} {la}."
        lines["reference"].append(target)
        for name, share in WRONG.items():
            words = [
                draw.choice(["la", "une", "voit", "jardin"]) if draw.random() < share else word
                for word in target.split()
            ]
            lines[name].append(" ".join(words))
    lines["source"][7] = "The <b>dog</b> & the </script> letter."
    lines["lambda-0.05"][7] = "tout <i>autre</i> chose que prévu, et bien plus long"
    return {f"translations/test/{name}.txt": "\n".join(text) + "\n" for name, text in lines.items()}


def make_language(folder: Path, **facts: Any) -> Path:
    """The run of a language model: decoder heads, and a tenth of a BLEU point lost is a percent of perplexity more.

    facts: others in run.json.
    """
    make_run(folder, {"translations": None})
    for file in [*folder.rglob("*.csv"), *folder.rglob("*.json")]:
        text = file.read_text(encoding="utf-8").replace("encoder-self", "decoder-self")
        file.write_text(text, encoding="utf-8")
    known = read(folder / "run.json")
    del known["bleu_signature"]
    (folder / "run.json").unlink()
    changed = {"pruning.csv": in_perplexity, "run.json": {**known, "max_drop": 10.0, **facts}}
    return change(folder, changed)


def in_perplexity(table: pd.DataFrame) -> pd.DataFrame:
    parts = [table[table["measure"].isin(["parameters", "bytes"])]]
    for split in ("test", "dev"):
        rows = table[chosen_rows(table, {"split": split, "measure": "bleu", "reference": None})]
        full = rows.loc[rows["setting"] == "full", "value"].item()
        change = 10 * (full - rows["value"])
        perplexity = 12 * (1 + change / 100)
        moved = rows.assign(value=change, low=change - 1, high=change + 1, reference="full")
        parts += [
            rows.assign(measure="perplexity", value=perplexity),
            rows.assign(measure="loss", value=perplexity.map(math.log)),
            moved[moved["setting"] != "full"].assign(measure="perplexity"),
        ]
    return pd.concat(parts)


LARGE = HeadMap({kind: (8,) * 6 for kind in KINDS})


def make_large(folder: Path) -> Path:
    """The run of a model of 144 heads of three kinds, pruned together, with 40 examples of attention."""
    draw = random.Random(1)
    files: dict[str, Any] = {"heads.csv": scores(draw, LARGE), **role_files(LARGE)}
    files["roles/examples.json"] *= 10
    for setting, kept in KEPT.items():
        files[f"layouts/{setting}.json"] = layout(kept * 2, LARGE)
        files[f"gates/{setting}.csv"] = gate_log(kept * 2, draw, LARGE)
    files["pruning.csv"] = lambda table: table.assign(kinds="+".join(KINDS))
    settings = run_facts()["settings"]
    for facts in settings.values():
        facts["kinds"] = list(KINDS)
    return make_run(folder, {**files, "run.json": {"settings": settings}})


OTHER_KEPT = [[0, 3, 5], [2, 5], [0, 1, 4, 7]]  # 7 of the 9 are those of the base run
GONE, GAINED = ("rare.two-rarest", 0, 6), ("syntactic.nsubj.to-governor", 1, 0)


def make_other(folder: Path, **signature: Any) -> Path:
    """A second run of the same model: other scores, other heads kept, a role less and a role more.

    signature: facts of another model, which was trained apart.
    """

    def other_roles(table: pd.DataFrame) -> pd.DataFrame:
        kept = without(measure=GONE[0], layer=GONE[1], head=GONE[2])(table)
        assert len(kept) == len(table) - 1
        more = table[table["measure"] == GAINED[0]].iloc[:1]
        return pd.concat([kept, more.assign(layer=GAINED[1], head=GAINED[2])])

    return make_run(
        folder,
        {
            "plan.toml": lambda text: (
                text.replace("max_drop = 1.0", "max_drop = 0.5")
                + '\n[extra]\nnote = "<b>only here</b>"\n'
            ),
            "heads.csv": scores(random.Random(7)),
            "layouts/lambda-0.05.json": layout(OTHER_KEPT),
            "roles/roles.csv": other_roles,
            "run.json": {"signature": {**run_facts()["signature"], **signature}},
        },
    )


APART = {"model": "another", "seed": 2}


def causal() -> pd.DataFrame:
    """roles/causal.csv: two roles tested with the head off, of which only the second was confirmed."""
    rows = [
        (2, 0, "coreference", "logit difference of IO and S", 4.0, 1.5, 1.0, 2.0, 0.25, False),
        (1, 5, "syntactic.obj.to-governor", "loss of the answer", 1, 3, 2, 4, None, True),
    ]
    columns = [*CAUSAL.names[:10], "confirmed"]
    table = pd.DataFrame([("encoder-self", *row) for row in rows], columns=columns)
    return table.reindex(columns=list(CAUSAL.names))


# What heads do after pruning. nsubj→verb of 2/0 ends up at 2/4, obj→verb of 1/5 is lost, 0/6 goes with its head.
AFTER = {
    "lambda-0.02": {
        (0, 3, "positional.-1"): 0.98,
        (0, 6, "rare.two-rarest"): 0.69,
        (1, 2, "positional.1"): 0.95,
        (1, 5, "syntactic.obj.to-governor"): 0.8,
        (2, 0, "syntactic.nsubj.to-governor"): 0.66,
        (2, 0, "syntactic.det.to-governor"): 0.9,
        (2, 0, "coreference"): 0.66,
        (2, 4, "positional.-1"): 0.94,
    },
    "lambda-0.05": {
        (0, 3, "positional.-1"): 0.97,
        (0, 6, "rare.two-rarest"): 0.7,
        (1, 2, "positional.1"): 0.97,
        (2, 0, "syntactic.det.to-governor"): 0.89,
        (2, 4, "positional.-1"): 0.92,
        (2, 4, "syntactic.nsubj.to-governor"): 0.64,
    },
    "lambda-0.2": {(0, 3, "positional.-1"): 0.92, (2, 4, "syntactic.nsubj.to-governor"): 0.68},
}


def rescored() -> dict[str, Any]:
    """The base run's three pruned models scored again: roles as AFTER says, scores of the full model a little shaken."""
    files: dict[str, Any] = {}
    for setting, held in AFTER.items():
        mask = layout(KEPT[setting])
        heads = base()["heads.csv"]
        left = heads[rows_of(heads, mask.kept)].copy()
        left = left[left["measure"].isin(["confidence", "gradient", "lrp.ding"])]
        draw = random.Random(setting)
        left["value"] = [value * draw.uniform(0.75, 1.25) for value in left["value"]]
        lrp = left["measure"] == "lrp.ding"
        left.loc[lrp, "value"] /= left[lrp].groupby("layer")["value"].transform("sum")
        start = f"rescored/{setting}/"
        files[f"{start}heads.csv"] = left
        for name, value in role_files(mask.heads, mask, held).items():
            files[start + name] = value
    return files


def emptied(run: RunContents, *names: str) -> RunContents:
    """A run whose tables of these names have no rows, as if their files were not there."""
    gone: dict[str, Any] = {}
    for name in names:
        found = getattr(run, name)
        if name == "roles":
            parts = {part: vars(found)[part][:0] for part in vars(found) if part != "facts"}
            gone[name] = replace(found, **parts)
        else:
            gone[name] = found[:0]
    return replace(run, **gone)
