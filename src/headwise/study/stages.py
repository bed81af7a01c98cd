"""The stages of a study, each a plain function of a plan and of what came before.

Choices are made on train and dev text; test text is opened by the last stage alone, for the numbers that are reported.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from headwise.attention import discover
from headwise.data.grammar import Split, write_parallel
from headwise.data.lines import read_lines
from headwise.data.text import ParallelText
from headwise.errors import HeadwiseError
from headwise.heads import save_scores, score_table, write_text
from headwise.importance.tally import Tally
from headwise.model import WEIGHTS, Model, load
from headwise.pruning.hard_concrete import prune_by_gates
from headwise.study.plan import Plan, setting_name
from headwise.study.scoring import SCALES, Job, balance_line, balance_table, jobs, judge, signed
from headwise.study.stage import MADE, Result, RunFolder
from headwise.study.stream import Stream, longest
from headwise.translation.batches import Encoded
from headwise.translation.build import Architecture, build
from headwise.translation.decode import translate
from headwise.translation.subwords import learn_subwords
from headwise.translation.train import average, bfloat16, dev_loss, fit, loss_forward

FULL = "full"
Row = dict[str, Any]


@dataclass
class Study:
    """A plan at work in a run folder."""

    plan: Plan
    run: RunFolder
    device: str = "cpu"

    def text(self, split: Split) -> ParallelText:
        """One split of the parallel text, with a memory-mapped copy in the run folder."""
        spec = self.draw(split) if self.plan.data.embedded else getattr(self.plan.data, split)
        return ParallelText.open(spec, cache=self.run.folder / ".work" / "text")

    def draw(self, split: Split) -> list[Path]:
        """Write one split of the embedded corpus."""
        count = getattr(self.plan.data.embedded, split)

        def make(work: Path) -> Result:
            if self.run.main:
                write_parallel(work / MADE / "corpus", split, count, self.plan.seed)
            return {}

        files = [f"corpus/{split}.en", f"corpus/{split}.fr"]
        self.run.stage(f"corpus/{split}", {"count": count, "seed": self.plan.seed}, make, files)
        return [self.run.folder / file for file in files]

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

    def made(self, setting: str) -> str:
        """What a model was made from, as a fingerprint."""
        return self.run.made["train" if setting == FULL else f"prune/{setting}"]


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
            return {"parameters": model.parameters}

        return run.stage("train", {"given": given, "files": files_of(given)}, take, ["model"])
    shape = plan.model
    inputs = {"shape": shape.model_dump(), "recipe": plan.training.model_dump(), "seed": plan.seed, **texts}
    return run.stage("train", inputs, lambda work: train_model(study, shape, work), ["model", "train"])


def files_of(given: str) -> list[tuple[str, int, int]]:
    """Names, sizes and times of a local model's files, so that a changed model is taken again."""
    folder = Path(given) / "model" if (Path(given) / "model").is_dir() else Path(given)
    facts = [(file.name, file.stat()) for file in sorted(folder.glob("*"))]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in facts]


def train_model(study: Study, shape: Architecture, work: Path) -> Result:
    """Learn subwords, train, average the last checkpoints if that lowers the dev loss, save."""
    recipe, seed, text = study.plan.training, study.plan.seed, study.train_text
    tokenizer = learn_subwords((side for pair in text for side in pair), shape.vocabulary)
    data = Encoded(text, tokenizer, shape.max_length, work / "ids")
    dev = Encoded(study.dev_text, tokenizer, shape.max_length)
    hf = build(shape, tokenizer, seed).to(study.device)
    cost = fit(
        hf, tokenizer, discover(hf), data, dev, recipe, work, seed, patience=recipe.patience,
        keep=max(recipe.average, 2), progress=study.run.progress,
    )  # fmt: skip
    with loss_forward(hf):
        last = dev_loss(hf, dev, tokenizer, recipe.batch_tokens)
        averaged = average(hf, work, recipe.average)
        mean = dev_loss(hf, dev, tokenizer, recipe.batch_tokens)
        if mean > last:
            averaged = average(hf, work, 1)
    if study.run.main:
        Model(hf, tokenizer, study.plan.name).save(work / MADE / "model")
        write_text(work / MADE / "train" / "log.csv", (work / "log.csv").read_text())
        shutil.copytree(work / "runs", work / MADE / "train" / "tensorboard", dirs_exist_ok=True)
    return {
        **cost, "dev_loss": min(mean, last), "averaged": averaged, "dropped": data.dropped, "pairs": len(data),
        "blank": text.blank, "dtype": "bf16" if bfloat16(recipe.dtype, hf.device.type) else "fp32",
    }  # fmt: skip


def score(study: Study) -> Result:
    """Every measure of the plan on the dev text, a stage for each job; then the tables, and the judge's."""
    options, run = study.plan.scoring, study.run
    model, stream = study.full, Stream(study.full, study.dev_text, run.progress)
    inputs = {"model": study.made(FULL), "dev": study.dev_text.fingerprint, "seed": study.plan.seed}
    tallies, balances = dict[str, Tally](), dict[str, dict[str, float]]()
    rows, seconds = list[Row](), dict[str, float]()
    for job in jobs(model, stream, options.measures, study.plan.seed):
        folder = f"scores/{job.label}"
        result = run.stage(folder, {**inputs, "measures": job.measures}, partial(run_job, run, job), [folder])
        for name in result["measures"]:
            tallies[name] = Tally.read(run.folder / folder / f"{name}.npz", model.heads, SCALES.get(name))
        rows += result["rows"]
        balances |= {job.label: result["balance"]} if result["balance"] else {}
        seconds[job.label] = run.seconds[folder]
    measures = [*tallies, *(row["measure"] for row in rows)]
    signature = {**signed(model, stream, options.measures, measures, study.plan.seed), "seconds": seconds}

    def tables(work: Path) -> Result:
        if run.main:
            made = [row for name, tally in tallies.items() for row in tally.rows(name, study.plan.seed)]
            save_scores(score_table(made + rows, signature), work / MADE / "heads.csv")
            write_text(work / MADE / "lrp.csv", balance_table(balances).to_csv(index=False, float_format="%.6g"))
        return {}

    keys = {"made": [run.made[f"scores/{job}"] for job in seconds]}
    result = run.stage("score", keys, tables, ["heads.csv", "heads.json", "lrp.csv"])
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
    return result


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


