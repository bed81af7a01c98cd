"""A made-up study of two sweeps: gates, target counts, top-k and greedy orders of encoder heads; gates of all kinds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.heads import Head, HeadMap, HeadMask, Kind
from headwise.report.models import MODEL_COLUMNS

ALL: tuple[Kind, ...] = ("encoder-self", "decoder-self", "cross")
MODEL = HeadMap({kind: (8, 8, 8) for kind in ALL})
FULL = {"": 38.2, "dev_": 39.0}
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


class Made:
    """The rows, layouts and settings as they come."""

    def __init__(self, seed: int, level: float) -> None:
        self.draw, self.seed, self.level = random.Random(seed), seed, level
        self.rows: list[tuple[Any, ...]] = []
        self.settings: dict[str, dict[str, Any]] = {}
        self.masks: dict[str, HeadMask] = {}

    def add(
        self, name: str, method: str, kinds: tuple[Kind, ...], kept: int, drop: float, **more: Any
    ) -> None:
        """A model that loses `drop` BLEU, give or take."""
        start = (
            method,
            "+".join(kinds),
            name,
            more.get("penalty"),
            self.seed,
            kept,
            MODEL.only(kinds).total,
        )
        for part, full in FULL.items():
            change = round(self.draw.gauss(-drop, 0.12), 3) if method != "none" else 0.0
            bleu = self.level + full + change
            self.rows.append((*start, f"{part}bleu", bleu, bleu - 1.5, bleu + 1.5))
            if method != "none":
                width = 0.35 + 0.05 * drop
                p = 0.001 if abs(change) > width else 0.4
                self.rows.append(
                    (*start, f"{part}bleu_difference", change, change - width, change + width)
                )
                self.rows.append((*start, f"{part}p_value", p, None, None))
        for measure, value in {
            "parameters": 9_000_000 + 4000 * kept,
            **more.pop("measures", {}),
        }.items():
            low, high = (value - 0.4, value + 0.4) if measure.startswith("bleu_") else (None, None)
            self.rows.append((*start, measure, value, low, high))
        sweep = "encoder" if len(kinds) == 1 else "all"
        self.settings[name] = {
            "sweep": sweep,
            "method": method,
            "kinds": list(kinds),
            "control": None,
            "reference": None,
            "settle": 0,
            **more,
        }

    def keep(self, name: str, counts: dict[Kind, int]) -> None:
        """A layout: low layers of the decoder's own attention and high ones of cross-attention stay longest."""
        kept = set[Head]()
        for kind in ALL:
            heads = sorted(
                MODEL.only([kind]),
                key=lambda h: (
                    h.layer * {"decoder-self": 2, "cross": -2, "encoder-self": 0}[h.kind]
                    + self.draw.random() * 4
                ),
            )
            kept |= set(heads[: counts.get(kind, len(heads))])
        self.masks[name] = HeadMask(MODEL, frozenset(kept))


def health(penalty: float, kept: int) -> dict[str, float]:
    return {
        "dev_loss": 1.7 + penalty,
        "soft_dev_loss": 1.698 + penalty,
        "decided_dev_loss": 1.7 + penalty,
        "undecided_gates": 0.04 if penalty < 0.1 else 0.2,
        "expected_heads": kept + 0.21,
        "settled": float(penalty < 0.1),
    }


def encoder_sweep(made: Made) -> None:
    kinds: tuple[Kind, ...] = ("encoder-self",)
    for penalty, usual in GATES.items():
        name, kept = (
            f"encoder.lambda-{penalty:g}",
            min(max(usual + (made.seed and made.seed % 3 - 1), 1), 24),
        )
        drop = 3.0 * (1 - kept / 24) ** 6
        shown = {
            **health(penalty, kept),
            "bleu_difference_to_fine-tuned": -drop - 0.3,
            "p_value_to_fine-tuned": 0.04,
        }
        made.add(
            name,
            "gates",
            kinds,
            kept,
            drop,
            measures=shown,
            penalty=penalty,
            against={"fine-tuned": "encoder.fine-tuned"},
        )
        made.keep(name, {"encoder-self": kept})
        if penalty in (0.04, 0.16):
            for control, worse in (("random", 0.9), ("from-scratch", 1.1), ("narrower", 0.1)):
                shown = {
                    "bleu_difference_to_pruned": worse,
                    "p_value_to_pruned": 0.001 if worse > 0.4 else 0.6,
                }
                made.add(
                    f"{name}.{control}",
                    f"control.{control}",
                    kinds,
                    kept,
                    drop + worse,
                    measures=shown,
                    control=control,
                    reference=name,
                )
    for kept in (12, 6):
        made.add(
            f"encoder.keep-{kept}", "gates", kinds, kept, 2.6 * (1 - kept / 24) ** 6, keep=kept
        )
        made.keep(f"encoder.keep-{kept}", {"encoder-self": kept})
        made.add(f"encoder.top-{kept}", "top-k", kinds, kept, 3.2 * (1 - kept / 24) ** 6, keep=kept)
        made.keep(f"encoder.top-{kept}", {"encoder-self": kept})
    for score, steep in SCORES.items():
        for kept in STEPS:
            drop = 30 * (1 - kept / 24) ** (3 / steep)
            made.add(
                f"encoder.greedy-{score}-{kept}", f"greedy.{score}", kinds, kept, drop, score=score
            )
    for order in (1, 2, 3):
        for kept in STEPS:
            drop = 34 * (1 - kept / 24) ** 1.4 + made.draw.gauss(0, 1.5)
            made.add(
                f"encoder.greedy-random.{order}-{kept}",
                "greedy.random",
                kinds,
                kept,
                drop,
                score="random",
                replicate=order,
            )
    made.add("encoder.fine-tuned", "control.fine-tuned", kinds, 24, -0.3, control="fine-tuned")
    made.add(
        "encoder.one-per-layer", "control.one-per-layer", kinds, 3, 1.9, control="one-per-layer"
    )


