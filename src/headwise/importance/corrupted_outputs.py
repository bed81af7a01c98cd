"""The outputs of heads for corrupted prompts, which patching puts into a forward of the clean ones."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from headwise.attention import AttentionCall, Discovery, capture
from headwise.attention.output import run_layers
from headwise.errors import HeadwiseError
from headwise.heads import Site
from headwise.tasks.objective import inputs_of


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
    outputs: dict[Site, Tensor] = {}

    def keep(call: AttentionCall) -> None:
        outputs[call.site] = call.output

    # the rest of the batch is shared: both prompts have the same length
    inputs = {**inputs_of(batch), "input_ids": batch["corrupted_ids"]}
    with torch.no_grad(), capture(model, discovery, hook=keep):
        run_layers(model, inputs)
    return outputs
