"""What is removed at once: every unit, by hand and on random layouts; gates, top-k, greedy and random masks obey it; the
key/value cache."""

from __future__ import annotations

import random
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, HeadMap, Kind, Site
from headwise.core.layout import HeadMask, key_value_heads
from headwise.core.removal_units import (
    UNITS,
    Together,
    Unit,
    first_units,
    nearest,
    removal_units,
    usual_unit,
)
from headwise.models.attention.capture import keeping
from headwise.models.attention.discover import probe
from headwise.models.model import Model
from headwise.pruning.control_models import at_random
from headwise.pruning.gates import HardConcrete, HeadGates
from headwise.pruning.greedy import random_scores
from headwise.pruning.target_count import CountedGates
from headwise.pruning.top_k import TopGates
from models.attention.families import tiny
from pruning.removal import masks_of_steps as greedy

SELF: list[Kind] = ["decoder-self"]
GROUPED = HeadMap({"decoder-self": (8, 8, 8)}, {"decoder-self": (4, 4, 4)})
PLAIN = HeadMap({"encoder-self": (4, 3), "cross": (4,)})
CACHED = (
    "marian",
    "t5",
    "gpt2",
    "llama",
    "gemma2",
    "gpt_oss",
    "modernbert_decoder",
    "deepseek_v3",
    "bloom",
    "falcon",
)

SHARING: tuple[Unit, ...] = ("balanced", "group", "uniform")


def llama() -> Model:
    """3 layers of 8 heads in 4 groups, float32: 4 bytes x 2 x 4 heads x 8 numbers x 3 layers a token."""
    return Model(
        tiny(
            "llama",
            num_attention_heads=8,
            hidden_size=64,
            num_key_value_heads=4,
            num_hidden_layers=3,
        ),
        None,
        "llama",
    )


def groups_of(mask: HeadMask, site: Site) -> list[int]:
    """How many query heads every key/value group keeps."""
    shared = mask.heads.count(site) // mask.heads.key_value[site.kind][site.layer]
    kept = [head // shared for head in mask.of(site)]
    return [kept.count(group) for group in range(mask.heads.count(site) // shared)]


def obeys(mask: HeadMask, unit: Unit) -> bool:
    """Checked by counting, not by the partition itself."""
    groups = [groups_of(mask, site) for site in mask.heads.sites]
    balanced = all(len({*kept}) == 1 for kept in groups)
    if unit == "uniform":
        return balanced and len({tuple(kept) for kept in groups}) == 1
    full = [max(groups_of(HeadMask.full(mask.heads), site)) for site in mask.heads.sites]
    whole = all(
        count in (0, size) for kept, size in zip(groups, full, strict=True) for count in kept
    )
    return {"head": True, "balanced": balanced, "group": whole}[unit]


def written(parts: list[Together]) -> list[str]:
    return [" ".join(f"{head.layer}.{head.head}" for head in together) for together in parts]


class TestUnits:
    def test_by_hand(self) -> None:
        heads = HeadMap({"decoder-self": (4, 4)}, {"decoder-self": (2, 2)})
        assert written(removal_units(heads, "head")) == [
            "0.0",
            "0.1",
            "0.2",
            "0.3",
            "1.0",
            "1.1",
            "1.2",
            "1.3",
        ]
        assert written(removal_units(heads, "balanced")) == [
            "0.0 0.2",
            "0.1 0.3",
            "1.0 1.2",
            "1.1 1.3",
        ]
        assert written(removal_units(heads, "group")) == [
            "0.0 0.1",
            "0.2 0.3",
            "1.0 1.1",
            "1.2 1.3",
        ]
        assert written(removal_units(heads, "uniform")) == ["0.0 0.2 1.0 1.2", "0.1 0.3 1.1 1.3"]

    def test_by_rank_of_a_score(self) -> None:
        heads = HeadMap({"decoder-self": (4, 4)}, {"decoder-self": (2, 2)})
        values = dict(zip(heads, [2.0, 1, 3, 4, 9, 0, 9, 0], strict=True))
        assert written(removal_units(heads, "balanced", None, values)) == [
            "0.1 0.2",
            "0.0 0.3",
            "1.1 1.3",
            "1.0 1.2",
        ]
        assert written(removal_units(heads, "uniform", None, values)) == [
            "0.1 0.2 1.1 1.3",
            "0.0 0.3 1.0 1.2",
        ]

    def test_the_usual_one(self) -> None:
        assert usual_unit(GROUPED) == "balanced" and usual_unit(PLAIN) == "head"
        assert usual_unit(HeadMap({"decoder-self": (4, 0)}, {"decoder-self": (4, 0)})) == "head"
        assert (
            removal_units(PLAIN)
            == removal_units(PLAIN, "balanced")
            == removal_units(PLAIN, "group")
            == [(head,) for head in PLAIN]
        )
        one = HeadMap({"decoder-self": (4,)}, {"decoder-self": (1,)})
        assert removal_units(one) == [(head,) for head in one] and removal_units(one, "group") == [
            tuple(one)
        ]

    @settings(max_examples=50, deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=4),
        st.sampled_from(UNITS),
    )
    def test_every_head_is_in_one_unit(self, layers: list[tuple[int, int]], unit: Unit) -> None:
        heads = HeadMap(
            {"decoder-self": tuple(groups * shared for groups, shared in layers)},
            {"decoder-self": tuple(groups for groups, _ in layers)},
        )
        if unit == "uniform" and len({(groups * shared, groups) for groups, shared in layers}) > 1:
            with pytest.raises(HeadwiseError, match=r"different ones now .* choose another unit"):
                removal_units(heads, unit)
        else:
            assert sorted(
                head for together in removal_units(heads, unit) for head in together
            ) == sorted(heads)

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.integers(1, 5), min_size=1, max_size=7), st.integers(0, 30))
    def test_sums_against_all_subsets(self, sizes: list[int], count: int) -> None:
        sums = {sum(some) for n in range(len(sizes) + 1) for some in combinations(sizes, n)}
        below = max((s for s in sums if 0 < s <= count), default=None)
        assert nearest(sizes, count) == (below, min((s for s in sums if s >= count), default=None))
        parts = [tuple(Head("cross", i, h) for h in range(size)) for i, size in enumerate(sizes)]
        chosen = first_units(parts, count)
        assert sum(map(len, chosen)) == (below or 0)
        assert chosen == [part for part in parts if part in chosen]


