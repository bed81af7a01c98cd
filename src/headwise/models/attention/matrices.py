"""Where an attention layer keeps the weights of its heads: the names of its projections, their rows and columns.

A family of models is a line of `FORMS`. A line is a claim about modeling code, so it is always checked: removal
compares every pruned model with the masked one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headwise.core.errors import HeadwiseError
from headwise.models.attention.offload import loaded, offload_like


@dataclass(frozen=True)
class Form:
    """The layout of a family's projections.

    inputs: by name, the rows of each projection of hidden states, part by part and in a part head by head: `q` queries,
        `k` keys, `v` values. In a part `qkv` each head has all three, in this order.
    outs: the names of the output projection, whose columns go head by head; with a dot it belongs to the parent.
    by_config: whether the layer splits `q k v` by the configuration's number of heads, not by its own.
    """

    inputs: Mapping[str, str]
    outs: tuple[str, ...]
    by_config: bool = False


FORMS = (
    # Most families.
    Form({"q_proj": "q", "k_proj": "k", "v_proj": "v"}, ("out_proj", "o_proj", "dense", "Wo")),
    # Keys that are also the values (Gemma 4): such a layer has no v_proj, so it does not fit the line above.
    Form({"q_proj": "q", "k_proj": "kv"}, ("o_proj",)),
    Form({"query": "q", "key": "k", "value": "v"}, ("output.dense",)),  # BERT
    Form({"query_proj": "q", "key_proj": "k", "value_proj": "v"}, ("output.dense",)),  # DeBERTa
    # Latent attention (DeepSeek), with small queries and with whole ones.
    Form({"q_b_proj": "q", "kv_b_proj": "kv"}, ("o_proj", "dense")),
    Form({"q_proj": "q", "kv_b_proj": "kv"}, ("o_proj", "dense")),
    Form({"q_lin": "q", "k_lin": "k", "v_lin": "v"}, ("out_lin",)),  # DistilBERT
    Form({"Wq": "q", "Wk": "k", "Wv": "v"}, ("dense",)),  # CTRL
    Form({"q": "q", "k": "k", "v": "v"}, ("o",)),  # T5
    Form({"q_attn": "q", "c_attn": "k v"}, ("c_proj",)),  # GPT-2, cross attention
    Form({"c_attn": "q k v"}, ("c_proj",)),  # GPT-2
    Form({"Wqkv": "q k v"}, ("Wo", "out_proj")),  # ModernBERT, MPT
    Form({"qkv_proj": "q k v"}, ("o_proj",), by_config=True),  # Phi-3
    Form({"query_key_value": "qkv"}, ("dense",)),  # GPT-NeoX, Bloom, Falcon
)

# Projections whose outputs are multiplied with the heads' outputs, head by head.
GATE_PROJECTIONS = ("gate_proj", "g_proj")
ZEROS = -1  # a head of zeros: it has no weights of the layer


@dataclass(frozen=True)
class Matrices:
    """The projections of one attention layer with `heads` query heads and `groups` key/value heads."""

    name: str
    module: nn.Module
    form: Form
    parent: nn.Module  # has the output projection: the module itself, except for BERT
    out_name: str
    heads: int
    groups: int

    @property
    def out(self) -> nn.Linear:
        return cast(nn.Linear, getattr(self.parent, self.out_name))

    @property
    def size(self) -> int:
        """The head size."""
        return int(self.out.weight.shape[0 if isinstance(self.out, Conv1D) else 1]) // self.heads

    def outputs(self) -> Tensor:
        """The columns of the output projection: M H D."""
        columns: Tensor = by_output(self.out).unflatten(1, (self.heads, -1))
        return columns

    def values(self) -> Tensor:
        """The rows of the value projection: G D M."""
        for name, projection in self.inputs().items():
            for part, rows in self.parts(name):
                # `v`, `kv` or `qkv`.
                if "v" in part:
                    # They come last in it; in latent attention the keys before them may have another size.
                    return by_output(projection)[rows[:, -self.outputs().shape[2] :]]
        raise AssertionError("every form has values")

    def inputs(self) -> dict[str, nn.Linear]:
        return {name: getattr(self.module, name) for name in self.rows()}

    def rows(self) -> dict[str, str]:
        """The form's inputs, and the projections that gate the heads' outputs."""
        gates = dict.fromkeys(
            (name for name in GATE_PROJECTIONS if is_linear(getattr(self.module, name, None))), "q"
        )
        return {**self.form.inputs, **gates}

    def parts(self, name: str, apart: bool = False) -> Iterator[tuple[str, Tensor]]:
        """The parts of a projection, and the rows of each head: heads x size.

        apart: whether the queries of Falcon stand before one key and value, also of a single head.
        """
        parts = self.rows()[name].split()
        if (apart or self.groups < self.heads) and parts == ["qkv"]:  # multi-query attention
            # Falcon with one key/value head: all queries, then the key, then the value.
            parts = ["q", "k", "v"]
        # A part `qkv` goes by query heads: each has a key and a value of its own.
        counts = [self.heads if "q" in part else self.groups for part in parts]
        projection = getattr(self.module, name)
        rows = torch.arange(projection.weight.shape[isinstance(projection, Conv1D)]).unflatten(
            0, (sum(counts), -1)
        )
        return zip(parts, rows.split(counts), strict=True)

    def arranged(
        self, query: Sequence[int], key_value: Sequence[int]
    ) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
        """Each projection with these heads in this order, ZEROS for a head of zeros; the module that has it, its name.
        Every projection becomes an `nn.Linear`."""
        # A layer that keeps one query head must not look like one with a key and value for each.
        apart = len(key_value) < len(query)
        for name, whole in self.inputs().items():
            rows = [
                heads_of(rows, query if "q" in part else key_value)
                for part, rows in self.parts(name, apart)
            ]
            yield self.module, name, sliced_linear(whole, rows=torch.cat(rows))
        # Heads are rows (outputs) of the input projections, and columns (inputs) of the output's.
        columns = torch.arange(self.heads * self.size).unflatten(0, (self.heads, -1))
        yield self.parent, self.out_name, sliced_linear(self.out, columns=heads_of(columns, query))

    def cut(self, kept: list[int], key_heads: list[int]) -> None:
        """Keep only some query heads and key/value heads."""
        # A generator: each new matrix takes the place of the old one before the next is made.
        for owner, name, linear in self.arranged(kept, key_heads):
            setattr(owner, name, linear)


def heads_of(rows: Tensor, heads: Sequence[int]) -> Tensor:
    """The rows (heads x size) of some heads, in one list; of a head of zeros all are ZEROS."""
    # ZEROS is −1, so it takes the row that is added at the end.
    return torch.cat([rows, torch.full_like(rows[:1], ZEROS)])[list(heads)].flatten()


def chosen(whole: Tensor, index: Tensor, dim: int = 0) -> Tensor:
    """Some rows (or columns) of a tensor, in memory of their own, with zeros where the index is ZEROS."""
    absent = (index == ZEROS).nonzero().flatten()
    # Head 0 stands in where a head of zeros is to be, and is overwritten.
    part = whole.detach().index_select(dim, index.clamp(min=0).to(whole.device))
    return part.index_fill_(dim, absent.to(whole.device), 0)


def matrices(modules: Mapping[str, nn.Module], name: str, heads: int, groups: int) -> Matrices:
    """The projections of the attention layer of that name. Raises HeadwiseError where they have no known form."""
    module, fitting = modules[name], forms(modules, name)
    if fitting:
        form, parent, out_name = fitting
        return Matrices(name, module, form, parent, out_name, heads, groups)
    reason = (
        "its linear query, key, value and output projections have names that headwise does not know"
    )
    if any(hasattr(inner, "lora_A") for inner in module.modules()):
        reason = "it has an adapter of PEFT, which is to be merged first (merge_and_unload)"
    if getattr(module, "is_kv_shared_layer", False):
        reason = "its keys and values are those of an earlier layer"
    raise HeadwiseError(
        f"Heads of {name} ({type(module).__name__}) cannot be removed: {reason}. They can be masked."
    )


def forms(modules: Mapping[str, nn.Module], name: str) -> tuple[Form, nn.Module, str] | None:
    """The form of the layer of that name, the module that has its output projection, and the projection's name."""
    # The first line that fits: a form that asks for more names stands before one that asks for fewer.
    for form in FORMS:
        for out in form.outs:
            path, _, out_name = out.rpartition(".")
            parent = modules.get(f"{name.rpartition('.')[0]}.{path}") if path else modules[name]
            inputs = (getattr(modules[name], projection, None) for projection in form.inputs)
            # All by name and type: a quantised layer, for one, does not fit.
            if all(map(is_linear, (*inputs, getattr(parent, out_name, None)))):
                assert parent is not None
                return form, parent, out_name
    return None