def joint_sweep(made: Made) -> None:
    for penalty, counts in JOINT.items():
        name, kept = f"all.lambda-{penalty:g}", sum(counts)
        drop = 4.0 * (1 - kept / 72) ** 4
        shown = {
            **health(penalty, kept),
            "bleu_difference_to_fine-tuned": -drop - 0.3,
            "p_value_to_fine-tuned": 0.04,
        }
        made.add(
            name,
            "gates",
            ALL,
            kept,
            drop,
            measures=shown,
            penalty=penalty,
            against={"fine-tuned": "all.fine-tuned"},
        )
        made.keep(name, dict(zip(ALL, counts, strict=True)))
        shown = {"bleu_difference_to_pruned": 0.5, "p_value_to_pruned": 0.01}
        scratch = {"control": "from-scratch", "reference": name, "measures": shown}
        made.add(f"{name}.from-scratch", "control.from-scratch", ALL, kept, drop + 0.5, **scratch)
    for kept in (50, 29, 7):
        made.add(
            f"all.greedy-gradient-{kept}",
            "greedy.gradient",
            ALL,
            kept,
            36 * (1 - kept / 72) ** 2,
            score="gradient",
        )
        made.keep(f"all.greedy-gradient-{kept}", dict.fromkeys(ALL, kept // 3))
    made.add("all.fine-tuned", "control.fine-tuned", ALL, 72, -0.4, control="fine-tuned")


def write_sweeps(folder: Path, seed: int = 0, level: float = 0.0) -> Path:
    """pruning.csv, layouts/ and run.json of the two sweeps, over those of a run folder. level: BLEU above the usual."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Made(seed, level)
    made.add("full", "none", ALL, 72, 0)
    encoder_sweep(made)
    joint_sweep(made)
    del made.settings["full"]
    pd.DataFrame(made.rows, columns=list(MODEL_COLUMNS)).to_csv(folder / "pruning.csv", index=False)
    for name, mask in made.masks.items():
        mask.save(folder / "layouts" / f"{name}.json")
    path = folder / "run.json"
    facts = json.loads(path.read_text()) if path.is_file() else {}
    notes = {
        name: ["The decoder was frozen."]
        for name in made.settings
        if name.startswith("encoder.lambda")
    }
    notes["encoder.lambda-0.32"] = [
        *notes["encoder.lambda-0.32"],
        "20 % of the gates were still undecided.",
    ]
    chosen = {"chosen": "encoder.lambda-0.08", "settings": made.settings, "notes": notes}
    path.write_text(json.dumps({**facts, **chosen}, indent=1))
    return folder


def write_grid(folder: Path) -> Path:
    """Two language pairs of three seeds: one run is not begun, one has failed steps, one pair has one seed less."""
    places = [(data, seed) for data in ("en-de", "en-fr") for seed in (1, 2, 3)]
    runs = [{"folder": f"{data}/seed-{seed}", "data": data, "seed": seed} for data, seed in places]
    tables = []
    for data, seed in places[:-1]:
        write_sweeps(
            folder / data / f"seed-{seed}", seed, 0.3 * seed + (6 if data == "en-fr" else 0)
        )
        tables.append(pd.read_csv(folder / data / f"seed-{seed}" / "pruning.csv").assign(data=data))
    (folder / "en-de" / "seed-1" / "report.html").write_text("<p>the first run</p>")
    path = folder / "en-fr" / "seed-2" / "run.json"
    failed = {"prune/all.keep-3": "Traceback\n  File\nRuntimeError: <out of memory>"}
    path.write_text(json.dumps({**json.loads(path.read_text()), "failed": failed}))
    (folder / "grid.json").write_text(json.dumps({"name": "toy-grid", "runs": runs}))
    every = pd.concat(tables)
    means = every.groupby(["data", "setting", "measure"], as_index=False)["value"].agg(
        ["mean", "size"]
    )
    means = means[(means["size"] > 1) & means["measure"].str.contains("bleu")].rename(
        columns={"mean": "value"}
    )
    means.assign(low=means["value"] - 0.4, high=means["value"] + 0.4).to_csv(
        folder / "across.csv", index=False
    )
    return folder
