"""The results of a study: pruning.csv and run.json of a run, from what finished steps recorded, and tables over runs.

Only results whose key fits the plan as it is now are read, so no table mixes results of two plans.

Over several seeds, the quality of models of one setting is averaged, never which heads they kept: two trainings from
different seeds number their heads differently, so an overlap or a rank correlation of kept heads between seeds means
nothing, and none is computed. Only how many heads are kept can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
from sacrebleu.metrics.bleu import BLEU

from headwise.decoding.bleu import check_equal_count, scores_from_sums, sentence_statistics
from headwise.environment import environment_info
from headwise.errors import HeadwiseError
from headwise.files import below
from headwise.progress import Progress
from headwise.pruning.target_count import settle_share
from headwise.statistics import over_seeds, resamples
from headwise.study.evaluation_steps import Choose, MeasureSavings
from headwise.study.model_steps import FULL_MODEL, keeps_all, model_step
from headwise.study.plan import GateSweep, GreedySweep, Plan, TopKSweep
from headwise.study.records import Result, Store
from headwise.study.run import Run
from headwise.study.schedule import Schedule
from headwise.study.variants import (
    FULL,
    Variant,
    compared_variants,
    comparison_endings,
    model_controls,
)
from headwise.units import usual_unit

MEASURED = ("measure", "value", "low", "high")
COLUMNS = ("method", "kinds", "setting", "penalty", "seed", "kept", "total", *MEASURED)
SEED_COLUMNS = (
    "data",
    "method",
    "kinds",
    "setting",
    "penalty",
    "seeds",
    "kept",
    "kept_low",
    "kept_high",
    "total",
    "measure",
    "value",
    "low",
    "high",
)
SPLITS = {"": "test", "dev_": "dev"}
TO = "bleu_difference_to_"
MEASURES = ("bleu", "bleu_difference", *(f"{TO}{word}" for word in comparison_endings()))
GATE_FACTS = {
    "soft_loss": "soft_dev_loss",
    "decided_loss": "decided_dev_loss",
    "undecided": "undecided_gates",
    "expected": "expected_heads",
    "settled": "settled",
}
Row = tuple[str, float, float | None, float | None]


class Tables:
    """The tables of one run, by its schedule."""

    def __init__(self, run: Run, schedule: Schedule) -> None:
        self.run, self.schedule, self.plan = run, schedule, run.plan
        self.variants = schedule.variants()
        self.steps = {step.name: step for step in schedule.steps()}

    def result(self, name: str) -> Result:
        """The result of a step by its name; empty where it is not done."""
        step = self.steps.get(name)
        return (self.run.result(step) or {}) if step else {}

    def write(self) -> None:
        """Write pruning.csv, once the full model is evaluated, and run.json."""
        contents = {}
        if self.result(f"evaluate/dev/{FULL.name}"):
            contents["pruning.csv"] = self.pruning().to_csv(index=False, float_format="%.8g")
        contents["run.json"] = json.dumps(self.facts(), indent=1) + "\n"
        self.run.store.write_tables(contents)

    def pruning(self) -> pd.DataFrame:
        """One row a variant and measure; only variants that were evaluated."""
        plan, rows = self.plan, []
        every = list(dict.fromkeys(kind for sweep in plan.pruning for kind in sweep.kinds))
        for variant in (FULL, *self.variants):
            if not self.result(f"evaluate/dev/{variant.name}"):
                continue
            mask = self.run.mask(variant)
            kinds = every if variant == FULL else self.run.sweep(variant).kinds
            start = {
                "method": variant.method,
                "kinds": "+".join(kinds),
                "setting": variant.name,
                "penalty": variant.penalty,
                "seed": plan.seed,
                "kept": sum(mask.count(kind) for kind in kinds),
                "total": mask.heads.only(kinds).total,
            }
            rows += [
                {**start, **dict(zip(MEASURED, row, strict=True))} for row in self.values(variant)
            ]
        return pd.DataFrame(rows, columns=list(COLUMNS))

    def values(self, variant: Variant) -> Iterator[Row]:
        """Everything that was measured of one variant."""
        name, run = variant.name, self.run
        compared = compared_variants(self.plan.pruning, variant) if variant != FULL else {}
        for split, start in (("dev", "dev_"), ("test", "")):
            if found := self.result(f"evaluate/{split}/{name}"):
                yield from (
                    (start + measure, value, low, high)
                    for measure, value, low, high in found["rows"]
                )
                what = run.quality.change
                yield from difference_rows(found["against"], compared, start, what)
        for measure, value in (run.result(MeasureSavings(variant)) or {}).items():
            yield measure, value, None, None
        made = (run.result(model_step(variant)) or {}) if variant != FULL else {}
        for fact, measure in GATE_FACTS.items():
            if fact in made:
                yield measure, float(made[fact]), None, None
        if "updates" in made:
            yield "updates", made["updates"], None, None
            yield "seconds", run.store.record(model_step(variant).name)["seconds"], None, None
        if name in (speed := self.result("speed")):
            yield ("tokens_per_second", *speed[name])

    def facts(self) -> dict[str, Any]:
        """What run.json says: how every number of the run was made."""
        plan, run, info = self.plan, self.run, environment_info()
        trained, record = run.result(FULL_MODEL) or {}, run.store.record("train")
        models = {v.name: v for v in self.variants if run.result(model_step(v)) is not None}
        made = {name: run.result(model_step(variant)) or {} for name, variant in models.items()}
        signature = {
            "plan": plan.name,
            "seed": plan.seed,
            "model": record.get("key"),
            "train": trained.get("train"),
            "dev": trained.get("dev"),
            "kinds": list(dict.fromkeys(k for sweep in plan.pruning for k in sweep.kinds)),
            "device": record.get("device", run.device),
            "dtype": trained.get("dtype"),
            "machine": info["machine"],
            "engine": self.result(f"translate/dev/{FULL.name}").get("engine"),
        }
        return {
            "signature": signature,
            "versions": info["versions"],
            "threads": record.get("threads", info["threads"]),
            "seconds": {name: record["seconds"] for name, record in run.store.records().items()},
            "devices": sorted(
                {record["device"] for record in run.store.records().values() if "device" in record}
            ),
            **self.chosen(),
            "notes": {
                name: [*made[name]["notes"], *self.without_controls(variant)]
                for name, variant in models.items()
                if "notes" in made[name]
            },
            "doubts": {
                name: result["doubts"] for name, result in made.items() if result.get("doubts")
            },
            "settings": {name: self.described(variant) for name, variant in models.items()},
            "failed": dict(self.schedule.failed),
            **{
                name: found
                for name in ("score", "roles", "interactions")
                if (found := self.result(name))
            },
            **self.signatures(),
        }

    def signatures(self) -> dict[str, str]:
        """How scores were computed; those on dev are named so where they differ from those on test."""
        dev, test = (
            self.result(f"evaluate/{split}/{FULL.name}").get("signatures", {})
            for split in ("dev", "test")
        )
        found = {**dev, **test}
        for name, made in dev.items():
            if made != found[name]:
                found[f"dev_{name}"] = made
        return found

    def chosen(self) -> dict[str, Any]:
        """The choice, or what it would be by now."""
        step = self.steps["choose"]
        assert isinstance(step, Choose)
        return self.run.result(step) or step.choice(self.run)

    def without_controls(self, variant: Variant) -> list[str]:
        """A note on the controls that a variant does not have."""
        names = [str(other.control) for other in model_controls(self.run.sweep(variant), variant)]
        if variant.control or not names or not keeps_all(self.run, variant):
            return []
        return [
            f"No head is gone, so controls of it ({', '.join(names)}) would show nothing: none was made."
        ]

    def described(self, variant: Variant) -> dict[str, Any]:
        """What a variant is: facts that nobody has to read out of its name."""
        sweep = self.run.sweep(variant)
        ranking = variant.ranking
        greedy = sweep if isinstance(sweep, GreedySweep) else None
        gates = (
            sweep if isinstance(sweep, GateSweep | TopKSweep) and variant.control is None else None
        )
        heads = self.run.mask(variant).heads
        return {
            "sweep": sweep.name,
            "kinds": sweep.kinds,
            "unit": sweep.unit or usual_unit(heads.only(sweep.kinds)),
            "method": variant.method,
            "penalty": variant.penalty,
            "keep": variant.keep,
            "score": ranking.score if ranking else None,
            "ranking": ranking.name if ranking else None,
            "replicate": ranking.replicate if ranking else None,
            "control": variant.control,
            "reference": variant.reference.name if variant.reference else None,
            "tune": bool(greedy and greedy.tune),
            "compensate": bool(greedy and greedy.compensate),
            "settle": None
            if gates is None
            else (gates.settle or 0.0)
            if variant.keep is None
            else settle_share(gates),
            "against": compared_variants(self.plan.pruning, variant),
        }


def difference_rows(
    against: Mapping[str, Sequence[float]], compared: Mapping[str, str], start: str, what: str
) -> Iterator[Row]:
    """To the full model, and to the others a variant is compared with; of a control, how much its reference is above
    it. what: the measure, such as `bleu_difference`, or `perplexity_change` in %."""

    def turned(change: float) -> float:
        relative = what == "perplexity_change"
        return 100 * (1 / (1 + change / 100) - 1) if relative else -change

    for word, other in {"": FULL.name, **compared}.items():
        if other in against:
            value, low, high, p = against[other]
            if word == "pruned":
                value = turned(value)
                low, high = (low, high) if low is None else (turned(high), turned(low))
            ending = f"_to_{word}" if word else ""
            yield f"{start}{what}{ending}", value, low, high
            yield f"{start}p_value{ending}", p, None, None


def write_grid(plan: Plan, out: Path) -> None:
    """grid.json: the runs of a plan of several seeds or pairs; grid.csv: their tables; across.csv: means over seeds."""
    runs = [
        (folder.partition("/")[0] if plan.pairs else "", own.seed, folder)
        for folder, own in plan.runs.items()
    ]
    listed = [{"folder": folder, "data": data, "seed": seed} for data, seed, folder in runs]
    contents = {"grid.json": json.dumps({"name": plan.name, "runs": listed}, indent=1) + "\n"}
    known = [
        (data, seed, below(out, folder))
        for data, seed, folder in runs
        if (below(out, folder) / "pruning.csv").exists()
    ]
    if known:
        parts = [pd.read_csv(folder / "pruning.csv").assign(data=data) for data, _, folder in known]
        whole = pd.concat(parts, ignore_index=True)[["data", *COLUMNS]]
        contents["grid.csv"] = whole.to_csv(index=False, float_format="%.8g")
        contents["across.csv"] = seed_means(known).to_csv(index=False, float_format="%.8g")
    Store(out, Progress(quiet=True)).write_tables(contents)


@dataclass(frozen=True)
class SeedTable:
    """One run folder: the facts of its settings, the numbers of pruning.csv by setting and measure, and the models that
    each setting is compared with."""

    folder: Path
    settings: Mapping[str, Mapping[str, Any]]
    measured: Mapping[tuple[str, str], float]
    against: Mapping[str, Mapping[str, str]]

    def other(self, setting: str, measure: str) -> str | None:
        """The model that a difference of a setting is to."""
        if measure == "bleu_difference":
            return FULL.name
        return self.against.get(setting, {}).get(measure.removeprefix(TO))


def seed_means(runs: Sequence[tuple[str, int, Path]]) -> pd.DataFrame:
    """Means over the seeds of every setting that at least two runs of the same data have; columns SEED_COLUMNS.

    runs: data, seed and folder of each; folders without a pruning.csv are passed over, as are settings and measures
    that fewer than two runs have. Averaged are `bleu`, `bleu_difference` (to the full model), and the differences to
    all else that a model is compared with (`bleu_difference_to_pruned`, of a control: its reference minus it;
    `bleu_difference_to_fine-tuned` …), on test and on dev.
    value: the mean over the seeds. kept, kept_low, kept_high: mean and range of the heads kept. seeds: how many.

    low, high: a 95 % interval by a bootstrap on two levels. Every one of 1000 resamples draws as many seeds as there
    are, with replacement, and sentences: one draw for all models and seeds, which translated the same text, so that
    differences are paired and seeds do not pass for more sentences than there are. **Few seeds limit it**: with k seeds
    the spread between them comes out too small by the factor sqrt((k − 1)/k), 0.71 for two and 0.82 for three, and a
    spread estimated from two or three numbers is itself a guess. The interval says what these seeds and sentences
    allow, no more. Where one of the seeds lacks a translation there is a mean, and no interval.
    """
    by_data: dict[str, list[SeedTable]] = {}
    for data, _, folder in runs:
        found = read_seed_table(folder)
        if found is not None:
            by_data.setdefault(data, []).append(found)
    rows = [{"data": data, **row} for data, same in by_data.items() for row in setting_rows(same)]
    return pd.DataFrame(rows, columns=list(SEED_COLUMNS))


def read_seed_table(folder: Path) -> SeedTable | None:
    """What a run has measured so far; None where that is nothing."""
    try:
        table = pd.read_csv(folder / "pruning.csv", dtype={"setting": str, "kinds": str})
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        first = table.drop_duplicates("setting").set_index("setting")[
            ["method", "kinds", "penalty", "kept", "total"]
        ]
        table = table.dropna(subset=["value"])
        values = {
            (str(setting), str(measure)): float(value)
            for setting, measure, value in table[["setting", "measure", "value"]].itertuples(
                index=False, name=None
            )
        }
        against = {name: asked["against"] for name, asked in facts.get("settings", {}).items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise HeadwiseError(
            f"{folder} was to be averaged with other seeds, but its pruning.csv and run.json cannot be read "
            f"({type(error).__name__}: {error}): run this seed again."
        ) from None
    return SeedTable(
        folder, {str(name): dict(row) for name, row in first.iterrows()}, values, against
    )


def setting_rows(runs: Sequence[SeedTable]) -> Iterator[dict[str, Any]]:
    """The rows of one data set, setting by setting in the order of the runs."""
    texts = {start: ResampledBleu(split) for start, split in SPLITS.items()}
    for name in dict.fromkeys(name for run in runs for name in run.settings):
        for start, measure in product(SPLITS, MEASURES):
            same = [run for run in runs if (name, start + measure) in run.measured]
            if len(same) >= 2:
                yield seed_mean_row(
                    same,
                    name,
                    start + measure,
                    [texts[start].draws(run, name, measure) for run in same],
                )


def seed_mean_row(
    runs: Sequence[SeedTable], name: str, measure: str, draws: Sequence[np.ndarray | None]
) -> dict[str, Any]:
    """One setting and measure over the runs that have it. draws: of each the measure in every resample."""
    whole = [draw for draw in draws if draw is not None]
    low, high = over_seeds(np.stack(whole)) if len(whole) == len(runs) else (None, None)
    counted = runs[:1] if name == FULL.name else runs  # whose kinds are those of each seed's sweeps
    kept = [int(run.settings[name]["kept"]) for run in counted]
    return {
        **{key: runs[0].settings[name][key] for key in ("method", "kinds", "penalty", "total")},
        "setting": name,
        "seeds": len(runs),
        "kept": fmean(kept),
        "kept_low": min(kept),
        "kept_high": max(kept),
        "measure": measure,
        "value": fmean(run.measured[name, measure] for run in runs),
        "low": low,
        "high": high,
    }


class ResampledBleu:
    """BLEU of resampled sentences, by run and setting, of one split."""

    def __init__(self, split: str) -> None:
        self.split, self.metric = split, BLEU()
        self.weights = dict[int, np.ndarray]()
        self.known = dict[tuple[Path, str], np.ndarray | None]()

    def draws(self, run: SeedTable, setting: str, measure: str) -> np.ndarray | None:
        """A measure in every resample (1000); None where a translation is missing."""
        own = self.bleu(run, setting)
        if measure == "bleu" or own is None:
            return own
        name = run.other(setting, measure)
        other = None if name is None else self.bleu(run, name)
        if other is None:
            return None
        change: np.ndarray = other - own if measure == f"{TO}pruned" else own - other
        return change

    def bleu(self, run: SeedTable, setting: str) -> np.ndarray | None:
        """BLEU of one model in every resample."""
        key = (run.folder, setting)
        if key not in self.known:
            self.known[key] = self._bleu(below(run.folder / "translations", self.split), setting)
        return self.known[key]

    def _bleu(self, folder: Path, setting: str) -> np.ndarray | None:
        paths = [below(folder, f"{setting}.txt"), folder / "reference.txt"]
        if not all(path.is_file() for path in paths):
            return None
        lines, references = (
            path.read_text(encoding="utf-8").removesuffix("\n").split("\n") for path in paths
        )
        check_equal_count(lines, references)
        weights = self.weights.setdefault(len(lines), resamples(len(lines)))
        return scores_from_sums(
            self.metric, weights @ sentence_statistics(self.metric, lines, references)
        )
