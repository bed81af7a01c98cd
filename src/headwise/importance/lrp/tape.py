"""A tape of one forward pass: all operations between embeddings and logits, recorded while the model runs unmodified.

`Walk(tape, rule, ...)` then propagates relevance back, any number of times. An attention layer is one step, because
`attention.kernel.attend` can be overridden like torch's own functions; so are norm and activation modules, by hooks.
Operations on masks and positions carry no relevance and are not recorded. An operation without a rule is an error only
when relevance reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Site
from headwise.importance.lrp.attention import Attention
from headwise.importance.lrp.operations import NEW_TENSORS, composite, step_for
from headwise.importance.lrp.rules import Rule
from headwise.importance.lrp.steps import (
    Addition,
    LayerNorm,
    RecordedOperation,
    RootMeanSquareNorm,
    absolute_relevance,
)
from headwise.models.attention.kernel import AttentionCall, attend


@dataclass
class Record:
    """A step of the tape, with the numbers of its input and output tensors. `step` is None without a rule."""

    step: RecordedOperation | None
    inputs: tuple[int, ...]
    output: int
    name: str


@dataclass
class Block:
    """A residual block in the walk: the relevance that entered at its addition, and that left it beside its skip."""

    skip: int
    start: Tensor
    leaks: list[Tensor] = field(default_factory=list)


class Tape(TorchFunctionMode):
    """Records a forward pass. `sites`: the tensor number of every attention layer's output (B Q H D); `sound`: whether
    it has finite numbers only."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Record] = []
        self.tensors: list[Tensor] = []  # kept alive, so that no id is used twice
        self.versions: list[int] = []  # torch's version of each when it got its number
        self.numbers: dict[int, int] = {}
        self.leaves: set[int] = set()
        self.sites: dict[Site, int] = {}
        self.sound: dict[Site, Tensor] = {}
        self.shown: AttentionCall | None = None
        self.inside = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # inside a module that is one step, its operations are not steps of their own
        if self.inside:
            return func(*args, **kwargs)
        if func is attend:
            return self.attention(args, kwargs)
        out = func(*args, **kwargs)
        name = func.__name__
        # ids carry no relevance: the walk ends at the vectors that they look up
        if name == "embedding":
            self.track(out)
        elif name == "__setitem__":  # what was written into is another tensor now
            self.record(func, args, kwargs, args[0])
        elif not name.startswith(NEW_TENSORS[1]) and not name.endswith(NEW_TENSORS[0]):
            self.record(func, args, kwargs, out)
        return out

    def track(self, tensor: Tensor) -> Tensor:
        """Make a tensor a leaf, where relevance arrives."""
        self.leaves.add(self.number(tensor))
        return tensor

    def number(self, tensor: Tensor) -> int:
        """Give a tensor a new number."""
        self.tensors.append(tensor)
        self.versions.append(tensor._version)
        self.numbers[id(tensor)] = len(self.tensors) - 1
        return len(self.tensors) - 1

    def carried(self, values: Any) -> Iterator[Tensor]:
        """The tensors among arguments that carry relevance."""
        for value in values:
            if isinstance(value, Tensor) and id(value) in self.numbers:
                yield value
            # torch.cat and torch.stack take their tensors in a list
            elif isinstance(value, list | tuple):
                yield from self.carried(value)

    def record(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Record a torch function if its inputs and outputs carry relevance."""
        carried = tuple(self.carried((*args, *kwargs.values())))
        # masks, positions and constants: nothing behind them is worth following
        if not carried:
            return
        # chunk, split and unbind give several tensors: each is a step
        outputs = out if isinstance(out, list | tuple) else [out]
        for i, output in enumerate(outputs):
            if (
                isinstance(output, Tensor)
                and output.is_floating_point()
                and id(output) not in self.numbers
            ):
                step = step_for(func, args, kwargs, carried, output, None if output is out else i)
                self.note(step, carried, output, func.__name__)
            elif func.__name__ == "__setitem__" or (
                func.__name__.endswith("_") and "__" not in func.__name__
            ):
                self.note(
                    None, carried, output, func.__name__
                )  # x.add_(y): x is another tensor now

    def note(
        self, step: RecordedOperation | None, carried: Sequence[Tensor], output: Tensor, name: str
    ) -> None:
        inputs = tuple(self.numbers[id(tensor)] for tensor in carried)
        self.records.append(Record(step, inputs, self.number(output), name))

    def attention(self, args: Any, kwargs: Any) -> Any:
        """Record an attention layer as one step."""
        self.shown = None
        out = attend(*args, **kwargs)
        call: AttentionCall | None = self.shown
        # the hook of `capture` runs only at layers of the map
        if call is None:
            raise HeadwiseError(
                f"An attention layer ({type(args[0]).__name__}) is not in the map of heads, so relevance would be lost "
                "there: discover all heads of the model."
            )
        assert call.weights is not None
        # a query or a key may be a constant, such as a learned query
        carried = tuple(place for place in range(3) if id(args[1 + place]) in self.numbers)
        if 2 not in carried:
            raise HeadwiseError(
                f"The values of {call.site} come from an operation that relevance propagation cannot follow: "
                "headwise cannot score this model by it."
            )
        # one number a site: the walk asks once for the relevance of a layer
        if call.site in self.sites:
            raise HeadwiseError(
                f"{call.site} ran more than once in one forward: discover the heads again."
            )
        self.sound[call.site] = out[0].isfinite().all()
        # `attend` gets the scale by name from some modeling files, by place from others
        scale = kwargs.get("scaling", args[5] if len(args) > 5 else None)
        scale = call.query.shape[-1] ** -0.5 if scale is None else float(scale)
        capped = kwargs.get("softcap") is not None
        step = Attention(
            call.query, call.key, call.value, call.weights.detach(), scale, carried, capped
        )
        self.note(step, [args[1 + place] for place in carried], out[0], "attention")
        self.sites[call.site] = self.numbers[id(out[0])]
        return out

    @contextmanager
    def recording(self, model: nn.Module) -> Iterator[Tape]:
        """Record inside the block; each norm and activation module of `model` is one step."""
        wholes = {module: step for module in model.modules() if (step := composite(module))}

        def enter(module: nn.Module, args: Any) -> None:
            self.inside += 1

        def leave(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            # its input; norms and activations have no other one
            x = next(iter((*args, *kwargs.values())))
            # of nested modules the outermost is the step
            if self.inside == 1 and id(x) in self.numbers:
                self.note(wholes[module](x, out), [x], out, type(module).__name__)
            self.inside -= 1

        with ExitStack() as stack:
            for module in wholes:
                stack.callback(module.register_forward_pre_hook(enter).remove)
                stack.callback(module.register_forward_hook(leave, with_kwargs=True).remove)
            stack.enter_context(self)
            yield self


class Walk:
    """Propagation back along a tape, by a rule, from `start` (tensor number -> relevance, P and the tensor's shape).

    arrive: called with every attention layer's relevance, P B Q H D. Afterwards `leaves` has the relevance of
    embeddings, by tensor number, and `balance` where all relevance went, P each: `arrived` at leaves, and absorbed by
    each kind of step.
    """

    def __init__(
        self,
        tape: Tape,
        rule: Rule,
        start: dict[int, Tensor],
        arrive: Callable[[Site, Tensor], None],
    ) -> None:
        self.tape, self.rule, self.arrive = tape, rule, arrive
        # relevance that waits until all later uses of its tensor were walked
        self.pending: dict[int, list[Tensor]] = {
            number: [relevance] for number, relevance in start.items()
        }
        self.blocks: list[Block] = []
        self.before_norm: dict[int, Tensor] = {}
        self.sites = {number: site for site, number in tape.sites.items()}
        self.balance: dict[str, Tensor] = {}
        self.leaves: dict[int, Tensor] = {}
        # under autocast, matrix products would round to half precision
        with torch.autocast(tape.tensors[-1].device.type, enabled=False):
            self.back()

    def refusal(self, name: str) -> str:
        return (
            f"Relevance reached the operation '{name}', for which there is no rule: "
            "headwise cannot score this model by relevance propagation."
        )

    def back(self) -> None:
        # the order of the forward is topological, so backwards all uses of a tensor come before its making
        for record in reversed(self.tape.records):
            while (
                self.blocks and record.output < self.blocks[-1].skip
            ):  # a skip that no step made: an embedding
                skip = self.blocks[-1].skip
                self.pending[skip] = [self.merge(skip)]
            if record.output not in self.pending:
                continue
            # the sum over all later uses of the tensor
            relevance = self.merge(record.output)
            if record.output in self.sites:
                relevance = self.heard(relevance, self.tape.tensors[record.output])
                # a layer's heads: this is what is scored
                self.arrive(self.sites[record.output], relevance)
            if record.step is None:
                raise HeadwiseError(self.refusal(record.name))
            # the rules need the numbers of the forward; a tensor that was written into has lost them
            for number in (*record.inputs, record.output):
                if self.tape.tensors[number]._version != self.tape.versions[number]:
                    raise HeadwiseError(
                        self.refusal(f"writing into an input or output of {record.name}")
                    )
            self.propagate(record, record.step, relevance)
        # from the last on, so that blocks close in the order in which they are nested
        for leaf in sorted(self.tape.leaves & self.pending.keys(), reverse=True):
            self.leaves[leaf] = self.merge(leaf)
            self.book("arrived", self.leaves[leaf])

    def heard(self, relevance: Tensor, output: Tensor) -> Tensor:
        """The relevance P B Q H D of a layer's output B Q H D, without that of silenced heads: a rule that spreads
        biases gives them some. Rules that rescale give it to the other heads."""
        kept = relevance * output.ne(0).any(3).any(1).any(0)[:, None]
        if self.rule.rescale:
            kept = kept * (
                absolute_relevance(relevance)
                / absolute_relevance(kept).clamp_min(torch.finfo(kept.dtype).tiny)
            )
        return kept

    def propagate(self, record: Record, step: RecordedOperation, relevance: Tensor) -> None:
        found = step.propagate(self.rule, relevance)
        # what comes in less what goes out (below) is what the step absorbs
        self.book(step.absorber, relevance)
        # what gets no relevance hands none on
        inputs = [
            number for number, part in zip(record.inputs, found, strict=True) if part is not None
        ]
        parts = [part for part in found if part is not None]
        for part in parts:
            self.book(step.absorber, part, -1)
        # in post-norm models a block ends behind the norm: what reached the norm entered the block
        if self.rule.rescale and isinstance(step, LayerNorm | RootMeanSquareNorm):
            self.before_norm[record.inputs[0]] = absolute_relevance(relevance)
        # two operands of one shape: a bias or a table of positions is no skip
        residual = len(parts) == 2 and parts[0].shape == parts[1].shape == relevance.shape
        if self.rule.rescale and isinstance(step, Addition) and residual:
            start = self.before_norm.get(record.output, absolute_relevance(relevance))
            self.blocks.append(Block(min(record.inputs), start))
        for number, part in zip(inputs, parts, strict=True):
            self.pending.setdefault(number, []).append(part)
            # numbers grow with the forward: what lies before the skip has left the block
            for block in self.blocks:
                if number < block.skip:
                    block.leaks.append(part)

    def merge(self, number: int) -> Tensor:
        """The relevance of a tensor. Rules that rescale keep Σ |R| where paths meet (golden set, sections 6 and 7)."""
        parts = self.pending.pop(number)
        total = parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)
        if self.rule.rescale and len(parts) > 1:
            self.before_norm.pop(number, None)
            wanted = torch.stack([absolute_relevance(part) for part in parts]).sum(0)
            total = total * (
                wanted / absolute_relevance(total).clamp_min(torch.finfo(total.dtype).tiny)
            )
        while self.blocks and self.blocks[-1].skip == number:
            total = self.close(self.blocks.pop(), total)
        return total

    def close(self, block: Block, total: Tensor) -> Tensor:
        """Scale the relevance that leaves a residual block, at its skip and elsewhere, to that which entered."""
        if not block.leaks:
            return total
        leaked = torch.stack([absolute_relevance(leak).flatten(1) for leak in block.leaks]).sum(0)
        both = absolute_relevance(total) + leaked.reshape(block.start.shape)
        factor = block.start / both.clamp_min(torch.finfo(both.dtype).tiny)
        # in place: the same tensors wait in `pending`
        for leak in block.leaks:
            leak *= factor.reshape(factor.shape[:2] + (1,) * (leak.dim() - 2))
        return total * factor

    def book(self, what: str, relevance: Tensor, sign: int = 1) -> None:
        total = sign * relevance.flatten(1).sum(-1)
        self.balance[what] = self.balance[what] + total if what in self.balance else total
