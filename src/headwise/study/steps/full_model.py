"""The full model: trained, or taken from where the plan says."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.heads import write_text
from headwise.loading import load
from headwise.model import Model
from headwise.options import Architecture
from headwise.study.estimate import Estimate
from headwise.study.records import MADE, Result
from headwise.study.run import Run
from headwise.study.step import Step
from headwise.training.tokenizer import learn_subwords
from headwise.training.trainer import TrainingRun, bfloat16, converge
from headwise.training.translation_model import build_model


@dataclass(frozen=True)
class Train(Step, stage="train", names="train", shared=True, repeatable=True, costly=True):
    """Train the model of the plan, or copy the given one, to model/."""

    VERSION = 2  # smaller chunks of the loss add up in another order

    def needs(self, run: Run) -> list[Step]:
        return []

    def inputs(self, run: Run) -> dict[str, Any]:
        plan = run.plan
        if isinstance(plan.model, str):
            return {"given": plan.model, "files": files_of(plan.model)}
        return {
            "shape": plan.model.model_dump(),
            "recipe": run.training.model_dump(),
            "seed": plan.seed,
            "train": run.fingerprint("train"),
            "dev": run.fingerprint("dev"),
        }

    def outputs(self, run: Run) -> list[str]:
        return ["model"] if isinstance(run.plan.model, str) else ["model", "train"]

    def weights(self, run: Run) -> list[str]:
        return ["model"]

    def make(self, run: Run, work: Path) -> Result:
        shape = run.plan.model
        texts = {"train": run.fingerprint("train"), "dev": run.fingerprint("dev")}
        if isinstance(shape, Architecture):
            return {**train_full_model(run, shape, work), **texts}
        model = load(shape, run.device)
        model.task.check(run.text("train"))
        model.task.check_loss()
        if run.generates:
            model.task.check_generates()
        if run.main:
            model.save(work / MADE / "model")
        return {
            "parameters": model.parameters,
            "heads": model.heads.to_json(),
            "dtype": str(model.hf.dtype).removeprefix("torch."),
            **texts,
        }

    def seconds(self, run: Run, estimate: Estimate) -> float:
        return 0.0 if isinstance(run.plan.model, str) else estimate.training()


FULL_MODEL = Train()


def full_model(run: Run) -> Model:
    """The full model, made first where it is not there."""
    run.get_or_make(FULL_MODEL, whole=True)
    return run.full


def files_of(given: str) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a local model's files, so that a changed model is taken again."""
    folder = Path(given) / "model" if (Path(given) / "model").is_dir() else Path(given)
    facts = [(file.name, file.stat()) for file in sorted(folder.glob("*"))]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in facts]


def training(run: Run, model: Model, work: Path, limit: int | None = None) -> TrainingRun:
    """The train and dev texts as a model reads them (pairs of at most `limit` tokens), and how to train on them."""
    recipe = run.training
    data = model.task.training_data(run.text("train"), recipe.batch_tokens, run.cache, limit)
    dev = model.task.training_data(run.text("dev"), recipe.batch_tokens, limit=limit)
    return TrainingRun(data, dev, recipe, work, run.plan.seed, run.progress)


def train_full_model(run: Run, shape: Architecture, work: Path) -> Result:
    """Learn subwords, train, average the last checkpoints if that lowers the dev loss, save."""
    recipe, text = run.training, run.pairs("train")
    tokenizer = learn_subwords((side for pair in text for side in pair), shape.vocabulary)
    model = Model(
        build_model(shape, tokenizer, run.plan.seed).to(run.device), tokenizer, run.plan.name
    )
    how = training(run, model, work, shape.max_length)
    facts = converge(model.hf, tokenizer, model.discovery, how)
    if run.main:
        model.save(work / MADE / "model")
        write_text(work / MADE / "train" / "log.csv", (work / "log.csv").read_text())
        shutil.copytree(work / "runs", work / MADE / "train" / "tensorboard", dirs_exist_ok=True)
    return {
        **facts,
        "heads": model.heads.to_json(),
        "dropped": how.data.dropped,
        "pairs": len(how.data),
        "blank": text.blank,
        "dtype": "bf16" if bfloat16(recipe.dtype, run.device.partition(":")[0]) else "fp32",
    }
