"""Pruning without training: so many heads, the smallest within a budget, quality against slow twins, refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import headwise as hw
from headwise.attention import masked
from headwise.heads import HeadMask
from headwise.importance.gating import gate_heads
from headwise.pruning.greedy import weight_norms
from headwise.study import scoring
from headwise.study.scoring import MEASURES
from headwise.study.shrink import COLUMNS, FULL, Removal, Shrunk, shrink
from headwise.study.stream import Stream
from headwise.translation.decode import Search
from headwise.translation.quality import difference
from study.askers import asker, lines, pairs

GREEDY = Search(beam=1)


@pytest.fixture(scope="module", autouse=True)
def quick_gates() -> Iterator[None]:
    """Three updates of gates instead of 200."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "gate_heads", partial(gate_heads, steps=3))
        yield


def text(model: hw.Model, count: int, seed: int = 0) -> Any:
    return pairs(count, seed) if model.hf.config.is_encoder_decoder else lines(count, seed)


def shrunk(family: str, **options: Any) -> Shrunk:
    model = asker(family)
    return shrink(model, text(model, 8), text(model, 5, 5), search=GREEDY, **options)


def loss_by_hand(model: hw.Model, dev: Any) -> float:
    """Nats a token, batch after batch, by the library's own loss."""
    lost, asked = 0.0, 0
    for batch in Stream(model, dev):
        labels = batch["labels"]
        with torch.no_grad():
            logits = model.hf(
                **{name: tensor for name, tensor in batch.items() if name not in ("rows", "labels")}
            ).logits
        lost += float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum"))
        asked += int((labels >= 0).sum())
    return lost / asked


@pytest.mark.parametrize("family", ["marian", "bert", "llama"])
@pytest.mark.parametrize("score", ["gradient", "confidence", "random"])
def test_exactly_so_many_heads_stay(family: str, score: str) -> None:
    """Between the steps of a tenth, too; and what the table says is what the smaller model does."""
    model = asker(family)
    keep = model.heads.total // 2 + 1
    found = shrunk(family, keep=keep, score=score)
    assert found.model.heads.total == len(found.mask) == keep
    assert found.setting == f"greedy-{score}-{keep}" and list(found.table.columns) == list(COLUMNS)
    by_hand = loss_by_hand(found.model, text(model, 5, 5))
    assert found.value("dev_loss")["value"] == pytest.approx(by_hand, abs=1e-5)
    assert found.value("dev_loss", FULL)["value"] == pytest.approx(loss_by_hand(model, text(model, 5, 5)), abs=1e-5)
    assert found.value("parameters")["value"] == found.model.parameters < found.value("parameters", FULL)["value"]
    if family != "marian":
        change = found.value("dev_perplexity_change")
        assert change["low"] <= change["value"] <= change["high"]
        ratio = found.value("dev_perplexity")["value"] / found.value("dev_perplexity", FULL)["value"]
        assert change["value"] == pytest.approx(100 * (ratio - 1), abs=1e-4)
        assert found.value("dev_perplexity")["value"] == pytest.approx(math.exp(by_hand), rel=1e-4)


def test_translations_are_those_of_the_smaller_model() -> None:
    model, dev = asker("marian"), pairs(5, 5)
    found = shrunk("marian", keep=9, kinds=["encoder-self", "cross"])
    assert found.mask.count("decoder-self") == model.heads.only(["decoder-self"]).total, "other kinds stay"
    ours, whole = (cut.translate(list(dev.sources), beam=1) for cut in (found.model, model))
    change = found.value("dev_bleu_difference")
    expected = difference(ours, whole, list(dev.targets))
    assert (change["value"], change["low"], change["high"]) == (expected.value, expected.low, expected.high)
    translated = set(found.table[found.table.measure == "dev_bleu"].setting)
    assert translated == {FULL, found.setting}, "with a number of heads no other step is translated"
    assert set(found.table[found.table.measure == "dev_loss"].setting) == set(found.masks)
    assert found.facts["bleu_signature"].startswith("nrefs:1") and found.value("dev_bleu")["total"] == 16


def test_a_number_for_every_kind() -> None:
    keep = {"encoder-self": 7, "decoder-self": 1, "cross": 3}
    found = shrunk("marian", keep=keep)
    assert {kind: found.mask.count(kind) for kind in keep} == keep
    sizes = [len(mask) for mask in found.masks.values()]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] == 11


def test_the_whole_model_may_be_wanted() -> None:
    found = shrunk("bert", keep=asker("bert").heads.total)
    assert found.setting == FULL and found.model.heads == asker("bert").heads and set(found.masks) == {FULL}


