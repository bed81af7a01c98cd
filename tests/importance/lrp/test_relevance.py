"""Head relevance of whole models: shares, padding, modes, targets, precision, errors, the model untouched."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headwise.core.heads import Head, Site
from headwise.core.layout import HeadMask
from headwise.importance.lrp import relevance as module
from headwise.importance.lrp.relevance import Mode, Relevance, record_tape, relevance
from headwise.importance.lrp.rules import RULES, Epsilon, Rule
from headwise.importance.lrp.tape import Walk
from headwise.models.attention.capture import keeping
from headwise.models.attention.discover import Discovery, discover
from headwise.models.tasks.objective import predict
from headwise.models.token_rows import IGNORED
from importance.asking import ASKED, asking, sentence, where, worded
from models.attention.families import SEQUENCE_TO_SEQUENCE, cut

FAMILIES = (*ASKED, "distilbert", "olmo2")
MODES: tuple[Mode, ...] = ("per-step", "pooled")
EVERY = pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
Shares = dict[tuple[str, Site], np.ndarray]


@cache
def ready(family: str) -> tuple[PreTrainedModel, Discovery, dict[str, Tensor]]:
    """A family's float32 model, which no test here may change, its heads, and a batch."""
    model = worded(family)
    return model, discover(model), asking(model, family)


def scored(
    model: PreTrainedModel,
    inputs: dict[str, Tensor],
    rule: Rule,
    mode: Mode = "per-step",
) -> Relevance:
    return relevance(model, discover(model), [inputs], rule, mode)


def shares(given: Relevance) -> Shares:
    """Measure and site -> the mean share of every head in every sentence: sentences x heads."""
    found: Shares = {}
    for name, measured in given.sums.items():
        for site in measured.heads.sites:
            sums, counts = measured.sentences(site)
            found[name, site] = sums[counts > 0] / counts[counts > 0, None]  # without the empty row
    return found


def main(given: Relevance, rule: Rule, mode: Mode = "per-step") -> dict[Site, np.ndarray]:
    """The reading that goes by the rule's own name."""
    name = f"lrp.{rule.name}" + (".pooled" if mode == "pooled" else "")
    return {site: values for (measure, site), values in shares(given).items() if measure == name}


def same(found: dict[Site, np.ndarray], expected: dict[Site, np.ndarray], within: float) -> None:
    assert found.keys() == expected.keys()
    for site, values in expected.items():
        np.testing.assert_allclose(found[site], values, rtol=0, atol=within, err_msg=where(site))


def furthest(one: dict[Site, np.ndarray], other: dict[Site, np.ndarray]) -> float:
    return max(float(np.abs(values - other[site]).max()) for site, values in one.items())