class TestMasks:
    @settings(max_examples=40, deadline=None)
    @given(
        st.sampled_from(UNITS), st.integers(0, 99), st.booleans(), st.sampled_from([0.1, 0.25, 0.5])
    )
    def test_greedy_and_random_masks(self, unit: Unit, seed: int, once: bool, step: float) -> None:
        def score(mask: HeadMask) -> dict[Head, float]:
            return random_scores(GROUPED, seed if once else seed + len(mask))

        masks = greedy(GROUPED, score, SELF, step, once, unit=unit)
        assert all(obeys(mask, unit) for mask in masks)
        assert all(after.kept < before.kept for before, after in pairwise(masks))
        assert len(masks[-1]) == len(removal_units(GROUPED, unit)[0]), "one unit is left"
        for mask in masks[1:-1]:
            drawn = at_random(GROUPED, SELF, len(mask), seed, unit)
            assert obeys(drawn, unit) and len(drawn) == len(mask)

    @pytest.mark.parametrize("once", [True, False])
    def test_units_of_different_size_end_in_the_count(self, once: bool) -> None:
        """Layers of 3, 1 and 2 groups, as a model has that lost whole groups."""
        heads = HeadMap({"decoder-self": (6, 2, 4)}, {"decoder-self": (3, 1, 2)})
        for keep in range(1, heads.total):
            for seed in range(5):

                def score(mask: HeadMask, seed: int = seed) -> dict[Head, float]:
                    return random_scores(heads, seed + len(mask))

                last = greedy(heads, score, SELF, 0.2, once, keep, "balanced")[-1]
                assert len(last) == keep and obeys(last, "balanced")

    def test_a_unit_is_worth_the_sum_of_its_heads(self) -> None:
        heads = HeadMap({"decoder-self": (4,)}, {"decoder-self": (2,)})
        values = dict(zip(heads, [0.0, 10, 3, 4], strict=True))
        assert greedy(heads, lambda _: values, SELF, unit="group")[-1].of(
            Site("decoder-self", 0)
        ) == [0, 1]
        assert greedy(heads, lambda _: values, SELF, unit="balanced")[-1].of(
            Site("decoder-self", 0)
        ) == [1, 3]

    @pytest.mark.parametrize(("unit", "step"), [("balanced", 4), ("group", 2), ("uniform", 12)])
    def test_counts_that_split_a_unit_are_refused(self, unit: Unit, step: int) -> None:
        for make in (
            lambda n: at_random(GROUPED, SELF, n, 1, unit),
            lambda n: TopGates(GROUPED, 0.0, n, unit=unit),
        ):
            with pytest.raises(HeadwiseError, match=rf"'{unit}' .* nearest numbers are {step} and"):
                make(step + 1)
            make(step)

    def test_gates_of_different_size_need_a_number_for_each_kind(self) -> None:
        heads = HeadMap({"encoder-self": (4, 4, 4), "cross": (4, 4)})
        with pytest.raises(HeadwiseError, match="some have 2 heads and some 3: give a number for"):
            CountedGates(heads, HardConcrete(), 0.0, 5, "uniform")
        gates = CountedGates(heads, HardConcrete(), 0.0, {"encoder-self": 6, "cross": 6}, "uniform")
        mask = gates.mask(heads, gates.decided())
        assert (mask.count("encoder-self"), mask.count("cross")) == (6, 6)