def projections(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Each module with the projections of an attention layer, and its output projection."""
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if fitting := forms(modules, name):
            _, parent, out_name = fitting
            yield module, getattr(parent, out_name)


def is_linear(module: object) -> bool:
    """Whether it is a plain linear layer. Other subclasses (quantised layers) keep their weights in other ways."""
    return type(module) in (nn.Linear, Conv1D) or type(module).__name__ == "FalconLinear"


def by_output(projection: nn.Linear) -> Tensor:
    """The weights of a linear layer, outputs x inputs; GPT-2's Conv1D stores them transposed."""
    weight: Tensor = loaded(projection)
    return weight.t() if isinstance(projection, Conv1D) else weight


def sliced_linear(
    like: nn.Linear, rows: Tensor | None = None, columns: Tensor | None = None
) -> nn.Linear:
    """A linear layer with some rows (outputs) or columns (inputs) of another one, that trains where that one does.

    Offloaded weights stay where they are: their part is taken whenever it is loaded.
    """
    outputs, inputs = like.weight.shape[::-1] if isinstance(like, Conv1D) else like.weight.shape
    outputs, inputs = (
        full if part is None else len(part) for full, part in ((outputs, rows), (inputs, columns))
    )

    def weight() -> Tensor:
        part = by_output(like)
        if rows is not None:
            part = chosen(part, rows)
        if columns is not None:
            part = chosen(part, columns, 1)
        return part.contiguous()

    def bias() -> Tensor:
        whole: Tensor = loaded(like, "bias")
        return whole.detach().clone() if rows is None else chosen(whole, rows)

    makers = {"weight": weight} if like.bias is None else {"weight": weight, "bias": bias}
    shapes = {"weight": (outputs, inputs), "bias": (outputs,)}
    # The sizes follow, because PyTorch warns of a new layer without elements: one of no heads.
    # On `meta`: the weights follow below, without a first set that is thrown away.
    new = nn.Linear(1, 1, bias=like.bias is not None, device="meta")
    new.out_features, new.in_features = outputs, inputs
    for name, make in makers.items():
        old: Tensor = getattr(like, name)
        value = old.new_empty(shapes[name]) if old.is_meta else make()
        setattr(new, name, nn.Parameter(value, requires_grad=old.requires_grad))
    if like.weight.is_meta:
        offload_like(new, like, makers)
    return new.train(like.training)
