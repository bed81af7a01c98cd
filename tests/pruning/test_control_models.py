"""Controls: training on is what it says it is, a layout from scratch learns, and sizes and choices are as counted."""

from __future__ import annotations

import copy
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.core.errors import HeadwiseError
from headwise.core.heads import KINDS, Head, HeadMap, Kind, Site
from headwise.core.layout import HeadMask
from headwise.core.options import Architecture, Greedy
from headwise.data.text import ParallelText
from headwise.models.attention.capture import keeping
from headwise.models.attention.discover import discover
from headwise.models.loading import load
from headwise.models.model import Model
from headwise.models.training.token_batches import Encoded
from headwise.models.training.trainer import TrainingSetup, average, converge, train_model
from headwise.models.training.translation_model import build_model
from headwise.pruning.control_case import Case
from headwise.pruning.control_models import (
    at_random,
    count_weights,
    from_scratch,
    narrower,
    one_per_layer,
)
from headwise.pruning.fine_tuning import tune
from headwise.pruning.gate_training import freeze
from models.training.letters import letters
from pruning.bench import ENCODER, GATES, SHAPE, TRAINING, Bench

HEADS = HeadMap({"encoder-self": (4, 0, 3), "decoder-self": (2, 2), "cross": (1, 4)})
GROUP = st.lists(st.sampled_from(KINDS), min_size=1, unique=True)


def some(heads: HeadMap) -> HeadMask:
    """A layout with a thinned and an empty layer in the encoder."""
    gone = [Head("encoder-self", 0, 1), *(Head("encoder-self", 1, head) for head in range(4))]
    return HeadMask.full(heads).without(gone)


