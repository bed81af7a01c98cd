"""`hw.prune`: one function for gates, top-k gates and greedy removal; what is held out, and what is refused."""

from __future__ import annotations

import inspect
import math
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest
import torch
from pydantic import BaseModel

import headwise as hw
from headwise.core.heads import Kind
from headwise.core.options import Architecture, Gates, Greedy, Search, TopK, Training
from headwise.core.removal_units import removal_units, sizes
from headwise.importance import gating
from headwise.importance.gating import gate_heads
from headwise.importance.measures import resolve_measures
from headwise.importance.passes import importance_values
from headwise.models.attention.capture import keeping
from headwise.models.decoding.bleu import translation_answers
from headwise.models.tasks import held_out
from headwise.pruning import target_count
from headwise.pruning.greedy import RemovalScore, weight_norms
from models.tasks.askers import asker, embedder, lines, pairs
from pruning.removal import greedy_masks

FAST: dict[str, Any] = {"epochs": 2, "gate_learning_rate": 2.0, "warmup": 1}
SMALL = Training(batch_tokens=48, dtype="float32")

MEASURES = resolve_measures(["all"])


def encoder_heads(model: hw.Model) -> int:
    return sum(model.heads.query["encoder-self"])


class TestMethods:
    def test_a_target_count_with_gates(self) -> None:
        """The call of the documentation. Other kinds stay as they are, and dev text is held out by itself."""
        model = asker()
        options = Gates(keep=3, kinds=["encoder-self"], **FAST)
        small = hw.prune(model, pairs(40), options, training=SMALL)
        assert encoder_heads(small) == 3
        assert small.heads.total == model.heads.total - encoder_heads(model) + 3

    def test_a_target_count_with_top_k_gates(self) -> None:
        keep: dict[Kind, int] = {"encoder-self": 2, "cross": 5}
        options = TopK(keep=keep, kinds=list(keep), **FAST)
        small = hw.prune(asker(), pairs(40), options, dev=pairs(6, 9), training=SMALL)
        assert {kind: sum(small.heads.query[kind]) for kind in keep} == keep

    def test_a_penalty(self) -> None:
        small = hw.prune(asker(), pairs(40), Gates(penalty=50.0, **FAST), training=SMALL)
        assert encoder_heads(small) == 0

    @pytest.mark.parametrize("family", ["bert", "llama"])
    def test_gates_on_models_that_do_not_translate(self, family: str) -> None:
        """To a number of heads or by a penalty; labels are not smoothed, and the given model stays as it is."""
        model, text = asker(family), lines(60)
        before = {name: tensor.clone() for name, tensor in model.hf.state_dict().items()}
        trains = [parameter.requires_grad for parameter in model.hf.parameters()]
        prune = partial(hw.prune, model, text, training=SMALL)
        assert prune(Gates(keep=4, train="gates", **FAST)).heads.total == 4
        assert prune(TopK(keep=2, **FAST)).heads.total == 2
        assert prune(Gates(penalty=50.0, **FAST)).heads.total == 0
        assert all(
            torch.equal(tensor, before[name]) for name, tensor in model.hf.state_dict().items()
        )
        assert trains == [parameter.requires_grad for parameter in model.hf.parameters()]
        assert model.layout is None and not hasattr(model.hf.config, "headwise_layout")

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"settle": 0.2}, "settle would change nothing"),
            ({"learning_rate": 0.1}, "learning_rate would change nothing"),
            ({"train": "adapters"}, "train.* is 'adapters'"),
        ],
    )
    def test_options_that_frozen_weights_make_idle(
        self, options: dict[str, Any], reason: str
    ) -> None:
        with pytest.raises(hw.HeadwiseError, match=reason):
            Gates(keep=3, **{**FAST, "train": "gates", **options})

    def test_greedy_without_training(self) -> None:
        model = asker()
        options = Greedy(keep=3, measure="weight-norm", search=Search(beam=1))
        small = hw.prune(model, pairs(12), options)
        assert encoder_heads(small) == 3
        assert small.heads.query["cross"] == model.heads.query["cross"]
        assert small.hf.get_output_embeddings().weight.equal(
            model.hf.get_output_embeddings().weight
        )

    def test_greedy_and_then_training(self) -> None:
        """The same heads as without training, other weights, and a lower loss on the text."""
        model, text = asker("llama"), lines(60)
        before = {name: tensor.clone() for name, tensor in model.hf.state_dict().items()}
        removed = hw.prune(model, text, Greedy(keep=4))
        options = Greedy(keep=4, train="all", learning_rate=1e-2, epochs=2, warmup=1)
        trained = hw.prune(model, text, options, training=SMALL)
        assert trained.layout == removed.layout and trained.heads == removed.heads
        quality = hw.evaluate([removed, trained], text).table
        losses = quality[quality["measure"] == "loss"]["value"]
        assert losses.iloc[1] < losses.iloc[0]
        assert all(torch.equal(t, before[name]) for name, t in model.hf.state_dict().items())

    @pytest.mark.parametrize("family", ["bert", "llama"])
    def test_language_models(self, family: str) -> None:
        assert hw.prune(asker(family), lines(20), Greedy(keep=4)).heads.total == 4
        # One unit: with grouped queries a head of each group.
        fewest = {"bert": 1, "llama": 2}[family]
        options = Greedy(max_drop=1e9, measure="random")
        small = hw.prune(asker(family), lines(20), options, dev=lines(6, 2))
        assert small.heads.total == fewest

    @pytest.mark.parametrize(
        ("unit", "keep"), [(None, 4), ("balanced", 2), ("group", 4), ("uniform", 4), ("head", 3)]
    )
    @pytest.mark.parametrize("rescore", [False, True])
    def test_units_under_grouped_queries(self, unit: Any, keep: int, rescore: bool) -> None:
        """2 layers of 4 heads in 2 groups. Only single heads, asked for, let the cache grow, and that is said."""
        model = asker("llama")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            options = Greedy(keep=keep, unit=unit, rescore=rescore)
            small = hw.prune(model, lines(20), options, dev=lines(4), seed=2)
        assert small.heads.total == keep
        grew = small.cache_bytes > model.cache_bytes
        assert any("would grow" in str(warning.message) for warning in said) == grew
        assert unit == "head" or not grew
        if unit == "group":
            emptied = small.heads.query["decoder-self"].count(0)
            assert small.cache_bytes == model.cache_bytes // 2 + 2 * 4 * emptied
        if unit == "uniform":
            assert small.heads.query["decoder-self"] == (2, 2)
            assert small.cache_bytes == model.cache_bytes

    @pytest.mark.parametrize("method", [Gates, TopK])
    def test_gates_close_a_unit(self, method: type[Gates | TopK]) -> None:
        options = method(keep=4, unit="uniform", **FAST)
        small = hw.prune(asker(), pairs(40), options, dev=pairs(6, 9), training=SMALL)
        assert small.heads.query["encoder-self"] == (2, 2)
        with pytest.raises(hw.HeadwiseError, match=r"heads cannot be kept: .* The nearest numbers"):
            hw.prune(asker(), pairs(40), method(keep=3, unit="uniform", **FAST), training=SMALL)

    def test_gates_of_units_under_a_penalty(self) -> None:
        options = Gates(penalty=0.1, unit="uniform", **FAST)
        small = hw.prune(asker(), pairs(40), options, dev=pairs(6, 9), training=SMALL)
        assert len({*small.heads.query["encoder-self"]}) == 1

    def test_a_budget_of_quality(self) -> None:
        options = Greedy(max_drop=100, search=Search(beam=1))
        assert encoder_heads(hw.prune(asker(), pairs(12), options, dev=pairs(6, 9))) == 1

    def test_dev_text_is_every_tenth_of_the_text(self) -> None:
        text = lines(65)
        rest, dev = held_out(text)
        assert list(dev) == [text[place] for place in range(9, 65, 10)] and len(rest) == 59
        model = asker("bert")
        options = Greedy(max_drop=20.0, measure="gradient")
        by_hand = hw.prune(model, rest, options, dev=dev)
        assert hw.prune(model, text, options).layout == by_hand.layout

    def test_too_short_a_dev_text_is_refused_or_doubted_before_anything_is_scored(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def scored(*_: Any, **__: Any) -> None:
            raise AssertionError("heads were scored")

        monkeypatch.setattr("headwise.study.model_steps.removal_score", scored)
        options = Greedy(max_drop=1.0)
        with pytest.raises(hw.HeadwiseError, match="dev text has 5 sentences: too few to tell"):
            hw.prune(asker("bert"), lines(8), options, dev=lines(5, 2))
        with (
            pytest.warns(UserWarning, match="dev text has 49 sentences: too few to tell"),
            pytest.raises(AssertionError, match="heads were scored"),
        ):
            hw.prune(asker("bert"), lines(8), options, dev=lines(49, 2))

    def test_the_model_is_left_as_it_was_and_progress_is_reported(self) -> None:
        model, shares = asker("bert"), list[float]()
        before = {name: tensor.clone() for name, tensor in model.hf.state_dict().items()}
        hw.prune(
            model,
            lines(20),
            Greedy(max_drop=1.0, rescore=True),
            dev=lines(8, 2),
            progress=lambda share, _: shares.append(share),
        )
        assert all(
            torch.equal(tensor, before[name]) for name, tensor in model.hf.state_dict().items()
        )
        assert shares == sorted(shares) and shares[-1] == 1.0 and shares[0] >= 0


@pytest.mark.parametrize(
    "options",
    [Greedy(keep=3, repair=True), Greedy(max_drop=1e9), Gates(keep=3, **FAST)],
    ids=["greedy", "budget", "gates"],
)
def test_nothing_stays_but_the_model(
    options: Greedy | Gates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the study is gone, no weights were written or read, and the model is whole without it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(hw.Model, "save", lambda *_: pytest.fail("weights were written"))
    training = None if isinstance(options, Greedy) else SMALL
    model = asker("bert")
    small = hw.prune(model, lines(12), options, dev=lines(6, 3), training=training)
    monkeypatch.undo()
    assert not [*tmp_path.iterdir()]
    assert small.source == model.source and small.name == model.name
    small.save(tmp_path / "small")
    assert hw.load(tmp_path / "small").heads == small.heads


def loss_by_hand(model: hw.Model, dev: Any) -> float:
    """Nats a token, batch after batch, by the library's own loss."""
    lost, asked = 0.0, 0
    for batch in model.task.batches(dev):
        labels = batch["labels"]
        with torch.no_grad():
            logits = model.hf(
                **{k: tensor for k, tensor in batch.items() if k not in ("rows", "labels")}
            ).logits
        lost += float(
            torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), reduction="sum"
            )
        )
        asked += int((labels >= 0).sum())
    return lost / asked