class TestGates:
    @pytest.mark.parametrize("unit", UNITS)
    def test_heads_of_a_unit_share_a_gate(self, unit: Unit) -> None:
        gates = HeadGates(GROUPED, HardConcrete(), torch.linspace(-1, 1, 24), unit).eval()
        parts = removal_units(GROUPED, unit)
        assert len(gates.log_alpha) == len(parts)
        gates.draw()
        now = dict(zip(GROUPED, gates.now.tolist(), strict=True))
        assert all(len({now[head] for head in together}) == 1 for together in parts)
        assert len({*now.values()}) == len(parts)
        p = gates.probabilities()
        assert (
            gates.penalty().item()
            == pytest.approx(sum(p.values()))
            == pytest.approx(gates.expected())
        )

    def test_the_gradient_of_a_unit_is_that_of_its_heads(self) -> None:
        gates = HeadGates(GROUPED, HardConcrete(), 0.0, "group").eval()
        gates.draw()
        worth = torch.arange(24.0)
        (gates.now * worth).sum().backward()
        assert gates.log_alpha.grad is not None
        each = 1.2 * 0.25  # of the stretched sigmoid at 0
        assert torch.allclose(gates.log_alpha.grad, each * worth.view(12, 2).sum(1))

    @pytest.mark.parametrize("unit", UNITS)
    @pytest.mark.parametrize("way", ["counted", "top-k"])
    def test_a_target_count_is_met_in_units(self, unit: Unit, way: str) -> None:
        """Units differ in worth; the best stay, and exactly so many heads."""
        torch.manual_seed(1)
        parts, worth = (
            removal_units(GROUPED, unit),
            10 ** (4 * torch.rand(24) - 4),
        )  # 0.0001 to 1 nats
        gates: Any = (
            CountedGates(GROUPED, HardConcrete(), 3.0, 12, unit)
            if way == "counted"
            else TopGates(GROUPED, 3.0, 12, unit=unit)
        )
        optimiser = torch.optim.Adam(gates.groups(0.05, 400))
        for update in range(400):
            gates.progress = update / 400
            gates.draw()
            optimiser.zero_grad()
            ((1 - gates.now) @ worth + gates.cost()).backward()
            optimiser.step()
        mask = gates.mask(GROUPED, gates.decided())
        assert len(mask) == 12 and obeys(mask, unit)
        value = dict(zip(GROUPED, worth.tolist(), strict=True))
        best = sum(
            sorted(sum(value[head] for head in together) for together in parts)[len(parts) // 2 :]
        )
        assert sum(value[head] for head in mask.kept) > 0.9 * best


def kept(cache: Any) -> int:
    """Bytes of the keys and values in a cache of transformers."""
    parts = [cache]
    if hasattr(cache, "cross_attention_cache"):
        parts = [cache.self_attention_cache, cache.cross_attention_cache]
    layers = [layer for part in parts for layer in part.layers if layer.keys is not None]
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)


