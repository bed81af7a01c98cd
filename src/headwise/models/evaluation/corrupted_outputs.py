"""The outputs of heads for corrupted prompts, which patching puts into a forward of the clean ones."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Site
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import Discovery
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.output import run_layers
from headwise.models.tasks.objective import inputs_of


def corrupted_outputs(
    model: nn.Module, discovery: Discovery, batch: Mapping[str, Tensor]
) -> dict[Site, Tensor]:
    """The output of every head for the corrupted prompts of a batch, B Q H D by site.

    Raises HeadwiseError for a batch without `corrupted_ids`.
    """
    if "corrupted_ids" not in batch:
        raise HeadwiseError(
            "Patching takes outputs for corrupted prompts: give batches with 'corrupted_ids' B S beside 'input_ids'."
        )
    return outputs_of(model, discovery, swapped(batch))


def swapped(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A batch whose prompts are the corrupted ones of another, and the other way round. The rest is shared: both prompts
    have the same length."""
    ids = {"input_ids": batch["corrupted_ids"], "corrupted_ids": batch["input_ids"]}
    return {**batch, **ids}


def outputs_of(
    model: nn.Module, discovery: Discovery, batch: Mapping[str, Tensor]
) -> dict[Site, Tensor]:
    """The output of every head for a batch, B Q H D by site, in the order in which layers run."""
    outputs: dict[Site, Tensor] = {}

    def keep(call: AttentionCall) -> None:
        outputs[call.site] = call.output

    with torch.no_grad(), capture(model, discovery, hook=keep):
        run_layers(model, inputs_of(batch))
    return outputs
