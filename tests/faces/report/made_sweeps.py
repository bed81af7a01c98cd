"""Made-up studies with many models: two sweeps, a grid of them, and a model of embeddings pruned by one score alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pandas as pd

from faces.report.made import change, read
from headwise.core.heads import KINDS, Head, HeadMap, Kind
from headwise.core.layout import HeadMask
from headwise.core.measured import ModelNumbers
from headwise.core.qualities import Number
from headwise.core.tables import ACROSS, MODELS

MODEL = HeadMap({kind: (8, 8, 8) for kind in KINDS})
ENCODER: tuple[Kind, ...] = ("encoder-self",)
FULL = {"test": 38.2, "dev": 39.0}
GATES = {0.002: 23, 0.005: 20, 0.01: 16, 0.02: 12, 0.04: 9, 0.08: 5, 0.16: 2, 0.32: 1}
JOINT = {
    0.005: (22, 23, 24),
    0.01: (15, 19, 21),
    0.02: (8, 13, 17),
    0.04: (4, 8, 12),
    0.08: (1, 5, 8),
}
STEPS = (21, 19, 16, 14, 12, 9, 7, 4, 2, 1)
SCORES = {"gradient": 0.9, "confidence": 1.3, "ablation.zero": 0.8, "weight-norm": 1.9}


def around(value: float, width: float, p: float | None = None) -> Number:
    """A number with as much on both sides, of 200 sentences."""
    return Number(value, value - width, value + width, p, 200)


class Made:
    """The rows, layouts and settings as they come."""

    def __init__(self, seed: int, level: float) -> None:
        self.draw, self.seed, self.level = random.Random(seed), seed, level
        self.rows: list[tuple[Any, ...]] = []
        self.settings: dict[str, dict[str, Any]] = {}
        self.masks: dict[str, HeadMask] = {}

    def add(
        self,
        name: str,
        method: str,
        kinds: tuple[Kind, ...],
        kept: int,
        drop: float,
        numbers: ModelNumbers | None = None,
        **facts: Any,
    ) -> None:
        """A model that loses `drop` BLEU, give or take. numbers: others of it."""
        total = MODEL.only(kinds).total
        start = (method, "+".join(kinds), name, facts.get("penalty"), self.seed, kept, total)

        known = ModelNumbers()
        for split, full in FULL.items():
            change = 0.0 if method == "none" else round(self.draw.gauss(-drop, 0.12), 3)
            known[split, "bleu", ""] = around(self.level + full + change, 1.5)
            if method != "none":
                width = 0.35 + 0.05 * drop
                p = 0.001 if abs(change) > width else 0.4
                known[split, "bleu", "full"] = around(change, width, p)
        known["", "parameters", ""] = Number(9_000_000 + 4000 * kept)
        known.update(numbers or {})
        self.rows += [(*start, *row) for row in known.rows()]
        if method != "none":
            sweep = "encoder" if len(kinds) == 1 else "all"
            usual = {"control": None, "reference": None, "settle": 0}
            known = {"sweep": sweep, "method": method, "kinds": list(kinds)}
            self.settings[name] = {**known, **usual, **facts}

    def add_pruned(
        self, sweep: str, penalty: float, kinds: tuple[Kind, ...], kept: int, drop: float
    ) -> str:
        """A model pruned with gates, and compared with equal further training."""
        name = f"{sweep}.lambda-{penalty:g}"
        numbers = ModelNumbers(
            {
                ("dev", "loss", ""): Number(1.7 + penalty),
                ("dev", "soft_loss", ""): Number(1.698 + penalty),
                ("dev", "decided_loss", ""): Number(1.7 + penalty),
                ("", "undecided_gates", ""): Number(0.04 if penalty < 0.1 else 0.2),
                ("", "expected_heads", ""): Number(kept + 0.21),
                ("", "settled", ""): Number(float(penalty < 0.1)),
                ("test", "bleu", "fine-tuned"): around(-drop - 0.3, 0.4, 0.04),
            }
        )
        against = {"fine-tuned": f"{sweep}.fine-tuned"}
        self.add(name, "gates", kinds, kept, drop, numbers, penalty=penalty, against=against)
        return name

    def add_control(
        self, name: str, control: str, kinds: tuple[Kind, ...], kept: int, drop: float, worse: float
    ) -> None:
        """A model that shares facts with a pruned one, which is `worse` BLEU above it."""
        p = 0.01 if len(kinds) > 1 else 0.001 if worse > 0.4 else 0.6
        numbers = ModelNumbers({("test", "bleu", "pruned"): around(worse, 0.4, p)})
        facts = {"control": control, "reference": name}
        setting, method = f"{name}.{control}", f"control.{control}"
        self.add(setting, method, kinds, kept, drop + worse, numbers, **facts)

    def keep(self, name: str, counts: dict[Kind, int]) -> None:
        """A layout: low layers of the decoder's own attention and high ones of cross-attention stay longest."""
        kept = set[Head]()
        first = {"decoder-self": 2, "cross": -2, "encoder-self": 0}
        for kind in KINDS:
            places = {}
            for head in MODEL.only([kind]):
                places[head] = head.layer * first[kind] + self.draw.random() * 4
            heads = sorted(places, key=places.__getitem__)
            kept |= set(heads[: counts.get(kind, len(heads))])
        self.masks[name] = HeadMask(MODEL, frozenset(kept))


