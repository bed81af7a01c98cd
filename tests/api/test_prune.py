"""`hw.prune`: one function for gates, top-k gates and greedy removal; what is held out, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, cast

import pandas as pd
import pytest
from study.askers import asker, lines, pairs

import headwise as hw
from headwise.pruning import wanted_count
from headwise.study import single
from headwise.translation.decode import Search

FAST: dict[str, Any] = {"epochs": 2, "gate_learning_rate": 2.0, "batch_tokens": 48, "warmup": 1, "dtype": "fp32"}


def encoder_heads(model: hw.Model) -> int:
    return sum(model.heads.query["encoder-self"])


class TestMethods:
    def test_a_number_of_heads_with_gates(self) -> None:
        """The call of the documentation. Other kinds stay as they are, and dev text is held out by itself."""
        model = asker()
        small = hw.prune(model, pairs(40), keep=3, kinds=["encoder-self"], **FAST)
        assert encoder_heads(small) == 3 and small.heads.total == model.heads.total - encoder_heads(model) + 3

    def test_a_number_of_heads_with_top_k_gates(self) -> None:
        keep = {"encoder-self": 2, "cross": 5}
        small = hw.prune(asker(), pairs(40), pairs(6, 9), keep=keep, kinds=list(keep), method="top-k", **FAST)
        assert {kind: sum(small.heads.query[kind]) for kind in keep} == keep

    def test_a_penalty(self) -> None:
        assert encoder_heads(hw.prune(asker(), pairs(40), penalty=50.0, **FAST)) == 0

    def test_greedy_without_training(self) -> None:
        model = asker()
        small = hw.prune(model, pairs(12), keep=3, method="greedy", score="weight-norm", search=Search(beam=1))
        assert encoder_heads(small) == 3 and small.heads.query["cross"] == model.heads.query["cross"]
        assert small.hf.get_output_embeddings().weight.equal(model.hf.get_output_embeddings().weight)

    @pytest.mark.parametrize("family", ["bert", "llama"])
    def test_language_models(self, family: str) -> None:
        assert hw.prune(asker(family), lines(20), keep=3).heads.total == 3
        assert hw.prune(asker(family), lines(20), lines(5, 2), max_drop=1e9, score="random").heads.total == 1

    def test_a_budget_of_quality(self) -> None:
        assert encoder_heads(hw.prune(asker(), pairs(12), max_drop=100, search=Search(beam=1))) == 1

    def test_dev_text_is_every_tenth_of_the_text(self, monkeypatch: pytest.MonkeyPatch) -> None:
        given: list[Any] = []
        monkeypatch.setattr(single, "shrink", lambda model, text, dev, **options: given.extend([text, dev]) or Stop())
        hw.prune(asker("bert"), (text := lines(25)), keep=1)
        assert list(given[1]) == [text[9], text[19]] and len(given[0]) == 23
        assert not set(given[1]) & set(given[0]) or len(set(text)) < 25


class TestWarnings:
    """What a study writes into its report is not lost where there is none."""

    @pytest.mark.parametrize(
        "asked", [{"keep": 3, "method": "top-k", "epochs": 1, "gate_learning_rate": 0.01}, {"penalty": 0.0}], ids=str
    )
    def test_a_run_that_had_not_settled(self, asked: dict[str, Any]) -> None:
        with pytest.warns(UserWarning, match="The gates had not settled: .* Train longer"):
            hw.prune(asker(), pairs(20), **{**FAST, **asked})

    def test_a_run_that_missed_its_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wanted_count, "TRAVEL", 0.1)
        few = {**FAST, "epochs": 1, "gate_learning_rate": 0.01}
        with pytest.warns(UserWarning, match="heads away from the wanted one") as told:
            hw.prune(asker(), pairs(20), keep=1, **few)
        assert not any("frozen" in str(warning.message) for warning in told), "that is no doubt"

    def test_a_run_that_had_settled_is_silent(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            hw.prune(asker(), pairs(20), penalty=0.0, **{**FAST, "gate_learning_rate": 0.01})


class Stop:
    table = pd.DataFrame(columns=["setting", "measure", "value"])
    model = None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "needs one of penalty, keep, max_drop, but none was given"),
        ({"keep": 3, "max_drop": 1.0}, "keep and max_drop were given together"),
        ({"keep": 3, "penalty": 0.1}, "penalty and keep were given together"),
        ({"penalty": 0.1, "method": "top-k"}, "penalty means nothing with method 'top-k': ask for gates"),
        ({"penalty": 0.1, "method": "greedy"}, "penalty means nothing with method 'greedy': ask for gates"),
        ({"max_drop": 1.0, "method": "gates"}, "max_drop means nothing with method 'gates': ask for greedy"),
        ({"keep": 3, "rule": "sign"}, "rule means nothing with method 'gates' and keep"),
        ({"keep": 3, "penalty_scale": "code"}, "penalty_scale means nothing"),
        ({"keep": 3, "method": "top-k", "temperature": 0.5}, "temperature means nothing with method 'top-k'"),
        ({"keep": 3, "score": "gradient"}, "score means nothing with method 'gates' and keep"),
        ({"keep": 3, "method": "greedy", "epochs": 3}, "unknown key 'epochs'; allowed with method 'greedy'"),
        ({"keep": 3, "method": "greedy", "work": "x"}, "work means nothing with method 'greedy'"),
        ({"keep": 3, "method": "magic"}, "method 'magic' was asked for; there is gates, top-k, greedy"),
        ({"keep": 3, "speed": 3}, "unknown key 'speed'; allowed here"),
        ({"penalty": -1.0}, "the penalty λ is -1.0: give a number of at least 0"),
        ({"penalty": float("nan")}, "the penalty λ is nan"),
        ({"keep": 0}, "0 heads were to be kept"),
        ({"keep": 99}, "99 heads were to be kept"),
        ({"keep": 2.5}, "2.5 heads were to be kept: give a whole number"),
        ({"keep": True}, "True heads were to be kept: give a whole number"),
        ({"keep": {"cross": "4"}}, "'4' heads were to be kept: give a whole number"),
        ({"penalty": "0.1"}, "penalty='0.1' was given, which is no number"),
        ({"max_drop": "1"}, "max_drop='1' was given, which is no number"),
        ({"keep": 3, "kinds": ["decoder"]}, "of kind 'decoder' were asked for, but this model has only"),
        ({"keep": {"cross": 1}, "kinds": ["encoder-self"]}, "given for cross, but heads of encoder-self"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], told: str) -> None:
    with pytest.raises(hw.HeadwiseError, match=told) as error:
        hw.prune(asker(), pairs(12), **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: hw.prune(cast(Any, "my-model"), pairs(9), keep=3), "'my-model' was to be pruned, which is no model"),
        (lambda: hw.prune(asker(), pairs(9), keep=3), "there are only 9: give dev text as well"),
        (lambda: hw.prune(asker(), lines(20), keep=3), "pruned on parallel text"),
        (lambda: hw.prune(asker("bert"), pairs(20), keep=3), "scored on one-sided text"),
        (lambda: hw.prune(asker("bert"), lines(20), penalty=0.1), "ask for gates"),
        (lambda: hw.prune(asker("bert"), lines(20), keep=3, method="gates"), "but a translation model"),
    ],
)
def test_text_and_models_that_do_not_fit(make: Callable[[], hw.Model], told: str) -> None:
    with pytest.raises(hw.HeadwiseError, match=told):
        make()


def test_models_of_one_name_are_told_apart_where_they_are_evaluated() -> None:
    whole = asker()
    heads = hw.HeadMask.full(whole.heads)
    smaller = [whole.remove(heads.without([head])) for head in list(whole.heads)[:2]]
    told = list[float]()
    table = hw.evaluate([whole, *smaller], pairs(4), lambda share, what: told.append(share), beam=1)
    assert told == sorted(told) and told[-1] == 1 and len(told) >= 3
    left = f"{whole.name}, {whole.heads.total - 1} of {whole.heads.total} heads"
    assert list(table.model.unique()) == [whole.name, left, f"{left} (2)"]
    smaller[0].name = "mine"
    assert single.told_apart([whole, smaller[0]]) == [whole.name, "mine"], "names that differ stay as they are"


def test_more_bleu_than_there_is_may_not_be_lost_without_a_word() -> None:
    with pytest.warns(UserWarning, match=r"max_drop is 101, but the whole model has only .* BLEU on dev"):
        hw.prune(asker(), pairs(8), pairs(4), max_drop=101, score="weight-norm", search=Search(beam=1))