@pytest.mark.parametrize("family", ["llama", "marian"])
def test_the_smallest_within_a_budget(family: str) -> None:
    measure = "dev_bleu_difference" if family == "marian" else "dev_perplexity_change"
    sign = -1 if family == "marian" else 1
    whole = shrunk(family, max_drop=1e9)
    curve = whole.table[whole.table.measure == measure].set_index("kept")
    assert whole.value(measure)["kept"] == curve.index.min() == 1
    budget = float((sign * curve.value).sort_values().iloc[len(curve) // 2]) + 1e-9
    good = curve[sign * curve.value <= max(budget, 0.0)]
    found = shrunk(family, max_drop=max(budget, 0.0))
    expected = good.index.min() if len(good) else asker(family).heads.total
    assert len(found.mask) == expected and (curve.low <= curve.high).all()
    assert found.model.heads.total == len(found.mask)


def test_nothing_can_go_for_nothing() -> None:
    """Where every step costs something, a budget of 0 leaves the whole model."""
    model = asker("llama")
    with masked(model.hf, model.found, HeadMask(model.heads, frozenset(list(model.heads)[:1]))):
        dev = hw.Text.from_lines(lines(200).lines)
    found = shrink(model, lines(8), dev, max_drop=0.0)
    changes = found.table[found.table.measure == "dev_perplexity_change"]
    assert len(found.mask) == changes[changes.value <= 0].kept.min()


class TestOrder:
    @pytest.mark.parametrize("measure", [*MEASURES, "ablation.bleu", "weight-norm"])
    def test_every_measure_gives_one(self, measure: str) -> None:
        model = asker("marian", encoder_layers=1, decoder_layers=1)
        removal = Removal(model, ("encoder-self",), measure, False, 0.5, 0)
        masks = removal.masks(Stream(model, pairs(4)), 1, lambda share, what: None)
        assert [mask.count("encoder-self") for mask in masks] == [4, 2, 1]
        assert removal.setting(masks[-1]) == f"greedy-{measure}-1" and masks[-1].count("cross") == 4

    @pytest.mark.parametrize("measure", ["gradient", "confidence", "ablation.zero", "ablation.mean", "lrp.ding.pooled"])
    def test_scored_anew_after_every_step(self, measure: str) -> None:
        """The first step is that of the scores of the whole model, the second that of a model that lacks its heads."""
        model = asker("bert")
        found = shrink(model, lines(6), lines(6, 3), keep=1, score=measure, rescore=True, step=0.5)
        assert set(found.table.method) == {"none", f"greedy.{measure}.rescored"}
        masks = list(found.masks.values())
        left = [head for head in model.heads if head in masks[1].kept]
        with masked(model.hf, model.found, masks[1]):
            table = hw.score(model, lines(6), [measure])
        anew = table[table.measure == measure].set_index(["kind", "layer", "head"]).value
        best = max(left, key=lambda head: anew[tuple(head)])
        assert masks[-1].kept == {best}

    def test_low_values_of_entropy_mean_important(self) -> None:
        model = asker("bert")
        found = shrink(model, lines(6), lines(6, 3), keep=1, score="entropy")
        table = hw.score(model, lines(6), ["entropy"])
        (kept,) = found.mask.kept
        assert tuple(table.loc[table.value.idxmin(), ["kind", "layer", "head"]]) == tuple(kept)

    def test_random_orders_by_their_seed(self) -> None:
        one, same, other = (shrunk("llama", keep=3, score="random", seed=seed).mask for seed in (1, 1, 2))
        assert one == same != other

    def test_norms_need_no_text(self) -> None:
        model = asker("bert")
        found = shrink(model, lines(2), lines(6), keep=1, score="weight-norm")
        norms = weight_norms(model)
        assert found.mask.kept == {max(norms, key=norms.__getitem__)}


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"keep": 3, "max_drop": 0.5}, "keep and max_drop were given both"),
            ({}, "keep and max_drop are both missing"),
            ({"keep": 0}, "0 heads were to be kept, but .* can be pruned here .*give a number from 1"),
            ({"keep": 999}, "999 heads were to be kept"),
            ({"keep": {"decoder-self": 1}}, "given for decoder-self, but heads of encoder-self are to be pruned"),
            ({"keep": {"encoder-self": 0}}, "0 heads were to be kept"),
            ({"keep": 1, "kinds": ["cross"]}, "of kind 'cross' were asked for, but this model has only encoder-self"),
            ({"max_drop": 1.0, "kinds": ["cross"]}, "of kind 'cross' were asked for"),
            ({"keep": 1, "kinds": []}, "No kind of heads was given"),
            ({"max_drop": -1.0}, "loses at most -1.0: give a number of at least 0"),
            ({"max_drop": math.nan}, "loses at most nan"),
            ({"keep": 1, "score": "beauty"}, "'beauty' was asked for; there is confidence"),
            ({"keep": 1, "score": "all"}, "heads go in the order of one"),
            ({"keep": 1, "score": "ablation.bleu"}, "needs translations, which tiny bert"),
            ({"keep": 1, "score": "random", "rescore": True}, "'random' was to be scored anew"),
            ({"keep": 1, "step": 0.0}, "removed in steps of 0.0"),
        ],
    )
    def test_in_one_sentence(self, options: dict[str, Any], told: str) -> None:
        with pytest.raises(hw.HeadwiseError, match=told) as error:
            shrunk("bert", **options)
        assert "\n" not in str(error.value)

    def test_text_of_the_wrong_kind(self) -> None:
        for family, given, dev in (("bert", pairs(3), lines(3)), ("bert", lines(3), pairs(3)),
                                   ("marian", lines(3), pairs(3)), ("marian", pairs(3), lines(3))):  # fmt: skip
            with pytest.raises(hw.HeadwiseError, match="which is scored on"):
                shrink(asker(family), given, dev, keep=1)

    @pytest.mark.parametrize("family", ["olmo2", "albert"])
    def test_heads_that_cannot_be_cut_are_refused_before_the_work(
        self, monkeypatch: pytest.MonkeyPatch, family: str
    ) -> None:
        monkeypatch.setattr("headwise.study.shrink.greedy", None)
        with pytest.raises(hw.HeadwiseError):
            shrunk(family, keep=1)

    def test_a_score_that_tells_of_no_such_head(self) -> None:
        with pytest.raises(hw.HeadwiseError, match="it is no number for"):
            shrunk("marian", keep=1, score="attention-to-end")


