"""Greedy removal: sizes and order against the paper's program, nesting, baselines, the smallest good enough."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MarianMTModel

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, HeadMap, Kind, Site
from headwise.core.layout import HeadMask
from headwise.core.measured import choose_smallest
from headwise.core.removal_units import Together
from headwise.models.model import Model
from headwise.pruning.greedy import (
    mask_without,
    next_size,
    random_scores,
    weight_norms,
)
from models.attention.families import tiny
from pruning.removal import masks_of_steps as greedy

HEADS = HeadMap({"encoder-self": (4, 3), "decoder-self": (2,), "cross": (3,)})
BOTH: tuple[Kind, ...] = ("encoder-self", "cross")
ORDER = (
    "encoder-self/1/2",
    "cross/0/0",
    "encoder-self/0/1",
    "encoder-self/0/0",
    "cross/0/2",
    "encoder-self/1/0",
)
VALUES = {head: 10.0 for head in HEADS} | {
    Head.parse(name): float(i) for i, name in enumerate(ORDER)
}


def fixed(values: Mapping[Head, float]) -> Callable[[HeadMask], Mapping[Head, float]]:
    return lambda mask: values


class TestGreedy:
    def test_the_least_important_go_first(self) -> None:
        masks = greedy(HEADS, fixed(VALUES), BOTH, step=0.2)
        assert [sum(map(mask.count, BOTH)) for mask in masks] == [10, 8, 6, 4, 2, 1]
        gone = [
            [str(head) for head in HEADS if head in before.kept - after.kept]
            for before, after in pairs(masks)
        ]
        assert [set(step) for step in gone[:3]] == [set(ORDER[:2]), set(ORDER[2:4]), set(ORDER[4:])]
        assert gone[3:] == [["encoder-self/0/2", "encoder-self/0/3"], ["encoder-self/1/1"]], (
            "of equal ones the first"
        )
        assert all(mask.count("decoder-self") == 2 for mask in masks), "other kinds stay"

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.integers(1, 12), min_size=1, max_size=5),
        st.integers(1, 20),
        st.booleans(),
        st.integers(0, 9),
    )
    def test_masks_are_nested_and_as_large_as_in_the_papers_program(
        self, layers: list[int], steps: int, once: bool, seed: int
    ) -> None:
        """ceil(n·i/steps) heads are gone after step i; the last mask has one head, not none."""
        heads = HeadMap({"encoder-self": tuple(layers)})
        n = heads.total
        masks = greedy(heads, fixed(random_scores(heads, seed)), ["encoder-self"], 1 / steps, once)
        expected = {0, n - 1} | {gone for i in range(steps) if (gone := -(-n * i // steps)) < n}
        assert [n - len(mask) for mask in masks] == sorted(expected)
        assert all(after.kept < before.kept for before, after in pairs(masks))

    @settings(max_examples=60, deadline=None)
    @given(st.data(), st.booleans(), st.sampled_from([0.1, 0.25, 1.0]), st.integers(0, 9))
    def test_exactly_so_many_are_left_of_every_kind(
        self, data: st.DataObject, once: bool, step: float, seed: int
    ) -> None:
        """The best of each kind, whatever the others do; and in total the best of all."""
        values = random_scores(HEADS, seed)
        expected = {kind: data.draw(st.integers(1, HEADS.only([kind]).total)) for kind in BOTH}
        masks = greedy(HEADS, fixed(values), BOTH, step, once, expected)
        for kind, count in expected.items():
            best = sorted(HEADS.only([kind]), key=values.__getitem__)[-count:]
            assert {head for head in masks[-1].kept if head.kind == kind} == set(best)
        assert all(after.kept < before.kept for before, after in pairs(masks))
        total = sum(expected.values())
        last = greedy(HEADS, fixed(values), BOTH, step, once, total)[-1]
        best = sorted(HEADS.only(BOTH), key=values.__getitem__)[-total:]
        assert {head for head in last.kept if head.kind in BOTH} == set(best)

    def test_the_score_is_asked_once_or_again(self) -> None:
        """A head whose twin has gone becomes the most important one: only scores asked again can know."""
        heads = HeadMap({"encoder-self": (4,)})
        first, twin, other, best = heads

        def score(mask: HeadMask) -> dict[Head, float]:
            asked.append(len(mask))
            return {first: 0.1, twin: 0.2 if first in mask.kept else 9.0, other: 0.5, best: 1.0}

        asked: list[int] = []
        assert greedy(heads, score, ["encoder-self"], 0.25)[-2].kept == {other, best}
        assert asked == [4]
        asked.clear()
        masks = greedy(heads, score, ["encoder-self"], 0.25, once=False)
        assert masks[-2].kept == {twin, best} and masks[-1].kept == {twin} and asked == [4, 3, 2]

    def test_a_single_head_stays(self) -> None:
        heads = HeadMap({"encoder-self": (1,)})
        assert greedy(heads, fixed({}), ["encoder-self"]) == [HeadMask.full(heads)]

    @pytest.mark.parametrize(
        "broken", [{}, {Head("cross", 0, 1): math.nan}, {Head("cross", 0, 1): math.inf}]
    )
    def test_a_score_that_is_no_number_is_refused(self, broken: dict[Head, float]) -> None:
        values = {
            head: value for head, value in VALUES.items() if head != Head("cross", 0, 1)
        } | broken
        with pytest.raises(HeadwiseError, match=r"not a number for 1 of 10 \(cross/0/1\)"):
            greedy(HEADS, fixed(values), BOTH)

    @pytest.mark.parametrize("step", [0, -0.1, 1.5, math.nan])
    def test_a_step_that_is_no_share_is_refused(self, step: float) -> None:
        with pytest.raises(HeadwiseError, match="in steps of"):
            greedy(HEADS, fixed(VALUES), BOTH, step)

    def test_a_kind_the_model_does_not_have_is_refused(self) -> None:
        with pytest.raises(HeadwiseError, match="'cross' were asked for, but this model has only"):
            greedy(HeadMap({"encoder-self": (2,)}), fixed(VALUES), BOTH)


def pairs(masks: list[HeadMask]) -> list[tuple[HeadMask, HeadMask]]:
    return list(itertools.pairwise(masks))


SINGLE = [(head,) for head in VALUES]


def most_within(
    order: Sequence[Together], steps: Sequence[int], losses: Callable[[int], float], limit: float
) -> int:
    """How many heads can go: the steps first, then what is asked for next, until nothing is."""
    lost = {0: 0.0, **{step: losses(step) for step in steps}}
    while (removed := next_size(lost, order, limit)) is not None:
        assert removed not in lost
        lost[removed] = losses(removed)
    most = choose_smallest(lost, {removed: -removed for removed in lost}, limit)
    assert most is not None
    return most


class TestNextSize:
    """A curve of losses by the number of heads that are gone."""

    @pytest.mark.parametrize(("limit", "gone"), [(0, 0), (0.4, 2), (0.5, 6), (100, 9)])
    def test_the_most_heads_that_can_go(self, limit: float, gone: int) -> None:
        """Quality falls and rises again; no head stands between the steps."""
        lost = {2: 0.3, 4: 1.0, 6: 0.5, 8: 10.0, 9: 29.0}
        order = [(), (), *[tuple(SINGLE[0] * 2)] * 4, SINGLE[0]]
        assert most_within(order, [*lost], lost.__getitem__, limit) == gone

    @settings(max_examples=100, deadline=None)
    @given(st.integers(2, 40), st.sampled_from([0.1, 0.25, 0.5, 1.0]), st.integers(0, 40))
    def test_single_heads_where_the_limit_is_passed(self, n: int, step: float, good: int) -> None:
        """Where quality only falls, exactly as many go as a search through all numbers finds, with few trials."""
        order = [SINGLE[0]] * (n - 1)
        steps = sorted({min(n - 1, math.ceil(n * step * i)) for i in range(1, 11)})
        asked: list[int] = []

        def losses(number: int) -> float:
            asked.append(number)
            return float(number > good)

        assert most_within(order, steps, losses, 0.5) == min(good, n - 1)
        assert len(asked) <= len(steps) + math.log2(n * step + 1) + 1

    def test_units_go_whole(self) -> None:
        """Pairs of heads: an odd number is never asked for."""
        pair = tuple(SINGLE[0] * 2)
        assert next_size({0: 0.0, 8: 9.0}, [pair] * 4, 1.0) in (2, 4, 6)
        assert next_size({0: 0.0, 2: 9.0}, [pair] * 4, 1.0) is None
        assert next_size({0: 0.0, 4: 0.5, 8: 9.0}, [pair] * 4, 1.0) == 6
        heads = HeadMap({"encoder-self": (4,)})
        order = [tuple(list(heads)[:2]), tuple(list(heads)[2:])]
        assert mask_without(heads, order, 2).kept == {*list(heads)[2:]}


class TestBaselines:
    def test_chance_is_the_same_for_the_same_seed(self) -> None:
        assert random_scores(HEADS, 1) == random_scores(HEADS, 1) != random_scores(HEADS, 2)
        assert list(random_scores(HEADS, 1)) == list(HEADS)

    def test_weight_norms_are_those_of_a_slow_script(
        self, tiny_marian: Callable[..., MarianMTModel]
    ) -> None:
        model = Model(tiny_marian(), None, "tiny")
        norms = weight_norms(model)
        assert list(norms) == list(model.heads)
        cross = model.hf.model.decoder.layers[1].encoder_attn
        value, out = cross.v_proj.weight[16:24], cross.out_proj.weight[:, 16:24]
        assert norms[Head("cross", 1, 2)] == pytest.approx(
            ((value**2).sum() * (out**2).sum()).sqrt().item()
        )

    def test_a_head_without_weight_goes_first_also_where_value_heads_are_shared(self) -> None:
        hf: Any = tiny("llama")
        with torch.no_grad():
            hf.model.layers[1].self_attn.o_proj.weight[:, 16:24] = 0
        model = Model(hf, None, "tiny")
        norms = weight_norms(model)
        assert list(norms) == list(model.heads) and norms[Head("decoder-self", 1, 2)] == 0
        shared = hf.model.layers[0].self_attn
        value, out = shared.v_proj.weight[8:16].norm(), shared.o_proj.weight[:, 16:24].norm()
        assert norms[Head("decoder-self", 0, 2)] == pytest.approx((value * out).item()), (
            "heads 2 and 3 share the second"
        )
        mask = greedy(model.heads, fixed(norms), ["decoder-self"])[1]
        assert Head("decoder-self", 1, 2) not in mask.kept

    def test_a_pruned_model_with_an_empty_layer(
        self, tiny_marian: Callable[..., MarianMTModel]
    ) -> None:
        model = Model(tiny_marian(), None, "tiny")
        gone = [head for head in model.heads if head.kind == "cross" and head.layer == 0]
        small = model.without(gone)
        whole, cut = weight_norms(model), weight_norms(small)
        assert cut.keys() == whole.keys() - set(gone)
        assert all(cut[head] == whole[head] for head in cut)

    def test_fused_projections_have_the_norms_of_their_parts(self) -> None:
        """GPT-2 keeps its weights the other way round, values last; GPT-NeoX has them head by head."""
        gpt: Any = tiny("gpt2")
        layer = gpt.transformer.h[1].attn
        value, out = (
            layer.c_attn.weight[:, 64 + 16 : 64 + 24].norm(),
            layer.c_proj.weight[16:24].norm(),
        )
        assert weight_norms(Model(gpt, None, "tiny"))[Head("decoder-self", 1, 2)] == pytest.approx(
            (value * out).item()
        )
        neox: Any = tiny("gpt_neox")
        layer = neox.gpt_neox.layers[0].attention
        value, out = (
            layer.query_key_value.weight[2 * 24 + 16 : 3 * 24].norm(),
            layer.dense.weight[:, 16:24].norm(),
        )
        assert weight_norms(Model(neox, None, "tiny"))[Head("decoder-self", 0, 2)] == pytest.approx(
            (value * out).item()
        )

    def test_projections_of_another_form_are_refused(self) -> None:
        with pytest.raises(HeadwiseError, match=r"\(AlbertAttention\) has no linear value and"):
            weight_norms(Model(tiny("albert"), None, "tiny"))

    def test_latent_attention_has_its_values_in_a_shared_projection(self) -> None:
        model = Model(tiny("deepseek_v3"), None, "tiny")
        layer = model.discovery.modules[Site("decoder-self", 0)]
        rows = layer.kv_b_proj.weight.view(
            layer.num_heads, layer.qk_nope_head_dim + layer.v_head_dim, -1
        )
        outputs = layer.o_proj.weight.view(-1, layer.num_heads, layer.v_head_dim).norm(dim=(0, 2))
        expected = rows[:, layer.qk_nope_head_dim :].norm(dim=(1, 2)) * outputs
        found = weight_norms(model)
        assert [
            found[Head("decoder-self", 0, head)] for head in range(layer.num_heads)
        ] == pytest.approx(expected.tolist(), rel=1e-5)