def encoder_sweep(made: Made) -> None:
    for penalty, usual in GATES.items():
        kept = min(max(usual + (made.seed and made.seed % 3 - 1), 1), 24)
        drop = 3.0 * (1 - kept / 24) ** 6
        name = made.add_pruned("encoder", penalty, ENCODER, kept, drop)
        made.keep(name, {"encoder-self": kept})
        if penalty in (0.04, 0.16):
            for control, worse in {"random": 0.9, "from-scratch": 1.1, "narrower": 0.1}.items():
                made.add_control(name, control, ENCODER, kept, drop, worse)
    for kept in (12, 6):
        gone = (1 - kept / 24) ** 6
        for name, method, drop, facts in (
            (f"encoder.keep-{kept}", "gates", 2.6, {"keep": kept}),
            (f"encoder.top-{kept}", "top-k", 3.2, {"keep": kept}),
        ):
            made.add(name, method, ENCODER, kept, drop * gone, **facts)
            made.keep(name, {"encoder-self": kept})
    for score, steep in SCORES.items():
        for kept in STEPS:
            name, drop = f"encoder.greedy-{score}-{kept}", 30 * (1 - kept / 24) ** (3 / steep)
            made.add(name, f"greedy.{score}", ENCODER, kept, drop, score=score)
    for order in (1, 2, 3):
        for kept in STEPS:
            drop = 34 * (1 - kept / 24) ** 1.4 + made.draw.gauss(0, 1.5)
            facts = {"score": "random", "replicate": order}
            name = f"encoder.greedy-random.{order}-{kept}"
            made.add(name, "greedy.random", ENCODER, kept, drop, **facts)
    for control, kept, drop in (("fine-tuned", 24, -0.3), ("one-per-layer", 3, 1.9)):
        name, method = f"encoder.{control}", f"control.{control}"
        made.add(name, method, ENCODER, kept, drop, control=control)