class TestGreedy:
    @pytest.mark.parametrize("family", ["marian", "bert", "llama"])
    @pytest.mark.parametrize("score", ["gradient", "random"])
    def test_exactly_so_many_heads_stay(self, family: str, score: str) -> None:
        """Between the steps of a tenth, too."""
        model = asker(family)
        text = (pairs if family == "marian" else lines)(8)
        kinds = model.heads.kinds
        keep = model.heads.total // 2 + 2
        for count in (keep, model.heads.total):
            small = hw.prune(model, text, Greedy(keep=count, kinds=kinds, measure=score), dev=text)
            assert small.heads.total == count

    def test_a_target_for_every_kind(self) -> None:
        keep: dict[Kind, int] = {"encoder-self": 7, "decoder-self": 1, "cross": 3}
        small = hw.prune(asker(), pairs(20), Greedy(keep=keep), dev=pairs(5, 5))
        assert {kind: sum(small.heads.query[kind]) for kind in keep} == keep

    @pytest.mark.parametrize("repair", [False, True])
    @pytest.mark.parametrize("family", ["bert", "llama"])
    def test_the_smallest_within_a_budget(self, family: str, repair: bool) -> None:
        """In % of perplexity, against models that are cut one by one and measured by hand."""
        model, text, dev = asker(family), lines(8), lines(6, 5)
        total, whole = model.heads.total, loss_by_hand(model, dev)
        options: Any = {"measure": "confidence", "repair": repair, "step": 0.25}
        found = {}
        for left in sizes(removal_units(model.heads), 0.25):
            small = hw.prune(model, text, Greedy(keep=left, **options), dev=dev)
            found[left] = 100 * math.expm1(loss_by_hand(small, dev) - whole)
        budget = max(sorted(found.values())[len(found) // 2], 0.0) + 1e-6
        expected = min((left for left in found if found[left] <= budget), default=total)
        within = hw.prune(model, text, Greedy(max_drop=budget, **options), dev=dev)
        assert within.heads.total == expected
        nothing = min((left for left in found if found[left] <= 0), default=total)
        within = hw.prune(model, text, Greedy(max_drop=0, **options), dev=dev)
        # Single heads may go between two steps.
        assert within.heads.total <= nothing
        assert 100 * math.expm1(loss_by_hand(within, dev) - whole) <= 1e-3

    def test_a_size_within_a_budget_or_none(self) -> None:
        model, text, dev = asker("gpt2"), lines(20), lines(60, 5)
        whole = loss_by_hand(model, dev)
        lost = {}
        for left in range(1, model.heads.total):
            small = hw.prune(model, text, Greedy(keep=left, measure="weight-norm"), dev=dev)
            lost[left] = 100 * math.expm1(loss_by_hand(small, dev) - whole)
        left = max(lost, key=lost.__getitem__)
        for budget, stay in ((2 * lost[left], left), (lost[left] / 2, model.heads.total)):
            options = Greedy(keep=left, max_drop=budget, measure="weight-norm")
            assert hw.prune(model, text, options, dev=dev).heads.total == stay
        gated = hw.prune(model, text, Gates(keep=3, max_drop=1e9, **FAST), dev=dev)
        assert gated.heads.total == 3

    def test_single_heads_go_where_the_budget_is_passed(self) -> None:
        """Weight norms give an order without text; every size is measured by hand. The sizes tried are those of a search
        by halves, so where quality only falls there, no head more could go."""
        model, dev = asker("gpt2"), lines(6, 5)
        options: Any = {"measure": "weight-norm", "step": 0.5}
        total, whole = model.heads.total, loss_by_hand(model, dev)
        lost = {}
        for left in range(1, total):
            small = hw.prune(model, lines(2), Greedy(keep=left, **options), dev=dev)
            lost[left] = 100 * math.expm1(loss_by_hand(small, dev) - whole)
        assert len(lost) > 3
        # More than the numbers of two ways to add up differ by.
        for budget in sorted(max(each, 0.0) + 1e-3 for each in lost.values()):
            small = hw.prune(model, lines(2), Greedy(max_drop=budget, **options), dev=dev)
            left = small.heads.total
            assert left == total or lost[left] <= budget
            coarse = [n for n in sizes(removal_units(model.heads), 0.5) if lost[n] <= budget]
            assert left <= min(coarse, default=total)
            assert left == 1 or left - 1 in coarse or lost[left - 1] > budget

    def test_the_smallest_within_a_budget_of_bleu(self) -> None:
        model, dev = asker(), pairs(6, 5)
        sources, references = list(dev.sources), list(dev.targets)
        options: Any = {"measure": "weight-norm", "step": 0.25, "search": Search(beam=1)}

        def bleu(given: hw.Model) -> float:
            return translation_answers([given.translate(sources, beam=1)], references).value()

        whole = bleu(model)
        found = {}
        for left in sizes(removal_units(model.heads.only(["encoder-self"])), 0.25):
            small = hw.prune(model, pairs(8), Greedy(keep=left, **options), dev=dev)
            found[left] = whole - bleu(small)
        budget = max(sorted(found.values())[1], 0.0) + 1e-9
        expected = min((left for left in found if found[left] <= budget), default=8)
        within = hw.prune(model, pairs(8), Greedy(max_drop=budget, **options), dev=dev)
        assert encoder_heads(within) == expected

    @pytest.mark.parametrize("measure", [*MEASURES, "ablation.bleu", "weight-norm"])
    def test_every_measure_gives_an_order(
        self, measure: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gating, "gate_heads", partial(gate_heads, steps=3))
        model = asker("marian", encoder_layers=1, decoder_layers=1)
        sweep = Greedy.model_construct(
            kinds=["encoder-self"], keep=None, step=0.5, rescore=False, unit=None
        )
        masks = greedy_masks(
            RemovalScore(model, model.task.batches(pairs(4)), measure, False, 0), sweep
        )
        assert list(masks) == [2, 1] and all(mask.count("cross") == 4 for mask in masks.values())

    @pytest.mark.parametrize(
        "measure", ["gradient", "confidence", "ablation.mean", "lrp.ding.pooled"]
    )
    def test_scored_again_after_every_step(self, measure: str) -> None:
        """The first step is that of the scores of the whole model, the second that of a model that lacks its heads."""
        model = asker("bert")
        batches = model.task.batches(lines(6))
        sweep = Greedy(kinds=["encoder-self"], measure=measure, rescore=True, step=0.5)
        masks = list(greedy_masks(RemovalScore(model, batches, measure, True, 0), sweep).values())
        with keeping(model.hf, model.discovery, masks[0]):
            table = hw.score(model, lines(6), [measure]).table
        again = table[table.measure == measure].set_index(["kind", "layer", "head"]).value
        best = max(
            (head for head in model.heads if head in masks[0].kept),
            key=lambda head: again[tuple(head)],
        )
        assert masks[-1].kept == {best}

    @pytest.mark.parametrize(
        "measure",
        [name for name in MEASURES if not name.startswith(("gating", "attention-to-end"))],
    )
    def test_scored_again_down_to_one_head(self, measure: str) -> None:
        """Whole layers are silenced on the way. Heads that are gone have no value, and nothing fails with none left."""
        model = asker("bert")
        batches = model.task.batches(lines(3))
        sweep = Greedy(kinds=["encoder-self"], measure=measure, rescore=True, step=0.3)
        masks = greedy_masks(RemovalScore(model, batches, measure, True, 0), sweep)
        assert min(masks) == 1
        assert importance_values(model, batches, measure, masks[1]).keys() == masks[1].kept
        assert not importance_values(model, batches, measure, masks[1].without([*masks[1].kept]))

    def test_low_values_of_entropy_mean_important(self) -> None:
        model = asker("bert")
        small = hw.prune(model, lines(6), Greedy(keep=1, measure="entropy"), dev=lines(6, 3))
        table = hw.score(model, lines(6), ["entropy"]).table
        assert small.layout is not None
        (kept,) = small.layout.kept
        assert tuple(table.loc[table.value.idxmin(), ["kind", "layer", "head"]]) == tuple(kept)

    def test_random_orders_by_their_seed_and_norms_without_text(self) -> None:
        one, same, other = (
            hw.prune(asker("llama"), lines(20), Greedy(keep=4, measure="random"), seed=seed).layout
            for seed in (1, 1, 2)
        )
        assert one == same != other
        model = asker("bert")
        norms = weight_norms(model)
        small = hw.prune(model, lines(2), Greedy(keep=1, measure="weight-norm"), dev=lines(6))
        assert small.layout is not None and small.layout.kept == {max(norms, key=norms.__getitem__)}

    @pytest.mark.parametrize("family", ["olmo2", "albert"])
    def test_heads_that_cannot_be_cut_are_refused_before_the_work(
        self, monkeypatch: pytest.MonkeyPatch, family: str
    ) -> None:
        monkeypatch.setattr("headwise.study.model_steps.removal_orders", None)
        with pytest.raises(hw.HeadwiseError):
            hw.prune(asker(family), lines(20), Greedy(keep=1))


def measured(folder: Path, **wanted: str) -> pd.DataFrame:
    """The rows of a study's pruning.csv with these words."""
    table = pd.read_csv(folder / "pruning.csv").fillna({"reference": "", "split": ""})
    for column, word in wanted.items():
        table = table[table[column] == word]
    return table


class TestControls:
    """A study of the one model, which is the same as without controls."""

    @pytest.mark.parametrize(
        ("options", "references"),
        [
            (Gates(keep=3, **FAST), {"full"}),
            (Gates(keep=3, train="apart", **FAST), {"full", "fine-tuned"}),
            (Greedy(keep=3, train="all", epochs=1, warmup=1), {"full", "fine-tuned"}),
            (Greedy(max_drop=100, search=Search(beam=1)), {"full", "random.1"}),
            (Greedy(keep=3, max_drop=100, search=Search(beam=1)), {"full", "random.1"}),
            (
                Greedy(max_drop=100, measure="gradient", search=Search(beam=1)),
                {"full", "weight-norm", "random.1"},
            ),
        ],
        ids=["gates", "apart", "tuned", "budget", "size", "measured"],
    )
    def test_the_same_model_beside_its_controls(
        self, tmp_path: Path, options: Gates | Greedy, references: set[str]
    ) -> None:
        model = asker()
        trains = not isinstance(options, Greedy) or options.train
        texts: dict[str, Any] = {"text": pairs(40), "dev": pairs(6, 9)}
        how = {"training": SMALL} if trains else {}
        alone = hw.prune(model, options=options, **texts, **how)
        shares = list[float]()
        small = hw.prune(
            model,
            options=options,
            **texts,
            **how,
            test=pairs(20, 30),
            controls=True,
            work=tmp_path / "work",
            progress=lambda share, what: shares.append(share),
        )
        assert small.layout == alone.layout
        own, expected = small.hf.state_dict(), alone.hf.state_dict()
        assert all(torch.equal(own[name], tensor) for name, tensor in expected.items())
        assert shares[-1] == 1.0
        on_test = measured(
            tmp_path / "work", split="test", measure="bleu", setting=Path(small.name).name
        )
        assert references <= {*on_test.reference}
        assert on_test[on_test.reference != ""].high.notna().all()

    def test_a_finished_study_is_read_and_another_model_is_pruned_again(
        self, tmp_path: Path
    ) -> None:
        options = Greedy(keep=3, measure="weight-norm")
        how: dict[str, Any] = {"dev": lines(6, 3), "controls": True, "work": tmp_path / "work"}
        first, other = asker("bert"), asker("bert")
        with torch.no_grad():
            other.hf.get_input_embeddings().weight += 0.1

        def sealed() -> float:
            return (tmp_path / "work" / ".steps" / "train.json").stat().st_mtime_ns

        hw.prune(first, lines(8), options, **how)
        made = sealed()
        hw.prune(first, lines(8), options, **how)
        assert sealed() == made
        hw.prune(other, lines(8), options, **how)
        assert sealed() > made

    def test_what_is_needed(self, tmp_path: Path) -> None:
        for how, reason in (
            ({"controls": True}, "controls need a folder"),
            ({"test": lines(4)}, "give controls=True with it"),
            ({"controls": ["beauty"], "work": tmp_path}, "beauty"),
        ):
            options = Greedy(keep=3, train="all", epochs=1)
            with pytest.raises(hw.HeadwiseError, match=reason):
                hw.prune(asker("bert"), lines(12), options, **cast(Any, how))
        assert not [*tmp_path.iterdir()]


class TestWarnings:
    """What a study writes into its report is not lost where there is none."""

    @pytest.mark.parametrize(
        "options",
        [
            TopK(keep=3, **{**FAST, "epochs": 1, "gate_learning_rate": 0.01}),
            Gates(penalty=0.0, train="all", **FAST),
        ],
        ids=["top-k", "gates"],
    )
    def test_a_run_that_had_not_settled(
        self, options: Gates | TopK, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(target_count, "TRAVEL", 0.1)
        with pytest.warns(UserWarning, match="The gates had not settled: .* Train longer"):
            hw.prune(asker(), pairs(20), options, training=SMALL)

    def test_a_run_that_missed_its_target(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(target_count, "TRAVEL", 0.1)
        few = {**FAST, "epochs": 1, "gate_learning_rate": 0.01}
        with pytest.warns(UserWarning, match="heads away from the target") as warned:
            hw.prune(asker(), pairs(20), Gates(keep=1, **few), training=SMALL)
        assert not any("frozen" in str(warning.message) for warning in warned), "that is no doubt"

    def test_a_run_that_had_settled_is_silent(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            options = Gates(penalty=0.0, **{**FAST, "gate_learning_rate": 0.01})
            hw.prune(asker(), pairs(20), options, training=SMALL)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Gates(keep=3, rule="deterministic"), "Gates: rule would mean nothing without a"),
        (lambda: Gates(keep=3, penalty_scale="code"), "penalty_scale would mean nothing without a"),
        (
            lambda: TopK(keep=3, **wrong(temperature=0.5)),
            "TopK: unknown key 'temperature'; allowed",
        ),
        (lambda: TopK(**wrong(penalty=0.1)), "TopK: unknown key 'penalty'; allowed here: average"),
        (lambda: Gates(max_drop=-1.0, keep=3), "'max_drop' is -1.0"),
        (lambda: Gates(**wrong(kep=3)), "unknown key 'kep' .did you mean 'keep'.*; allowed here"),
        (lambda: Gates(keep=3, **wrong(measure="gradient")), "unknown key 'measure'"),
        (lambda: Greedy(keep=3, epochs=3), "epochs would mean nothing without train"),
        (lambda: Gates(**wrong(train="gate")), "'train' is 'gate', .*did you mean 'gates'"),
        (lambda: Greedy(measure="random", rescore=True), "rescore would change nothing: random"),
        (lambda: Greedy(keep=3, **wrong(train="gates")), "'train' is 'gates', which does not fit"),
        (lambda: Greedy(keep=3, step=0.0), "'step' is 0.0"),
        (lambda: Training(dtype="int8"), "Training: 'dtype' is 'int8'"),
        (
            lambda: Search(beam=0),
            "Search: 'beam' is 0, which does not fit: input should be greater",
        ),
        (lambda: Gates(penalty=-1.0), "'penalty' is -1.0, .*greater than or equal to 0"),
        (lambda: Gates(penalty=float("nan")), "'penalty' is nan, .*finite number"),
        (lambda: Gates(**wrong(penalty="0.1")), "'penalty' is '0.1', .*valid number"),
        (lambda: Gates(penalty=[0.1, -1.0]), "'penalty.1' is -1.0"),
        (lambda: Greedy(**wrong(max_drop="1")), "'max_drop' is '1'"),
        (lambda: Greedy(max_drop=-1.0), "'max_drop' is -1.0"),
        (lambda: Gates(keep=0), "'keep' is 0, .*greater than or equal to 1"),
        (lambda: Gates(**wrong(keep=2.5)), "'keep' is 2.5, .*neither a number of heads"),
        (lambda: Gates(keep=True), "'keep' is True"),
        (lambda: Gates(**wrong(keep={"cross": "4"})), "'keep.cross' is '4', .*valid integer"),
        (lambda: Gates(**wrong(keep={"crosss": 4})), "'crosss' is no kind of heads; there is enc"),
        (lambda: Gates(keep=3, **wrong(kinds=["decoder"])), "'kinds.0' is 'decoder'"),
        (lambda: Gates(keep=3, kinds=[]), "'kinds' is "),
        (
            lambda: Gates(keep={"cross": 1}, kinds=["encoder-self"]),
            "keep names cross, but the kinds are encoder-self",
        ),
    ],
)
def test_options_that_cannot_be(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(hw.HeadwiseError, match=reason) as error:
        make()
    assert "\n" not in str(error.value)


def test_one_kind_needs_no_list() -> None:
    assert Gates(keep=3, **wrong(kinds="cross")) == Gates(keep=3, kinds=["cross"])
    assert asker().heads.only("decoder-self") == asker().heads.only(["decoder-self"])


def wrong(**options: Any) -> dict[str, Any]:
    """Options that a type checker would refuse."""
    return options


@pytest.mark.parametrize(
    ("options", "more", "reason"),
    [
        (None, {}, "the options are None: give hw.Gates"),
        (Gates(), {}, r"needs penalty or keep in hw.Gates\(…\), but none was given"),
        (Greedy(), {}, r"needs keep or max_drop in hw.Greedy\(…\), but none was given"),
        (Gates(keep=3, penalty=0.1), {}, "penalty and keep were given together"),
        (Gates(keep=[3, 4]), {}, "makes one model, but keep has 2 values"),
        (Gates(keep=3), {"work": 3}, "3 was given in place of a file or a folder"),
        (Greedy(keep=3), {"work": "x"}, r"work means nothing with hw.Greedy\(…\)"),
        (Greedy(keep=3), {"training": SMALL}, r"training means nothing with hw.Greedy\(…\)"),
        (Greedy(max_drop=1.0, train="all"), {}, "max_drop alone chooses before anything trains"),
        (Gates(keep=3), {"training": {"epochs": 3}}, "give hw.Training"),
        (
            Gates(keep=3),
            {"training": Training(epochs=3)},
            "training names epochs, but for how long",
        ),
        (Greedy(keep=3, measure="beauty"), {}, "'beauty' is unknown; there is confidence"),
        (Greedy(keep=3, measure="all"), {}, "takes too long to give an order|order of one score"),
        (
            Greedy(keep=3, measure="attention-to-end", kinds=["decoder-self"]),
            {},
            "not a number for",
        ),
        (Gates(keep=99), {}, "99 heads cannot be kept: there are 8"),
        (Greedy(keep=99), {}, "99 heads cannot be kept: there are 8"),
    ],
    ids=str,
)
def test_calls_that_cannot_be(options: Any, more: dict[str, Any], reason: str) -> None:
    with pytest.raises(hw.HeadwiseError, match=reason) as error:
        hw.prune(asker(), pairs(12), options, **more)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            lambda: hw.prune(cast(Any, 3.5), pairs(9), Gates(keep=3)),
            "3.5 was given in place of a model",
        ),
        (lambda: hw.prune(asker(), pairs(9), Gates(keep=3)), "only 9: give dev text as well"),
        (lambda: hw.prune(asker("bert"), pairs(20), Greedy(keep=3)), "needs one-sided text"),
        (
            lambda: hw.prune(embedder(), lines(20), Gates(keep=3)),
            "there is no loss to train it by",
        ),
    ],
)
def test_text_and_models_that_do_not_fit(make: Callable[[], hw.Model], reason: str) -> None:
    with pytest.raises(hw.HeadwiseError, match=reason):
        make()


