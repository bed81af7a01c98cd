"""Gradient scores: the same at the gate, the context and the weights; a slow version; padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from headwise.core.heads import HeadMap, Site
from headwise.importance import gradient
from headwise.importance.gradient import GRADIENTS, gradients
from headwise.importance.lrp.relevance import relevance
from headwise.importance.lrp.rules import RULES
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import discover
from headwise.models.attention.kernel import AttentionCall
from headwise.models.evaluation.sums import SentenceSums, add_all, to_unit_norm
from headwise.models.tasks.objective import asked_tokens
from importance.asking import ASKED, asking, close, lost, precise, same_sums, sentence, worded
from refusals import refuses


@pytest.mark.parametrize("family", ASKED)
def test_gate_context_and_weights_agree(family: str) -> None:
    """A gate of each example and head; c ∂L/∂c (in `gradients`); A ∂L/∂A with A a variable of its own."""
    model, found, inputs, near = precise(family)
    gates = {
        site: torch.ones(4, found.heads.count(site), dtype=torch.float64, requires_grad=True)
        for site in found.modules
    }
    with capture(model, found, gates=gates):
        slopes = torch.autograd.grad(lost(model, inputs).sum(), list(gates.values()))
    at_gates = dict(zip(gates, slopes, strict=True))
    weights: dict[Site, Tensor] = {}

    def build_from_weights(seen: AttentionCall) -> Tensor:
        assert seen.weights is not None
        weights[seen.site] = seen.weights.detach().double().requires_grad_()
        repeats = weights[seen.site].shape[1] // seen.value.shape[1]
        product = weights[seen.site] @ seen.value.detach().repeat_interleave(repeats, 1)
        # The layers before are reached through the usual output.
        return product.transpose(1, 2) + seen.output - seen.output.detach()

    built = dict.fromkeys(found.modules, build_from_weights)
    with capture(model, found, weights=True, replace=built):
        at_weights = torch.autograd.grad(lost(model, inputs).sum(), list(weights.values()))
    collected = gradients(model, found, [inputs])
    for (site, own), slope in zip(weights.items(), at_weights, strict=True):
        sums, counts = collected["gradient"].sentences(site)
        assert counts.tolist() == [1, 1, 1]
        close(sums, at_gates[site][:3].abs(), near)
        close(sums, (own * slope).sum((2, 3))[:3].abs().detach(), near)
        assert sums.max() > 1e-4


@pytest.mark.parametrize("family", ASKED)
def test_slow_version(family: str) -> None:
    """One sentence and one head at a time, with the weights built, loops over positions, and no padding at all."""
    model, found, inputs, near = precise(family)
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
            lost(model, alone).sum().backward()
        asked = int(asked_tokens(alone["labels"]))
        for site, now in seen.items():
            assert now.output.grad is not None and now.weights is not None
            for head in range(found.heads.count(site)):
                contexts, slopes = now.output[0, :, head].detach(), now.output.grad[0, :, head]
                moves = [float(c @ g) for c, g in zip(contexts, slopes, strict=True)]
                group = head * now.value.shape[1] // found.heads.count(site)
                pairs = []
                for slope, allowed in zip(slopes, now.weights[0, head] > 0, strict=True):
                    pairs += (now.value[0, group].detach()[allowed] @ slope).abs().tolist()
                batched[site][head] += sum(moves)
                for measure, total, count in (
                    ("gradient", abs(sum(moves)), 1),
                    ("gradient.token", sum(map(abs, moves)), len(moves)),
                    ("attribution.zero", -sum(moves), asked),
                    ("attention-gradient", sum(pairs), len(pairs)),
                ):
                    sums, counts = collected[measure].sentences(site)
                    assert counts[row] == count, (measure, site)
                    close(sums[row, head], total, 100 * near)
    for site, totals in batched.items():
        sums, counts = collected["gradient.batch"].sentences(site)
        assert counts.tolist() == [1]
        close(sums[0], np.abs(totals), 100 * near)


def test_batch_reading_is_the_per_example_one_for_batches_of_one_sentence() -> None:
    model, found, inputs, _ = precise("marian")
    collected = gradients(model, found, [sentence(inputs, row) for row in range(3)])
    same_sums(collected["gradient"], collected["gradient.batch"], 0)


@pytest.mark.parametrize("family", ["marian", "llama"])
def test_a_batch_in_several_backward_passes_gives_the_same(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, found, inputs, near = precise(family)
    whole = gradients(model, found, [inputs])
    passes = []
    usual = gradient.traced
    monkeypatch.setattr(gradient, "traced", lambda *given: passes.append(1) or usual(*given))
    monkeypatch.setattr(gradient, "MOST_KEPT_BYTES", {"cpu": 0, "other": 0})
    parts = gradients(model, found, [inputs])
    assert len(passes) == len(inputs["labels"]) > 1
    for name in GRADIENTS:
        same_sums(parts[name], whole[name], 100 * near)


def test_first_order_estimate_is_the_slope_of_the_loss() -> None:
    """attribution.zero is −ε⁻¹ times the change of the loss for a gate of 1 + ε, by central differences."""
    model, found, inputs, _ = precise("bart")
    found_slopes = gradients(model, found, [inputs])["attribution.zero"]
    for site in found.modules:
        gate, step = torch.ones(found.heads.count(site), dtype=torch.float64), 1e-4
        changes = []
        for sign in (-1, 1):
            gate[1] = 1 + sign * step
            with torch.no_grad(), capture(model, found, gates={site: gate.clone()}):
                changes.append(lost(model, inputs))
        slope = (changes[1] - changes[0]) / (2 * step)
        close(found_slopes.sentences(site)[0][:, 1], -slope[:3], 1e-5)


def test_normalised_rows_have_length_one_in_every_layer_and_kind() -> None:
    model, found, inputs, _ = precise("marian")
    collected = gradients(model, found, [inputs] * 4)
    raw, scaled = (collected[name].rows(name) for name in ("gradient", "gradient.normalised"))
    for site in found.heads.sites:
        here = [n for n, row in enumerate(raw) if (row["kind"], row["layer"]) == site]
        values = np.array([raw[place]["value"] for place in here])
        close([scaled[n]["value"] for n in here], values / np.linalg.norm(values), 1e-7)
    assert all(row["low"] <= row["value"] <= row["high"] for row in scaled)


def test_a_scaled_tally_scales_every_resample() -> None:
    """Two heads nearly in a fixed proportion: normalised they are nearly the same in every text that is drawn."""
    measured = SentenceSums(HeadMap({"cross": (2,)}), scale=to_unit_norm)
    add_all(
        [
            (
                measured,
                Site("cross", 0),
                torch.rand(20, 1) * (torch.tensor([[3.0, 4.0]]) + torch.rand(20, 2) / 1000),
                torch.ones(20),
            )
        ]
    )
    for row, value in zip(measured.rows("gradient.normalised"), (0.6, 0.8), strict=True):
        assert row["low"] < row["value"] < row["high"]
        assert (row["low"], row["high"]) == pytest.approx((value, value), abs=0.001)


def test_all_zero_stays_zero() -> None:
    assert to_unit_norm(np.zeros((2, 3))).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_inside_inference_mode() -> None:
    """A batch that was made there, too. Weights that were made there let no gradient through."""
    outside = worded("llama")
    found, inputs = discover(outside), asking(outside, "llama")
    expected = gradients(outside, found, [inputs])["gradient"]
    with torch.inference_mode():
        model, made_inside = worded("llama"), asking(outside, "llama")
        same_sums(gradients(outside, found, [made_inside])["gradient"], expected, 0)
        relevance(outside, found, [made_inside], RULES["ding"])
        refuses(lambda: gradients(model, discover(model), [inputs]), "load it outside")
