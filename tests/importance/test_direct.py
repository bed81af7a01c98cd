"""Direct logit attribution agrees with plain hooks on transformers' own models, and ignores all that later layers do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma3ForCausalLM, Gemma3TextConfig
from transformers.pytorch_utils import Conv1D

import headwise as hw
from headwise.importance.gradient import direct_attributions
from headwise.models.attention.capture import capture
from headwise.models.attention.direct import direct_paths
from headwise.models.attention.discover import discover
from headwise.models.attention.projection import output_layers
from headwise.models.tasks.objective import losses_of
from importance.asking import asking, precise, worded
from importance.test_patching import ROWS, ids_of, measured
from models.attention.families import tiny
from models.tasks.askers import IDS, asker

PARTS = {  # blocks, output projection, norm on the way out of the block, final norm
    "gpt2": ("transformer.h", "attn.c_proj", "", "transformer.ln_f"),
    "llama": ("model.layers", "self_attn.o_proj", "", "model.norm"),
    "gemma3": ("model.layers", "self_attn.o_proj", "post_attention_layernorm", "model.norm"),
}
GEMMA3 = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "sliding_window": 4,
    **IDS,
}


def model_of(family: str) -> hw.Model:
    if family == "gemma3":
        torch.manual_seed(0)
        made = Gemma3ForCausalLM(Gemma3TextConfig(**GEMMA3, initializer_range=0.3)).eval()
        return hw.Model(made, asker("gpt2").tokenizer, "tiny gemma3")
    return asker(family)


def straight(norm: Any, states: Tensor, added: Tensor) -> Tensor:
    """What a norm makes of a part of its input, with the scale that it has for the whole input."""
    if isinstance(norm, nn.LayerNorm):
        added = added - added.mean(-1, keepdim=True)
        return (
            norm.weight * added / (states.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
        )
    gain = 1 + norm.weight if "Gemma" in type(norm).__name__ else norm.weight
    eps = getattr(norm, "eps", getattr(norm, "variance_epsilon", 0))
    return gain * added / (states.square().mean(-1, keepdim=True) + eps).sqrt()


@torch.no_grad()
def twin(model: hw.Model, family: str, rows: Sequence[tuple[str, ...]] = ROWS) -> np.ndarray:
    """Head by head and prompt by prompt, with hooks on a plain transformers model: layers x heads."""
    hf: Any = model.hf
    stack, out, behind, last = PARTS[family]
    heads = hf.config.num_attention_heads
    layers = hf.get_submodule(stack)
    found = np.zeros((len(layers), heads))
    seen: dict[str, Tensor] = {}

    def note(name: str) -> Any:
        return lambda _, given: seen.__setitem__(name, given[0])

    for number, layer in enumerate(layers):
        layer.get_submodule(out).register_forward_pre_hook(note(f"out {number}"))
        if behind:
            layer.get_submodule(behind).register_forward_pre_hook(note(f"behind {number}"))
    hf.get_submodule(last).register_forward_pre_hook(note("last"))
    unembedding = hf.get_output_embeddings().weight
    for clean, _, *answers in rows:
        right, other = (ids_of(model, f"{clean} {answer}")[-1] for answer in answers)
        hf(torch.tensor([ids_of(model, clean)]))
        for number, layer in enumerate(layers):
            given = seen[f"out {number}"].unflatten(-1, (heads, -1))
            weight = layer.get_submodule(out).weight
            weight = weight if family == "gpt2" else weight.T
            for head in range(heads):
                added = given[0, -1, head] @ weight.unflatten(0, (heads, -1))[head]
                if behind:
                    norm = layer.get_submodule(behind)
                    added = straight(norm, seen[f"behind {number}"][0, -1], added)
                added = straight(hf.get_submodule(last), seen["last"][0, -1], added)
                found[number, head] += float(added @ (unembedding[right] - unembedding[other]))
    return found / len(rows)


@pytest.mark.parametrize("family", PARTS)
def test_agrees_with_plain_hooks(family: str) -> None:
    model = model_of(family)
    for name, parameter in model.hf.named_parameters():
        if "norm" in name or "ln_" in name:
            torch.manual_seed(len(name))
            parameter.data = torch.rand_like(parameter) + 0.5
    found = measured(model, ["attribution.direct"])["attribution.direct"]
    expected = twin(model, family)
    assert np.abs(expected).min() > 1e-4
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt_oss", "olmo2", "t5", "bloom"])
def test_the_forward_pass_is_the_same(family: str) -> None:
    model = tiny(family) if family == "bloom" else worded(family)
    discovery = discover(model)
    inputs = asking(model, "gpt2" if family == "bloom" else family)
    expected = losses_of(model, inputs)
    first = discovery.heads.sites[0]
    nothing = torch.zeros(1, requires_grad=True)
    added = {first: lambda call: call.output + nothing}
    with direct_paths(model, discovery), capture(model, discovery, replace=added):
        found = losses_of(model, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("family", ["gpt2", "bert", "marian"])
def test_agrees_with_a_model_whose_other_layers_are_held_by_hand(family: str) -> None:
    """Every matrix but the output projections gives what it gave, every norm divides by what it divided by, and a head is
    turned down a little. Norms stand before the layers, or behind them."""
    model, discovery, inputs, _ = precise(family)
    found = direct_attributions(model, discovery, [inputs])["attribution.direct"]
    projections = [module for module, _ in output_layers(model, discovery).values()]
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    inside = {module for stack in stacks for module in stack.modules()}
    given: dict[nn.Module, Tensor] = {}
    hold = False

    def matrix(module: nn.Module, _: Any, output: Tensor) -> Tensor:
        return given[module] if hold else given.setdefault(module, output)

    def norm(module: Any, inputs: Any, output: Tensor) -> Tensor:
        states = inputs[0]
        if not hold:
            given[module] = (states.var(-1, unbiased=False, keepdim=True) + module.eps).sqrt()
        centred = states - states.mean(-1, keepdim=True)
        return module.weight * centred / given[module] + module.bias

    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_hook(norm)
        elif (
            isinstance(module, nn.Linear | Conv1D)
            and module in inside
            and module not in projections
        ):
            module.register_forward_hook(matrix)
    with torch.no_grad():
        whole = losses_of(model, inputs)
        hold = True
        for site in discovery.heads.sites:
            gates = torch.eye(4, dtype=torch.float64) * -1e-4 + 1
            changes = []
            for gate in gates:
                with capture(model, discovery, gates={site: gate}):
                    changes.append((losses_of(model, inputs) - whole) / 1e-4)
            expected = torch.stack(changes, 1)[:3]
            np.testing.assert_allclose(found.sentences(site)[0], expected, rtol=1e-3, atol=1e-5)
            assert expected.abs().max() > 0.01 or (family, site.kind) == ("marian", "encoder-self")
