"""A tiny trained model that the tests of pruning copy and prune, with its data."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headwise.core.heads import Kind
from headwise.core.options import Architecture, Gates, Keep, Training
from headwise.data import embedded
from headwise.data.text import ParallelText
from headwise.models.attention.discover import discover
from headwise.models.model import Model
from headwise.models.training.loss import dev_loss, loss_forward
from headwise.models.training.token_batches import Encoded
from headwise.models.training.tokenizer import learn_subwords
from headwise.models.training.trainer import TrainingSetup, train_model
from headwise.models.training.translation_model import build_model
from headwise.pruning.gate_training import Pruned
from headwise.pruning.with_gates import prune_by_training

SIZES = {"heads": 4, "width": 32, "feedforward": 32, "dropout": 0.1, "vocabulary": 300}
SHAPE = Architecture(encoder_layers=2, decoder_layers=2, **SIZES)
TRAINING = Training(epochs=3, batch_tokens=1260, learning_rate=3e-3, warmup=10, dtype="float32")
GATES = Gates(epochs=2, gate_learning_rate=0.7, warmup=2)
ENCODER: tuple[Kind, ...] = ("encoder-self",)


@dataclass
class Bench:
    """A trained model that tests copy, with its data."""

    model: Model
    data: Encoded
    dev: Encoded

    def training(self, work: Path, recipe: Training = TRAINING, seed: int = 5) -> TrainingSetup:
        return TrainingSetup(self.data, self.dev, recipe, work, seed)

    def prune(
        self,
        work: Path,
        penalty: float,
        kinds: tuple[Kind, ...] = ENCODER,
        model: Model | None = None,
        **changes: Any,
    ) -> tuple[Model, Pruned]:
        """The tuned model, and the result."""
        model = model or copy.deepcopy(self.model)
        options = GATES.model_copy(update={"penalty": penalty, "kinds": kinds, **changes})
        return model, prune_by_training(model, self.training(work), options)

    def keep(
        self,
        work: Path,
        keep: Keep,
        kinds: tuple[Kind, ...] = ENCODER,
        model: Model | None = None,
        **changes: Any,
    ) -> tuple[Model, Pruned]:
        """The same with a target count."""
        model = model or copy.deepcopy(self.model)
        options = GATES.model_copy(update={"epochs": 8, "keep": keep, "kinds": kinds, **changes})
        return model, prune_by_training(model, self.training(work), options)

    def loss(self, model: Model) -> float:
        with loss_forward(model.hf):
            return dev_loss(model.hf, self.dev, 1260)


def trained(work: Path) -> Bench:
    """The model, trained for a second or two in `work`."""
    torch.set_num_threads(1)
    pairs = embedded.pairs("train", 160)
    dev = embedded.pairs("dev", 20)
    tokenizer = learn_subwords((side for pair in pairs for side in pair), SHAPE.vocabulary)
    data, held_out = (
        Encoded(ParallelText.from_pairs(part), tokenizer, SHAPE.max_length) for part in (pairs, dev)
    )
    hf = build_model(SHAPE, tokenizer, seed=1)
    train_model(hf, tokenizer, discover(hf), TrainingSetup(data, held_out, TRAINING, work))
    return Bench(Model(hf, tokenizer, "tiny"), data, held_out)
