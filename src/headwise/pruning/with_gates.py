"""Gates to one penalty or one target count, beside the weights, or apart: first gates, then the weights of what is left."""

from __future__ import annotations

from dataclasses import replace

from headwise.core.options import Gates, TopK, several
from headwise.core.progress import part
from headwise.models.attention.offload import refuse_offloaded
from headwise.models.model import Model
from headwise.models.training.trainer import TrainingSetup
from headwise.pruning.fine_tuning import tuned_further
from headwise.pruning.gate_training import Pruned, train_gates, updates_of
from headwise.pruning.gates import HardConcrete, PenaltyGates, glorot_uniform
from headwise.pruning.target_count import WITHIN, CountedGates, settle_share
from headwise.pruning.top_k import TopGates

APART = 0.5  # share of the progress of gates that is followed by training of the weights


def prune_by_training(model: Model, training: TrainingSetup, options: Gates | TopK) -> Pruned:
    """Train gates on the heads of the options' kinds beside the weights of `model`, in place, to the one penalty or target
    count of the options; or apart: first gates, then the weights of the smaller model. Resumes from `training.work`."""
    if options.train == "apart":
        refuse_offloaded(model.hf, "Training weights after gates (train = 'gates' trains none)")
        half = replace(training, progress=part(training.progress, 0.0, APART))
        pruned = prune_by_training(model, half, options.of_gates)
        rest = replace(
            training, work=training.work / "weights", progress=part(training.progress, APART, 1.0)
        )
        return tuned_further(pruned, rest, options)
    kinds = tuple(options.kinds or ())
    heads = model.heads.only(kinds)
    start = glorot_uniform(heads, training.seed) if options.start == "glorot" else options.start
    if isinstance(options, Gates) and options.penalty is not None:
        (penalty,) = several(options.penalty)
        pruned = train_gates(
            model,
            training,
            options,
            PenaltyGates(heads, options, start, penalty),
            settle_share(options, to_count=False),
        )
        for kind in kinds:
            if pruned.mask.count(kind) == 0:
                pruned.notes.append(
                    f"No {kind} head is left: λ is so large that only the residual connection remains."
                )
        return pruned

    (keep,) = several(options.keep)
    settle = settle_share(options, to_count=True)
    if isinstance(options, TopK):
        top = TopGates(heads, start, keep, settle, options.unit)
        return train_gates(model, training, options, top, settle)
    gates = CountedGates(heads, HardConcrete(options.temperature), start, keep, options.unit)
    pruned = train_gates(model, training, options, gates, settle)
    if gates.missed() <= WITHIN:
        return pruned
    # `missed` counts units, and the sentence is about heads.
    missed = gates.missed() * float(gates.heads_in.max())
    note = (
        f"The expected count was still {missed:.1f} heads away from the target count when the gates were decided, "
        f"so the order of log α chose the heads: {updates_of(training, options)} updates are too few. "
        "Train longer."
    )
    notes = [*pruned.notes, note]
    return replace(pruned, notes=notes, doubts=[*pruned.doubts, note])
