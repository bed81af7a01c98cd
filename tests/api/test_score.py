"""Scoring by every measure: rows for every head, what is refused, the judge, BLEU, runs that were killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from headwise.study.scoring import BLEU, MEASURES, USUAL, chosen, save_tables
from headwise.study.stream import Stream
from scipy.stats import spearmanr
from study.askers import asker, lines, pairs

import headwise as hw
from headwise.heads import COLUMNS
from headwise.importance.gating import GATINGS, gate_heads
from headwise.study import Progress, make_plan, run_study, scoring
from headwise.translation.decode import Search, translate
from headwise.translation.quality import difference


@pytest.fixture(scope="module", autouse=True)
def quick_gates() -> Iterator[None]:
    """Three updates of gates instead of 200."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "gate_heads", partial(gate_heads, steps=3))
        yield


@pytest.fixture(scope="module")
def everything() -> pd.DataFrame:
    return hw.score(small(), pairs(8), ["all"])


def small(family: str = "marian", **changes: Any) -> hw.Model:
    """Of one layer a stack, with 4 heads."""
    layers = {"encoder_layers": 1, "decoder_layers": 1} if family == "marian" else {}
    return asker(family, **layers, **changes)


def values(table: pd.DataFrame, measure: str) -> pd.DataFrame:
    numbers = dict.fromkeys(("value", "low", "high", "baseline"), float)
    return table[table.measure == measure].reset_index(drop=True).astype(numbers)


class TestMeasures:
    @pytest.mark.parametrize("measure", MEASURES)
    def test_alone_as_among_all(self, everything: pd.DataFrame, measure: str) -> None:
        """A row for each of the 12 heads, in the map's order, the same numbers whatever else is asked for."""
        model = small()
        found = hw.score(model, pairs(8), [measure])
        alone, among = values(found, measure), values(everything, measure)
        pd.testing.assert_frame_equal(alone, among)
        seen = model.heads
        if measure == "attention-to-end":
            seen = seen.only(["encoder-self", "cross"])
            assert found.attrs["signature"]["absent"] == [
                "attention-to-end tells of no decoder-self head: none sees the end of its own sentence"
            ]
        assert [hw.Head(*row) for row in alone[["kind", "layer", "head"]].itertuples(index=False)] == list(seen)
        assert alone.value.notna().all() and (alone.n > 0).all()
        if measure not in GATINGS:
            assert (alone.low <= alone.high).all()

    def test_the_table(self, everything: pd.DataFrame) -> None:
        signature = everything.attrs["signature"]
        made = [name for name in signature["measures"] if name in MEASURES]
        assert sorted(made) == sorted(MEASURES) and list(everything.columns) == list(COLUMNS)
        others = {name.rpartition(".")[2] for name in signature["measures"] if name not in MEASURES}
        assert others == {"signed", "absolute"}, "relevance has its other reading beside it"
        assert signature["mode"] == "evaluation (no dropout)" and signature["sentences"] == 8
        assert set(signature["seconds"]) >= {"readings", "gradients", "ablation.mean", "lrp.cp.pooled", "gating"}
        assert set(everything.attrs["relevance"]) == {name for name in MEASURES if name.startswith("lrp.")}

    def test_names_for_several(self) -> None:
        assert chosen(["lrp", "ablation", "lrp.ding"]) == ["lrp.ding", "ablation.zero"]
        assert chosen(["all"]) == list(MEASURES) and BLEU not in MEASURES
        assert chosen(["all", BLEU])[-1] == BLEU

    @pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
    def test_language_models(self, family: str) -> None:
        model = asker(family)
        kind = "encoder-self" if family == "bert" else "decoder-self"
        table = hw.score(model, lines(12), [*USUAL, "lrp.cp.pooled", "gating.irrelevant"])
        assert set(table.kind) == {kind} and (table.groupby("measure").value.count() == model.heads.total).all()
        asked = sum(int((batch["labels"] >= 0).sum()) for batch in Stream(model, lines(12)))
        assert set(values(table, "ablation.zero").n) == {asked}


class TestModes:
    def test_a_model_in_training_mode_is_scored_without_dropout_and_left_as_it_was(self) -> None:
        model = small(dropout=0.5)
        calm = hw.score(model, pairs(6))
        model.hf.train()
        model.hf.model.encoder.eval()
        before = [module.training for module in model.hf.modules()]
        restless = hw.score(model, pairs(6), [*USUAL, "attribution.zero", "lrp.cp.pooled", "gating.irrelevant"])
        assert [module.training for module in model.hf.modules()] == before and any(before) and not all(before)
        for measure in USUAL:
            pd.testing.assert_frame_equal(values(restless, measure), values(calm, measure))
        assert restless.attrs["signature"]["mode"] == "evaluation (no dropout)"

    def test_half_precision_is_said(self) -> None:
        model = small()
        model.hf.to(torch.bfloat16)
        signature = hw.score(model, pairs(6), ["lrp.cp.pooled"]).attrs["signature"]
        assert (signature["dtype"], signature["relevance"]) == ("bfloat16", "float32")


