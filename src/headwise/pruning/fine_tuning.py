"""Fine-tuning of a model that was cut: as long as a pruning run trains, but without gates."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headwise.attention.discover import same_gradients
from headwise.heads import HeadMask, Kind
from headwise.model import Model
from headwise.options import GateTraining, Greedy
from headwise.pruning.gate_training import trainable
from headwise.training.loss import dev_loss, loss_forward
from headwise.training.trainer import TrainingRun, average, train_model


@dataclass(frozen=True)
class Tuned:
    """A model pruned to a mask and fine-tuned.

    loss_before, loss_after: dev loss of the smaller model before and after fine-tuning. notes: for the report. cost:
    seconds and updates.
    """

    mask: HeadMask
    model: Model
    loss_before: float
    loss_after: float
    notes: list[str]
    cost: dict[str, float]


def tune(
    model: Model,
    training: TrainingRun,
    options: GateTraining | Greedy,
    kinds: tuple[Kind, ...],
    mask: HeadMask,
) -> Tuned:
    """Remove the heads outside `mask`, then fine-tune the smaller model as a pruning run does, but without gates.

    The number of updates, batches and their order, rates, schedule and averaging are the same; the decoder is frozen
    where only encoder heads are pruned. With the full mask it is the control `fine-tuned`. `model` does not change;
    resumes from `training.work`. training: as the full model was trained. options.train: what trains, all weights or
    low-rank changes.
    """
    model.heads.only(kinds)  # raises for a kind that the model does not have
    smaller = model.remove(mask, grow=True)  # the mask obeys the unit that was asked for
    hf = smaller.hf

    def loss() -> float:
        with loss_forward(hf):
            return dev_loss(hf, training.dev, model.tokenizer, training.recipe.batch_tokens)

    before = loss()
    tuning = replace(training, recipe=options.within(training.recipe))
    train = options.train or "all"
    with same_gradients(hf), trainable(hf, train, kinds, training.seed) as notes:
        cost = train_model(
            hf, model.tokenizer, smaller.discovery, tuning, keep=max(options.average, 2)
        )
        average(hf, training.work, options.average)
    hf.eval()
    return Tuned(mask, smaller, before, loss(), notes, cost)
