"""The stages of a study, each a plain function of a plan and of what came before: train, score, prune, choose, speed, test.

Every choice is made on train and dev text; test text is opened by the last stage alone, once, for the numbers that are reported.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from accelerate import PartialState

from headwise.attention import discover
from headwise.data.text import ParallelText
from headwise.errors import HeadwiseError
from headwise.heads import HeadMask, Scores, write_text
from headwise.importance.confidence import confidence
from headwise.model import WEIGHTS, Model, load
from headwise.pruning.hard_concrete import prune_by_gates
from headwise.study.plan import Plan, Spec
from headwise.study.stage import Result, RunFolder, surroundings
from headwise.translation.batches import Encoded, batches
from headwise.translation.build import build
from headwise.translation.decode import translate
from headwise.translation.quality import difference, quality
from headwise.translation.subwords import learn_subwords
from headwise.translation.train import average, bfloat16, dev_loss, fit, loss_forward

FULL = "full"
COLUMNS = ("method", "kinds", "setting", "seed", "kept", "total", "measure", "value", "low", "high")


@dataclass
class Study:
    """A plan at work in a run folder."""

    plan: Plan
    run: RunFolder
    device: str = "cpu"

    def text(self, split: str) -> ParallelText:
        """One split of the parallel text, with a memory-mapped copy in the run folder."""
        cache = self.run.folder / ".work" / "text"
        if self.plan.data.embedded:
            from headwise.data.grammar import write_parallel

            folder = self.run.folder / "corpus"
            files = [folder / f"{split}.en", folder / f"{split}.fr"]
            count = getattr(self.plan.data.embedded, split)
            if not all(file.exists() for file in files) or sum(1 for _ in files[0].open()) != count:
                files = list(write_parallel(folder, split, count, self.plan.seed))
            return ParallelText.read(*files, cache=cache)
        spec: Spec | None = getattr(self.plan.data, split)
        if spec is None:
            raise HeadwiseError(f"The {split} text was asked for, but [data] in the plan names none.")
        return ParallelText.open(spec, cache=cache)

    @cached_property
    def train_text(self) -> ParallelText:
        return self.text("train")

    @cached_property
    def dev_text(self) -> ParallelText:
        return self.text("dev")

    @cached_property
    def full(self) -> Model:
        return load(self.run.folder / "model", self.device)

    def model(self, setting: str) -> Model:
        return self.full if setting == FULL else load(self.run.folder / "pruned" / setting, self.device)

    def encoded(self, model: Model, text: ParallelText) -> Encoded:
        return Encoded(text, model.tokenizer, longest(model))


def longest(model: Model) -> int:
    """The longest sentence, in tokens, that a model is given."""
    return min(int(model.hf.generation_config.max_length or 512), getattr(model.hf.config, "max_position_embeddings", 512))


def train(study: Study) -> Result:
    """Train the model of the plan, or take the given one; it comes to lie in model/."""
    plan, run = study.plan, study.run
    if isinstance(plan.model, str):
        given = plan.model
        inputs: dict[str, Any] = {"model": given}

        def take(work: Path) -> Result:
            model = load(given, study.device)
            model.save(run.folder / "model")
            return {"parameters": model.parameters, "given": given}

        return run.stage("model", inputs, take, ("model",))
    inputs = {"shape": plan.model.model_dump(), "recipe": plan.training.model_dump(), "seed": plan.seed,
              "train": study.train_text.fingerprint, "dev": study.dev_text.fingerprint}  # fmt: skip
    return run.stage("train", inputs, lambda work: train_model(study, work), ("model", "train/log.csv"))


def train_model(study: Study, work: Path) -> Result:
    """Learn subwords, train, average the last checkpoints if that lowers the dev loss, save."""
    plan, run = study.plan, study.run
    assert not isinstance(plan.model, str)
    text = study.train_text
    tokenizer = learn_subwords((side for pair in text for side in pair), plan.model.vocabulary)
    data = Encoded(text, tokenizer, plan.model.max_length, work / "ids")
    dev = Encoded(study.dev_text, tokenizer, plan.model.max_length)
    hf = build(plan.model, tokenizer, plan.seed).to(study.device)
    found = discover(hf)
    report = fit(
        hf, tokenizer, found, data, dev, plan.training, work, plan.seed, patience=plan.training.patience,
        keep=max(plan.training.average, 2), progress=run.progress,
    )  # fmt: skip
    with loss_forward(hf):
        last = dev_loss(hf, dev, tokenizer, plan.training.batch_tokens)
        averaged = average(hf, work, plan.training.average)
        mean = dev_loss(hf, dev, tokenizer, plan.training.batch_tokens)
        if mean > last:
            averaged = average(hf, work, 1)
    if PartialState().is_main_process:
        Model(hf, tokenizer, plan.name).save(run.folder / "model")
        (run.folder / "train").mkdir(exist_ok=True)
        shutil.copy(work / "log.csv", run.folder / "train" / "log.csv")
    return {
        **report, "dev_loss": min(mean, last), "averaged": averaged, "dropped": data.dropped, "pairs": len(data), "blank": text.blank,
        "dtype": "bf16" if bfloat16(plan.training.dtype) else "fp32",
    }  # fmt: skip


def score(study: Study) -> Result:
    """Confidence of every head on the dev text, as a tidy table."""
    run = study.run

    def make(work: Path) -> Result:
        save_confidence(study.full, study.encoded(study.full, study.dev_text), study.dev_text.fingerprint, run.folder / "heads.csv")
        return {}

    return run.stage("score", {"model": upstream(run), "dev": study.dev_text.fingerprint}, make, ("heads.csv",))


def save_confidence(model: Model, data: Encoded, text: str, path: Path) -> None:
    """Score a model and write heads.csv with its signature beside it."""
    table = score_confidence(model, data)
    signature = {"model": model.name, "text": text, "measures": ["confidence"], "exclude": "keyquery", "seed": 0, **surroundings()}
    Scores.of(table, signature).save(path)


def score_confidence(model: Model, data: Encoded) -> list[dict[str, Any]]:
    special = {i for i in model.tokenizer.all_special_ids if i != model.tokenizer.unk_token_id}
    stream = batches(data, model.tokenizer, model.hf.config.decoder_start_token_id)
    return confidence(model.hf, model.found, stream, special).rows("confidence")


def upstream(run: RunFolder) -> str:
    """The fingerprint of the model everything later is made from."""
    return run.made.get("train") or run.made["model"]


def setting_name(penalty: float) -> str:
    return f"lambda-{penalty:g}"


def prune(study: Study, penalty: float) -> Result:
    """One penalty of the sweep: gates, fine-tuning, decision, removal. Leaves layouts/, pruned/ and gates/."""
    plan, run, name = study.plan, study.run, setting_name(penalty)
    options = plan.pruning.model_dump(exclude={"penalties"})
    training = plan.training.model_dump(exclude={"epochs", "learning_rate", "warmup", "schedule", "patience", "average"})
    inputs = {"model": upstream(run), "penalty": penalty, "options": options, "training": training, "seed": plan.seed,
              "train": study.train_text.fingerprint, "dev": study.dev_text.fingerprint}  # fmt: skip

    def make(work: Path) -> Result:
        model = load(run.folder / "model", study.device)
        data = Encoded(study.train_text, model.tokenizer, longest(model), work / "ids")
        pruned = prune_by_gates(
            model, data, study.encoded(model, study.dev_text), penalty, tuple(plan.pruning.kinds), plan.pruning, plan.training, work,
            plan.seed, run.progress,
        )  # fmt: skip
        pruned.model.save(run.folder / "pruned" / name)
        pruned.mask.save(run.folder / "layouts" / f"{name}.json")
        (run.folder / "gates").mkdir(exist_ok=True)
        write_text(run.folder / "gates" / f"{name}.csv", (work / "gates.csv").read_text())
        for note in pruned.notes:
            run.progress.say(f"  {name}: {note}")
        return {"soft_loss": pruned.soft_loss, "decided_loss": pruned.decided_loss, "undecided": pruned.undecided, "notes": pruned.notes}

    return run.stage(f"prune/{name}", inputs, make, (f"layouts/{name}.json", f"pruned/{name}", f"gates/{name}.csv"))


def translate_split(study: Study, split: str, setting: str, text: ParallelText) -> list[str]:
    """The translations of a split by one model, kept as a file; the sources and references lie beside."""
    run, path = study.run, study.run.folder / "translations" / split / f"{setting}.txt"
    made = upstream(run) if setting == FULL else run.made[f"prune/{setting}"]
    inputs = {"model": made, "text": text.fingerprint, "search": study.plan.search.model_dump()}

    def make(work: Path) -> Result:
        model = study.model(setting)
        lines, cost = translate(model.hf, model.tokenizer, list(text.sources), study.plan.search, run.progress)
        write_lines(path, lines)
        return cost

    run.stage(f"translate/{split}/{setting}", inputs, make, (str(path.relative_to(run.folder)),))
    write_lines(path.with_name("source.txt"), text.sources)
    write_lines(path.with_name("reference.txt"), text.targets)
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def write_lines(path: Path, lines: Any) -> None:
    write_text(path, "".join(f"{line}\n" for line in lines))


def measure_speed(study: Study, settings: list[str]) -> Result:
    """Tokens per second of decoding: all models translate the same sentences in turn, a few rounds, so that a noisy machine hits all alike."""
    plan, run = study.plan, study.run
    sentences = list(study.dev_text.sources)[: plan.speed.sentences]

    def make(work: Path) -> Result:
        models = {setting: study.model(setting) for setting in settings}
        rates: dict[str, list[float]] = {setting: [] for setting in settings}
        for turn in range(plan.speed.rounds):
            for i, (setting, model) in enumerate(models.items()):
                rates[setting].append(translate(model.hf, model.tokenizer, sentences, plan.search)[1]["tokens_per_second"])
                run.progress((turn + (i + 1) / len(models)) / plan.speed.rounds, setting)
        return {setting: [float(np.median(values)), min(values), max(values)] for setting, values in rates.items()}

    made = {setting: run.made.get(f"prune/{setting}", upstream(run)) for setting in settings}
    return run.stage("speed", {"models": made, "speed": plan.speed.model_dump(), "search": plan.search.model_dump()}, make)


def choose(dev: Mapping[str, float], kept: Mapping[str, int], max_drop: float) -> str | None:
    """The setting with the fewest heads among those that lose at most `max_drop` BLEU on dev; None when all lose more."""
    good = [s for s in dev if s != FULL and dev[s] >= dev[FULL] - max_drop]
    return min(good, key=lambda s: (kept[s], -dev[s]), default=None)


class Table:
    """The rows of pruning.csv."""

    def __init__(self, study: Study, masks: Mapping[str, HeadMask]) -> None:
        self.study, self.masks = study, masks
        self.rows: list[dict[str, Any]] = []

    def add(self, setting: str, measure: str, value: float, low: float | None = None, high: float | None = None) -> None:
        kinds = self.study.plan.pruning.kinds
        mask = self.masks[setting]
        self.rows.append({
            "method": "none" if setting == FULL else "hard-concrete", "kinds": "+".join(kinds), "setting": setting, "seed": self.study.plan.seed,
            "kept": sum(mask.count(kind) for kind in kinds), "total": mask.heads.only(kinds).total, "measure": measure, "value": value,
            "low": low, "high": high,
        })  # fmt: skip

    def save(self, path: Path) -> None:
        write_text(path, pd.DataFrame(self.rows, columns=list(COLUMNS)).to_csv(index=False, float_format="%.8g"))


def add_size(table: Table, setting: str, model: Model, folder: Path) -> None:
    """What removal really saved: weights, bytes on disk, bytes in memory."""
    table.add(setting, "parameters", model.parameters)
    table.add(setting, "bytes", (folder / WEIGHTS).stat().st_size)
    table.add(setting, "memory", sum(p.numel() * p.element_size() for p in model.hf.parameters()))


def add_quality(table: Table, outputs: Mapping[str, list[str]], references: list[str], prefix: str = "") -> dict[str, str]:
    """BLEU, chrF and the paired difference to the full model, for every setting; returns the signatures."""
    signatures = {}
    for setting, lines in outputs.items():
        for score in quality(lines, references):
            table.add(setting, prefix + score.name, score.value, score.low, score.high)
            signatures[score.name] = score.signature
        if setting != FULL:
            change = difference(lines, outputs[FULL], references)
            table.add(setting, f"{prefix}bleu_difference", change.value, change.low, change.high)
            table.add(setting, f"{prefix}p_value", change.p)
    return signatures


def mean_loss(study: Study, setting: str) -> float:
    """Cross-entropy per token of one model on dev."""
    model = study.model(setting)
    with loss_forward(model.hf), torch.no_grad():
        return dev_loss(model.hf, study.encoded(model, study.dev_text), model.tokenizer, 4096)


Reporter = Callable[[Path], Path]