class TestCache:
    def test_bytes_of_every_layer(self) -> None:
        model = llama()
        assert model.cache_bytes == 3 * 4 * 2 * 8 * 4
        model.hf.half()
        assert model.cache_bytes == 3 * 4 * 2 * 8 * 2

    def test_of_an_encoder_decoder_self_and_cross(self) -> None:
        model = Model(tiny("marian"), None, "marian")
        assert model.cache_by_kind == {
            "decoder-self": 2 * 4 * 2 * 8 * 4,
            "cross": 2 * 4 * 2 * 8 * 4,
        }
        assert model.cache_bytes == sum(model.cache_by_kind.values())
        assert Model(tiny("bert"), None, "bert").cache_bytes == 0

    @pytest.mark.parametrize("family", CACHED)
    @pytest.mark.parametrize("cut", [False, True])
    def test_it_is_what_transformers_keeps(self, family: str, cut: bool) -> None:
        """Also of layers without heads, under sliding windows of 2 and 4 tokens, and of latent attention."""
        model = Model(tiny(family), None, family)
        if cut:
            heads = [head for head in model.heads if head.kind != "encoder-self"]
            removed = [head for head in heads if head.layer == 0]
            model = model.without(removed)
        for tokens in (1, 3, 20):
            ids = torch.arange(tokens)[None] + 4
            inputs = {"input_ids": ids}
            if model.hf.config.is_encoder_decoder:
                inputs["decoder_input_ids"] = ids[:, : tokens // 2 + 1]
            with torch.no_grad():
                cache = model.hf(**inputs, use_cache=True).past_key_values
            if "cross" in model.heads.kinds:
                assert model.cache_size(tokens // 2 + 1, tokens) == kept(cache)
            else:
                assert model.cache_size(tokens) == kept(cache) <= tokens * model.cache_bytes

    def test_a_layer_without_heads_keeps_two_numbers(self) -> None:
        model = llama()
        removed = [head for head in model.heads if head.layer == 0]
        small = model.without(removed)
        assert small.cache_bytes == model.cache_bytes * 2 // 3 + 2 * 4

    def test_a_model_without_a_cache_keeps_none(self) -> None:
        model = Model(tiny("openai"), None, "openai")
        assert model.cache_by_kind == {"decoder-self": 0} and model.cache_size(9) == 0

    @pytest.mark.parametrize("unit", SHARING)
    def test_removed_is_masked_and_nothing_grows(self, unit: Unit) -> None:
        model, draw = llama(), random.Random(1)
        counts = [
            sum(len(together) for together in removal_units(model.heads, unit)[:n])
            for n in range(12)
        ]
        for seed in range(7):
            mask = at_random(
                model.heads, SELF, draw.choice([n for n in counts if n < 24]), seed, unit
            )
            with keeping(model.hf, model.discovery, mask):
                expected = probe(model.hf)
            small = model.only(mask)
            assert (expected - probe(small.hf)).abs().max() <= 1e-5
            assert small.cache_bytes <= model.cache_bytes
            assert small.weight_bytes < model.weight_bytes

    def test_half_of_the_groups_halve_the_cache(self) -> None:
        model = llama()
        mask = greedy(
            model.heads, lambda _: random_scores(model.heads, 5), SELF, keep=12, unit="group"
        )[-1]
        small = model.only(mask)
        assert 2 * small.cache_bytes == model.cache_bytes and small.heads.total == 12

    def test_growth_is_refused_with_its_number_unless_asked_for(self) -> None:
        model = llama()
        mask = HeadMask.full(model.heads).without([Head("decoder-self", 0, 1)])
        with pytest.raises(HeadwiseError, match=r"cache of llama would grow from 768 to 960 bytes"):
            model.only(mask)
        with pytest.warns(UserWarning, match="would grow from 768 to 960 bytes per token"):
            small = model.only(mask, grow=True)
        assert small.cache_bytes == 960 and small.heads.key_value["decoder-self"] == (7, 4, 4)


def test_the_shape_of_llama_3_1_8b() -> None:
    """A quarter of its query heads, in bfloat16: what docs/methods/removal.md says of its cache."""

    heads = HeadMap({"decoder-self": (32,) * 32}, {"decoder-self": (8,) * 32})

    def cache(mask: HeadMask) -> int:
        kept = [
            key_value_heads([h // 4 for h in mask.of(site)], list(range(8)))[0]
            for site in heads.sites
        ]
        return sum(map(len, kept)) * 2 * 128 * 2

    whole = cache(HeadMask.full(heads))
    times = {unit: cache(at_random(heads, SELF, 768, 1, unit)) / whole for unit in UNITS}
    assert whole == 131_072
    assert times == {
        "head": 3.0,
        "balanced": 1.0,
        "group": 0.75,
        "uniform": 1.0,
    }
