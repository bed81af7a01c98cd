"""Gates in a training loop of the user's own: plain PyTorch, or a Trainer of Hugging Face."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import distributed
from transformers.trainer_callback import TrainerCallback

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Kind
from headwise.core.layout import HeadMask
from headwise.core.options import Rule
from headwise.models.attention.backward import passing_gradients
from headwise.models.attention.capture import capture
from headwise.models.attention.offload import device_of
from headwise.models.model import Model
from headwise.pruning.gate_training import UNDECIDED
from headwise.pruning.gates import HardConcrete, HeadGates


class GatedLoop(TrainerCallback):
    """Hard Concrete gates on the heads of any model, in a loop of your own and with any loss.

    Inside the block every forward has gates: drawn where gradients are computed, deterministic elsewhere. `step()`,
    once after each update of the weights, adds the gradient of λ times the expected number of open gates, and updates
    the gates by an Adam of their own. Afterwards the model is as before, and `smaller()` gives the smaller one:

        with GatedLoop(model, penalty=0.01) as gates:
            for batch in batches:
                model.hf(**batch).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                gates.step()
        smaller = gates.smaller()

    It is also a callback of transformers, which steps by itself: `Trainer(model.hf, callbacks=[gates], ...).train()`
    inside the block. The Trainer's checkpoints do not hold the gates, so such a run cannot resume.

    Where a GradScaler scales the loss, `step(scaler)` comes before `scaler.update()`; a Trainer in half precision does
    that by itself. In several processes of torch.distributed each draws its own noise and has its own batches; `step`
    averages the gradients of the gates, as DistributedDataParallel averages those of the weights.

    penalty: λ, for a loss that is a mean over what is predicted. kinds: of which heads; all by default.
    """

    def __init__(
        self,
        model: Model,
        penalty: float,
        kinds: Sequence[Kind] | None = None,
        learning_rate: float = 0.05,
        temperature: float = 0.33,
        start: float = 3.0,
    ) -> None:
        heads = model.heads if kinds is None else model.heads.only(kinds)
        self.model, self.penalty = model, penalty
        self.gates = HeadGates(heads, HardConcrete(temperature), start).to(device_of(model.hf))
        self.optimizer = torch.optim.Adam(self.gates.parameters(), lr=learning_rate)
        self.block = ExitStack()

    def __enter__(self) -> Self:
        hf = self.model.hf
        self.block.enter_context(passing_gradients(hf))
        self.block.enter_context(capture(hf, self.model.discovery, gates=self.gates.by_site()))
        self.block.callback(hf.register_forward_pre_hook(self.draw).remove)
        return self

    def __exit__(self, *error: Any) -> None:
        self.block.close()

    def draw(self, *_: Any) -> None:
        # Evaluation inside the block runs without gradients, whatever mode the model is in.
        self.gates.train(torch.is_grad_enabled())
        self.gates.draw()

    def step(self, scaler: Any = None) -> None:
        """An update of the gates; in a run of several processes all of them must call it.

        scaler: the torch.amp.GradScaler that scaled the loss. It also scales the penalty, and leaves out the update
        where gradients of the gates overflowed. Without it such gradients raise HeadwiseError.
        """
        scales = scaler is not None and scaler.is_enabled()
        cost = self.penalty * self.gates.penalty()

        # Before the penalty's own gradient, which is the same in all processes.
        average_over_processes(self.gates.log_alpha)
        if scales:
            scaler.scale(cost).backward()
            scaler.step(self.optimizer)
        else:
            cost.backward()
            self.refuse_overflow()
            self.optimizer.step()
        self.optimizer.zero_grad()

    def refuse_overflow(self) -> None:
        """Raise HeadwiseError where the gates would become NaN."""
        gradient = self.gates.log_alpha.grad
        if gradient is not None and not bool(gradient.isfinite().all()):
            raise HeadwiseError(
                "The gradients of the gates are not all finite numbers, so the gates were not updated: the loss "
                "overflowed or is NaN. Where a GradScaler scales the loss, call step(scaler)."
            )

    def on_pre_optimizer_step(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
        """The step of a Trainer. optimizer: Accelerate's, which has the GradScaler of a run in half precision."""
        # Now, as Accelerate updates the GradScaler right after the step of the weights.
        self.step(getattr(optimizer, "scaler", None))

    @property
    def open(self) -> dict[Any, float]:
        """P(open) of every head now."""
        return self.gates.probabilities()

    def mask(self, rule: Rule = "sign") -> HeadMask:
        """The heads whose gates stay open."""
        return self.gates.mask(self.model.heads, self.gates.kept(rule))

    def smaller(self, rule: Rule = "sign") -> Model:
        """The model without the heads whose gates are shut. Warns where gates have not settled."""
        undecided = self.gates.undecided()
        if undecided > UNDECIDED:
            warnings.warn(
                f"The gates have not settled: {undecided:.0%} are still between 0.1 and 0.9, so which heads leave is "
                "nearly random. Train longer.",
                stacklevel=2,
            )
        return self.model.only(self.mask(rule))


def average_over_processes(parameter: torch.nn.Parameter) -> None:
    """Replace a parameter's gradient by its mean over all processes of torch.distributed, if there are several."""
    if not distributed.is_available() or not distributed.is_initialized():
        return
    # A process whose batch gave the gates no gradient takes part all the same: else the others would wait for ever.
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    distributed.all_reduce(parameter.grad)
    parameter.grad /= distributed.get_world_size()