class TestRefused:
    @pytest.mark.parametrize(
        ("family", "measures", "judged", "told"),
        [
            (
                "marian",
                ["fame"],
                False,
                "The measure 'fame' was asked for; there is confidence, .*, lrp, ablation, all",
            ),
            ("marian", ["lrp"], True, "judged by ablation.zero, which is not among the measures: add it"),
            ("gpt2", [BLEU], False, "needs translations, which tiny gpt2, a GPT2LMHeadModel, does not write"),
            ("gpt2", ["attention-to-end"], False, "nothing to tell: attention-to-end tells of no head: none sees"),
        ],
    )
    def test_measures(self, family: str, measures: list[str], judged: bool, told: str) -> None:
        with pytest.raises(hw.HeadwiseError, match=told):
            hw.score(small(family), pairs(4) if family == "marian" else lines(4), measures, judged=judged)

    def test_judging_too_much_text_before_any_work(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(scoring, "UNITS", 3)
        monkeypatch.setattr(scoring, "read", None)
        with pytest.raises(hw.HeadwiseError, match="judged on 4 sentences, but 3 are the most: give fewer"):
            hw.score(small(), pairs(4), judged=True)


class TestJudge:
    def test_scores_of_one_half_are_held_against_ablation_of_the_other(self) -> None:
        """As when the two halves are scored as texts of their own."""
        model, text = small(), pairs(16)
        table = hw.score(model, text, ["gradient", "entropy", "ablation", "ablation.all-but-one"], judged=True)
        (batch,) = Stream(model, text)
        ones, others = (text.take([row for row in batch["rows"][which::2].tolist() if row >= 0]) for which in (0, 1))
        truth = values(hw.score(model, others, ["ablation"]), "ablation.zero").value
        rows = pd.DataFrame(table.attrs["faithfulness"])
        both = rows[(rows.against == "ablation.zero") & (rows.statistic == "spearman") & (rows.n == 12)]
        found = dict(zip(both.measure, both.value, strict=True))
        assert set(found) == {"gradient", "-entropy", "ablation.zero", "-ablation.all-but-one"}
        for name, value in found.items():
            measure = name.removeprefix("-")
            scores = values(hw.score(model, ones, [measure]), measure).value
            expected = spearmanr(scores if measure == name else -scores, truth).statistic
            assert value == pytest.approx(expected, abs=0.02), "but for ties in rounding"
        curves = pd.DataFrame(table.attrs["curves"])
        start = curves[curves.removed == 0].loss
        assert start.max() - start.min() < 1e-6 and set(curves.order) == {"once", "rescored", "random"}

    def test_the_tables_as_files(self, tmp_path: Path) -> None:
        told = save_tables(
            hw.score(small(), pairs(8), ["lrp", "confidence", "ablation"], judged=True), tmp_path / "heads.csv"
        )
        assert {path.name for path in tmp_path.iterdir()} == {
            "heads.csv", "heads.json", "lrp.csv", "faithfulness.csv", "curves.csv"
        }  # fmt: skip
        assert told[-1] == f"Wrote {tmp_path}/heads.csv, heads.json, faithfulness.csv, curves.csv, lrp.csv."
        assert any("confidence: rank correlation with exact ablation" in line for line in told)
        balance = pd.read_csv(tmp_path / "lrp.csv")
        assert list(balance.columns) == ["measure", "mode", "what", "value", "low", "high"]
        parts = dict(zip(balance.what, balance.value, strict=True))
        assert parts.pop("started") == 1 == pytest.approx(sum(parts.values()), abs=1e-4)
        table = hw.score(small(), hw.ParallelText.from_pairs([("a b", "c"), ("a " * 99, "b")]), ["confidence"])
        told = save_tables(table, tmp_path / "heads.csv")
        assert {path.name for path in tmp_path.iterdir()} == {"heads.csv", "heads.json"}, "nothing of the other command"
        assert told[0] == "  1 of 2 sentences were left out: too short to ask for a token, or longer than 64"


class TestBleu:
    def test_it_is_what_removing_the_head_costs(self) -> None:
        model = small(seed=4, encoder_attention_heads=2, decoder_attention_heads=2)
        sources = list(pairs(5).sources)
        whole = translate(model.hf, model.tokenizer, sources)[0]
        text = hw.ParallelText.from_pairs(zip(sources, whole, strict=True))  # of which the whole model knows every word
        table = hw.score(model, text, [BLEU])
        assert table.attrs["signature"]["search"] == Search().model_dump() and set(table.n) == {5}
        assert len(table) == 6 and (table.value > 10).any()
        for row in table.itertuples():
            rest = hw.HeadMask.full(model.heads).without([hw.Head(row.kind, row.layer, row.head)])
            drop = difference(whole, model.remove(rest).translate(sources), whole)
            assert (row.value, row.low, row.high) == pytest.approx((drop.value, drop.low, drop.high))


class Notes(Progress):
    """Remembers which stages were made."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.made: list[str] = []

    def stage(self, name: str) -> Any:
        self.made.append(name)
        return super().stage(name)


class TestStudy:
    MEASURES = ("confidence", "gradient", "lrp.ding.pooled", "gating.irrelevant", "ablation.zero", "ablation.mean")

    @pytest.fixture
    def plan(self, tmp_path: Path) -> Any:
        small().save(tmp_path / "given")
        for split, seed in (("train", 0), ("dev", 2)):
            text = pairs(8, seed)
            (tmp_path / f"{split}.a").write_text("\n".join(text.sources) + "\n")
            (tmp_path / f"{split}.b").write_text("\n".join(text.targets) + "\n")
        data = {split: [f"{tmp_path}/{split}.a", f"{tmp_path}/{split}.b"] for split in ("train", "dev")}
        scores = {"measures": list(self.MEASURES), "random_orders": 1}
        return make_plan({"data": data, "model": str(tmp_path / "given"), "scoring": scores})

    def test_a_stopped_run_goes_on_with_the_jobs_that_were_done(
        self, plan: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run_study(plan, tmp_path / "whole", Progress(quiet=True), only="score")
        ablate = scoring.ablate

        def stopped(*given: Any) -> Any:
            if "ablation.mean" in given[-1]:
                raise KeyboardInterrupt
            return ablate(*given)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(scoring, "ablate", stopped)
            run_study(plan, tmp_path / "run", Progress(quiet=True), only="score")
        kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").glob("scores/*/*.npz")}
        assert {path.parent.name for path in kept} == {"readings", "gradients", "lrp.ding.pooled", "ablation.zero"}
        assert not (tmp_path / "run" / "heads.csv").exists()
        notes = Notes()
        run_study(plan, tmp_path / "run", notes, only="score")
        assert [name for name in notes.made if "scores/" in name] == ["scores/ablation.mean", "scores/gating"]
        assert {path: path.stat().st_mtime_ns for path in kept} == kept
        for name in ("heads.csv", "lrp.csv", "faithfulness.csv", "curves.csv"):
            assert (tmp_path / "run" / name).read_text() == (tmp_path / "whole" / name).read_text(), name
        signature = json.loads((tmp_path / "run" / "heads.json").read_text())
        assert set(self.MEASURES) <= set(signature["measures"]) and "ablation.zero" in signature["seconds"]

    def test_the_command_and_the_study_tell_the_same(self, plan: Any, tmp_path: Path) -> None:
        run_study(plan, tmp_path / "run", Progress(quiet=True), only="score")
        text = hw.ParallelText.read(tmp_path / "dev.a", tmp_path / "dev.b")
        table = hw.score(hw.load(tmp_path / "run"), text, self.MEASURES, seed=plan.seed)
        found = pd.read_csv(tmp_path / "run" / "heads.csv")
        order = ["measure", "kind", "layer", "head"]
        pd.testing.assert_frame_equal(
            found.sort_values(order, ignore_index=True),
            table.sort_values(order, ignore_index=True).astype(found.dtypes.to_dict()), rtol=1e-4,
        )  # fmt: skip

    def test_another_measure_makes_only_that(self, plan: Any, tmp_path: Path) -> None:
        run_study(plan, tmp_path / "run", Progress(quiet=True), only="score")
        plan.scoring.measures.append("ablation.uniform")
        notes = Notes()
        run_study(plan, tmp_path / "run", notes, only="score")
        assert [name for name in notes.made if "scores/" in name] == ["scores/ablation.uniform"]
        shutil.rmtree(tmp_path / "run" / "scores" / "gating")
        notes = Notes()
        run_study(plan, tmp_path / "run", notes, only="score")
        assert [name for name in notes.made if "scores/" in name] == ["scores/gating"]