def state(model: Model) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.hf.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class TestTuning:
    @pytest.mark.parametrize("kinds", [ENCODER, KINDS])
    def test_with_all_heads_it_is_plain_fine_tuning(
        self, bench: Bench, kinds: tuple[Kind, ...], tmp_path: Path
    ) -> None:
        options, before = GATES.model_copy(update={"average": 2}), state(bench.model)
        everything = HeadMask.full(bench.model.heads)
        tuned = tune(bench.model, bench.training(tmp_path / "tuned"), options, kinds, everything)
        plain = copy.deepcopy(bench.model)
        freeze(plain.hf, kinds)
        changes = {"epochs": 2, "learning_rate": 3e-4, "warmup": 2, "schedule": "linear"}
        run = bench.training(tmp_path / "plain", TRAINING.model_copy(update=changes))
        cost = train_model(plain.hf, plain.tokenizer, discover(plain.hf), run)
        average(plain.hf, tmp_path / "plain", 2)
        assert same(state(tuned.model), state(plain)) and tuned.cost["updates"] == cost["updates"]
        assert same(state(bench.model), before) and not same(state(plain), before)
        assert tuned.loss_before == bench.loss(bench.model)
        assert tuned.loss_after == bench.loss(tuned.model)
        assert len(tuned.notes) == (kinds == ENCODER)

    def test_it_trains_what_a_run_with_gates_trains_for_as_many_updates(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        _, pruned = bench.prune(tmp_path / "gates", 0.0)
        mask = some(bench.model.heads)
        tuned = tune(bench.model, bench.training(tmp_path / "tuned"), GATES, ENCODER, mask)
        assert tuned.cost["updates"] == pruned.cost["updates"] > 4
        removed = bench.model.only(mask)
        cut, after = state(removed), state(tuned.model)
        changed = {name for name in cut if not torch.equal(cut[name], after[name])}
        assert changed and all(name.startswith("model.encoder.") for name in changed)
        for before, now in zip(removed.hf.parameters(), tuned.model.hf.parameters(), strict=True):
            assert before.requires_grad == now.requires_grad
        assert not tuned.model.hf.training and tuned.model.heads.query["encoder-self"] == (3, 0)

    def test_low_rank_changes_train_the_model_and_its_control_alike(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        pytest.importorskip("peft", reason="peft is not installed (headwise[lora])")
        options = Greedy(train="lora", epochs=2, warmup=2, learning_rate=3e-3)
        mask, everything = some(bench.model.heads), HeadMask.full(bench.model.heads)
        updates = []
        for layout in (mask, everything):
            work = tmp_path / str(len(layout))
            tuned = tune(bench.model, bench.training(work), options, KINDS, layout)
            cut, after = state(bench.model.only(layout)), state(tuned.model)
            changed = {name for name in cut if not torch.equal(cut[name], after[name])}
            assert changed and cut.keys() == after.keys()
            assert all(cut[name].dim() == 2 and "embed" not in name for name in changed)
            assert tuned.loss_after < tuned.loss_before and "low-rank" in tuned.notes[-1]
            updates.append(tuned.cost["updates"])
        assert updates[0] == updates[1]

    def test_it_starts_at_the_masked_model_and_gets_better(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        mask = some(bench.model.heads)
        tuned = tune(bench.model, bench.training(tmp_path), GATES, KINDS, mask)
        with keeping(bench.model.hf, bench.model.discovery, mask):
            assert tuned.loss_before == pytest.approx(bench.loss(bench.model), abs=1e-5)
        assert tuned.loss_after < tuned.loss_before and mask == tuned.model.layout

    def test_twice_is_the_same_and_a_finished_run_is_only_read(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        mask = some(bench.model.heads)
        works = (tmp_path / folder for folder in ("one", "two", "one"))
        first, second, again = (
            tune(bench.model, bench.training(work), GATES, ENCODER, mask) for work in works
        )
        for other in (second, again):
            assert same(state(first.model), state(other.model))
        assert (first.loss_before, first.loss_after) == (again.loss_before, again.loss_after)
        assert first.cost["seconds"] == again.cost["seconds"]


def test_a_model_that_diverged_is_no_control(bench: Bench, tmp_path: Path) -> None:
    mask, much = HeadMask.full(bench.model.heads), {"learning_rate": 1e30, "warmup": 0}
    run = bench.training(tmp_path / "scratch", TRAINING.model_copy(update=much), 5)
    options = GATES.model_copy(update=much)
    with pytest.raises(HeadwiseError, match="training diverged"):
        tune(bench.model, bench.training(tmp_path / "tuned"), options, ENCODER, mask)
    with pytest.raises(HeadwiseError, match="training diverged"):
        from_scratch(case_of(bench.model, SHAPE, mask, run))


def copying(count: int, seed: int) -> ParallelText:
    """Sentences of three letters out of five; the translation is the same."""
    generator = random.Random(seed)
    lines = [" ".join(generator.choices("abcde", k=3)) for _ in range(count)]
    return ParallelText.from_pairs([(line, line) for line in lines])


def case_of(full: Model, shape: Architecture, mask: HeadMask, run: TrainingSetup) -> Case:
    """What a study gives to a control of the pruned model with this layout."""

    def untrained(shape: Architecture) -> Model:
        return Model(build_model(shape, full.tokenizer, run.seed), full.tokenizer, "untrained")

    def train(model: Model) -> dict[str, Any]:
        facts = converge(model.hf, model.tokenizer, model.discovery, run)
        model.hf.eval()
        return facts

    return Case(
        full=full,
        mask=mask,
        kinds=full.heads.kinds,
        unit=None,
        seed=1,
        importance=dict,
        pruned=lambda: full.only(mask),
        untrained=untrained,
        shape=shape,
        train=train,
    )


class TestFromScratch:
    def test_the_layout_learns_from_random_weights_and_comes_back_from_its_folder(
        self, tmp_path: Path
    ) -> None:
        tokenizer = letters("$A </s>")
        shape = SHAPE.model_copy(update={"vocabulary": 31, "max_length": 16})
        data, dev = (Encoded(copying(*how), tokenizer, 16) for how in ((200, 1), (20, 2)))
        changes = {"epochs": 8, "batch_tokens": 100, "learning_rate": 1e-2, "warmup": 20}
        recipe = TRAINING.model_copy(update={**changes, "average": 2})
        mask = some(discover(build_model(shape, tokenizer, 1)).heads)
        run = TrainingSetup(data, dev, recipe, tmp_path / "work")
        full = Model(build_model(shape, tokenizer, 1), tokenizer, "full")
        trained = from_scratch(case_of(full, shape, mask, run))
        model, facts = trained.model, trained.facts
        assert model.layout == mask
        assert model.heads.query["encoder-self"] == (3, 0)
        assert not model.hf.training
        assert facts["dev_loss"] < 0.8  # who only knows the letters has 3/4 ln 5 = 1.2
        with torch.no_grad():
            again = load(model.save(tmp_path / "model"))
            assert same(state(again), state(model))
        assert model.translate(["a b c"]) == again.translate(["a b c"])

    def test_it_starts_as_the_whole_model_did(self, bench: Bench, tmp_path: Path) -> None:
        whole = Model(build_model(SHAPE, bench.model.tokenizer, 3), bench.model.tokenizer, "fresh")
        mask = some(whole.heads)
        still = TRAINING.model_copy(update={"epochs": 1, "learning_rate": 1e-30})
        run = bench.training(tmp_path, still, 3)
        model = from_scratch(case_of(bench.model, SHAPE, mask, run)).model
        with keeping(whole.hf, whole.discovery, mask):
            assert bench.loss(model) == pytest.approx(bench.loss(whole), abs=1e-5)


class TestNarrower:
    @settings(max_examples=12, deadline=None, derandomize=True)
    @given(
        st.sampled_from(["post", "pre"]),
        st.integers(1, 3),
        st.integers(1, 3),
        st.sampled_from([(2, 6), (4, 24)]),
        st.integers(1, 50),
        st.integers(4, 100),
    )
    def test_weights_are_counted_as_they_are_built(
        self,
        norm: str,
        encoder: int,
        decoder: int,
        sizes: tuple[int, int],
        feedforward: int,
        longest: int,
    ) -> None:
        layers = {"encoder_layers": encoder, "decoder_layers": decoder, "max_length": longest}
        heads, width = sizes
        shape = Architecture(norm=norm, heads=heads, width=width, feedforward=feedforward, **layers)
        made = Model(build_model(shape, letters(), 0), letters(), "made")
        assert count_weights(shape, len(letters())) == made.parameters

    @given(
        st.sampled_from(["post", "pre"]),
        st.sampled_from([(32, 64), (64, 150), (256, 1024)]),
        st.floats(0.45, 1),
    )
    def test_it_has_as_many_weights_as_asked_for(
        self, norm: str, sizes: tuple[int, int], share: float
    ) -> None:
        changes = {"norm": norm, "width": sizes[0], "feedforward": sizes[1], "vocabulary": 1000}
        shape = Architecture(heads=4, **changes)
        expected = int(share * count_weights(shape, 1000))
        found = narrower(shape, 1000, expected)
        assert abs(count_weights(found, 1000) - expected) < 0.004 * expected
        assert found.width % 4 == 0 and found.width <= shape.width
        assert found.model_copy(update={"width": sizes[0], "feedforward": sizes[1]}) == shape

    def test_of_all_that_are_as_large_the_one_in_proportion_is_taken(self) -> None:
        shape = Architecture(heads=4, width=64, feedforward=128)
        expected = int(0.7 * count_weights(shape, 1000))
        found, ratios = narrower(shape, 1000, expected), []
        for width in range(4, 65, 4):
            with_width = shape.model_copy(update={"width": width})
            sizes = (with_width.model_copy(update={"feedforward": n}) for n in range(1, 4000))
            near = min(sizes, key=lambda other: abs(count_weights(other, 1000) - expected))
            if abs(count_weights(near, 1000) - expected) < 1000:
                ratios.append(abs(math.log2(near.feedforward / near.width / 2)))
        assert len(ratios) > 3
        assert abs(math.log2(found.feedforward / found.width / 2)) == min(ratios)
        assert 44 <= found.width <= 52

    def test_its_own_size_is_itself_and_too_small_is_refused(self) -> None:
        assert narrower(SHAPE, 300, count_weights(SHAPE, 300)) == SHAPE
        few = narrower(SHAPE, 300, count_weights(SHAPE, 300) - 1000)
        assert few.width == SHAPE.width
        assert few.feedforward == SHAPE.feedforward - round(1000 / (4 * 65))
        least = SHAPE.model_copy(update={"width": 4, "feedforward": 1})
        assert narrower(SHAPE, 300, count_weights(least, 300)) == least
        # no width below is allowed
        assert narrower(SHAPE.model_copy(update={"heads": 1}), 300, 4300).width == 4
        with pytest.raises(HeadwiseError, match=r"narrowest with 4 heads \(width 4\) has [\d,]+\."):
            narrower(SHAPE, 300, 100)


class TestChoices:
    @given(GROUP, st.data(), st.integers(0, 2**32 - 1))
    def test_as_many_as_asked_for_are_drawn_and_others_stay(
        self, kinds: list[Kind], data: st.DataObject, seed: int
    ) -> None:
        """In all, or of each kind."""
        others = {head for head in HEADS if head.kind not in kinds}
        count = data.draw(st.integers(0, HEADS.only(kinds).total))
        mask = at_random(HEADS, kinds, count, seed)
        assert sum(mask.count(kind) for kind in kinds) == count
        assert others <= mask.kept
        assert mask == at_random(HEADS, kinds, count, seed)
        keep = {kind: data.draw(st.integers(0, HEADS.only([kind]).total)) for kind in kinds}
        mask = at_random(HEADS, kinds, keep, seed)
        assert {kind: mask.count(kind) for kind in kinds} == keep
        assert others <= mask.kept
        if len(kinds) == 1:
            assert mask == at_random(HEADS, kinds, keep[kinds[0]], seed)

    def test_the_draw_of_one_kind_is_what_it_always_was(self) -> None:
        mask = at_random(HEADS, ["encoder-self"], {"encoder-self": 3}, 7)
        kept = sorted(head[1:] for head in mask.kept if head.kind == "encoder-self")
        assert kept == [(0, 1), (0, 2), (2, 1)]

    def test_every_head_is_drawn_equally_often(self) -> None:
        drawn = [at_random(HEADS, ["encoder-self"], 2, seed).kept for seed in range(2000)]
        for head in HEADS.only(["encoder-self"]):
            assert sum(head in kept for kept in drawn) / 2000 == pytest.approx(2 / 7, abs=0.04)

    @pytest.mark.parametrize("count", [-1, 8])
    def test_what_is_not_there_cannot_be_drawn(self, count: int) -> None:
        with pytest.raises(HeadwiseError, match=rf"^{count} heads cannot be kept: there are 7"):
            at_random(HEADS, ["encoder-self"], count, 1)

    @given(GROUP, st.lists(st.floats(-1, 1), min_size=HEADS.total, max_size=HEADS.total))
    def test_the_best_of_each_layer_stays(self, kinds: list[Kind], values: list[float]) -> None:
        score = dict(zip(HEADS, values, strict=True))
        mask = one_per_layer(HEADS, kinds, score)
        for site in HEADS.sites:
            all_of = [Head(*site, head) for head in range(HEADS.count(site))]
            kept = [head for head in all_of if head in mask.kept]
            if site.kind not in kinds:
                assert kept == all_of
            elif all_of:
                assert len(kept) == 1 and score[kept[0]] == max(score[head] for head in all_of)

    def test_a_score_that_lacks_a_head_is_refused(self) -> None:
        score = {head: 1.0 for head in HEADS if Site(head.kind, head.layer) != Site("cross", 1)}
        assert one_per_layer(HEADS, ["encoder-self"], score).count("encoder-self") == 2
        with pytest.raises(HeadwiseError, match=r"not a number for 4 of 5 \(cross/1/0"):
            one_per_layer(HEADS, ["cross"], score)
