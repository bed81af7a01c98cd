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
from headwise.core.options import Search
from headwise.core.tables import SCORES
from headwise.data.embedded import pairs as embedded_pairs
from headwise.data.embedded import write_treebank
from headwise.importance import faithfulness, gating, passes
from headwise.importance.attention_statistics import STATISTICS
from headwise.importance.gating import gate_heads
from headwise.importance.measures import measure, resolve_measures, usual
from headwise.importance.passes import usual_measures
from headwise.importance.scores import relevance_line, relevance_table
from headwise.models.decoding.bleu import translation_answers
from headwise.models.decoding.translator import Generate, translate
from headwise.models.evaluation import quality
from headwise.roles.role_data import token_counts
from models.tasks.askers import asker, embedder, lines, pairs
from refusals import refuses

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


@pytest.mark.parametrize("measure", MEASURES)
def test_alone_as_among_all(everything: hw.Scores, measure: str) -> None:
    """A row for each of the 12 heads, in the map's order, the same numbers whatever else is asked for."""
    model = small()
    found = hw.score(model, pairs(8), [measure])
    alone, among = values(found.table, measure), values(everything.table, measure)
    pd.testing.assert_frame_equal(alone, among)
    seen = model.heads
    if measure == "attention-to-end":
        seen = seen.only(["encoder-self", "cross"])
        (absent,) = found.signature["absent"]
        assert "attention-to-end has no value for decoder-self heads" in absent
    heads = alone[["kind", "layer", "head"]].itertuples(index=False)
    assert [hw.Head(*row) for row in heads] == list(seen)
    assert alone.value.notna().all() and (alone.n > 0).all()
    if not measure.startswith("gating") and measure != "gradient.batch":  # one batch
        few = (alone.units < 6) | (alone.value == 0)  # by structure: every sentence says so
        assert (alone.low[~few] <= alone.high[~few]).all() and alone.low[few].isna().all()


def test_the_table_of_all_measures(everything: hw.Scores) -> None:
    signature = everything.signature
    made = [name for name in signature["measures"] if name in MEASURES]
    assert sorted(made) == sorted(MEASURES) and list(everything.table.columns) == list(
        SCORES.columns
    )
    others = {name.rpartition(".")[2] for name in signature["measures"] if name not in MEASURES}
    assert others == {"signed", "absolute"}, "relevance has its other reading beside it"
    assert signature["mode"] == "evaluation (no dropout)" and signature["sentences"] == 8
    labels = {"attention-statistics", "gradients", "ablation.mean", "lrp.cp.pooled", "gating"}
    assert set(signature["seconds"]) >= labels
    assert set(everything.relevance) == {name for name in MEASURES if name.startswith("lrp.")}


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_language_models_are_scored(family: str) -> None:
    model = asker(family)
    kind = "encoder-self" if family == "bert" else "decoder-self"
    table = hw.score(model, lines(12), [*USUAL, "lrp.cp.pooled", "gating.irrelevant"]).table
    assert set(table.kind) == {kind}
    assert (table.groupby("measure").value.count() == model.heads.total).all()
    asked = sum(int((batch["labels"] >= 0).sum()) for batch in model.task.batches(lines(12)))
    assert set(values(table, "ablation.zero").n) == {asked}


def test_attention_statistics_see_the_whole_text() -> None:
    """Those of a masked model are those of its stack without a head, which sees no mask token."""
    masked, text = asker("bert"), lines(12)
    stack = hw.Model(masked.hf.bert, masked.tokenizer, "its stack")
    assert usual_measures(stack) == USUAL_WITHOUT_LOSS
    assert usual_measures(masked) == USUAL_OF_LANGUAGE_MODELS
    found, expected = (hw.score(model, text, list(STATISTICS)).table for model in (masked, stack))
    pd.testing.assert_frame_equal(found, expected)


def test_a_model_that_predicts_no_words() -> None:
    table = hw.score(embedder(), lines(12)).table
    assert set(table.measure) == set(USUAL_WITHOUT_LOSS) and table.value.notna().all()
    assert table.dtypes[["value", "low", "high", "baseline"]].eq(float).all()
    for name in MEASURES:
        if "loss" in measure[name].needs:
            words = f"predicts no words, so '{name}' cannot be computed"
            refuses(lambda name=name: hw.score(embedder(), lines(12), [name]), words)  # type: ignore[misc]


