"""Gradient scores: the same at the gate, the context and the weights; a slow version; padding; the model untouched."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from attention.families import tiny
from headwise.attention import AttentionCall, capture, discover, remove
from headwise.attention.discover import Discovery
from headwise.errors import HeadwiseError
from headwise.heads import Head, HeadMap, HeadMask, Site
from headwise.importance import gradient
from headwise.importance.gradient import GRADIENTS, gradients
from headwise.importance.lrp.relevance import relevance
from headwise.importance.lrp.rules import RULES
from headwise.importance.sums import SentenceSums, to_unit_norm
from headwise.tasks.objective import asked_tokens, predict, sentence_losses
from headwise.training.token_batches import IGNORED
from importance.asking import ASKED, asking, broken, counted, sentence, state, where, worded

ROUNDED = ("llama", "qwen3", "t5")  # norms and softmax in float32 even in a float64 model


def wide(family: str) -> tuple[PreTrainedModel, Discovery, dict[str, Tensor], float]:
    """A float64 model, its heads, a batch, and how near two ways of computing must come."""
    model = worded(family).double()
    return model, discover(model), asking(model, family), 1e-6 if family in ROUNDED else 1e-9


def losses(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> Tensor:
    return sentence_losses(predict(model, inputs), inputs["labels"])


@pytest.mark.parametrize("family", ASKED)
def test_gate_context_and_weights_agree(family: str) -> None:
    """A gate of each example and head; c ∂L/∂c (in `gradients`); A ∂L/∂A with A a variable of its own."""
    model, found, inputs, near = wide(family)
    gates = {
        site: torch.ones(4, found.heads.count(site), dtype=torch.float64, requires_grad=True)
        for site in found.modules
    }
    with capture(model, found, gates=gates):
        at_gates = dict(
            zip(
                gates,
                torch.autograd.grad(losses(model, inputs).sum(), list(gates.values())),
                strict=True,
            )
        )
    weights: dict[Site, Tensor] = {}

    def build_from_weights(seen: AttentionCall) -> Tensor:
        assert seen.weights is not None
        weights[seen.site] = seen.weights.detach().double().requires_grad_()
        repeats = weights[seen.site].shape[1] // seen.value.shape[1]
        product = weights[seen.site] @ seen.value.detach().repeat_interleave(repeats, 1)
        through = (
            seen.output - seen.output.detach()
        )  # the layers before are reached through the usual output
        return product.transpose(1, 2) + through

    with capture(
        model, found, weights=True, replace=dict.fromkeys(found.modules, build_from_weights)
    ):
        at_weights = torch.autograd.grad(losses(model, inputs).sum(), list(weights.values()))
    collected = gradients(model, found, [inputs])
    for (site, own), slope in zip(weights.items(), at_weights, strict=True):
        sums, counts = counted(collected["gradient"], site)
        assert counts.tolist() == [1, 1, 1]
        np.testing.assert_allclose(sums, at_gates[site][:3].abs().numpy(), rtol=near, atol=near)
        np.testing.assert_allclose(
            sums, (own * slope).sum((2, 3))[:3].abs().detach().numpy(), rtol=near, atol=near
        )
        assert sums.max() > 1e-4


@pytest.mark.parametrize("family", ASKED)
def test_slow_version(family: str) -> None:
    """One sentence and one head at a time, with the weights built, loops over positions, and no padding at all."""
    model, found, inputs, near = wide(family)
    collected = gradients(model, found, [inputs])
    batched = {site: np.zeros(found.heads.count(site)) for site in found.modules}
    for row in range(3):
        alone = sentence(inputs, row)
        seen: dict[Site, AttentionCall] = {}

        def keep(now: AttentionCall, seen: dict[Site, AttentionCall] = seen) -> None:
            now.output.retain_grad()
            seen[now.site] = now

        model.zero_grad()
        with capture(model, found, hook=keep, weights=True):
            losses(model, alone).sum().backward()
        asked = int(asked_tokens(alone["labels"]))
        for site, now in seen.items():
            assert now.output.grad is not None and now.weights is not None
            for head in range(found.heads.count(site)):
                contexts, slopes = now.output[0, :, head].detach(), now.output.grad[0, :, head]
                moves = [float(c @ g) for c, g in zip(contexts, slopes, strict=True)]
                group = head * now.value.shape[1] // found.heads.count(site)
                pairs = [
                    abs(float(slope @ value))
                    for slope, allowed in zip(slopes, now.weights[0, head] > 0, strict=True)
                    for value, seen_by in zip(now.value[0, group].detach(), allowed, strict=True)
                    if seen_by
                ]
                batched[site][head] += sum(moves)
                for measure, total, count in (
                    ("gradient", abs(sum(moves)), 1),
                    ("gradient.token", sum(map(abs, moves)), len(moves)),
                    ("attribution.zero", -sum(moves), asked),
                    ("attention-gradient", sum(pairs), len(pairs)),
                ):
                    sums, counts = counted(collected[measure], site)
                    assert counts[row] == count, (measure, site)
                    assert sums[row, head] == pytest.approx(
                        total, rel=100 * near, abs=100 * near
                    ), (measure, site)
    for site, totals in batched.items():
        sums, counts = counted(collected["gradient.batch"], site)
        assert counts.tolist() == [1]
        np.testing.assert_allclose(sums[0], np.abs(totals), rtol=100 * near, atol=100 * near)


def test_batch_reading_is_the_per_example_one_for_batches_of_one_sentence() -> None:
    model, found, inputs, _ = wide("marian")
    collected = gradients(model, found, [sentence(inputs, row) for row in range(3)])
    for site in found.modules:
        for one, other in zip(
            counted(collected["gradient"], site),
            counted(collected["gradient.batch"], site),
            strict=True,
        ):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("family", ["marian", "llama"])
def test_a_batch_in_several_backward_passes_gives_the_same(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, found, inputs, near = wide(family)
    whole = gradients(model, found, [inputs])
    passes = []
    usual = gradient.traced
    monkeypatch.setattr(gradient, "traced", lambda *given: passes.append(1) or usual(*given))
    monkeypatch.setattr(gradient, "MOST", {"cpu": 0, "other": 0})
    parts = gradients(model, found, [inputs])
    assert len(passes) == len(inputs["labels"]) > 1
    for name in GRADIENTS:
        for site in found.modules:
            pairs = zip(counted(parts[name], site), counted(whole[name], site), strict=True)
            for one, other in pairs:
                np.testing.assert_allclose(one, other, rtol=100 * near, atol=100 * near)


def test_first_order_estimate_is_the_slope_of_the_loss() -> None:
    """attribution.zero is −ε⁻¹ times the change of the loss for a gate of 1 + ε, by central differences."""
    model, found, inputs, _ = wide("bart")
    found_slopes = gradients(model, found, [inputs])["attribution.zero"]
    for site in found.modules:
        gate, step = torch.ones(found.heads.count(site), dtype=torch.float64), 1e-4
        changes = []
        for sign in (-1, 1):
            gate[1] = 1 + sign * step
            with torch.no_grad(), capture(model, found, gates={site: gate.clone()}):
                changes.append(losses(model, inputs))
        slope = (changes[1] - changes[0]) / (2 * step)
        np.testing.assert_allclose(
            counted(found_slopes, site)[0][:, 1], -slope[:3].numpy(), rtol=1e-5, atol=1e-7
        )


def test_normalised_rows_have_length_one_in_every_layer_and_kind() -> None:
    model, found, inputs, _ = wide("marian")
    collected = gradients(model, found, [inputs])
    raw, scaled = (
        collected["gradient"].rows("gradient"),
        collected["gradient.normalised"].rows("gradient.normalised"),
    )
    for site in found.heads.sites:
        here = [place for place, row in enumerate(raw) if (row["kind"], row["layer"]) == site]
        values = np.array([raw[place]["value"] for place in here])
        np.testing.assert_allclose(
            [scaled[place]["value"] for place in here], values / np.linalg.norm(values)
        )
        assert all(
            scaled[place]["low"] <= scaled[place]["value"] <= scaled[place]["high"]
            for place in here
        )


def test_a_scaled_tally_scales_every_resample() -> None:
    """Two heads in a fixed proportion: normalised they are the same in every text that is drawn."""
    measured = SentenceSums(HeadMap({"cross": (2,)}), scale=to_unit_norm)
    measured.add(Site("cross", 0), torch.rand(20, 1) * torch.tensor([[3.0, 4.0]]), torch.ones(20))
    for row, value in zip(measured.rows("gradient.normalised"), (0.6, 0.8), strict=True):
        assert (row["value"], row["low"], row["high"]) == pytest.approx((value, value, value))


def test_all_zero_stays_zero() -> None:
    assert to_unit_norm(np.zeros((2, 3))).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_a_layer_without_heads_has_no_row() -> None:
    model = worded("marian")
    discovery = discover(model)
    gone = [Head("encoder-self", 0, head) for head in range(4)] + [
        Head("cross", 1, head) for head in range(4)
    ]
    smaller = remove(model, discovery, HeadMask.full(discovery.heads).without(gone))
    collected = gradients(smaller, discover(smaller), [asking(model, "marian")])
    assert {
        name: len(measured.rows(name)) for name, measured in collected.items()
    } == dict.fromkeys(GRADIENTS, 16)


@pytest.mark.parametrize("family", ASKED)
def test_the_model_is_untouched(family: str) -> None:
    model = worded(family)
    discovery, inputs = discover(model), asking(model, family)
    model.train()
    next(model.parameters()).requires_grad_(False)
    before = state(model)
    with torch.no_grad():
        first = gradients(model, discovery, [inputs])
    assert state(model) == before
    with pytest.raises(IndexError):
        gradients(model, discovery, [{**inputs, "input_ids": inputs["input_ids"] + 1000}])
    assert state(model) == before
    again = gradients(model, discovery, [inputs])
    for site in discovery.modules:
        one, other = (counted(collected["gradient"], site)[0] for collected in (first, again))
        assert one.tolist() == other.tolist(), "dropout was on"


@pytest.mark.parametrize("family", ["marian", "t5", "bert", "llama"])
def test_a_broken_model_is_reported_by_its_layer(family: str) -> None:
    model = worded(family)
    discovery, inputs = discover(model), asking(model, family)
    site = next(site for site in reversed(discovery.heads.sites))
    broken(model, discovery.modules[site])
    with pytest.raises(HeadwiseError, match=where(site)):
        gradients(model, discovery, [inputs])


def test_a_loss_that_is_no_number_is_reported() -> None:
    model = worded("marian")
    model.final_logits_bias.fill_(float("nan"))
    with pytest.raises(HeadwiseError, match="loss is not a number"):
        gradients(model, discover(model), [asking(model, "marian")])


def test_a_model_without_words_is_refused() -> None:
    model = tiny("bert")
    with pytest.raises(HeadwiseError, match="language-model head"):
        gradients(model, discover(model), [asking(model, "bert")])


def test_a_text_that_asks_for_nothing_is_refused() -> None:
    model = worded("gpt2")
    inputs = asking(model, "gpt2")
    nothing = {**inputs, "labels": torch.full_like(inputs["labels"], IGNORED)}
    collected = gradients(model, discover(model), [nothing])
    for name in GRADIENTS:
        with pytest.raises(HeadwiseError, match="too short"):
            collected[name].rows(name)


def test_inside_inference_mode() -> None:
    """A batch that was made there, too. Weights that were made there let no gradient through."""
    outside = worded("llama")
    expected = gradients(outside, discover(outside), [asking(outside, "llama")])["gradient"].rows(
        "gradient"
    )
    with torch.inference_mode():
        model, inputs = worded("llama"), asking(outside, "llama")
        assert (
            gradients(outside, discover(outside), [inputs])["gradient"].rows("gradient") == expected
        )
        relevance(outside, discover(outside), [inputs], RULES["ding"])
        with pytest.raises(HeadwiseError, match="load it outside"):
            gradients(model, discover(model), [inputs])