def joint_sweep(made: Made) -> None:
    for penalty, counts in JOINT.items():
        kept = sum(counts)
        drop = 4.0 * (1 - kept / 72) ** 4
        name = made.add_pruned("all", penalty, KINDS, kept, drop)
        made.keep(name, dict(zip(KINDS, counts, strict=True)))
        made.add_control(name, "from-scratch", KINDS, kept, drop, 0.5)
    for kept in (50, 29, 7):
        name, drop = f"all.greedy-gradient-{kept}", 36 * (1 - kept / 72) ** 2
        made.add(name, "greedy.gradient", KINDS, kept, drop, score="gradient")
        made.keep(name, dict.fromkeys(KINDS, kept // 3))
    made.add("all.fine-tuned", "control.fine-tuned", KINDS, 72, -0.4, control="fine-tuned")


def write_sweeps(folder: Path, seed: int = 0, level: float = 0.0) -> Path:
    """Gates, target counts, top-k and greedy orders of encoder heads, and gates of all kinds: pruning.csv, layouts/ and
    run.json, over those of a run folder if there is one. level: BLEU above the usual.
    """
    made = Made(seed, level)
    made.add("full", "none", KINDS, 72, 0)
    encoder_sweep(made)
    joint_sweep(made)
    frozen = [name for name in made.settings if name.startswith("encoder.lambda")]
    notes = {name: ["The decoder was frozen."] for name in frozen}
    notes["encoder.lambda-0.32"] += ["20 % of the gates were still undecided."]
    files: dict[str, Any] = {"pruning.csv": pd.DataFrame(made.rows, columns=list(MODELS.names))}
    files |= {f"layouts/{name}.json": mask for name, mask in made.masks.items()}
    chosen = {"chosen": "encoder.lambda-0.08", "settings": made.settings, "notes": notes}
    return change(folder, {**files, "run.json": chosen})


def write_grid(folder: Path) -> Path:
    """Two language pairs of three seeds: one run is not begun, one has failed steps, one pair has one seed less."""
    runs = [
        {"folder": f"{data}/seed-{seed}", "data": data, "seed": seed}
        for data in ("en-de", "en-fr")
        for seed in (1, 2, 3)
    ]
    tables = []
    for run in runs[:-1]:
        level = 0.3 * run["seed"] + (6 if run["data"] == "en-fr" else 0)
        written = write_sweeps(folder / run["folder"], run["seed"], level)
        tables.append(read(written / "pruning.csv").assign(data=run["data"]))
    key = ["data", "setting", "split", "measure", "reference"]
    groups = pd.concat(tables).groupby(key, as_index=False, dropna=False)["value"]
    means = groups.agg(value="mean", size="size").assign(p=None, units=200)
    means = means[(means["size"] > 1) & (means["measure"] == "bleu")]
    failed = {"prune/all.keep-3": "Traceback\n  File\nRuntimeError: <out of memory>"}
    return change(
        folder,
        {
            "en-de/seed-1/report.html": "<p>the first run</p>",
            "en-fr/seed-2/run.json": {"failed": failed},
            "grid.json": {"name": "toy-grid", "runs": runs},
            "across.csv": means.assign(low=means["value"] - 0.4, high=means["value"] + 0.4).reindex(
                columns=list(ACROSS.names)
            ),
        },
    )


DORMANT = HeadMap({"encoder-self": (12,) * 6})
SIMILARITY = {64: 98.7, 57: 97.9, 50: 95.6, 43: 92.5, 36: 89.8, 28: 87.1, 14: 69.0, 1: 64.6}
OTHERS = {"confidence": 96.7, "weight-norm": 90.1, "random.1": 95.6, "random.2": 93.9}
CHOSEN = 57


def write_greedy(folder: Path) -> Path:
    """Heads of a model of embeddings, removed in the order of one score, and in other orders at the chosen count.

    Nothing was scored, tested for roles, or trained. On dev each model is 0.2 points better than on test.
    """
    models = [("full", "none", 72, 100.0, {})]
    for kept, similarity in SIMILARITY.items():
        facts: dict[str, Any] = {"score": "dormancy"}
        models.append((f"greedy-dormancy-{kept}", "greedy.dormancy", kept, similarity, facts))
    for order, similarity in OTHERS.items():
        score, _, replicate = order.partition(".")
        facts = {"score": score, "replicate": int(replicate or 0), "comparison": True}
        models.append((f"greedy-{order}-{CHOSEN}", f"greedy.{score}", CHOSEN, similarity, facts))

    files: dict[str, Any] = {}
    rows: list[tuple[Any, ...]] = []
    for name, method, kept, similarity, _ in models:
        weights = 20e6 + 4e4 * kept
        numbers = ModelNumbers({("", "parameters", ""): Number(weights)})
        numbers["", "memory", ""] = Number(4 * weights)
        for split, better in (("test", 0.0), ("dev", 0.2)):
            lost = min(0.0, similarity + better - 100)
            numbers[split, "similarity", ""] = Number(100 + lost)
            if method != "none":
                ends = (lost - 0.6, lost + 0.5)
                numbers[split, "similarity", "full"] = Number(lost, *ends, units=50)
        start = (method, "encoder-self", name, None, 1, kept, 72)
        rows += [(*start, *row) for row in numbers.rows()]
        if method != "none":
            mask = HeadMask(DORMANT, frozenset[Head](list(DORMANT)[:kept]))
            files[f"layouts/{name}.json"] = mask
    files["pruning.csv"] = pd.DataFrame(rows, columns=list(MODELS.names))
    settings = {name: facts for name, *_, facts in models[1:]}
    chosen = {"chosen": f"greedy-dormancy-{CHOSEN}", "max_drop": 2.0, "settings": settings}
    return change(folder, {**files, "run.json": chosen})