def test_a_model_in_training_mode_is_scored_without_dropout_and_left_as_it_was() -> None:
    model = small(dropout=0.5)
    calm = hw.score(model, pairs(6))
    model.hf.train()
    model.hf.model.encoder.eval()
    before = [module.training for module in model.hf.modules()]
    more = ["attribution.zero", "lrp.cp.pooled", "gating.irrelevant"]
    restless = hw.score(model, pairs(6), [*USUAL, *more])
    assert [module.training for module in model.hf.modules()] == before
    assert any(before) and not all(before)
    for name in USUAL:
        one, other = (values(scores.table, name) for scores in (restless, calm))
        pd.testing.assert_frame_equal(one, other)
    assert restless.signature["mode"] == "evaluation (no dropout)"


def test_half_precision_is_in_the_signature() -> None:
    model = small()
    model.hf.to(torch.bfloat16)
    signature = hw.score(model, pairs(6), ["lrp.cp.pooled"]).signature
    assert (signature["dtype"], signature["relevance"]) == ("bfloat16", "float32")


def test_judging_too_much_text_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faithfulness, "MERGED_SENTENCES", 3)
    monkeypatch.setattr(passes, "run_pass", None)
    words = "judged on 4 sentences, but 3 are the most: give fewer"
    refuses(lambda: hw.score(small(), pairs(4), judge=True), words)


def test_scores_of_one_fold_are_compared_with_ablation_of_the_other() -> None:
    """As when the two folds are scored as texts of their own."""
    model, text = small(), pairs(16)
    names = ["gradient", "entropy", "ablation", "ablation.all-but-one"]
    scores = hw.score(model, text, names, judge=True)
    (batch,) = model.task.batches(text)
    folds = (batch["rows"][which::2].tolist() for which in (0, 1))
    ones, others = (text.take([row for row in fold if row >= 0]) for fold in folds)
    truth = values(hw.score(model, others, ["ablation"]).table, "ablation.zero").value
    rows, curves = scores.faithfulness, scores.curves
    assert rows is not None and curves is not None
    both = rows.query("against == 'ablation.zero' and statistic == 'spearman' and n == 12")
    found = dict(zip(both.measure, both.value, strict=True))
    assert set(found) == {"gradient", "-entropy", "ablation.zero", "-ablation.all-but-one"}
    for name, value in found.items():
        measure = name.removeprefix("-")
        alone = values(hw.score(model, ones, [measure]).table, measure).value
        expected = spearmanr(alone if measure == name else -alone, truth).statistic
        assert value == pytest.approx(expected, abs=0.02), "but for ties in rounding"
    start = curves[curves.removed == 0].loss
    assert start.max() - start.min() < 1e-6
    assert set(curves.ranking) == {"once", "rescored", "random"}


def test_where_relevance_went(everything: hw.Scores) -> None:
    balance = relevance_table(everything.relevance)
    assert list(balance.columns) == ["measure", "mode", "what", "value", "low", "high"]
    for _, rows in balance.groupby(["measure", "mode"]):
        parts = dict(zip(rows.what, rows.value, strict=True))
        assert parts.pop("started") == 1 == pytest.approx(sum(parts.values()), abs=1e-4)


def test_it_is_what_removing_the_head_costs() -> None:
    model = small(seed=4, encoder_attention_heads=2, decoder_attention_heads=2)
    sources = list(pairs(5).sources)
    whole = translate(Generate(model.hf, model.tokenizer), sources, Search())[0]
    # The whole model knows every word of it.
    text = hw.ParallelText.from_pairs(zip(sources, whole, strict=True))
    scores = hw.score(model, text, [BLEU])
    table = scores.table
    assert scores.signature["search"] == Search().model_dump() and set(table.n) == {5}
    assert len(table) == 6 and (table.value > 10).any()
    for row in table.itertuples():
        rest = model.without([hw.Head(row.kind, row.layer, row.head)])
        both = [rest.translate(sources), whole]
        drop = translation_answers(both, whole).change(1)
        assert (row.value, row.units) == pytest.approx((drop.value, drop.units))
        assert (drop.low, drop.high) == (None, None) and np.isnan([row.low, row.high]).all()


def test_models_of_one_name_are_distinguished_where_they_are_evaluated() -> None:
    whole, shares = asker(), list[float]()
    smaller = [whole.without([head]) for head in list(whole.heads)[:2]]
    text, greedy = pairs(4), hw.Search(beam=1)
    report = lambda share, what: shares.append(share)  # noqa: E731
    table = hw.evaluate([whole, *smaller], text, search=greedy, progress=report).table
    assert shares == sorted(shares) and shares[-1] == 1 and len(shares) >= 3
    left = f"{whole.name}, {whole.heads.total - 1} of {whole.heads.total} heads"
    assert list(table.model.unique()) == [whole.name, left, f"{left} (2)"]
    rows = table.set_index(["model", "measure", "reference"]).value
    ours, baseline = (model.translate(list(text.sources), beam=1) for model in (smaller[0], whole))
    change = translation_answers([baseline, ours], list(text.targets)).change(1)
    assert rows[left, "bleu", whole.name] == change.value
    smaller[0].name = "mine"
    # Names that differ stay as they are.
    assert quality.distinct_names([whole, smaller[0]]) == [whole.name, "mine"]
    refuses(lambda: hw.evaluate(["a model"], text), "'a model' is not a local folder")
    refuses(lambda: hw.evaluate([7], text), "7 was given in place of a model")  # type: ignore[list-item]
    both = (hw.evaluate(one, text, search=greedy).table for one in (whole, [whole]))
    pd.testing.assert_frame_equal(*(one.query("measure != 'tokens_per_second'") for one in both))


