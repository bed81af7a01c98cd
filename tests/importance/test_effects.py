"""Effects of heads along paths: a circuit whose answer is known, and plain hooks on transformers' own models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import headwise as hw
from headwise.data.text import PromptPairs
from importance.test_patching import ROWS, ids_of, prompts
from models.attention.families import tiny
from models.tasks.askers import IDS, asker, lines
from models.training.letters import letters
from refusals import refuses

Change = Callable[[str, Tensor], Tensor]


def circuit() -> hw.Model:
    """A model without norms and feed-forward layers, whose attention is uniform, so that all is linear.

    With x = 1 for the word a and −1 for b: L0H0 adds x to the logit of c and x to a signal, which L1H0 reads and adds
    to the logit as −x, and L1H1 as x/2. L0H1 does nothing.
    """
    tokenizer = letters()
    config = {
        "n_embd": 8,
        "n_layer": 2,
        "n_head": 2,
        "vocab_size": len(tokenizer),
        "n_positions": 16,
    }
    model: Any = GPT2LMHeadModel(GPT2Config(**config, tie_word_embeddings=False, **IDS)).eval()
    word = tokenizer.convert_tokens_to_ids
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.transformer.wte.weight[word("a"), 0] = 1
        model.transformer.wte.weight[word("b"), 0] = -1
        model.lm_head.weight[word("c"), 1] = 1
        first, second = (layer.attn for layer in model.transformer.h)
        # two tokens are seen, and the first is 0: half of a value arrives
        first.c_attn.weight[0, 16] = 2
        first.c_proj.weight[0, 1] = first.c_proj.weight[0, 2] = 1
        second.c_attn.weight[2, 16] = second.c_attn.weight[2, 20] = 2
        second.c_proj.weight[0, 1] = -1
        second.c_proj.weight[4, 1] = 0.5
    for layer in model.transformer.h:
        layer.ln_1 = nn.Identity()
        layer.ln_2 = nn.Identity()
    model.transformer.ln_f = nn.Identity()
    return hw.Model(model, tokenizer, "circuit")


@pytest.mark.parametrize(
    ("measure", "receivers", "expected"),
    [
        ("ablation.counterpart", None, [[1, 0], [-2, 1]]),
        ("ablation.restored", None, [[1, 0], [-2, 1]]),
        ("ablation.counterpart", "logits", [[2, 0], [-2, 1]]),
        ("ablation.restored", "logits", [[2, 0], [-2, 1]]),
        ("ablation.zero", "logits", [[1, 0], [-1, 0.5]]),
        ("ablation.counterpart", ["L1H0.value"], [[-2, 0], [0, 0]]),
        ("ablation.counterpart", ["L1H1.value"], [[1, 0], [0, 0]]),
        ("ablation.counterpart", ["L1H0.value", "L1H1.value"], [[-1, 0], [0, 0]]),
        ("ablation.counterpart", ["L1H0.query", "L1H1.key"], [[0, 0], [0, 0]]),
    ],
)
def test_a_circuit_whose_answer_is_known(measure: str, receivers: Any, expected: Any) -> None:
    """Direct 2, through one head −2, through another 1: together 1."""
    pairs = PromptPairs.from_rows([("a", "b", "c", "d")] * 3)
    found = hw.effects(circuit(), pairs, measure, receivers)
    np.testing.assert_allclose(found.table["value"], np.ravel(expected), atol=1e-6)
    assert found.signature["gap"] == pytest.approx(1)
    np.testing.assert_allclose(found.table["share"], found.table["value"], atol=1e-6)


def test_scores_of_the_circuit() -> None:
    pairs = PromptPairs.from_rows([("a", "b", "c", "d")] * 3)
    names = ["attribution.direct", "ablation.restored"]
    table = hw.score(circuit(), pairs, names).table
    direct, restored = (table[table["measure"] == name]["value"] for name in names)
    np.testing.assert_allclose(direct, [1, 0, -1, 0.5], atol=1e-6)
    np.testing.assert_allclose(restored, [1, 0, -2, 1], atol=1e-6)


@contextmanager
def changed(model: hw.Model, change: Change) -> Iterator[None]:
    """A block in which `change(place, x)` sees and may replace the inputs of output projections ("0 out") and the
    queries, keys and values of all heads ("0 query") of each layer."""
    hf: Any = model.hf
    gpt2 = hf.config.model_type == "gpt2"
    handles = []
    for layer, block in enumerate(hf.transformer.h if gpt2 else hf.model.layers):

        def out(_: Any, given: Any, layer: int = layer) -> Any:
            return (change(f"{layer} out", given[0]),)

        def inputs(
            names: tuple[str, ...], _: Any, __: Any, output: Tensor, layer: int = layer
        ) -> Tensor:
            parts = output.chunk(len(names), -1)
            changes = [
                change(f"{layer} {name}", part) for name, part in zip(names, parts, strict=True)
            ]
            return torch.cat(changes, -1)

        attention = block.attn if gpt2 else block.self_attn
        projection = attention.c_proj if gpt2 else attention.o_proj
        handles.append(projection.register_forward_pre_hook(out))
        read: dict[tuple[str, ...], nn.Module] = (
            {("query", "key", "value"): attention.c_attn} if gpt2 else {}
        )
        if not gpt2:
            read = {
                (name,): getattr(attention, f"{name[0]}_proj") for name in ("query", "key", "value")
            }
        for names, module in read.items():
            handles.append(module.register_forward_hook(partial(inputs, names)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Twin:
    """One prompt pair on a plain transformers model; all changes are by hooks, head after head."""

    def __init__(self, model: hw.Model, row: tuple[str, ...]) -> None:
        self.model = model
        self.ids = [torch.tensor([ids_of(model, text)]) for text in row[:2]]
        self.answers = [ids_of(model, f"{row[0]} {answer}")[-1] for answer in row[2:]]
        self.clean = self.run(0, lambda place, states: states)
        self.corrupted = self.run(1, lambda place, states: states)

    def run(self, prompt: int, change: Change) -> dict[str, Any]:
        """Everything that a run gave, before any change of it; and the difference of logits."""
        seen: dict[str, Any] = {}

        def note(place: str, states: Tensor) -> Tensor:
            seen[place] = states.clone()
            return change(place, states)

        with torch.no_grad(), changed(self.model, note):
            logits = self.model.hf(self.ids[prompt]).logits[0, -1]
        seen["difference"] = float(logits[self.answers[0]] - logits[self.answers[1]])
        return seen

    def part(self, states: Tensor, head: int, other: Tensor, heads: int) -> Tensor:
        """The states with those of one head from others."""
        whole = states.unflatten(-1, (heads, -1)).clone()
        whole[..., head, :] = other.unflatten(-1, (heads, -1))[..., head, :]
        return whole.flatten(-2)

    def swapped(self, prompt: int, sender: tuple[int, int]) -> float:
        """How much nearer to the other prompt's the difference is with a head's output from there."""
        layer, head = sender
        heads = self.model.hf.config.num_attention_heads
        other = (self.corrupted, self.clean)[prompt]

        def change(place: str, states: Tensor) -> Tensor:
            return (
                states if place != f"{layer} out" else self.part(states, head, other[place], heads)
            )

        moved = self.run(prompt, change)["difference"]
        before = (self.clean, self.corrupted)[prompt]["difference"]
        return float(before - moved if prompt == 0 else moved - before)

    def lost(self, sender: tuple[int, int], receivers: list[tuple[int, int, str]] | None) -> float:
        """What the difference loses; receivers of one layer, or None for the logits."""
        layer, head = sender
        heads = self.model.hf.config.num_attention_heads

        def held(place: str, states: Tensor) -> Tensor:
            number, what = place.split()
            if what != "out" or int(number) < layer:
                return states
            states = self.clean[place]
            if int(number) == layer:
                states = self.part(states, head, self.corrupted[place], heads)
            return states

        found = self.run(0, held)
        if receivers is None:
            return float(self.clean["difference"] - found["difference"])
        for_heads = {}
        for number, receiver, _ in receivers:
            given = {f"{number} {what}": one for _, one, what in receivers if one == receiver}

            def listening(place: str, states: Tensor, given: dict[str, int] = given) -> Tensor:
                if place not in given:
                    return states
                count = states.shape[-1] // (self.clean["0 query"].shape[-1] // heads)
                return self.part(states, given[place] * count // heads, found[place], count)

            for_heads[receiver] = self.run(0, listening)[f"{number} out"]

        def receiving(place: str, states: Tensor) -> Tensor:
            for number, receiver, _ in receivers:
                if place == f"{number} out":
                    states = self.part(states, receiver, for_heads[receiver], heads)
            return states

        return float(self.clean["difference"] - self.run(0, receiving)["difference"])


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize(
    "receivers",
    [
        None,
        [(2, 1, "query")],
        [(1, 2, "key")],
        [(2, 3, "value")],
        [(2, 1, "query"), (2, 2, "key"), (2, 2, "value")],
    ],
    ids=str,
)
def test_path_patching_agrees_with_plain_hooks(family: str, receivers: Any) -> None:
    """Heads of the Llama share keys and values."""
    layers = {"gpt2": "n_layer", "llama": "num_hidden_layers"}
    model = asker(family, **{layers[family]: 3})
    model.hf.double()
    names = (
        "logits"
        if receivers is None
        else [f"L{layer}H{head}.{what}" for layer, head, what in receivers]
    )
    found = hw.effects(model, prompts(), receivers=names).table
    expected = np.zeros((3, 4))
    for row in ROWS:
        twin = Twin(model, row)
        for layer in range(3):
            if receivers is not None and layer >= receivers[0][0]:
                continue
            for head in range(4):
                expected[layer, head] += twin.lost((layer, head), receivers) / len(ROWS)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(found["value"], expected.ravel(), rtol=1e-5, atol=1e-6)


def test_all_paths_are_the_ablation_and_p_is_corrected() -> None:
    model = asker("gpt2")
    by_score = hw.score(model, prompts(), ["ablation.counterpart"]).table
    found = hw.effects(model, prompts())
    np.testing.assert_allclose(found.table["value"], by_score["value"], rtol=1e-6)
    np.testing.assert_allclose(found.table["low"], by_score["low"], rtol=1e-6)
    assert found.table["p"].between(0, 1).all()
    on_text = hw.effects(model, lines(6), "ablation.zero", "logits").table
    assert on_text["share"].isna().all()


def test_what_is_refused() -> None:
    model = asker("gpt2")
    refuses(lambda: hw.effects(model, prompts(), "gradient"), "does not: choose")
    refuses(lambda: hw.effects(model, lines(3)), "corrupted prompts")
    refuses(lambda: hw.effects(model, prompts(), receivers=["L1H0"]), "names no input of a head")
    refuses(
        lambda: hw.effects(model, prompts(), receivers=["L7H0.key"]), "none of this model's heads"
    )
    refuses(lambda: hw.effects(model, prompts(), receivers=[]), "no receivers")


def test_layers_of_own_code_have_no_receivers() -> None:
    model = hw.Model(tiny("gptj", **IDS), letters(), "tiny gptj")
    assert len(hw.effects(model, prompts(), receivers="logits").table) == 8
    refuses(lambda: hw.effects(model, prompts(), receivers=["L1H0.key"]), "in its own code")