@EVERY
@pytest.mark.parametrize("family", FAMILIES)
def test_shares_padding_and_modes(family: str, rule: Rule) -> None:
    """Every layer's shares add up to 1, a sentence alone has the shares it has in a padded batch, and the two modes,
    for rules that are linear in relevance, account for it alike."""
    model, found, inputs = ready(family)
    both = {mode: relevance(model, found, [inputs], rule, mode) for mode in MODES}
    within = 1e-3 if rule.rescale else 2e-5
    for mode, given in both.items():
        alone = main(relevance(model, found, [sentence(inputs, 1)], rule, mode), rule, mode)
        batched = main(given, rule, mode)
        assert list(batched) == list(found.heads.sites)
        for values in batched.values():
            assert values.shape[0] == 3 and np.isfinite(values).all() and values.std() > 1e-3
            np.testing.assert_allclose(values.sum(1), 1, atol=1e-5)
        same(
            {site: values[:1] for site, values in alone.items()},
            {site: values[1:2] for site, values in batched.items()},
            within,
        )
        assert sum(given.balance.values()) == pytest.approx(1, abs=5e-3 if rule.rescale else 1e-4)
    for what, share in both["per-step"].balance.items():
        if not rule.rescale:
            assert both["pooled"].balance[what] == pytest.approx(share, abs=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_readings_are_named_by_the_rule(mode: Mode) -> None:
    """Absolute sums under the bare name for rules of epsilon, signed ones for alpha-beta; the other reading beside."""
    model, found, inputs = ready("marian")
    end = ".pooled" if mode == "pooled" else ""
    for name, rule in RULES.items():
        other = ".absolute" if name.startswith("alpha-beta") else ".signed"
        given = relevance(model, found, [inputs], rule, mode)
        assert list(given.sums) == [f"lrp.{name}{end}", f"lrp.{name}{end}{other}"]
        if name.startswith("alpha-beta"):  # nothing is negative there, so the readings agree
            values = np.array([*shares(given).values()])
            np.testing.assert_allclose(*np.split(values, 2), atol=1e-4)


def by_hand(
    model: PreTrainedModel, inputs: dict[str, Tensor], rule: Rule
) -> dict[Site, np.ndarray]:
    """One sentence and one position at a time, with a whole row of logits to start from."""
    discovery = discover(model)
    total: dict[Site, Tensor] = {}
    asked = (inputs["labels"][0] != IGNORED).nonzero()[:, 0].tolist()
    with torch.no_grad():
        tape, logits = record_tape(model, discovery, inputs)
        for place in asked:
            start = torch.zeros_like(logits)
            start[0, place, logits[0, place].argmax()] = 1
            heads: dict[Site, Tensor] = {}
            Walk(tape, rule, {tape.numbers[id(logits)]: start[None]}, heads.__setitem__)
            for site, at in heads.items():
                each = (at if rule.signed else at.abs()).sum((0, 1, 2, 4))
                share = each / each.sum() / len(asked)
                total[site] = total[site] + share if site in total else share
    return {site: values.numpy()[None] for site, values in total.items()}


@EVERY
@pytest.mark.parametrize("family", ["marian", "bart", "gpt2"])
def test_slow_version(family: str, rule: Rule) -> None:
    """A walk for every position, from a one in the logits, with all of the output layer's rules on the way."""
    model = worded(family).double()
    alone = sentence(asking(model, family), 1)
    found = main(scored(model, alone, rule), rule)
    same(found, by_hand(model, alone, rule), 1e-4 if rule.rescale else 1e-7)


@EVERY
def test_steps_in_chunks_are_the_steps_at_once(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    model = worded("marian").double()
    inputs = asking(model, "marian")
    at_once = scored(model, inputs, rule)
    walks: list[int] = []
    begin = module.begin
    monkeypatch.setattr(module, "begin", lambda *given: (walks.append(1), begin(*given))[1])
    for rows in ("ROWS", "SPREAD_ROWS"):
        monkeypatch.setattr(module, rows, 2 * inputs["input_ids"].numel())
    chunked = scored(model, inputs, rule)
    assert len(walks) == 4  # 7 steps, two at a time
    alike(chunked, at_once)


def alike(one: Relevance, other: Relevance) -> None:
    """The same shares and balance, but for rounding."""
    for key, values in shares(other).items():
        np.testing.assert_allclose(shares(one)[key], values, rtol=1e-7, atol=1e-9)
    assert one.balance == pytest.approx(other.balance, rel=1e-9, abs=1e-9)


def test_batches_add_up() -> None:
    model, rule = worded("marian").double(), RULES["cp"]
    inputs = asking(model, "marian")
    whole = scored(model, inputs, rule)
    alone = [sentence(inputs, row) for row in range(3)]
    alike(relevance(model, discover(model), alone, rule), whole)


@EVERY
@pytest.mark.parametrize("family", ["marian", "gpt2"])
def test_precision(family: str, rule: Rule) -> None:
    """float32 against float64, and weights in bfloat16, whose relevance is handed on in float32."""
    model, found, inputs = ready(family)
    single = main(relevance(model, found, [inputs], rule), rule)
    double, half = (
        main(scored(worded(family).to(kind), inputs, rule), rule)
        for kind in (torch.float64, torch.bfloat16)
    )
    same(single, double, 2e-3 if rule.rescale else 1e-5)
    same(half, single, 0.1)  # other logits are on top in some places


def test_a_network_without_constants_conserves() -> None:
    """T5 has no bias, its norms hand relevance on and cp holds weights constant: all of it arrives."""
    exact, inputs = replace(RULES["cp"], share=Epsilon(1e-12)), asking(worded("t5"), "t5")
    given = scored(worded("t5").double(), inputs, exact)
    assert given.balance["arrived"] == pytest.approx(1, abs=1e-9)
    assert all(abs(share) < 1e-9 for what, share in given.balance.items() if what != "arrived")


@EVERY
@pytest.mark.parametrize("mode", MODES)
def test_silenced_heads_have_no_relevance(rule: Rule, mode: Mode) -> None:
    """A single head, and whole layers with all that leads to another one. What is left has shares that add up to 1, as
    in the model that is cut."""
    model = worded("marian").double()
    discovery, inputs = discover(model), asking(model, "marian")
    first, cross = Site("decoder-self", 0), Site("cross", 1)
    gone = [Head(*cross, 2), *(head for head in discovery.heads if head[:2] == first)]
    mask = HeadMask.full(discovery.heads).without(gone)
    smaller = cut(model, discovery, gone)
    by_cut = main(scored(smaller, inputs, rule, mode), rule, mode)
    with keeping(model, discovery, mask):
        silenced = main(relevance(model, discovery, [inputs], rule, mode), rule, mode)
    assert not silenced.pop(first).any() and not silenced[cross][:, 2].any()
    for site, values in silenced.items():
        np.testing.assert_allclose(values.sum(1), 1, atol=1e-5)
        near = 0.02 if rule.rescale else 1e-9
        np.testing.assert_allclose(values[:, mask.of(site)], by_cut[site], atol=near)
    crossing = [head for head in discovery.heads if head.kind == "cross"]
    with keeping(model, discovery, mask.without(crossing)):
        given = main(relevance(model, discovery, [inputs], rule, mode), rule, mode)
    for site, values in given.items():
        assert values.any() == (site == ("decoder-self", 1)) and len(values) == 3


@pytest.mark.parametrize("family", SEQUENCE_TO_SEQUENCE)
def test_fast_alpha_beta_is_near_the_exact_one(family: str) -> None:
    """Head shares by the fast form differ by at most 0.05, on weights whose biases are far larger than usual."""
    model = worded(family).double()
    inputs = asking(model, family)
    fast, exact = (
        main(scored(model, inputs, RULES[n]), RULES[n]) for n in ("alpha-beta-fast", "alpha-beta")
    )
    assert 1e-6 < furthest(fast, exact) < 0.05


def test_of_long_sentences_some_positions_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 8, 5 and 2 predicted tokens four, four and two: those that are asked for alone, each for as many as it stands
    for. Nothing changes where no sentence is longer."""
    model, discovery, inputs = ready("llama")
    rule = RULES["cp"]
    plain = scored(model, inputs, rule)
    assert "positions" not in plain.balance
    chosen = [[1, 3, 5, 7], [0, 1, 3, 4], [0, 1], []]
    labels = torch.full_like(inputs["labels"], IGNORED)
    for row, places in enumerate(chosen):
        labels[row, places] = inputs["labels"][row, places]
    expected = scored(model, {**inputs, "labels": labels}, rule)

    monkeypatch.setattr(module, "STARTS", 4)
    found = scored(model, inputs, rule)
    assert found.balance["positions"] == pytest.approx(10 / 15)
    for what, share in expected.balance.items():
        assert found.balance[what] == pytest.approx(share, abs=1e-6)
    for name, sums in found.sums.items():
        for site in discovery.modules:
            values, counts = sums.sentences(site)
            few, some = expected.sums[name].sentences(site)
            assert counts.tolist() == [8, 5, 2]
            np.testing.assert_allclose(values / counts[:, None], few / some[:, None], atol=1e-6)
    pooled = scored(model, inputs, rule, "pooled")
    assert "positions" not in pooled.balance


def test_only_ding_depends_on_the_scale_of_values() -> None:
    """A Llama with values V·c and output projections O/c says the same for every c."""
    model, _, inputs = ready("llama")
    scaled = copy.deepcopy(model)
    for layer in scaled.model.layers:
        layer.self_attn.v_proj.weight.data *= 16
        layer.self_attn.o_proj.weight.data /= 16
    with torch.no_grad():
        logits = predict(scaled, inputs), predict(model, inputs)
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-4)
    for name in ("cp", "attnlrp", "ding"):
        rule = RULES[name]
        apart = furthest(*(main(scored(one, inputs, rule), rule) for one in (model, scaled)))
        assert apart > 0.01 if name == "ding" else apart < 1e-3, (name, apart)


def test_a_batch_goes_through_in_parts_without_the_padding_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = torch.tensor([[3, 4, 5, 6, 7, 2], [3, 2, 0, 0, 0, 0], [8, 9, 2, 0, 0, 0]])
    labels = torch.tensor([[5, 2, -100, -100], [6, 7, 8, 2], [-100] * 4])
    batch = {
        "input_ids": source,
        "attention_mask": (source > 0).long(),
        "decoder_input_ids": labels.clamp(min=0),
        "labels": labels,
        "rows": torch.tensor([7, 8, 9]),
    }
    monkeypatch.setattr(module, "POSITIONS", 6)
    parts = list(module.parts_of_like_length(batch, module.POSITIONS))
    assert sorted(torch.cat([places for places, _ in parts]).tolist()) == [0, 1, 2]
    for places, part in parts:
        mask = batch["attention_mask"][places]
        longest = int(mask.sum(1).max())
        assert torch.equal(part["input_ids"], source[places][:, :longest])
        assert torch.equal(part["rows"], batch["rows"][places])
        asked = int((labels[places] != -100).sum(1).max())
        assert part["labels"].shape[1] == part["decoder_input_ids"].shape[1] == asked
