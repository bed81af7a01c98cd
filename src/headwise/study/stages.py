"""A study at work in its folder, and its first stages: the trained model, and what its heads are worth.

A stage is a plain function of a plan and of what came before.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.attention import discover
from headwise.data.embedded import Split, write_parallel
from headwise.data.embedded import fingerprint as corpus_fingerprint
from headwise.data.text import ParallelText
from headwise.errors import HeadwiseError
from headwise.heads import HeadMap, HeadMask, save_scores, score_table, write_text
from headwise.importance.tally import Tally
from headwise.model import Model, load
from headwise.study.plan import Plan
from headwise.study.roles import counted
from headwise.study.scoring import SCALES, Job, balance_line, balance_table, jobs, judge, signed
from headwise.study.stage import MADE, Result, RunFolder, fingerprint
from headwise.study.stream import Stream
from headwise.translation.batches import Encoded
from headwise.translation.build import Architecture, build
from headwise.translation.subwords import learn_subwords
from headwise.translation.train import bfloat16, converge

FULL = "full"


class WeightsGone(HeadwiseError):
    """A model was asked for whose weights were taken away. setting: which."""

    def __init__(self, setting: str) -> None:
        super().__init__(f"The weights of {setting} are not there any more: run the study again to make them.")
        self.setting = setting


Row = dict[str, Any]


@dataclass
class Study:
    """A plan at work in a run folder."""

    plan: Plan
    run: RunFolder
    device: str = "cpu"

    @property
    def ids(self) -> Path:
        """Where memory-mapped texts and their pieces lie."""
        return self.run.folder / ".work" / "text"

    @cached_property
    def piece_counts(self) -> Mapping[int, int] | None:
        """How often each piece occurs in the source side of the training text."""
        return counted(self.full, self.train_text)

    def text(self, split: Split) -> ParallelText:
        """One split of the parallel text, with a memory-mapped copy in the run folder. Choices are made on train and
        dev; test is read for the numbers that are reported."""
        spec = self.draw(split) if self.plan.data.embedded else getattr(self.plan.data, split)
        return ParallelText.open(spec, cache=self.ids)

    def draw(self, split: Split) -> list[Path]:
        """Write one split of the embedded corpus."""
        count = getattr(self.plan.data.embedded, split)

        def make(work: Path) -> Result:
            if self.run.main:
                write_parallel(work / MADE / "corpus", split, count)
            return {}

        files = [f"corpus/{split}.en", f"corpus/{split}.fr"]
        self.run.stage(f"corpus/{split}", {"count": count, "corpus": corpus_fingerprint()}, make, files)
        return [self.run.folder / file for file in files]

    @cached_property
    def train_text(self) -> ParallelText:
        return self.text("train")

    @cached_property
    def dev_text(self) -> ParallelText:
        return self.text("dev")

    @cached_property
    def full(self) -> Model:
        return self.fresh()

    def fresh(self) -> Model:
        """The full model, to be trained on."""
        if not (self.run.folder / "model").exists():
            raise WeightsGone(FULL)
        return load(self.run.folder / "model", self.device)

    def model(self, setting: str) -> Model:
        """A model of the study; what was cut without any training is cut anew."""
        if setting == FULL:
            return self.full
        saved = f"pruned/{setting}"
        if saved not in self.run.record(f"prune/{setting}").get("outputs", []):
            return self.full.remove(self.mask(setting))
        if not (self.run.folder / saved).exists():
            raise WeightsGone(setting)
        return load(self.run.folder / saved, self.device)

    def mask(self, setting: str) -> HeadMask:
        """Which heads of the full model a setting keeps; all of them where it has no layout."""
        layout = self.run.folder / "layouts" / f"{setting}.json"
        return HeadMask.read(layout) if layout.exists() else HeadMask.full(self.heads)

    @property
    def heads(self) -> HeadMap:
        """The heads of the full model, as the stage that made it recorded them."""
        told = self.run.record("train")["result"]["heads"]
        return HeadMap(told["query"], told["key_value"])

    def made(self, setting: str) -> str:
        """What a model was made from, as a fingerprint."""
        return self.run.key("train" if setting == FULL else f"prune/{setting}")


def translator(model: Model) -> Model:
    """The model itself; raises HeadwiseError when it is none that translates."""
    kind = type(model.hf).__name__
    if not model.hf.config.is_encoder_decoder or not model.hf.can_generate():
        raise HeadwiseError(f"{model.name} is a {kind}, but a translation model (encoder and decoder) is needed here.")
    if model.tokenizer is None:
        raise HeadwiseError(f"{model.name} has no tokenizer beside its weights: save one there.")
    return model


def train(study: Study) -> Result:
    """Train the model of the plan, or take the given one; it comes to lie in model/."""
    plan, run = study.plan, study.run
    texts = {"train": study.train_text.fingerprint, "dev": study.dev_text.fingerprint}
    if isinstance(plan.model, str):
        given = plan.model

        def take(work: Path) -> Result:
            model = translator(load(given, study.device))
            if run.main:
                model.save(work / MADE / "model")
            return {"parameters": model.parameters, "heads": model.heads.to_json()}

        return run.stage("train", {"given": given, "files": files_of(given)}, take, ["model"])
    shape = plan.model
    inputs = {"shape": shape.model_dump(), "recipe": plan.training.model_dump(), "seed": plan.seed, **texts}
    return run.stage("train", inputs, lambda work: {**train_model(study, shape, work), **texts}, ["model", "train"])


def files_of(given: str) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a local model's files, so that a changed model is taken again."""
    folder = Path(given) / "model" if (Path(given) / "model").is_dir() else Path(given)
    facts = [(file.name, file.stat()) for file in sorted(folder.glob("*"))]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in facts]