def test_language_models_are_evaluated_by_their_perplexity() -> None:
    whole, text = asker("gpt2"), lines(12)
    smaller = whole.without([next(iter(whole.heads))])
    quality = hw.evaluate([whole, smaller], text)
    changed = quality.table[quality.table.reference == whole.name].iloc[0]
    table = quality.table[quality.table.reference == ""].set_index(["model", "measure"])
    ours = table.loc[f"{smaller.name}, 7 of 8 heads"]
    loss = hw.score(whole, text, ["ablation.zero"]).table
    change = ours.value["loss"] - table.value[whole.name, "loss"]
    assert change == pytest.approx(loss.value[0], abs=1e-5)
    assert ours.value["perplexity"] == pytest.approx(np.exp(ours.value["loss"]))
    assert changed["measure"] == "perplexity" and 0 < changed["p"] <= 1
    assert changed["low"] <= changed["value"] <= changed["high"]
    assert ours.value["parameters"] == smaller.parameters
    measures = ["perplexity", "loss", "parameters", "memory", "cache_bytes"]
    assert hw.evaluate(whole, text).table.measure.tolist() == measures
    with pytest.raises(hw.HeadwiseError):
        hw.evaluate(whole, pairs(4))


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
    files = "SHA256SUMS examples.json facts.json labels.csv patterns.csv roles.csv table.csv"
    assert sorted(path.name for path in (tmp_path / "roles").iterdir()) == files.split()
    model.tokenizer = None
    refuses(lambda: hw.roles(model, trees), "has no tokenizer")


def test_measures_whose_zero_is_no_effect_have_p() -> None:
    table = hw.score(asker("gpt2"), lines(8), ["confidence", "ablation", "attribution.zero"]).table
    has = table.groupby("measure")["p"].count()
    assert dict(has) == {"ablation.zero": 8, "attribution.zero": 8, "confidence": 0}


def test_ranks_of_two_halves_and_of_two_texts() -> None:
    """The order of a random model repeats by confidence; agreement is Spearman's correlation with its interval."""
    model = asker("gpt2")
    one = hw.score(model, lines(40), ["confidence", "ablation"])
    other = hw.score(model, lines(40, seed=7), ["ablation", "gradient"])
    assert set(one.signature["repeats"]) == {"confidence", "ablation.zero"}
    assert 0.5 < one.signature["repeats"]["confidence"] <= 1
    assert any("ranks repeat" in line for line in one.lines())
    (row,) = one.agreement(other).to_dict("records")
    values = [list(scores.of("ablation.zero").values()) for scores in (one, other)]
    assert row["measure"] == "ablation.zero" and row["n"] == 8
    assert row["value"] == pytest.approx(spearmanr(*values)[0])
    assert row["low"] < row["value"] < row["high"]
    refuses(
        lambda: one.agreement(hw.score(asker("marian"), pairs(4), ["confidence"])),
        "the same … heads",
    )


def test_no_interval_is_without_width() -> None:
    """One sentence many times, or a head whose output is always 0: neither says anything of other text."""
    same = hw.score(small(), hw.ParallelText.from_pairs([("a b c", "d e f")] * 10), ["all"])
    assert same.table[["low", "high"]].isna().all(None)
    model = small("gpt2")
    with torch.no_grad():
        model.hf.transformer.h[0].attn.c_proj.weight[:8] = 0  # of the first head of 8 dimensions
    table = hw.score(model, lines(10), ["ablation.zero"]).table
    without = table[table["low"].isna()]
    assert without["value"].tolist() == [0.0]
    assert (table["low"] < table["high"]).sum() == len(table) - 1


def test_relevance_that_cancels_is_said() -> None:
    whole = {"arrived": 0.7, "bias": 0.3}
    assert "cancel" not in relevance_line("lrp.cp", whole)
    assert "cancel" in relevance_line("lrp.cp", {**whole, "bias": 5.55, "norm": -5.25})