def prune(study: Study, penalty: float) -> Result:
    """One penalty of the sweep: gates, fine-tuning, decision, removal. Leaves layouts/, pruned/ and gates/."""
    plan, run, name = study.plan, study.run, setting_name(penalty)
    options = plan.pruning.model_dump(exclude={"penalties"})
    training = plan.training.model_dump(
        exclude={"epochs", "learning_rate", "warmup", "schedule", "patience", "average"}
    )
    inputs = {"model": study.made(FULL), "penalty": penalty, "options": options, "training": training,
              "seed": plan.seed, "train": study.train_text.fingerprint, "dev": study.dev_text.fingerprint}  # fmt: skip
    outputs = [f"layouts/{name}.json", f"pruned/{name}", f"gates/{name}.csv"]

    def make(work: Path) -> Result:
        model = load(run.folder / "model", study.device)
        data = Encoded(study.train_text, model.tokenizer, longest(model), work / "ids")
        dev = Encoded(study.dev_text, model.tokenizer, longest(model))
        pruned = prune_by_gates(
            model, data, dev, penalty, tuple(plan.pruning.kinds), plan.pruning, plan.training, work, plan.seed,
            run.progress,
        )  # fmt: skip
        if run.main:
            pruned.mask.save(work / MADE / outputs[0])
            pruned.model.save(work / MADE / outputs[1])
            write_text(work / MADE / outputs[2], (work / "gates.csv").read_text())
        for note in pruned.notes:
            run.progress.say(f"  {name}: {note}")
        losses = {"soft_loss": pruned.soft_loss, "decided_loss": pruned.decided_loss}
        return {**pruned.cost, **losses, "undecided": pruned.undecided, "notes": pruned.notes}

    return run.stage(f"prune/{name}", inputs, make, outputs)


def translate_split(study: Study, split: Split, setting: str, text: ParallelText) -> list[str]:
    """The translations of a split by one model, kept as a file; the sources and references lie beside."""
    place = f"translations/{split}"
    search = study.plan.search
    inputs = {"model": study.made(setting), "text": text.fingerprint, "search": search.model_dump()}

    def make(work: Path) -> Result:
        model = study.model(setting)
        lines, cost = translate(model.hf, model.tokenizer, list(text.sources), search, study.run.progress)
        for name, side in ((setting, lines), ("source", text.sources), ("reference", text.targets)):
            write_lines(work / MADE / place / f"{name}.txt", side)
        return cost

    outputs = [f"{place}/{name}.txt" for name in (setting, "source", "reference")]
    study.run.stage(f"translate/{split}/{setting}", inputs, make, outputs)
    return list(read_lines(study.run.folder / outputs[0]))


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """A sentence a line; what would end a line inside a sentence becomes a blank."""
    write_text(path, "".join(" ".join(line.splitlines()) + "\n" for line in lines))


def measure(study: Study, setting: str) -> dict[str, float]:
    """What removal saves in weights, on disk and in memory, and what it costs in dev loss."""
    folder = study.run.folder / ("model" if setting == FULL else f"pruned/{setting}")

    def make(work: Path) -> Result:
        model = study.model(setting)
        dev = Encoded(study.dev_text, model.tokenizer, longest(model))
        with loss_forward(model.hf):
            loss = dev_loss(model.hf, dev, model.tokenizer, 4096)
        memory = sum(p.numel() * p.element_size() for p in model.hf.parameters())
        size = (folder / WEIGHTS).stat().st_size
        return {"dev_loss": loss, "parameters": model.parameters, "bytes": size, "memory": memory}

    inputs = {"model": study.made(setting), "dev": study.dev_text.fingerprint}
    return study.run.stage(f"measure/{setting}", inputs, make)


def measure_speed(study: Study, settings: list[str]) -> dict[str, list[float]]:
    """Tokens per second of decoding (median, least, most): all models write equally many tokens for the same sentences,
    in turn, a few rounds, so that a noisy machine and longer translations hit all alike.
    """
    plan, run = study.plan, study.run
    sentences = list(study.dev_text.sources)[: plan.speed.sentences]

    def make(work: Path) -> Result:
        models = {setting: study.model(setting) for setting in settings}
        rates: dict[str, list[float]] = {setting: [] for setting in settings}
        for turn in range(plan.speed.rounds):
            in_turn = list(models.items())[:: -1 if turn % 2 else 1]  # no model always goes first
            for i, (setting, model) in enumerate(in_turn):
                cost = translate(model.hf, model.tokenizer, sentences, plan.search, exactly=plan.speed.tokens)[1]
                rates[setting].append(cost["tokens_per_second"])
                run.progress((turn + (i + 1) / len(models)) / plan.speed.rounds, setting)
        return {setting: [float(np.median(values)), min(values), max(values)] for setting, values in rates.items()}

    inputs = {"models": [study.made(setting) for setting in settings], "dev": study.dev_text.fingerprint}
    return run.stage("speed", {**inputs, "speed": plan.speed.model_dump(), "search": plan.search.model_dump()}, make)