def train_model(study: Study, shape: Architecture, work: Path) -> Result:
    """Learn subwords, train, average the last checkpoints if that lowers the dev loss, save."""
    recipe, seed, text = study.plan.training, study.plan.seed, study.train_text
    tokenizer = learn_subwords((side for pair in text for side in pair), shape.vocabulary)
    data = Encoded(text, tokenizer, shape.max_length, study.ids)
    dev = Encoded(study.dev_text, tokenizer, shape.max_length)
    hf = build(shape, tokenizer, seed).to(study.device)
    found = discover(hf)
    facts = converge(hf, tokenizer, found, data, dev, recipe, work, seed, study.run.progress)
    if study.run.main:
        Model(hf, tokenizer, study.plan.name).save(work / MADE / "model")
        write_text(work / MADE / "train" / "log.csv", (work / "log.csv").read_text())
        shutil.copytree(work / "runs", work / MADE / "train" / "tensorboard", dirs_exist_ok=True)
    return {
        **facts, "heads": found.heads.to_json(), "dropped": data.dropped, "pairs": len(data), "blank": text.blank,
        "dtype": "bf16" if bfloat16(recipe.dtype, hf.device.type) else "fp32",
    }  # fmt: skip


def score(study: Study) -> None:
    """Every measure of the plan on the dev text, a stage for each job; then the tables, and the judge's."""
    options, run = study.plan.scoring, study.run
    inputs = {"model": study.made(FULL), "dev": study.dev_text.fingerprint, "seed": study.plan.seed}
    asked = {"asked": fingerprint([inputs, options.model_dump(exclude={"pruned"})])}
    if run.thin and run.record("scored").get("result") == asked:
        return  # without a look at the model, whose weights may be gone
    model, stream = study.full, Stream(study.full, study.dev_text, run.progress)
    tallies, balances = dict[str, Tally](), dict[str, dict[str, float]]()
    rows, seconds = list[Row](), dict[str, float]()
    for job in jobs(model, stream, options.measures, study.plan.seed):
        folder = f"scores/{job.label}"
        result = run.stage(folder, {**inputs, "measures": job.measures}, partial(run_job, run, job), [folder])
        for name in result["measures"]:
            tallies[name] = Tally.read(run.folder / folder / f"{name}.npz", model.heads, SCALES.get(name))
        rows += result["rows"]
        balances |= {job.label: result["balance"]} if result["balance"] else {}
        seconds[job.label] = run.record(folder)["seconds"]
    measures = [*tallies, *(row["measure"] for row in rows)]
    signature = {**signed(model, stream, options.measures, measures, study.plan.seed), "seconds": seconds}

    def tables(work: Path) -> Result:
        if run.main:
            made = [row for name, tally in tallies.items() for row in tally.rows(name, study.plan.seed)]
            save_scores(score_table(made + rows, signature), work / MADE / "heads.csv")
            write_text(work / MADE / "lrp.csv", balance_table(balances).to_csv(index=False, float_format="%.6g"))
        return {}

    keys = {"made": [run.key(f"scores/{job}") for job in seconds]}
    run.stage("score", keys, tables, ["heads.csv", "heads.json", "lrp.csv"])
    if options.judge and "ablation.zero" in tallies:

        def verdict(work: Path) -> Result:
            found = judge(model, stream, tallies, options.random_orders, study.plan.seed)
            if run.main:
                for name in ("faithfulness", "curves"):
                    table: pd.DataFrame = getattr(found, name)
                    write_text(work / MADE / f"{name}.csv", table.to_csv(index=False, float_format="%.6g"))
            return {}

        orders = {**keys, "random_orders": options.random_orders}
        run.stage("judge", orders, verdict, ["faithfulness.csv", "curves.csv"])
    if run.thin:
        run.stage("scored", asked, lambda work: asked)


def run_job(run: RunFolder, job: Job, work: Path) -> Result:
    """One job of scoring: its tallies as files, the rest as its result."""
    made = job.make()
    for name, tally in made.tallies.items():
        tally.gather()
        if run.main:
            tally.save(work / MADE / "scores" / job.label / f"{name}.npz")
    (work / MADE / "scores" / job.label).mkdir(parents=True, exist_ok=True)
    if made.balance:
        run.progress.say(balance_line(job.label, made.balance))
    return {"measures": list(made.tallies), "rows": made.rows, "balance": dict(made.balance)}
