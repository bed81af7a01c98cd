"""Ablation of a sample beside first orders of more text: closed forms, slow twins, the full text, coverage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from headwise.core.heads import HeadMap, Site
from headwise.core.progress import silent_share
from headwise.importance.ablation import (
    ABLATIONS,
    ablate,
    adding,
    empty_sums,
    mean_outputs_for,
    one_by_one,
    to_first_order,
)
from headwise.importance.control_variate import controlled, slopes_of_others, variation
from headwise.importance.gradient import gradients
from headwise.models.attention.discover import evaluating
from headwise.models.attention.kernel import AttentionCall
from headwise.models.evaluation.sums import SentenceSums
from headwise.models.evaluation.without_heads import recordings, unrecorded
from importance.asking import close, precise
from models.tasks.askers import asker, lines

SITE = Site("encoder-self", 0)
HEADS = 40


def taken(sums: np.ndarray, counts: np.ndarray) -> SentenceSums:
    collected = SentenceSums(HeadMap({"encoder-self": (sums.shape[1],)}))
    collected.take(SITE, sums, counts)
    return collected


def made_of(
    sample: SentenceSums,
    known: SentenceSums,
    tried: np.ndarray | None = None,
    **documents: np.ndarray,
) -> SentenceSums:
    """tried: on which units each head was tried; all by default."""
    sums, counts = sample.whole(SITE)
    there = np.ones_like(sums) if tried is None else tried
    made, _ = controlled(
        taken(sums * there, counts), taken(there * counts[:, None], counts), known, **documents
    )
    return made


def drawn(random: np.random.Generator, units: int, correlation: float) -> tuple[np.ndarray, ...]:
    """Counts, what is known and what is measured of a text; the true mean of what is measured is 0.3."""
    counts = random.integers(3, 30, units).astype(float)
    known, noise = counts[:, None] * random.normal(size=(2, units, HEADS))
    sums = correlation * known + (1 - correlation**2) ** 0.5 * noise + 0.3 * counts[:, None]
    return counts, known, sums


def test_where_both_are_linear_a_few_sentences_give_the_value_of_the_whole_text() -> None:
    counts, known, _ = drawn(np.random.default_rng(0), 200, 0.0)
    sums = 3 * known + 0.2 * counts[:, None]
    made = made_of(taken(sums[:8], counts[:8]), taken(known, counts))
    total, of_sample = made.whole(SITE)
    close(total.sum(0) / of_sample.sum(), sums.sum(0) / counts.sum(), 1e-9)


def test_the_slope_is_of_all_other_units() -> None:
    counts, rest, sums = (part[:12] for part in drawn(np.random.default_rng(1), 12, 0.6))
    found = slopes_of_others(sums, rest, np.repeat(counts[:, None], HEADS, 1))
    for unit in range(12):
        others = np.arange(12) != unit
        for head in range(3):
            columns = np.stack([counts, rest[:, head]], 1)[others]
            expected = np.linalg.lstsq(columns, sums[others, head], rcond=None)[0][1]
            assert found[unit, head] == pytest.approx(expected)


@pytest.mark.parametrize(("correlation", "gain"), [(0.0, 1.0), (0.9, 3.4)])
def test_intervals_hold_the_truth_and_are_as_narrow_as_the_correlation_allows(
    correlation: float, gain: float
) -> None:
    """1 / (1 − ρ² (1 − n / N)) of the variance, 32 of 256 sentences; nominal 5 %, 1,200 intervals."""
    random = np.random.default_rng(2)
    missed = []
    found = []
    values = []
    for seed in range(30):
        counts, known, sums = drawn(random, 256, correlation)
        sample = taken(sums[:32], counts[:32])
        made = made_of(sample, taken(known, counts))
        rows = made.rows("a measure", seed)
        missed += [not row["low"] <= 0.3 <= row["high"] for row in rows]
        values += [row["value"] for row in rows]
        found.append(np.median(variation(*sample.whole(SITE)) / variation(*made.whole(SITE))))
    assert np.mean(missed) < 0.07
    assert np.mean(found) == pytest.approx(gain, rel=0.1)
    assert abs(np.mean(values) - 0.3) < 3 * np.std(values) / len(values) ** 0.5


def test_nothing_changes_where_no_more_is_known() -> None:
    """The whole text was measured, other units were merged, or nothing is known at all."""
    counts, known, sums = drawn(np.random.default_rng(3), 20, 0.9)
    sample = taken(sums, counts)
    merged = known.reshape(10, 2, -1).sum(1), counts.reshape(10, 2).sum(1)
    for other in (taken(known, counts), taken(*merged), taken(known[:0], counts[:0])):
        same = made_of(sample, other)
        close(same.array(SITE), sample.array(SITE), 1e-9)


@pytest.mark.parametrize("gradients_of", [0, 400])
def test_a_head_that_rests_has_the_value_and_interval_of_what_it_was_tried_on(
    gradients_of: int,
) -> None:
    """Every second head is tried on 32 of 96 sentences: as if these were the sample, of the same text."""
    random = np.random.default_rng(5)
    missed = []
    widths = []
    for seed in range(30):
        counts, known, sums = drawn(random, 400, 0.9)
        whole = taken(known[:gradients_of], counts[:gradients_of])
        tried = np.ones((96, HEADS))
        tried[32:, ::2] = 0
        made = made_of(taken(sums[:96], counts[:96]), whole, tried).rows("x", seed)
        few = made_of(taken(sums[:32], counts[:32]), whole).rows("x", seed)
        many = made_of(taken(sums[:96], counts[:96]), whole).rows("x", seed)
        for key in ("value", "low", "high"):
            close([row[key] for row in made[1::2]], [row[key] for row in many[1::2]], 1e-9)
        close([row["value"] for row in made[::2]], [row["value"] for row in few[::2]], 1e-9)
        for own, other in zip(made[::2], few[::2], strict=True):
            widths.append((own["high"] - own["low"], other["high"] - other["low"]))
        missed += [not row["low"] <= 0.3 <= row["high"] for row in made[::2]]
    width, expected = np.mean(widths, 0)
    assert width == pytest.approx(expected, rel=0.07)
    assert np.mean(missed) < 0.075


def test_heads_that_rest_are_not_run() -> None:
    model, found, inputs, near = precise("gpt2")
    with evaluating(model), torch.no_grad():
        (recorded,) = recordings(model, found, [inputs])
        change = partial(ABLATIONS["ablation.zero"], batch=recorded)
        every = one_by_one(recorded, change, silent_share)
        tired = set(list(found.heads)[::2])
        some = one_by_one(recorded, change, silent_share, resting=tired)
    for head in found.heads:
        site = Site(head.kind, head.layer)
        expected = torch.zeros(4) if head in tired else every[site][:, head.head]
        close(some[site][:, head.head], expected, near)


def test_windows_of_a_document_are_one_unit() -> None:
    """As if each document was a sentence, where the sample ends with a document."""
    counts, known, sums = drawn(np.random.default_rng(4), 60, 0.9)
    documents = np.arange(60) // 2
    by_window = made_of(
        taken(sums[:24], counts[:24]),
        taken(known, counts),
        documents=documents[:24],
        known_documents=documents,
    )
    together = [part.reshape(30, 2, -1).sum(1) for part in (counts, known, sums)]
    whole = taken(together[1], together[0][:, 0])
    expected = made_of(taken(together[2][:12], together[0][:12, 0]), whole)
    close(by_window.array(SITE), expected.array(SITE), 1e-9)


def a_little(call: AttentionCall, head: int, change: Callable[..., Tensor], share: float) -> Tensor:
    return call.output + share * (change(call, head=head) - call.output)


# t5 rounds to float32, which small differences do not survive
@pytest.mark.parametrize("family", ["marian", "albert", "llama"])
def test_first_orders_are_slopes_of_ablations(family: str) -> None:
    """Three thousandths of each change, to either side, for all ablations of text without pairs."""
    model, found, inputs, _ = precise(family)
    names = [
        name for name in ABLATIONS if name not in ("ablation.counterpart", "ablation.restored")
    ]
    step = 0.003
    with evaluating(model), torch.no_grad():
        added = mean_outputs_for(names, model, found, [inputs])
        (recorded,) = recordings(model, found, [inputs])
        recorded = replace(recorded, **added)
        for name in names:
            change = partial(ABLATIONS[name], batch=recorded)
            sides = []
            for share in (step, -step):
                some = partial(a_little, change=change, share=share)
                sides.append(one_by_one(recorded, some, silent_share))
            slopes = to_first_order(recorded, change, silent_share)
            for site, slope in slopes.items():
                close(slope, (sides[0][site] - sides[1][site]) / (2 * step), 1e-3)


def test_first_orders_are_attribution_patching() -> None:
    model, found, inputs, near = precise("gpt2")
    swapped = {**inputs, "corrupted_ids": inputs["input_ids"].flip(0)}
    expected = gradients(model, found, [swapped], patched=True)
    names = {"ablation.zero": "attribution.zero", "ablation.counterpart": "attribution.counterpart"}
    slopes = empty_sums(names, found)
    with evaluating(model), torch.no_grad():
        for _ in adding(slopes, [unrecorded(model, found, swapped)], {}, to_first_order):
            pass
    for name, other in names.items():
        for site in found.modules:
            close(slopes[name].array(site), expected[other].array(site), 1e3 * near)


def test_samples_of_a_text_have_its_value_on_average() -> None:
    """200 samples of 20 of the 80 sentences, on a tiny model: no bias, and a smaller error than the plain mean."""
    model = asker("gpt2")
    batches = model.task.batches(lines(80))
    with evaluating(model.hf), torch.no_grad():
        slopes = empty_sums(["ablation.zero"], model.discovery)
        unread = map(partial(unrecorded, model.hf, model.discovery), batches)
        for _ in adding(slopes, unread, {}, to_first_order):
            pass
    effects = ablate(model.hf, model.discovery, batches, ["ablation.zero"])["ablation.zero"]
    site = model.heads.sites[-1]
    sums, counts = effects.whole(site)
    known = slopes["ablation.zero"].whole(site)[0]
    truth = sums.sum(0) / counts.sum()
    random = np.random.default_rng(0)
    errors = []
    plain = []
    for _ in range(200):
        order = random.permutation(80)
        some = order[:20]
        made = made_of(taken(sums[some], counts[some]), taken(known[order], counts[order]))
        total, of_sample = made.whole(SITE)
        errors.append(total.sum(0) / of_sample.sum() - truth)
        plain.append(sums[some].sum(0) / counts[some].sum() - truth)
    bias = np.mean(errors, 0)
    assert (np.abs(bias) < 0.3 * np.std(errors, 0)).all()
    assert (np.std(errors, 0) < 0.7 * np.std(plain, 0)).all()
