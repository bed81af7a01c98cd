"""The step of a torch function, by its name, and the modules that are one step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2CLS

from headwise.core.errors import HeadwiseError
from headwise.importance.lrp import steps
from headwise.importance.lrp.steps import Passing, RecordedOperation, RootMeanSquareNorm
from headwise.models.marian.network import recur

# By name, because torch hands over methods, functions and operators of one operation as different objects.
RESHAPING = {
    "view",
    "reshape",
    "flatten",
    "unflatten",
    "contiguous",
    "clone",
    "squeeze",
    "unsqueeze",
    "to",
    "type_as",
    "float",
    "double",
    "half",
    "bfloat16",
    "type",
    "detach",
    "view_as",
    "_unsafe_view",
    "ravel",
    "alias",
    "cpu",
    "cuda",
}
MOVING = {
    "transpose",
    "permute",
    "swapaxes",
    "movedim",
    "t",
    "chunk",
    "split",
    "tensor_split",
    "unbind",
    "__getitem__",
    "select",
    "narrow",
    "index_select",
    "cat",
    "concat",
    "stack",
    "expand",
    "expand_as",
    "repeat_interleave",
    "repeat",
    "roll",
    "flip",
    "masked_fill",
    "pad",
}
NEW_TENSORS = ("_like", "new_")  # functions that take only shape and device from another tensor
PASSING = {
    "relu",
    "gelu",
    "silu",
    "mish",
    "tanh",
    "sigmoid",
    "elu",
    "leaky_relu",
    "selu",
    "celu",
    "softplus",
    "hardswish",
    "hardtanh",
    "relu6",
    "logsigmoid",
    "neg",
    "__neg__",
    "dropout",
    "nan_to_num",
    "clamp",
}
ADDING = {"add", "__add__", "__radd__", "sub", "__sub__", "__rsub__", "subtract"}
MULTIPLYING = {
    "mul",
    "__mul__",
    "__rmul__",
    "multiply",
    "div",
    "__truediv__",
    "divide",
    "true_divide",
}
ACTIVATION_CLASSES: tuple[type[nn.Module], ...] = tuple(
    {
        kind
        for entry in ACT2CLS.values()
        if isinstance(kind := entry[0] if isinstance(entry, tuple) else entry, type)
    }
)


def step_for(
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    carried: tuple[Tensor, ...],
    out: Tensor,
    part: int | None,
) -> RecordedOperation | None:
    """The step of a torch function, or None without a rule. part: which of several outputs."""
    name: str = func.__name__
    if name in ("linear", "addmm", "matmul", "__matmul__", "mm"):
        return linear(name, args, kwargs, carried, out)
    if name == "layer_norm":
        return layer_norm(args, kwargs, out)
    # of the SSRU: the gates are constants here
    if func is recur:
        keep, new, _ = args
        return steps.Recurrence(keep, new, out) if len(carried) == 2 else None
    if name == "rms_norm":
        given = [*args, None, None][:4]
        weight, epsilon = kwargs.get("weight", given[2]), kwargs.get("eps", given[3])
        return RootMeanSquareNorm(
            args[0], out, weight, torch.finfo(out.dtype).eps if epsilon is None else epsilon
        )
    if name in ADDING and len(args) > 1:
        return addition(name, args, kwargs, carried)
    if name in MULTIPLYING:
        # a quotient of two activations has no rule
        if len(carried) == 2:
            return steps.Product((carried[0], carried[1])) if "mul" in name else None
        return (
            None
            if name.startswith(("div", "true_div", "__true")) and carried[0] is not args[0]
            else Passing(carried[0].shape)
        )
    if name in RESHAPING:
        return steps.Reshaping(carried[0].shape)
    if name in MOVING:
        return moving(func, args, kwargs, carried, part)
    return Passing(carried[0].shape) if name in PASSING and len(carried) == 1 else None


def linear(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], carried: tuple[Tensor, ...], out: Tensor
) -> RecordedOperation | None:
    """A product with a constant matrix. A product of two activations outside attention has no rule."""
    if len(carried) != 1:
        return None
    x = carried[0]
    if name == "linear":
        given = [*args, None, None][:3]
        weight, bias = kwargs.get("weight", given[1]), kwargs.get("bias", given[2])
        return steps.Linear(x, out, weight=weight, bias=bias) if given[0] is x else None
    # addmm scales its terms by these, which the rule for a product does not know
    if any(kwargs.get(factor, 1) != 1 for factor in ("alpha", "beta")):
        return None
    # Conv1D of GPT-2 has a matrix inputs × outputs
    bias, left, right = args[:3] if name == "addmm" else (None, *args[:2])
    return (
        steps.Linear(x, out, weight=right.t(), bias=bias)
        if left is x and right.dim() == 2
        else None
    )


def layer_norm(
    args: Sequence[Any], kwargs: dict[str, Any], out: Tensor
) -> RecordedOperation | None:
    given = (
        dict(zip(("input", "normalized_shape", "weight", "bias", "eps"), args, strict=False))
        | kwargs
    )
    # rules know one axis; over several, the statistics mix positions
    if len(given["normalized_shape"]) != 1:
        return None
    return steps.LayerNorm(
        given["input"],
        out,
        scale=given.get("weight"),
        bias=given.get("bias"),
        epsilon=given.get("eps", 1e-5),
    )


def addition(
    name: str, args: Sequence[Any], kwargs: dict[str, Any], carried: tuple[Tensor, ...]
) -> RecordedOperation | None:
    # torch.add(a, b, alpha=2) adds 2 b
    if kwargs.get("alpha", 1) != 1:
        return None
    like = carried[0]
    # x + 1 adds a number, not a tensor
    a, b = (arg if isinstance(arg, Tensor) else torch.as_tensor(arg).to(like) for arg in args[:2])
    if name in ("sub", "__sub__", "subtract"):
        b = -b
    elif name == "__rsub__":
        a = -a
    # the operand that carries relevance comes first, whichever side it stood on
    operands = (a, b) if args[0] is carried[0] else (b, a)
    return steps.Addition(operands, len(carried))


def moving(
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    carried: tuple[Tensor, ...],
    part: int | None,
) -> RecordedOperation | None:
    """A step that runs the function again on other inputs."""
    # equal arguments twice, as in cat([x, x]), leave fewer places: then there is no step
    places = {id(tensor): i for i, tensor in enumerate(carried)}

    def put(value: Any, inputs: Sequence[Tensor]) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(put(one, inputs) for one in value)
        return (
            inputs[places[id(value)]]
            if isinstance(value, Tensor) and id(value) in places
            else value
        )

    def again(*inputs: Tensor) -> Tensor:
        out = func(
            *(put(arg, inputs) for arg in args),
            **{key: put(value, inputs) for key, value in kwargs.items()},
        )
        result: Tensor = out if part is None else out[part]
        return result

    return steps.Moving(again, carried) if len(places) == len(carried) else None


def composite(module: nn.Module) -> Callable[[Tensor, Tensor], RecordedOperation] | None:
    """The step of a norm or activation module, or None for modules whose operations are recorded.

    torch's own norms are single functions; transformers writes root-mean-square norms in several.
    """
    if isinstance(module, ACTIVATION_CLASSES):
        return lambda x, out: Passing(x.shape)
    if (
        "Norm" in type(module).__name__
        and not isinstance(module, nn.LayerNorm | nn.RMSNorm)
        and not [*module.children()]
    ):
        return partial(norm, module)
    return None


def norm(module: nn.Module, x: Tensor, out: Tensor) -> RecordedOperation:
    """A norm of a modeling file, recognised by what it computes."""
    epsilon = next(
        (
            float(getattr(module, n))
            for n in ("variance_epsilon", "eps", "epsilon")
            if hasattr(module, n)
        ),
        0.0,
    )
    # as the modeling files do: statistics of half precision are in float32
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    bias: Tensor | None = getattr(module, "bias", None)
    # a class name does not say whether the mean is taken away, or 1 added to the weight
    for centre in (0, 1):
        inner = wide - centre * wide.mean(-1, keepdim=True)
        unit = inner * (inner.square().mean(-1, keepdim=True) + epsilon).rsqrt()
        # the candidate that gives what the module gave is what it computes
        for scale in scales(module):
            made = (unit if scale is None else unit * scale) + (0 if bias is None else bias)
            # Behind a broken layer both are NaN; that layer is named after the forward.
            if torch.allclose(made, out.to(wide.dtype), rtol=1e-2, atol=1e-3, equal_nan=True):
                if centre:
                    return steps.LayerNorm(x, out, scale=scale, bias=bias, epsilon=epsilon)
                return RootMeanSquareNorm(x, out, scale, epsilon)
    raise HeadwiseError(
        f"The norm {type(module).__name__} is neither a layer norm nor a root-mean-square norm: it has no rule."
    )


def scales(module: nn.Module) -> list[Tensor | None]:
    """Possible scales: the stored weight, (Gemma) one plus it, or (OLMo) none."""
    weight: Tensor | None = getattr(module, "weight", None)
    return [None] if weight is None else [weight.detach(), 1 + weight.detach()]
