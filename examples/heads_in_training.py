"""Train the model of a plan, and watch its encoder heads become positional.

    python examples/heads_in_training.py examples/six-layers.toml --out runs/six-layers-model

Every `--every` updates one line for each encoder head goes to OUT/positions.csv: at which offset from −3 to 3 its
strongest attention is most often, and for what share of the tokens (Voita et al. 2019, section 5.1), on the first 300
sentences of the plan's treebank. A stopped run goes on when the command is given again. OUT/model is a folder of
transformers: the plan's study takes it with `--set model=OUT/model`. `--updates` ends early on the same schedule, to
compare recipes by their first part.
"""

from __future__ import annotations

import argparse
import copy
import csv
import json
from itertools import islice
from pathlib import Path
from typing import Any

from transformers.trainer_callback import TrainerCallback

from headwise.data.subwords import Coverage
from headwise.data.text import ParallelText
from headwise.data.treebank import Treebank
from headwise.errors import HeadwiseError
from headwise.heads import write_text
from headwise.model import Model
from headwise.options import Architecture
from headwise.progress import Progress
from headwise.roles.halves import in_half
from headwise.roles.observation import PassageBatch, Subject, observe, treebank_batches
from headwise.roles.positional import OFFSETS, positional
from headwise.study.plan import read_plan
from headwise.training.tokenizer import learn_subwords
from headwise.training.trainer import TrainingRun, converge
from headwise.training.translation_model import build_model

SENTENCES = 300
COLUMNS = ("step", "epoch", "dev_loss", "layer", "head", "offset", "share")


class Watch(TrainerCallback):
    """Writes the share of every encoder head each `every` updates, measured on a copy of the model."""

    def __init__(
        self, model: Model, batches: list[PassageBatch], every: int, last: int | None, file: Path
    ) -> None:
        self.batches, self.every, self.last, self.file = batches, every, last, file
        self.copy = Model(copy.deepcopy(model.hf), model.tokenizer, model.name)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step % self.every == 0:
            self.write(state, model)
        if state.global_step == self.last:
            control.should_training_stop = True

    def write(self, state: Any, model: Any) -> None:
        self.copy.hf.load_state_dict(model.state_dict())
        observed = observe(
            self.copy.hf, self.copy.discovery, self.batches, {"encoder-self": [positional]}
        )
        answers = observed["encoder-self", 0]
        asked = answers.whole("counts").sum(0)[: len(OFFSETS)]
        losses = [entry["eval_loss"] for entry in state.log_history if "eval_loss" in entry]
        start = (state.global_step, f"{state.epoch:.3f}", f"{losses[-1]:.4f}" if losses else "")
        new = not self.file.exists()
        with self.file.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(COLUMNS)
            for layer in answers.layers:
                shares = answers.whole(layer).sum(0)[:, : len(OFFSETS)] / asked
                for head, best in enumerate(shares.argmax(1)):
                    writer.writerow(
                        (*start, layer, head, OFFSETS[best], f"{shares[head, best]:.4f}")
                    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--every", type=int, default=250, help="updates between two lines")
    parser.add_argument("--updates", type=int, metavar="N", help="stop after so many")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    try:
        plan = read_plan(given.plan, given.settings)
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
    given.out.mkdir(parents=True, exist_ok=True)
    text, dev = ParallelText.open(data.train), ParallelText.open(data.dev)
    tokenizer = learn_subwords((side for pair in text for side in pair), plan.model.vocabulary)
    model = Model(build_model(plan.model, tokenizer, plan.seed), tokenizer, plan.name)
    subject = Subject(model.hf, tokenizer, model.discovery)
    sentences = islice(Treebank.read(*plan.roles.treebank), SENTENCES)
    batches = list(treebank_batches(subject, in_half(0, sentences), Coverage()))
    recipe, limit, progress = plan.training, plan.model.max_length, Progress()
    training = TrainingRun(
        model.task.training_data(text, recipe.batch_tokens, given.out / "cache", limit),
        model.task.training_data(dev, recipe.batch_tokens, limit=limit),
        recipe,
        given.out / "work",
        plan.seed,
        progress,
    )
    watch = Watch(model, batches, given.every, given.updates, given.out / "positions.csv")
    with progress.bar("train"):
        facts = converge(model.hf, tokenizer, model.discovery, training, [watch])
    model.save(given.out / "model")
    write_text(
        given.out / "facts.json",
        json.dumps({**facts, "plan": plan.model_dump(mode="json")}, indent=1) + "\n",
    )


if __name__ == "__main__":
    main()
