"""Scoring by every measure: rows for every head, what is refused, the judge, BLEU, runs that were killed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr

import headwise as hw
from attention.families import FAMILIES, build
from headwise.data.embedded import pairs as embedded_pairs
from headwise.data.embedded import write_treebank
from headwise.decoding.bleu import paired_difference
from headwise.decoding.translator import Generate, translate
from headwise.evaluation import quality
from headwise.heads import COLUMNS
from headwise.importance import faithfulness, gating, passes
from headwise.importance.attention_statistics import STATISTICS
from headwise.importance.gating import gate_heads
from headwise.importance.measures import resolve_measures, usual
from headwise.importance.passes import usual_measures
from headwise.importance.scores import relevance_table
from headwise.options import Search
from headwise.roles.role_tests import token_counts
from tasks.askers import IDS, asker, embedder, lines, pairs
from training.letters import letters

MEASURES = resolve_measures(["all"])
BLEU = "ablation.bleu"
USUAL = tuple(usual())
USUAL_OF_LANGUAGE_MODELS = tuple(usual(("loss", "words")))
USUAL_WITHOUT_LOSS = tuple(usual(()))


@pytest.fixture(scope="module", autouse=True)
def quick_gates() -> Iterator[None]:
    """Three updates of gates instead of 200."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gating, "gate_heads", partial(gate_heads, steps=3))
        yield


@pytest.fixture(scope="module")
def everything() -> hw.Scores:
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
    def test_alone_as_among_all(self, everything: hw.Scores, measure: str) -> None:
        """A row for each of the 12 heads, in the map's order, the same numbers whatever else is asked for."""
        model = small()
        found = hw.score(model, pairs(8), [measure])
        alone, among = values(found.table, measure), values(everything.table, measure)
        pd.testing.assert_frame_equal(alone, among)
        seen = model.heads
        if measure == "attention-to-end":
            seen = seen.only(["encoder-self", "cross"])
            assert found.signature["absent"] == [
                "attention-to-end has no value for decoder-self heads: none sees the end of its own sentence"
            ]
        assert [
            hw.Head(*row) for row in alone[["kind", "layer", "head"]].itertuples(index=False)
        ] == list(seen)
        assert alone.value.notna().all() and (alone.n > 0).all()
        if not measure.startswith("gating") and measure != "gradient.batch":  # one batch
            assert (alone.low <= alone.high).all()

    def test_the_table(self, everything: hw.Scores) -> None:
        signature = everything.signature
        made = [name for name in signature["measures"] if name in MEASURES]
        assert sorted(made) == sorted(MEASURES) and list(everything.table.columns) == list(COLUMNS)
        others = {name.rpartition(".")[2] for name in signature["measures"] if name not in MEASURES}
        assert others == {"signed", "absolute"}, "relevance has its other reading beside it"
        assert signature["mode"] == "evaluation (no dropout)" and signature["sentences"] == 8
        assert set(signature["seconds"]) >= {
            "attention-statistics",
            "gradients",
            "ablation.mean",
            "lrp.cp.pooled",
            "gating",
        }
        assert set(everything.relevance) == {name for name in MEASURES if name.startswith("lrp.")}

    def test_names_for_several(self) -> None:
        assert resolve_measures(["lrp", "ablation", "lrp.ding"]) == ["lrp.ding", "ablation.zero"]
        assert resolve_measures(["all"]) == list(MEASURES) and BLEU not in MEASURES
        assert resolve_measures(["all", BLEU])[-1] == BLEU

    @pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
    def test_language_models(self, family: str) -> None:
        model = asker(family)
        kind = "encoder-self" if family == "bert" else "decoder-self"
        table = hw.score(model, lines(12), [*USUAL, "lrp.cp.pooled", "gating.irrelevant"]).table
        assert (
            set(table.kind) == {kind}
            and (table.groupby("measure").value.count() == model.heads.total).all()
        )
        asked = sum(int((batch["labels"] >= 0).sum()) for batch in model.task.batches(lines(12)))
        assert set(values(table, "ablation.zero").n) == {asked}

    def test_attention_statistics_see_the_whole_text(self) -> None:
        """Those of a masked model are those of its stack without a head, which sees no mask token."""
        masked, text = asker("bert"), lines(12)
        stack = hw.Model(masked.hf.bert, masked.tokenizer, "its stack")
        assert (
            usual_measures(stack) == USUAL_WITHOUT_LOSS
            and usual_measures(masked) == USUAL_OF_LANGUAGE_MODELS
        )
        found, expected = (
            hw.score(model, text, list(STATISTICS)).table for model in (masked, stack)
        )
        pd.testing.assert_frame_equal(found, expected)

    def test_a_model_that_predicts_no_words(self) -> None:
        table = hw.score(embedder(), lines(12)).table
        assert set(table.measure) == set(USUAL_WITHOUT_LOSS) and table.value.notna().all()
        assert table.dtypes[["value", "low", "high", "baseline"]].eq(float).all()
        for name in MEASURES:
            if "loss" in hw.measure[name].needs:
                with pytest.raises(
                    hw.HeadwiseError, match=f"predicts no words, so '{name}' cannot be computed"
                ):
                    hw.score(embedder(), lines(12), [name])

    def test_a_classifier_of_tokens_predicts_no_words(self) -> None:
        name, config = "BertForTokenClassification", {**FAMILIES["bert"][1], **IDS}
        with pytest.raises(hw.HeadwiseError, match="predicts no words"):
            hw.score(hw.Model(build(name, **config), letters(), name), lines(4), ["gradient"])


