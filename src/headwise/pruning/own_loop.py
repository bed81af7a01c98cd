"""Gates in a training loop of the user's own: plain PyTorch, or a Trainer of Hugging Face."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self

import torch
from transformers.trainer_callback import TrainerCallback

from headwise.attention import capture, device_of
from headwise.heads import HeadMask, Kind
from headwise.model import Model
from headwise.options import Rule
from headwise.pruning.gates import HardConcrete, HeadGates


class GatedLoop(TrainerCallback):
    """Hard Concrete gates on the heads of any model, in a loop of your own and with any loss.

    Inside the block every forward has gates: drawn where gradients are computed, deterministic elsewhere. `step()`,
    once after each update of the weights, adds the gradient of λ times the expected number of open gates, and updates
    the gates by an Adam of their own. Afterwards the model is as before, and `remove()` gives the smaller one:

        with hw.GatedLoop(model, penalty=0.01) as gates:
            for batch in batches:
                model.hf(**batch).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                gates.step()
        smaller = gates.remove()

    It is a callback of transformers, too, which steps by itself: `Trainer(model.hf, callbacks=[gates], ...).train()`
    inside the block. The Trainer's checkpoints do not hold the gates, so such a run cannot resume.

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
        self.block.enter_context(capture(hf, self.model.found, gates=self.gates.by_site()))
        self.block.callback(hf.register_forward_pre_hook(self.draw).remove)
        return self

    def __exit__(self, *error: Any) -> None:
        self.block.close()

    def draw(self, *_: Any) -> None:
        self.gates.train(torch.is_grad_enabled())
        self.gates.draw()

    def step(self) -> None:
        """An update of the gates."""
        (self.penalty * self.gates.penalty()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.step()

    @property
    def open(self) -> dict[Any, float]:
        """P(open) of every head now."""
        return self.gates.probabilities()

    def mask(self, rule: Rule = "sign") -> HeadMask:
        """The heads whose gates stay open."""
        return self.gates.mask(self.model.heads, self.gates.kept(rule))

    def remove(self, rule: Rule = "sign") -> Model:
        """The model without the heads whose gates are shut."""
        return self.model.remove(self.mask(rule))
