"""Train the model of a plan, and record what its encoder heads become.

    python examples/heads_in_training.py examples/six-layers.toml --out runs/six-layers-model

Every `--every` updates OUT/heads.csv gets these rows for each encoder head, measured on a copy of the model:

    positional   its share at each of the offsets -3 to 3 (Voita et al. 2019, section 5.1)
    syntactic    its best share over the dependencies, minus the baseline of that dependency (section 5.2)
    confidence   its mean largest weight (section 4)

The first two are on the first 300 sentences of the plan's treebank, confidence on the first 200 pairs of dev. `name` is
the offset or dependency, `role` is 1 where the head has it on both halves of the sentences.

A stopped run goes on when the command is given again. OUT/model is a folder of transformers: the plan's study takes it
with `--set model=OUT/model`. `--updates` ends early on the same schedule, to compare recipes by their first part.
`--embeddings 0.2` starts the source's embeddings at a fifth of their size, so that positions weigh more at first.
`--like FOLDER` trains only the heads that the pruned model in FOLDER has, from random weights: whether pruning beats
training the small model at once (Voita et al. 2019, table 2).
"""

from __future__ import annotations

import argparse
import copy
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers.trainer_callback import TrainerCallback

from headwise import Treebank, load, score
from headwise.core.errors import HeadwiseError
from headwise.core.folders import write_text
from headwise.core.options import Architecture
from headwise.core.progress import Progress, silent
from headwise.data.text import ParallelText
from headwise.models.model import Model
from headwise.models.training.tokenizer import learn_subwords
from headwise.models.training.trainer import TrainingSetup, converge
from headwise.models.training.translation_model import build_model
from headwise.roles.role import category
from headwise.roles.role_data import RoleTexts
from headwise.roles.role_tests import find_roles
from headwise.study.plan import read_plan

SENTENCES = 300
PAIRS = 200
KEY = ["kind", "layer", "head"]


class Recorder(TrainerCallback):
    """Writes what every encoder head does each `every` updates, measured on a copy of the model."""

    def __init__(
        self,
        model: Model,
        texts: RoleTexts,
        dev: ParallelText,
        every: int,
        last: int | None,
        file: Path,
    ) -> None:
        self.texts, self.dev, self.every, self.last, self.file = texts, dev, every, last, file
        self.copy = Model(copy.deepcopy(model.hf), model.tokenizer, model.name, model.layout)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step % self.every == 0:
            self.copy.hf.load_state_dict(model.state_dict())
            self.write(state)
        if state.global_step == self.last:
            control.should_training_stop = True

    def write(self, state: Any) -> None:
        rows = pd.concat([self.shares(), self.confidences()])
        losses = [entry["eval_loss"] for entry in state.log_history if "eval_loss" in entry]
        rows.insert(0, "step", state.global_step)
        rows.insert(1, "epoch", state.epoch)
        rows.insert(2, "dev_loss", losses[-1] if losses else None)
        if self.file.exists():
            before = pd.read_csv(self.file)
            before = before[before["step"] < state.global_step]  # a stopped run repeats the others
            rows = pd.concat([before, rows])
        write_text(self.file, rows.to_csv(index=False, float_format="%.5g"))

    def shares(self) -> pd.DataFrame:
        """The positional shares of every head, one for each offset, and its best syntactic share."""
        found = find_roles(self.copy, self.texts, intervals=False)
        table = found.table[found.table["kind"] == "encoder-self"].copy()
        table["class"] = table["measure"].map(category)
        roles = set(found.roles[[*KEY, "measure"]].itertuples(index=False, name=None))
        keys = table[[*KEY, "measure"]].itertuples(index=False, name=None)
        table["role"] = [int(key in roles) for key in keys]
        positional = table[table["class"] == "positional"]
        syntactic = table[table["class"] == "syntactic"].copy()
        syntactic["value"] -= syntactic["baseline"]
        best = syntactic.sort_values(["role", "value"]).groupby(KEY).tail(1).sort_values(KEY)
        both = pd.concat([positional, best]).rename(columns={"measure": "name"})
        return both[[*KEY, "class", "name", "value", "role"]]

    def confidences(self) -> pd.DataFrame:
        table = score(self.copy, self.dev, ["confidence"], progress=silent).table
        table = table[table["kind"] == "encoder-self"].copy()
        table["class"] = "confidence"
        table["name"] = "confidence"
        table["role"] = 0
        return table[[*KEY, "class", "name", "value", "role"]]


def first_pairs(text: ParallelText, folder: Path) -> ParallelText:
    """The first PAIRS pairs of a text, as two files in a folder."""
    files = (folder / "first.source", folder / "first.target")
    for file, side in zip(files, zip(*islice(text, PAIRS), strict=True), strict=True):
        write_text(file, "\n".join(side) + "\n")
    return ParallelText.open(files)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--every", type=int, default=250, help="updates between two records")
    parser.add_argument("--updates", type=int, metavar="N", help="stop after so many")
    parser.add_argument("--embeddings", type=float, default=1.0, metavar="SIZE")
    parser.add_argument("--like", metavar="FOLDER", help="a pruned model, whose heads alone train")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    try:
        plan = read_plan(given.plan, given.settings)
        layout = None if given.like is None else load(given.like).layout
    except HeadwiseError as error:
        parser.error(str(error))
    data = plan.data
    if (
        not isinstance(plan.model, Architecture)
        or data.train is None
        or data.dev is None
        or not plan.roles.treebank
    ):
        parser.error(
            f"{given.plan} must train a model of its own, and name train and dev text and a treebank"
        )
    if given.like is not None and (layout is None or layout.heads != plan.model.head_map):
        parser.error(f"--like {given.like}: give a model that was pruned, of the shape in the plan")
    given.out.mkdir(parents=True, exist_ok=True)
    text, dev = ParallelText.open(data.train), ParallelText.open(data.dev)
    tokenizer = learn_subwords((side for pair in text for side in pair), plan.model.vocabulary)
    model = Model(build_model(plan.model, tokenizer, plan.seed), tokenizer, plan.name)
    with torch.no_grad():
        model.hf.model.encoder.embed_tokens.weight.mul_(given.embeddings)
    if layout is not None:
        model = model.only(layout, grow=True)
    sentences = list(islice(Treebank.read(*plan.roles.treebank), SENTENCES))
    recipe, limit, progress = plan.training, plan.model.max_length, Progress()
    training = TrainingSetup(
        model.task.training_data(text, recipe.batch_tokens, given.out / "cache", limit),
        model.task.training_data(dev, recipe.batch_tokens, limit=limit),
        recipe,
        given.out / "work",
        plan.seed,
        progress,
    )
    recorder = Recorder(
        model,
        RoleTexts(sentences),
        first_pairs(dev, given.out),
        given.every,
        given.updates,
        given.out / "heads.csv",
    )
    with progress.bar("train"):
        facts = converge(model.hf, tokenizer, model.discovery, training, [recorder])
    model.save(given.out / "model")
    write_text(
        given.out / "facts.json",
        json.dumps(
            {**facts, "embeddings": given.embeddings, "plan": plan.model_dump(mode="json")},
            indent=1,
        )
        + "\n",
    )


if __name__ == "__main__":
    main()