class TestModes:
    def test_a_model_in_training_mode_is_scored_without_dropout_and_left_as_it_was(self) -> None:
        model = small(dropout=0.5)
        calm = hw.score(model, pairs(6))
        model.hf.train()
        model.hf.model.encoder.eval()
        before = [module.training for module in model.hf.modules()]
        restless = hw.score(
            model, pairs(6), [*USUAL, "attribution.zero", "lrp.cp.pooled", "gating.irrelevant"]
        )
        assert (
            [module.training for module in model.hf.modules()] == before
            and any(before)
            and not all(before)
        )
        for measure in USUAL:
            pd.testing.assert_frame_equal(
                values(restless.table, measure), values(calm.table, measure)
            )
        assert restless.signature["mode"] == "evaluation (no dropout)"

    def test_half_precision_is_in_the_signature(self) -> None:
        model = small()
        model.hf.to(torch.bfloat16)
        signature = hw.score(model, pairs(6), ["lrp.cp.pooled"]).signature
        assert (signature["dtype"], signature["relevance"]) == ("bfloat16", "float32")


class TestRefused:
    @pytest.mark.parametrize(
        ("family", "measures", "judged", "reason"),
        [
            (
                "marian",
                ["fame"],
                False,
                "The measure 'fame' is unknown; there is confidence, .*, lrp, ablation, all",
            ),
            (
                "marian",
                ["lrp"],
                True,
                "judged by ablation.zero, which is not among the measures: add it",
            ),
            (
                "gpt2",
                [BLEU],
                False,
                "needs translations, which tiny gpt2, a GPT2LMHeadModel, does not write",
            ),
            (
                "gpt2",
                ["attention-to-end"],
                False,
                "No score could be made: attention-to-end has no value for any head: none sees",
            ),
        ],
    )
    def test_measures(self, family: str, measures: list[str], judged: bool, reason: str) -> None:
        with pytest.raises(hw.HeadwiseError, match=reason):
            hw.score(
                small(family), pairs(4) if family == "marian" else lines(4), measures, judge=judged
            )

    def test_judging_too_much_text_before_any_work(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(faithfulness, "MERGED_SENTENCES", 3)
        monkeypatch.setattr(passes, "run_pass", None)
        with pytest.raises(
            hw.HeadwiseError, match="judged on 4 sentences, but 3 are the most: give fewer"
        ):
            hw.score(small(), pairs(4), judge=True)


class TestJudge:
    def test_scores_of_one_fold_are_compared_with_ablation_of_the_other(self) -> None:
        """As when the two folds are scored as texts of their own."""
        model, text = small(), pairs(16)
        scores = hw.score(
            model, text, ["gradient", "entropy", "ablation", "ablation.all-but-one"], judge=True
        )
        (batch,) = model.task.batches(text)
        ones, others = (
            text.take([row for row in batch["rows"][which::2].tolist() if row >= 0])
            for which in (0, 1)
        )
        truth = values(hw.score(model, others, ["ablation"]).table, "ablation.zero").value
        rows, curves = scores.faithfulness, scores.curves
        assert rows is not None and curves is not None
        both = rows[
            (rows.against == "ablation.zero") & (rows.statistic == "spearman") & (rows.n == 12)
        ]
        found = dict(zip(both.measure, both.value, strict=True))
        assert set(found) == {"gradient", "-entropy", "ablation.zero", "-ablation.all-but-one"}
        for name, value in found.items():
            measure = name.removeprefix("-")
            alone = values(hw.score(model, ones, [measure]).table, measure).value
            expected = spearmanr(alone if measure == name else -alone, truth).statistic
            assert value == pytest.approx(expected, abs=0.02), "but for ties in rounding"
        start = curves[curves.removed == 0].loss
        assert start.max() - start.min() < 1e-6 and set(curves.ranking) == {
            "once",
            "rescored",
            "random",
        }

    def test_where_relevance_went(self, everything: hw.Scores) -> None:
        balance = relevance_table(everything.relevance)
        assert list(balance.columns) == ["measure", "mode", "what", "value", "low", "high"]
        for _, rows in balance.groupby(["measure", "mode"]):
            parts = dict(zip(rows.what, rows.value, strict=True))
            assert parts.pop("started") == 1 == pytest.approx(sum(parts.values()), abs=1e-4)


class TestBleu:
    def test_it_is_what_removing_the_head_costs(self) -> None:
        model = small(seed=4, encoder_attention_heads=2, decoder_attention_heads=2)
        sources = list(pairs(5).sources)
        whole = translate(Generate(model.hf, model.tokenizer), sources, Search())[0]
        text = hw.ParallelText.from_pairs(
            zip(sources, whole, strict=True)
        )  # of which the whole model knows every word
        scores = hw.score(model, text, [BLEU])
        table = scores.table
        assert scores.signature["search"] == Search().model_dump() and set(table.n) == {5}
        assert len(table) == 6 and (table.value > 10).any()
        for row in table.itertuples():
            rest = hw.HeadMask.full(model.heads).without([hw.Head(row.kind, row.layer, row.head)])
            drop = paired_difference(whole, model.remove(rest).translate(sources), whole)
            assert (row.value, row.low, row.high) == pytest.approx(
                (drop.value, drop.low, drop.high)
            )


def test_models_of_one_name_are_distinguished_where_they_are_evaluated() -> None:
    whole, shares = asker(), list[float]()
    heads = hw.HeadMask.full(whole.heads)
    smaller = [whole.remove(heads.without([head])) for head in list(whole.heads)[:2]]
    text = pairs(4)
    table = hw.evaluate(
        [whole, *smaller],
        text,
        search=hw.Search(beam=1),
        progress=lambda share, what: shares.append(share),
    ).table
    assert shares == sorted(shares) and shares[-1] == 1 and len(shares) >= 3
    left = f"{whole.name}, {whole.heads.total - 1} of {whole.heads.total} heads"
    assert list(table.model.unique()) == [whole.name, left, f"{left} (2)"]
    rows, references = table.set_index(["model", "measure"]).value, list(text.targets)
    ours, baseline = (model.translate(list(text.sources), beam=1) for model in (smaller[0], whole))
    assert rows[left, "bleu_difference"] == paired_difference(ours, baseline, references).value
    smaller[0].name = "mine"
    assert quality.distinct_names([whole, smaller[0]]) == [whole.name, "mine"], (
        "names that differ stay as they are"
    )
    with pytest.raises(hw.HeadwiseError, match="give models"):
        hw.evaluate(["a model"], text)  # type: ignore[list-item]
    pd.testing.assert_frame_equal(
        *(
            hw.evaluate(one, text, search=hw.Search(beam=1)).table.query(
                "measure != 'tokens_per_second'"
            )
            for one in (whole, [whole])
        )
    )


def test_language_models_are_evaluated_by_their_perplexity() -> None:
    whole, text = asker("gpt2"), lines(12)
    smaller = whole.remove(hw.HeadMask.full(whole.heads).without([next(iter(whole.heads))]))
    table = hw.evaluate([whole, smaller], text).table.set_index(["model", "measure"])
    ours = table.loc[f"{smaller.name}, 7 of 8 heads"]
    loss = hw.score(whole, text, ["ablation.zero"]).table
    assert ours.value["loss"] - table.value[whole.name, "loss"] == pytest.approx(
        loss.value[0], abs=1e-5
    )
    assert ours.value["perplexity"] == pytest.approx(np.exp(ours.value["loss"]))
    assert (
        ours.low["perplexity_change"]
        <= ours.value["perplexity_change"]
        <= ours.high["perplexity_change"]
    )
    assert ours.value["parameters"] == smaller.parameters
    assert hw.evaluate(whole, text).table.measure.tolist() == [
        "loss",
        "perplexity",
        "parameters",
        "memory",
        "cache_bytes",
    ]
    for models, given in ((whole, pairs(4)), (asker(), text)):
        with pytest.raises(hw.HeadwiseError):
            hw.evaluate(models, given)


def test_roles_by_their_function(tmp_path: Path) -> None:
    """Which text the model was trained on, and counts of it, come to the same."""
    model, trees = small(), hw.Treebank.read(write_treebank(tmp_path / "dev.conllu", 30))
    text, shares = hw.ParallelText.from_pairs(embedded_pairs("dev", 30)), list[float]()
    report = lambda share, what: shares.append(share)  # noqa: E731
    found = hw.roles(model, trees, training=text, progress=report)
    again = hw.roles(model, trees, training=token_counts(model, text))
    pd.testing.assert_frame_equal(found.table, again.table)
    assert len(found.labels) == model.heads.only(["encoder-self"]).total and shares[-1] == 1
    found.save(tmp_path / "roles")
    names = {path.name for path in (tmp_path / "roles").iterdir()}
    assert names == {
        "table.csv",
        "roles.csv",
        "labels.csv",
        "patterns.csv",
        "examples.json",
        "facts.json",
        "SHA256SUMS",
    }
    model.tokenizer = None
    with pytest.raises(hw.HeadwiseError, match="has no tokenizer"):
        hw.roles(model, trees)
