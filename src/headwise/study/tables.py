"""The tables of a study: pruning.csv and run.json, from what the finished stages know; and the choice on dev."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.heads import HeadMask, write_text
from headwise.study.across import across
from headwise.study.plan import Plan
from headwise.study.stage import MADE, Result, RunFolder, surroundings
from headwise.study.stages import FULL, Study, WeightsGone
from headwise.study.sweep import Setting, held_against, twin_controls

COLUMNS = ("method", "kinds", "setting", "seed", "kept", "total", "measure", "value", "low", "high")
GATES = {
    "soft_loss": "soft_dev_loss",
    "decided_loss": "decided_dev_loss",
    "undecided": "undecided_gates",
    "expected": "expected_heads",
    "settled": "settled",
}
Row = tuple[str, float, float | None, float | None]


def mask_of(run: RunFolder, setting: str) -> HeadMask | None:
    """The layout of a setting; None where all heads stay."""
    path = run.folder / "layouts" / f"{setting}.json"
    return HeadMask.read(path) if path.exists() else None


def keeps_all(run: RunFolder, setting: str) -> bool:
    """Whether a model is made and lost no head: then there is nothing to hold it against, and no control of it."""
    mask = mask_of(run, setting) if run.finished(f"prune/{setting}") else None
    return mask is not None and len(mask) == mask.heads.total


def choose(dev: Mapping[str, float], kept: Mapping[str, int], max_drop: float | None) -> str | None:
    """The setting with the fewest heads of those that lose at most `max_drop` BLEU on dev (None: whatever they lose);
    None when all lose more."""
    good = [s for s in dev if s != FULL and (max_drop is None or dev[s] >= dev[FULL] - max_drop)]
    return min(good, key=lambda s: (kept[s], -dev[s]), default=None)


def choose_setting(study: Study, settings: Sequence[Setting]) -> Result:
    """The choice on dev among the models that are no controls; the chosen one is saved whole."""
    run, chosen, names = study.run, best(study, settings), known(study.run, settings)
    inputs = {"made": {name: run.key(f"quality/dev/{name}") for name in names}, **study.plan.choice.model_dump()}
    result = run.stage("choose", inputs, lambda work: {"chosen": chosen, "max_drop": study.plan.choice.limit})
    if not chosen:
        return result
    place = f"pruned/{chosen}"

    def save(work: Path) -> Result:
        study.model(chosen).save(work / MADE / place)
        return {}

    if place not in run.record(f"prune/{chosen}")["outputs"]:  # cut without training, so it was not saved yet
        with run.whole():
            run.stage("save", {"model": study.made(chosen)}, save, [place])
    elif not (run.folder / place).exists():
        raise WeightsGone(chosen)
    return result


def known(run: RunFolder, settings: Sequence[Setting]) -> list[str]:
    """What may be chosen: models evaluated by now, but controls and what random orders leave; and the full one."""
    sought = [s.name for s in settings if s.control is None and s.method != "greedy.random"]
    return [FULL, *(name for name in sought if run.record(f"quality/dev/{name}"))]


def best(study: Study, settings: Sequence[Setting]) -> str | None:
    """The choice among what is known by now."""
    names = known(study.run, settings)
    if not study.run.record(f"quality/dev/{FULL}"):
        return None
    bleu = {name: value_of(study.run, f"quality/dev/{name}", "bleu") for name in names}
    return choose(bleu, {name: len(study.mask(name)) for name in names}, study.plan.choice.limit)


def value_of(run: RunFolder, stage: str, measure: str) -> float:
    rows: list[Row] = run.record(stage)["result"]["rows"]
    return next(value for name, value, _, _ in rows if name == measure)


def timed(run: RunFolder, settings: Sequence[Setting]) -> list[str]:
    """The models whose speed is measured: the full one, those with gates, the narrower ones, and the chosen one."""
    chosen = run.record("choose").get("result", {}).get("chosen")
    some = [s.name for s in settings if s.name == chosen or (not s.greedy and s.control in (None, "narrower"))]
    names = [FULL, *(name for name in some if run.record(f"prune/{name}"))]
    places = {name: run.folder / ("model" if name == FULL else f"pruned/{name}") for name in names}
    return [name for name in names if not run.thin or places[name].exists()]  # none is trained again to be timed


def write(study: Study, settings: Sequence[Setting]) -> None:
    """pruning.csv and run.json, of all that is known by now."""
    run = study.run
    place = run.folder / "pruning.csv"
    if run.record(f"quality/dev/{FULL}"):
        write_text(place, table(study, settings).to_csv(index=False, float_format="%.8g"))
    else:
        place.unlink(missing_ok=True)
    write_text(run.folder / "run.json", json.dumps(facts(study, settings), indent=1) + "\n")


def conclude(study: Study, settings: Sequence[Setting]) -> None:
    """The last tables; where the plan keeps only the weights of the chosen model, those of the others go."""
    write(study, settings)
    if study.plan.weights == "chosen":
        chosen = study.run.record("choose")["result"]["chosen"]
        for folder in (study.run.folder / "pruned").glob("*"):
            if folder.name != chosen:
                shutil.rmtree(folder)


def table(study: Study, settings: Sequence[Setting]) -> pd.DataFrame:
    """One row a setting and measure, columns COLUMNS; only settings that were evaluated."""
    plan, rows = study.plan, []
    speed = study.run.record("speed").get("result", {})
    every = list(dict.fromkeys(kind for sweep in plan.pruning for kind in sweep.kinds))
    for setting in [None, *settings]:
        name = setting.name if setting else FULL
        if not study.run.record(f"quality/dev/{name}"):
            continue
        mask = study.mask(name)
        kinds = plan.pruning[setting.sweep].kinds if setting else every
        start = {
            "method": setting.method if setting else "none", "kinds": "+".join(kinds), "setting": name,
            "seed": plan.seed, "kept": sum(mask.count(kind) for kind in kinds), "total": mask.heads.only(kinds).total,
        }  # fmt: skip
        measured = [*values(study, setting), *(("tokens_per_second", *speed[name]) for _ in [0] if name in speed)]
        rows += [{**start, **dict(zip(COLUMNS[6:], row, strict=True))} for row in measured]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def values(study: Study, setting: Setting | None) -> Iterator[Row]:
    """Everything that was measured of one setting; of the full model without one."""
    run, name = study.run, setting.name if setting else FULL
    held = held_against(study.plan.pruning, setting) if setting else {}
    for split, start in (("dev", "dev_"), ("test", "")):
        if found := run.record(f"quality/{split}/{name}").get("result"):
            yield from ((start + measure, value, low, high) for measure, value, low, high in found["rows"])
            yield from differences(found["against"], held, start)
    for measure, value in run.record(f"measure/{name}").get("result", {}).items():
        yield measure, value, None, None
    made = run.record(f"prune/{name}").get("result", {}) if setting else {}
    for fact, measure in GATES.items():
        if fact in made:
            yield measure, float(made[fact]), None, None
    if "updates" in made:
        yield "updates", made["updates"], None, None
        yield "seconds", run.record(f"prune/{name}")["seconds"], None, None


def differences(against: Mapping[str, Sequence[float]], held: Mapping[str, str], start: str) -> Iterator[Row]:
    """To the full model, and to those of `held_against`; of a control how much its twin is above it."""
    for word, other in {"": FULL, **held}.items():
        if other in against:
            value, low, high, p = against[other]
            span = (-value, -high, -low) if word == "pruned" else (value, low, high)
            ending = f"_to_{word}" if word else ""
            yield (f"{start}bleu_difference{ending}", *span)
            yield f"{start}p_value{ending}", p, None, None


def facts(study: Study, settings: Sequence[Setting]) -> dict[str, Any]:
    """What run.json says: how every number of the run was made."""
    plan, run, made = study.plan, study.run, surroundings()
    trained = run.record("train").get("result", {})  # on texts that are not always those of today
    signature = {
        "plan": plan.name, "seed": plan.seed, "model": run.record("train").get("key"),
        "train": trained.get("train") or study.train_text.fingerprint,
        "dev": trained.get("dev") or study.dev_text.fingerprint,
        "kinds": list(dict.fromkeys(kind for sweep in plan.pruning for kind in sweep.kinds)),
        "device": study.device, "machine": made["machine"],
    }  # fmt: skip
    records = {s.name: run.record(f"prune/{s.name}").get("result", {}) for s in settings}
    told = {split: run.record(f"quality/{split}/{FULL}").get("result", {}) for split in ("dev", "test")}
    return {
        "signature": signature, "versions": made["versions"],
        "threads": run.record("train").get("threads", made["threads"]), "seconds": run.seconds(),
        **(run.record("choose").get("result") or {"chosen": best(study, settings), "max_drop": plan.choice.limit}),
        "notes": {
            s.name: [*records[s.name]["notes"], *left_out(run, plan, s)] for s in settings if "notes" in records[s.name]
        },
        "settings": {s.name: described(plan, s) for s in settings if records[s.name] or run.record(f"prune/{s.name}")},
        "failed": run.failures(), **told["dev"].get("signatures", {}),
    }  # fmt: skip


def left_out(run: RunFolder, plan: Plan, setting: Setting) -> list[str]:
    """A note on the controls that a setting does not have."""
    names = [str(twin.control) for twin in twin_controls(plan.pruning[setting.sweep], setting.sweep, setting)]
    if setting.control or not names or not keeps_all(run, setting.name):
        return []
    return [f"No head is gone, so controls of it ({', '.join(names)}) would show nothing: none was made."]


def described(plan: Plan, setting: Setting) -> dict[str, Any]:
    """What a setting is, in plain words for whoever reads the tables."""
    sweep = plan.pruning[setting.sweep]
    words = {key: value for key, value in asdict(setting).items() if key in ("method", "control", "of", "value")}
    return {
        **words, "sweep": sweep.name, "kinds": sweep.kinds, "order": setting.order, "tune": sweep.tune,
        "compensate": sweep.compensate, "against": held_against(plan.pruning, setting),
    }  # fmt: skip


def write_grid(plan: Plan, out: Path) -> None:
    """grid.json: which studies a plan of several seeds or pairs has; grid.csv: their tables; across.csv: means."""
    members = [
        (folder.partition("/")[0] if plan.pairs else "", own.seed, folder) for folder, own in plan.members.items()
    ]
    listed = [{"folder": folder, "data": data, "seed": seed} for data, seed, folder in members]
    write_text(out / "grid.json", json.dumps({"name": plan.name, "members": listed}, indent=1) + "\n")
    known = [(data, seed, out / folder) for data, seed, folder in members if (out / folder / "pruning.csv").exists()]
    if not known:
        for table in ("grid.csv", "across.csv"):
            (out / table).unlink(missing_ok=True)
        return
    parts = [pd.read_csv(folder / "pruning.csv").assign(data=data) for data, _, folder in known]
    whole = pd.concat(parts, ignore_index=True)[["data", *COLUMNS]]
    write_text(out / "grid.csv", whole.to_csv(index=False, float_format="%.8g"))
    write_text(out / "across.csv", across(known).to_csv(index=False, float_format="%.8g"))