class TestWithoutWords:
    """Models that predict no words, such as those of sentence embeddings."""

    @pytest.mark.parametrize(
        "options", [{}, {"measure": "dormancy", "rescore": True}, {"repair": True}], ids=str
    )
    def test_a_number_of_heads(self, options: dict[str, Any]) -> None:
        model = embedder()
        small = hw.prune(model, lines(20), Greedy(keep=3, **options))
        assert small.heads.total == 3 and small.layout is not None
        usual: dict[str, Any] = (
            {} if "measure" in options else {"measure": "repair", "repair": True}
        )
        same = Greedy(keep=3, **{**usual, **options})
        expected = hw.prune(model, lines(20), same)
        assert small.layout == expected.layout
        own, other = small.hf.state_dict(), expected.hf.state_dict()
        assert all(torch.equal(own[name], tensor) for name, tensor in other.items())

    @pytest.mark.parametrize(
        "options",
        [
            {"max_drop": 1.0, "measure": "gradient"},
            {"keep": 3, "measure": "gradient"},
            {"keep": 3, "measure": "lrp"},
        ],
        ids=str,
    )
    def test_what_needs_a_prediction(self, options: dict[str, Any]) -> None:
        with pytest.raises(hw.HeadwiseError, match=r"predicts n(o|either) words") as error:
            hw.prune(embedder(), lines(12), Greedy(**options), dev=lines(6, 2))
        assert "\n" not in str(error.value)


def test_few_parameters_each_with_a_name() -> None:
    assert len(inspect.signature(hw.prune).parameters) <= 10
    for function in (hw.prune, hw.score, hw.evaluate, hw.roles):
        kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
        assert not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}


@pytest.mark.parametrize("options", [Gates, TopK, Greedy, Search, Training, Architecture])
def test_every_option_says_what_it_means(options: type[BaseModel]) -> None:
    assert all(field.description for field in options.model_fields.values())


def test_more_bleu_than_there_is_may_not_be_lost_without_a_word() -> None:
    with pytest.warns(
        UserWarning, match=r"max_drop is 101, but the whole model has only .* BLEU on dev"
    ):
        options = Greedy(max_drop=101, measure="weight-norm", search=Search(beam=1))
        hw.prune(asker(), pairs(8), options, dev=pairs(6))
