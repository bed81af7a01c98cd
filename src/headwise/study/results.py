"""The results of a study: pruning.csv and run.json of a run, from what finished steps recorded, and tables over runs.

Only results whose key fits the plan as it is now are read, so no table mixes results of two plans.

Over several seeds, the quality of models of one setting is averaged, never which heads they kept: two trainings from
different seeds number their heads differently, so an overlap or a rank correlation of kept heads between seeds means
nothing, and none is computed. Only how many heads are kept can be compared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from headwise.core.answers import Answers
from headwise.core.errors import HeadwiseError
from headwise.core.folders import Folder, below
from headwise.core.heads import Kind
from headwise.core.measured import SPLITS, ModelNumbers, numbers_by_setting
from headwise.core.qualities import AGREEMENT, BLEU, Number, QualityMeasure
from headwise.core.removal_units import usual_unit
from headwise.core.statistics import FEWEST_UNITS, over_seeds
from headwise.core.tables import ACROSS, GRID, MEASURED, MODELS
from headwise.models.environment import combined, environment_info
from headwise.pruning.target_count import settle_share
from headwise.study.evaluation_steps import (
    Choose,
    CompareOrders,
    MeasureSavings,
    read_translations,
    translation_file,
)
from headwise.study.model_steps import lost_no_head, model_step
from headwise.study.plan import GateSweep, GreedySweep, Plan, Sweep, TopKSweep
from headwise.study.records import OF_TABLES, StepResult
from headwise.study.run_context import RunContext
from headwise.study.schedule import Schedule
from headwise.study.variants import (
    FULL,
    Variant,
    comparison_names,
    comparison_references,
    model_controls,
)

# Facts of how a model was made, by split and measure.
TRAINING_FACTS = {
    "loss_before": ("dev", "loss_before_training"),
    "loss_after": ("dev", "loss_after_training"),
    "soft_loss": ("dev", "soft_loss"),
    "decided_loss": ("dev", "decided_loss"),
    "undecided": ("", "undecided_gates"),
    "expected": ("", "expected_heads"),
    "settled": ("", "settled"),
}


class Tables:
    """The tables of one run, by its schedule."""

    def __init__(self, run: RunContext, schedule: Schedule) -> None:
        self.run = run
        self.schedule = schedule
        self.plan = run.plan
        self.variants = schedule.variants
        self.steps = {step.name: step for step in schedule.steps()}

    def result(self, name: str) -> StepResult:
        """The result of a step by its name; empty where it is not done."""
        step = self.steps.get(name)
        return (step.result(self.run) or {}) if step else {}

    def model_result(self, variant: Variant) -> StepResult:
        """What the step that made a model recorded; empty where it is not done."""
        return model_step(variant).result(self.run) or {}

    def write(self) -> None:
        """Write pruning.csv, once the full model is evaluated, and run.json."""
        contents = {}
        if self.result(f"evaluate/dev/{FULL.name}"):
            contents["pruning.csv"] = MODELS.csv(self.pruning())
        contents["run.json"] = json.dumps(self.facts(), indent=1) + "\n"
        Folder(self.run.folder, record=OF_TABLES).publish(contents)

    @property
    def every_kind(self) -> list[Kind]:
        """The kinds of heads that any sweep may remove."""
        kinds: list[Kind] = []
        for sweep in self.plan.pruning:
            kinds += sweep.kinds
        return list(dict.fromkeys(kinds))

    def pruning(self) -> pd.DataFrame:
        """One row per variant and measure; only variants that were evaluated."""
        rows = []
        for variant in (FULL, *self.variants):
            if not self.result(f"evaluate/dev/{variant.name}"):
                continue
            mask = self.run.mask(variant)
            kinds = self.every_kind if variant == FULL else self.run.sweep(variant).kinds
            setting = {
                "method": variant.method,
                "kinds": "+".join(kinds),
                "setting": variant.name,
                "penalty": variant.penalty,
                "seed": self.plan.seed,
                # Of the kinds that a sweep may remove, not of the whole model.
                "kept": sum(mask.count(kind) for kind in kinds),
                "total": mask.heads.only(kinds).total,
            }
            for row in self.measured(variant).rows():
                rows.append(setting | dict(zip(MEASURED, row, strict=True)))
        return MODELS.of(rows)

    def measured(self, variant: Variant) -> ModelNumbers:
        """Everything that was measured of one variant."""
        run = self.run
        numbers = ModelNumbers()
        for split in ("dev", "test"):
            numbers.update(self.measured_on(split, variant))

        savings = MeasureSavings(variant).result(run) or {}
        for fact, value in savings.items():
            split, measure = ("dev", "loss") if fact == "dev_loss" else ("", fact)
            numbers[split, measure, ""] = Number(value)

        recorded = {} if variant == FULL else self.model_result(variant)
        for fact, (split, measure) in TRAINING_FACTS.items():
            if fact in recorded:
                numbers[split, measure, ""] = Number(float(recorded[fact]))
        # Time is a cost of training; that of a cut says nothing of the model.
        if "updates" in recorded:
            seconds = run.store.record(model_step(variant).name)["seconds"]
            numbers["", "updates", ""] = Number(recorded["updates"])
            numbers["", "seconds", ""] = Number(seconds)

        speed = self.result("speed")
        if variant.name in speed:
            numbers["", "tokens_per_second", ""] = Number(*speed[variant.name])
        return numbers

    def measured_on(self, split: str, variant: Variant) -> ModelNumbers:
        """The quality of one variant on a text, and its changes from other models."""
        numbers = ModelNumbers()
        evaluation = self.result(f"evaluate/{split}/{variant.name}")
        if not evaluation:
            return numbers
        own = AGREEMENT.name in evaluation["numbers"]
        quality = AGREEMENT if own else self.run.quality
        for measure, number in evaluation["numbers"].items():
            numbers[split, measure, ""] = Number(*number)
        # From what the plan compares, by the names of tables …
        compared = {} if variant == FULL else comparison_names(self.run.sweeps, variant)
        # … and with models of other orders, which only the choice brings.
        orders = self.result(f"orders/{split}/{variant.name}").get("against", {})
        against = {**evaluation["against"], **orders}
        compared |= {name: name for name in orders}
        for reference, change in changes_by_reference(against, compared, quality).items():
            numbers[split, quality.name, reference] = change
        return numbers

    def facts(self) -> dict[str, Any]:
        """What run.json says: how every number of the run was made."""
        records = self.run.store.records()
        full = self.model_result(FULL)
        environments = [r["environment"] for r in records.values() if "environment" in r]
        # Where the steps were done, which may be elsewhere than where this table is written.
        info = combined(environments or [environment_info()])
        training = records.get("train", {})
        choose = self.steps["choose"]
        assert isinstance(choose, Choose)
        facts: dict[str, Any] = {
            # What all numbers of the run were made from.
            "signature": {
                "plan": self.plan.name,
                "seed": self.plan.seed,
                "model": training.get("key"),
                "train": full.get("train"),
                "dev": full.get("dev"),
                "kinds": self.every_kind,
                "device": training.get("device", self.run.device),
                "dtype": full.get("dtype"),
                "machine": info["machine"],
                "kernel": info["kernel"],
                "threads": info["threads"],
                "engine": self.result(f"translate/dev/{FULL.name}").get("engine"),
            },
            "versions": info["versions"],
            "threads": info["threads"],
            "seconds": {name: record["seconds"] for name, record in records.items()},
            "devices": sorted({r["device"] for r in records.values() if "device" in r}),
            **(choose.result(self.run) or choose.choice(self.run)),
            "notes": {},
            "doubts": {},
            "settings": {},
            "failed": dict(self.schedule.failed),
            "sentences": {},
            "worse": {},
            "shared": self.run.shared,
        }
        for split in ("dev", "test"):
            if number := self.result(f"evaluate/{split}/{FULL.name}").get("sentences"):
                facts["sentences"][split] = number
        if doubts := self.result(f"evaluate/dev/{FULL.name}").get("doubts"):
            facts["doubts"][FULL.name] = doubts
        for variant in self.variants:
            recorded = model_step(variant).result(self.run)
            if recorded is None:
                continue
            if "notes" in recorded:
                facts["notes"][variant.name] = [*recorded["notes"], *self.without_controls(variant)]
            evaluated = self.result(f"evaluate/dev/{variant.name}")
            doubts = [*recorded.get("doubts", []), *evaluated.get("doubts", [])]
            if doubts:
                facts["doubts"][variant.name] = doubts
            worse = {
                split: rows
                for split in ("dev", "test")
                if (rows := self.result(f"evaluate/{split}/{variant.name}").get("worse"))
            }
            if worse:
                facts["worse"][variant.name] = worse
            facts["settings"][variant.name] = self.settings(variant)
        if attention := full.get("attention"):
            facts["attention"] = attention
        for name in ("score", "roles", "words", "interactions"):
            if result := self.result(name):
                facts[name] = result
        return {**facts, **self.bleu_signatures()}

    def bleu_signatures(self) -> dict[str, str]:
        """How translations were scored (sacreBLEU's signatures), by name; those of dev under a name of their own where
        they differ from those of test."""
        dev = self.result(f"evaluate/dev/{FULL.name}").get("signatures", {})
        test = self.result(f"evaluate/test/{FULL.name}").get("signatures", {})
        signatures = {**dev, **test}
        for name, signature in dev.items():
            if signature != signatures[name]:
                signatures[f"dev_{name}"] = signature
        return signatures

    def without_controls(self, variant: Variant) -> list[str]:
        """A note on the controls that a variant does not have."""
        controls = model_controls(self.run.sweep(variant), variant)
        if variant.control or not controls or not lost_no_head(self.run, variant):
            return []
        names = ", ".join(str(other.control) for other in controls)
        return [f"No head is gone, so controls of it ({names}) would show nothing: none was made."]

    def settings(self, variant: Variant) -> dict[str, Any]:
        """What a variant is: facts that nobody has to read out of its name."""
        sweep = self.run.sweep(variant)
        ranking = variant.ranking
        greedy = sweep if isinstance(sweep, GreedySweep) else None
        heads = self.run.mask(variant).heads
        orders = {}
        step = self.steps.get(f"orders/dev/{variant.name}")
        if isinstance(step, CompareOrders):
            for other, _ in step.others:
                assert other.ranking is not None
                orders[other.ranking.reference] = other.name
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
            "reference": variant.controlled_variant.name if variant.controlled_variant else None,
            "comparison": variant.only_for_comparison,
            "train": getattr(sweep, "train", None),
            "repair": bool(greedy and greedy.repair),
            "settle": share_after_decision(sweep, variant),
            "against": {**comparison_names(self.run.sweeps, variant), **orders},
            "best_other": self.result(f"orders/dev/{variant.name}").get("best"),
        }


def share_after_decision(sweep: Sweep, variant: Variant) -> float | None:
    """The share of the run, at its end, in which gates are decided; None of models without gates."""
    if variant.control is not None or not isinstance(sweep, GateSweep | TopKSweep):
        return None
    return settle_share(sweep, to_count=variant.keep is not None)


def changes_by_reference(
    against: Mapping[str, Sequence[Any]],
    compared: Mapping[str, str],
    quality: QualityMeasure,
) -> dict[str, Number]:
    """The changes of a model from the full one and from others; of a control, how much its reference is above it.

    against: the fields of a Number by the name of the other model. compared: those names by `reference`.
    """

    def reversed_change(value: float) -> float:
        """The change from the other model to this one, as that from this one to the other."""
        # A change in % is relative to another value each way: +25 % one way is −20 % back.
        if quality.relative:
            if value <= -100:  # the other value is too large for its share to be told from 0
                return math.inf
            return 100 * (1 / (1 + value / 100) - 1)
        return -value

    changes = {}
    for reference, name in {FULL.name: FULL.name, **compared}.items():
        if name not in against:
            continue
        value, low, high, *rest = against[name]
        if reference == "pruned":
            value = reversed_change(value)
            if low is not None:
                # The other way round the upper end is the lower one.
                low, high = reversed_change(high), reversed_change(low)
        changes[reference] = Number(value, low, high, *rest)
    return changes


def write_grid(plan: Plan, out: Path) -> None:
    """grid.json: the runs of a plan of several seeds or pairs; grid.csv: their tables; across.csv: means over seeds."""
    listed = []
    measured = []
    for folder, own in plan.runs.items():
        data = folder.partition("/")[0] if plan.languages else ""
        listed.append({"folder": folder, "data": data, "seed": own.seed})
        path = below(out, folder)
        if (path / "pruning.csv").exists():
            measured.append((data, own.seed, path))
    grid = {"name": plan.name, "runs": listed}
    contents = {"grid.json": json.dumps(grid, indent=1) + "\n"}

    if measured:
        tables = []
        for data, _, path in measured:
            tables.append(MODELS.read(below(path, MODELS.file)).assign(data=data))
        table = pd.concat(tables, ignore_index=True)[[*GRID.names]]
        contents[GRID.file] = GRID.csv(table)
        contents[ACROSS.file] = ACROSS.csv(seed_means(measured))
    Folder(out, record=OF_TABLES).publish(contents)


@dataclass(frozen=True)
class SeedRun:
    """The run of one seed, from its folder: the facts of its settings, their numbers, and the models that each is compared
    with."""

    folder: Path
    settings: Mapping[str, Mapping[str, Any]]
    numbers: Mapping[str, ModelNumbers]
    against: Mapping[str, Mapping[str, str]]
    resamples: dict[tuple[str, str], np.ndarray | None] = field(default_factory=dict)

    def bleu(self, setting: str, split: str, reference: str) -> float | None:
        """BLEU of a setting, or its change from another model; None where it was not measured."""
        numbers = self.numbers.get(setting)
        return None if numbers is None else numbers.of(BLEU.name, split, reference).value

    def resampled(self, setting: str, split: str, reference: str) -> np.ndarray | None:
        """The same in every resample (1000) of the sentences; None where a translation is missing."""
        own = self.resampled_bleu(setting, split)
        if not reference or own is None:
            return own
        models = {FULL.name: FULL.name, **self.against.get(setting, {})}
        other = self.resampled_bleu(models[reference], split) if reference in models else None
        if other is None:
            return None
        # A control has how far the pruned model is above it.
        change: np.ndarray = other - own if reference == "pruned" else own - other
        return change

    def resampled_bleu(self, setting: str, split: str) -> np.ndarray | None:
        key = (setting, split)
        if key not in self.resamples:
            answers = self.answers(setting, split)
            self.resamples[key] = None if answers is None else answers.drawn()
        return self.resamples[key]

    def answers(self, setting: str, split: str) -> Answers | None:
        """The translation of a split by one model, if it is there."""
        names = (setting, "reference")
        if all(below(self.folder, translation_file(split, name)).is_file() for name in names):
            return read_translations(self.folder, split, setting)
        return None


def seed_means(runs: Sequence[tuple[str, int, Path]]) -> pd.DataFrame:
    """Means over the seeds of every setting that at least two runs of the same data have; columns of ACROSS.

    runs: data, seed and folder of each; folders without a pruning.csv are passed over, as are settings and measures
    that fewer than two runs have. Averaged are `bleu` and its changes from the full model and all else that a model is
    compared with (of a control from `pruned`: the pruned model minus the control), on test and on dev.
    value: the mean over the seeds. kept, kept_low, kept_high: mean and range of the heads kept. seeds: how many.

    low, high: a 95 % interval by Student's t over seeds and over sentences (`over_seeds`). Resamples draw one set of
    sentences for all models and seeds, which translated the same text, so that differences are paired and seeds do not
    pass for more sentences than there are. With two or three seeds it is wide, as t is of so few. Where one of the
    seeds lacks a translation there is a mean, and no interval.
    """
    by_data: dict[str, list[SeedRun]] = {}
    for data, _, folder in runs:
        table = read_seed_run(folder)
        if table is not None:
            by_data.setdefault(data, []).append(table)
    rows = []
    for data, tables in by_data.items():
        for row in setting_rows(tables):
            rows.append({"data": data, **row})
    return ACROSS.of(rows)


def read_seed_run(folder: Path) -> SeedRun | None:
    """What a run has measured so far; None where that is nothing."""
    if not all(below(folder, name).is_file() for name in (MODELS.file, "run.json")):
        return None
    try:
        table = MODELS.read(below(folder, MODELS.file))
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        columns = ["method", "kinds", "penalty", "kept", "total"]
        first_rows = table.drop_duplicates("setting").set_index("setting")[columns]
        settings = {str(name): dict(row) for name, row in first_rows.iterrows()}
        numbers = numbers_by_setting(table)
        against = {name: model["against"] for name, model in facts.get("settings", {}).items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise HeadwiseError(
            f"{folder} was to be averaged with other seeds, but its pruning.csv and run.json cannot be read "
            f"({type(error).__name__}: {error}): run this seed again."
        ) from None
    return SeedRun(folder, settings, numbers, against)


def setting_rows(runs: Sequence[SeedRun]) -> Iterator[dict[str, Any]]:
    """The rows of one data set, setting by setting in the order of the runs."""
    settings = dict.fromkeys(name for run in runs for name in run.settings)
    references = ("", FULL.name, *comparison_references())
    for name, split, reference in product(settings, SPLITS, references):
        values = []
        measured = []
        draws = []
        for run in runs:
            value = run.bleu(name, split, reference)
            if value is not None:
                values.append(value)
                measured.append(run)
                draws.append(run.resampled(name, split, reference))
        if len(measured) < 2:
            continue
        low, high, units = None, None, None
        # Where a seed lacks a translation there is no interval.
        complete = [draw for draw in draws if draw is not None]
        answers = measured[0].answers(name, split)
        if answers is not None and len(complete) == len(measured):
            units = answers.units
            if units >= FEWEST_UNITS:
                low, high = over_seeds(np.array(values), np.stack(complete), units)
        mean = Number(fmean(values), low, high, units=units)
        (row,) = ModelNumbers({(split, BLEU.name, reference): mean}).rows()
        # The full model's kinds of heads are those of each seed's sweeps, so its counts do not compare between seeds.
        counted = measured[:1] if name == FULL.name else measured
        kept = [int(run.settings[name]["kept"]) for run in counted]
        setting = measured[0].settings[name]
        yield {
            **{fact: setting[fact] for fact in ("method", "kinds", "penalty", "total")},
            "setting": name,
            "seeds": len(measured),
            "kept": fmean(kept),
            "kept_low": min(kept),
            "kept_high": max(kept),
            **dict(zip(MEASURED, row, strict=True)),
        }