class TestSaved:
    def test_files(self, tmp_path: Path) -> None:
        found = shrunk("bert", max_drop=1e9)
        assert found.save(tmp_path / "out") == tmp_path / "out"
        (tmp_path / "out/figures").mkdir()  # by a report, which is made from the tables and may go with them
        (tmp_path / "out/report.html").touch()
        found.save(tmp_path / "out")
        assert not (tmp_path / "out/report.html").exists()
        table = pd.read_csv(tmp_path / "out/pruning.csv")
        assert len(table) == len(found.table) and set(table.setting) == set(found.masks)
        assert hw.load(tmp_path / "out/pruned" / found.setting).heads == found.model.heads
        for setting, mask in found.masks.items():
            if setting != FULL:
                assert HeadMask.read(tmp_path / f"out/layouts/{setting}.json") == mask
        facts = json.loads((tmp_path / "out/run.json").read_text())
        assert facts["chosen"] == found.setting and set(facts["settings"]) == set(found.masks) - {FULL}
        assert facts["settings"][found.setting] == {
            "sweep": "", "method": "greedy.gradient", "kinds": ["encoder-self"], "control": None, "of": None,
            "score": "gradient",
        }  # fmt: skip
        assert {*facts["signature"], *facts} >= {"text", "dev", "seed", "versions", "threads"}

    def test_other_files_stay(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("words")
        with pytest.raises(hw.HeadwiseError, match=r"something else \(thesis.txt\): choose an empty or new folder"):
            shrunk("bert", keep=1).save(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_the_model_is_left_as_it_was_and_progress_is_told() -> None:
    model, told = asker("bert"), list[float]()
    before = {name: tensor.clone() for name, tensor in model.hf.state_dict().items()}
    shrink(
        model, lines(8), lines(8, 2), keep=2, rescore=True, progress=lambda share, what: told.append(share)
    )  # fmt: skip
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.hf.state_dict().items())
    assert told == sorted(told) and told[-1] == 1.0 and told[0] >= 0


@pytest.mark.parametrize("family", ["marian", "bert"])
def test_mean_outputs_stay_in_the_biases(family: str) -> None:
    """What is measured of every step is measured with them: the chosen one is the model that comes back."""
    model = asker(family)
    plain, found = (shrunk(family, keep=2, compensate=compensate) for compensate in (False, True))
    assert found.mask == plain.mask and found.facts["signature"]["compensate"]
    by_hand = loss_by_hand(found.model, text(model, 5, 5))
    assert found.value("dev_loss")["value"] == pytest.approx(by_hand, abs=1e-5)
    assert abs(by_hand - plain.value("dev_loss")["value"]) > 1e-3
    whole = found.value("dev_loss", FULL)["value"]
    assert whole == pytest.approx(plain.value("dev_loss", FULL)["value"], abs=1e-6)
    if family == "marian":
        lines_of = found.model.translate(list(pairs(5, 5).sources), beam=1)
        ours = difference(lines_of, model.translate(list(pairs(5, 5).sources), beam=1), list(pairs(5, 5).targets))
        assert found.value("dev_bleu_difference")["value"] == ours.value
