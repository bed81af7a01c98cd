"""Ablation: equal to the removed and to the masked model, to slow one-head twins; padding; the model untouched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from attention.families import GROUPED, STACK
from headwise.attention import AttentionCall, capture, discover, masked, remove
from headwise.attention.discover import Discovery
from headwise.errors import HeadwiseError
from headwise.heads import Head, HeadMask, Site
from headwise.importance.ablation import CHANGES, ablate, removal_losses
from headwise.tasks.objective import asked_tokens, predict, sentence_losses
from importance.asking import ASKED, asking, broken, counted, sentence, state, where, worded

ROUNDED = ("llama", "qwen3", "t5")  # norms and softmax in float32 even in a float64 model
WITHOUT_PAIRS = [name for name in CHANGES if name != "ablation.counterpart"]
# two stacks; tuples with a shared bias; one module for all layers; grouped queries
TELLING = ("marian", "t5", "albert", "llama")


def wide(family: str) -> tuple[PreTrainedModel, Discovery, dict[str, Tensor], float]:
    """A float64 model of three layers a stack, its heads, a batch, and how near two ways of computing must come."""
    layers = {
        "marian": {"encoder_layers": 3},
        "albert": {"num_hidden_layers": 3},
        "t5": {"num_decoder_layers": 3},
    }
    model = worded(family, **layers.get(family, {})).double()
    return model, discover(model), asking(model, family), 1e-5 if family in ROUNDED else 1e-8


def loss(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return sentence_losses(predict(model, inputs), inputs["labels"])


def looked(
    model: PreTrainedModel, discovery: Discovery, inputs: dict[str, Tensor]
) -> dict[Site, AttentionCall]:
    """What every layer does with one sentence, weights included."""
    seen: dict[Site, AttentionCall] = {}
    with capture(model, discovery, weights=True, hook=lambda now: seen.update({now.site: now})):
        loss(model, inputs)
    return seen


def twin(
    own: AttentionCall,
    measure: str,
    head: int,
    others: list[AttentionCall],
    following: AttentionCall,
) -> Tensor:
    """The outputs 1 Q H D of one sentence with one head changed, by loops."""
    output = own.output.clone()
    if measure == "ablation.all-but-one":
        for other in range(output.shape[2]):
            if other != head:
                output[:, :, other] = 0
        return output
    for q in range(output.shape[1]):
        if measure == "ablation.zero":
            output[0, q, head] = 0
        elif measure == "ablation.mean":
            output[0, q, head] = torch.cat([seen.output[0, :, head] for seen in others]).mean(0)
        elif measure == "ablation.position-mean":
            there = [seen.output[0, q, head] for seen in others if seen.output.shape[1] > q]
            every = torch.cat([seen.output[0, :, head] for seen in others])
            output[0, q, head] = torch.stack(there).mean(0) if len(there) > 1 else every.mean(0)
        elif measure == "ablation.example":
            output[0, q, head] = following.output[0, q % following.output.shape[1], head]
        else:
            assert own.weights is not None
            keys = [k for k in range(own.value.shape[2]) if own.weights[0, head, q, k] > 0]
            values = own.value[0, head * own.value.shape[1] // output.shape[2]]
            output[0, q, head] = sum(values[k] for k in keys) / len(keys)
    return output


@pytest.mark.parametrize("family", ASKED)
def test_every_ablation_agrees_with_a_slow_version(family: str) -> None:
    """One sentence without padding and one head at a time, in whole forwards: of each head one sentence in turn."""
    model, found, inputs, near = wide(family)
    collected = ablate(model, found, [inputs], WITHOUT_PAIRS)
    alone = [sentence(inputs, row) for row in range(3)]
    seen, whole = [looked(model, found, one) for one in alone], [loss(model, one) for one in alone]
    for site in found.modules:
        for measure, measured in collected.items():
            sums, counts = counted(measured, site)
            for row, one in enumerate(alone):
                assert counts[row] == int(asked_tokens(one["labels"]))
                for head in range(row, found.heads.count(site), 3):
                    following = seen[(row + 1) % 3][site]
                    output = twin(
                        seen[row][site], measure, head, [every[site] for every in seen], following
                    )
                    with capture(model, found, replace={site: lambda _, output=output: output}):
                        change = float(loss(model, one) - whole[row])
                    assert sums[row, head] == pytest.approx(change, rel=near, abs=near), (
                        measure,
                        site,
                        head,
                    )


@pytest.mark.parametrize("family", ["marian", "m2m100", "bart", "bert"])
def test_silenced_is_removed_is_masked(family: str) -> None:
    model, found, inputs, near = wide(family)
    sums = ablate(model, found, [inputs], ["ablation.zero"])["ablation.zero"]
    whole = loss(model, inputs)
    for site in found.modules:
        mask = HeadMask.full(found.heads).without([Head(*site, 2)])
        with masked(model, found, mask):
            by_mask = loss(model, inputs) - whole
        by_ablation = counted(sums, site)[0][:, 2]
        np.testing.assert_allclose(by_ablation, by_mask[:3], rtol=near, atol=near)
        by_removal = loss(remove(model, found, mask), inputs) - whole  # type: ignore[arg-type]
        np.testing.assert_allclose(by_ablation, by_removal[:3], rtol=near, atol=near)


@pytest.mark.parametrize("family", TELLING)
@given(tokens=st.integers(1, 400))
@settings(max_examples=5, deadline=None)
def test_how_many_heads_go_together_changes_nothing(family: str, tokens: int) -> None:
    model, found, inputs, near = wide(family)
    together, few = (
        ablate(model, found, [inputs], ["ablation.zero"], tokens=n) for n in (4096, tokens)
    )
    for site in found.modules:
        one, other = (counted(collected["ablation.zero"], site)[0] for collected in (together, few))
        np.testing.assert_allclose(one, other, rtol=near, atol=near)


@pytest.mark.parametrize("family", TELLING)
def test_losses_of_smaller_models_are_those_of_masked_ones(family: str) -> None:
    model, found, inputs, near = wide(family)
    every = list(found.heads)
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(3)).tolist()
    masks = [
        HeadMask.full(found.heads).without(every[i] for i in order[:gone])
        for gone in (0, 1, 2, 5, len(every))
    ]
    masks.append(HeadMask.full(found.heads).without(head for head in every if head.layer == 1))
    lost, counts = removal_losses(model, found, [inputs, sentence(inputs, 1)], masks, tokens=100)
    assert lost.shape == (4, len(masks))
    assert counts.tolist() == [*asked_tokens(inputs["labels"])[:3].tolist(), counts[1]]
    for column, mask in enumerate(masks):
        with masked(model, found, mask):
            expected = torch.cat([loss(model, inputs)[:3], loss(model, sentence(inputs, 1))])
        np.testing.assert_allclose(lost[:, column], expected, rtol=near, atol=near)


def test_the_mean_is_that_of_the_whole_text() -> None:
    model, found, inputs, near = wide("bart")
    both = ablate(model, found, [sentence(inputs, row) for row in range(3)], ["ablation.mean"])[
        "ablation.mean"
    ]
    once = ablate(model, found, [inputs], ["ablation.mean"])["ablation.mean"]
    for site in found.modules:
        np.testing.assert_allclose(
            counted(both, site)[0], counted(once, site)[0], rtol=near, atol=near
        )


def test_left_padding_changes_no_example() -> None:
    model, found, inputs, near = wide("gpt2")
    turned = {name: inputs[name].clone() for name in ("input_ids", "attention_mask", "labels")}
    for row in range(3):
        gap = int((inputs["attention_mask"][row] == 0).sum())
        for tensor in turned.values():
            tensor[row] = tensor[row].roll(gap)
    places = (turned["attention_mask"].cumsum(1) - 1).clamp_min(0)
    right, left = (
        ablate(model, found, [batch], ["ablation.example"])["ablation.example"]
        for batch in (inputs, {**turned, "position_ids": places})
    )
    for site in found.modules:
        np.testing.assert_allclose(
            counted(right, site)[0], counted(left, site)[0], rtol=near, atol=near
        )


def test_a_sentence_alone_in_its_batch_has_no_example() -> None:
    model, found, inputs, _ = wide("marian")
    collected = ablate(
        model, found, [inputs, sentence(inputs, 0)], ["ablation.example", "ablation.zero"]
    )
    assert {
        name: len(counted(measured, Site("cross", 0))[1]) for name, measured in collected.items()
    } == {
        "ablation.example": 3,
        "ablation.zero": 4,
    }
    with pytest.raises(HeadwiseError, match="each is alone in its batch"):
        ablate(model, found, [sentence(inputs, 0)], ["ablation.example"])["ablation.example"].rows(
            "ablation.example"
        )


def test_a_masked_model_is_ablated_as_it_is() -> None:
    """Scoring again while heads go: the ablation of a head that is gone already costs nothing."""
    model, found, inputs, near = wide("marian")
    gone = Head("encoder-self", 1, 0)
    mask = HeadMask.full(found.heads).without([gone])
    with masked(model, found, mask):
        sums = ablate(model, found, [inputs], ["ablation.zero"])["ablation.zero"]
        base = loss(model, inputs)
    assert not counted(sums, Site("encoder-self", 1))[0][:, 0].any()
    with masked(model, found, mask.without([Head("cross", 0, 1)])):
        change = loss(model, inputs) - base
    np.testing.assert_allclose(
        counted(sums, Site("cross", 0))[0][:, 1], change[:3], rtol=near, atol=near
    )


def test_a_layer_without_heads_has_no_row() -> None:
    model, found, inputs, _ = wide("marian")
    gone = [Head("encoder-self", 0, head) for head in range(4)] + [
        Head("cross", 1, head) for head in range(4)
    ]
    smaller = remove(model, found, HeadMask.full(found.heads).without(gone))
    for name, measured in ablate(smaller, discover(smaller), [inputs], WITHOUT_PAIRS).items():
        assert len(measured.rows(name)) == found.heads.total - 8


@pytest.mark.parametrize("measure", [ablate, removal_losses])
@pytest.mark.parametrize("family", TELLING)
def test_the_model_is_untouched(family: str, measure: Callable[..., object]) -> None:
    model = worded(family)
    discovery, inputs = discover(model), asking(model, family)
    what = WITHOUT_PAIRS if measure is ablate else [HeadMask(discovery.heads, frozenset())]
    model.train()
    before = state(model)
    measure(model, discovery, [inputs], what)
    assert state(model) == before
    with pytest.raises(IndexError):
        measure(
            model, discovery, [inputs, {**inputs, "input_ids": inputs["input_ids"] + 1000}], what
        )
    assert state(model) == before


@pytest.mark.parametrize("family", ["marian", "t5", "bert", "llama"])
@pytest.mark.parametrize("measure", ["ablation.zero", "ablation.mean"])
def test_a_broken_model_is_reported_by_its_layer(family: str, measure: str) -> None:
    model = worded(family)
    discovery, inputs = discover(model), asking(model, family)
    site = discovery.heads.sites[-1]
    broken(model, discovery.modules[site])
    with pytest.raises(HeadwiseError, match=where(site)):
        ablate(model, discovery, [inputs], [measure])


GEMMA3N: dict[str, Any] = {
    **GROUPED,
    "num_hidden_layers": 3,
    "vocab_size_per_layer_input": 50,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 4,
    "num_kv_shared_layers": 0,
    "layer_types": ["full_attention"] * 3,
    "activation_sparsity_pattern": [0.0] * 3,
    "altup_num_inputs": 2,
}


@pytest.mark.parametrize(
    ("name", "config"), [("HrmTextForCausalLM", STACK), ("Gemma3nForCausalLM", GEMMA3N)]
)
def test_a_model_whose_first_layers_cannot_be_kept_runs_in_full(
    name: str, config: dict[str, Any]
) -> None:
    """Gemma 3n has several states between its layers, HRM runs them in rounds."""
    made = type(getattr(transformers, name).config_class(**STACK).get_text_config())(**config)
    torch.manual_seed(0)
    model = getattr(transformers, name)(made).eval()
    discovery, inputs = discover(model), asking(model, "llama")
    head = Head("decoder-self", 1, 2)
    measured = ablate(model, discovery, [inputs], ["ablation.zero"])["ablation.zero"]
    with torch.no_grad():
        whole = sentence_losses(predict(model, inputs), inputs["labels"])
        with masked(model, discovery, HeadMask.full(discovery.heads).without([head])):
            silenced = sentence_losses(predict(model, inputs), inputs["labels"])
    sums, _ = measured.sentences(Site("decoder-self", 1))
    np.testing.assert_allclose(sums[:, 2], (silenced - whole)[:3].numpy(), atol=1e-5)


def test_a_model_that_is_another_one_in_every_forward_is_refused() -> None:
    model = worded("gpt2")
    discovery, inputs = discover(model), asking(model, "gpt2")
    runs = iter(range(1, 100))
    hook = model.transformer.ln_f.register_forward_hook(lambda *given: given[2] * next(runs))
    with pytest.raises(HeadwiseError, match="another loss"):
        ablate(model, discovery, [inputs], ["ablation.zero"])
    hook.remove()


def test_a_text_that_can_be_read_only_once_has_no_mean() -> None:
    model, found, inputs, _ = wide("gpt2")
    with pytest.raises(HeadwiseError, match="twice"):
        ablate(model, found, iter([inputs]), ["ablation.mean"])


def test_what_is_asked_for_must_exist() -> None:
    model, found, inputs, _ = wide("gpt2")
    with pytest.raises(HeadwiseError, match=r"ablation\.none.*ablation\.zero"):
        ablate(model, found, [inputs], ["ablation.none"])
    with pytest.raises(HeadwiseError, match="no sentence"):
        removal_losses(model, found, [], [HeadMask.full(found.heads)])
    with pytest.raises(HeadwiseError, match="layout is for a model"):
        other = discover(worded("bert"))
        removal_losses(model, found, [inputs], [HeadMask.full(other.heads)])
