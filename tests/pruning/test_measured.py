"""Numbers of models: read from a table, what a change says, and which model is chosen."""

from __future__ import annotations

from math import nan

import pandas as pd
import pytest

from headwise.core.measured import ModelNumbers, choose_smallest, numbers_by_setting
from headwise.core.qualities import (
    ACCURACY,
    BETTER,
    BLEU,
    NOT_DISTINGUISHABLE,
    PERPLEXITY,
    WORD_ERROR_RATE,
    WORSE,
    Number,
)


@pytest.mark.parametrize(
    ("change", "of_bleu"),
    [
        (Number(1.0, 0.5, 1.5, 0.01), BETTER),
        (Number(1.0, 0.5, 1.5), BETTER),
        (Number(-1.0, -1.5, -0.5, 0.049), WORSE),
        (Number(-1.0, -1.5, -0.5, 0.05), NOT_DISTINGUISHABLE),
        (Number(1.0, -0.5, 1.5, 0.01), NOT_DISTINGUISHABLE),
        (Number(1.0, 0.0, 1.5, 0.01), NOT_DISTINGUISHABLE),
        (Number(1.0), ""),
        (Number(), ""),
    ],
)
def test_a_change_says_something_where_interval_and_p_do(change: Number, of_bleu: str) -> None:
    assert change.finding(BLEU) == change.finding(ACCURACY) == of_bleu
    lower_is_better = {BETTER: WORSE, WORSE: BETTER}.get(of_bleu, of_bleu)
    assert change.finding(PERPLEXITY) == change.finding(WORD_ERROR_RATE) == lower_is_better


def test_equal_further_training_leads_where_it_was_measured() -> None:
    numbers = ModelNumbers({("dev", "bleu", "full"): Number(-1.0)})
    assert numbers.leading_change("bleu", "dev") == ("full", Number(-1.0))
    assert numbers.leading_change("bleu", "test") == ("full", Number())
    numbers["dev", "bleu", "fine-tuned"] = Number(-2.0)
    assert numbers.leading_change("bleu", "dev") == ("fine-tuned", Number(-2.0))


def test_the_fewest_heads_within_the_limit_are_chosen() -> None:
    lost = {"a": 0.4, "b": 0.5, "c": 0.6, "d": -1.0}
    heads = {"a": 3, "b": 2, "c": 1, "d": 5}
    assert [choose_smallest(lost, heads, limit) for limit in (0.5, 0.0, 9.0)] == ["b", "d", "c"]
    assert choose_smallest({"a": 29.0}, {"a": 0}, 0.5) is None
    assert choose_smallest({"a": 29.0}, {"a": 0}, None) == "a", "whatever it loses"
    assert choose_smallest({"a": 0.0, "b": -1.0}, {"a": 3, "b": 3}, 0.5) == "b"
    assert choose_smallest({"a": 30.1 - 29.6}, {"a": 3}, 0.5) == "a", "rounding aside"


TABLE = pd.DataFrame(
    [
        ("full", "dev", "bleu", "", 30.0, 29.0, 31.0, nan, 40.5),
        ("full", "", "parameters", "", 900.0, nan, nan, nan, nan),
        ("small", "dev", "bleu", "full", -1.0, -2.0, 0.5, 0.2, 40.5),
        ("small", "test", "bleu", "", nan, nan, nan, nan, nan),
    ],
    columns=["setting", "split", "measure", "reference", "value", "low", "high", "p", "units"],
)


def test_rows_of_a_table_are_numbers_of_models_and_rows_again() -> None:
    numbers = numbers_by_setting(pd.concat([TABLE, TABLE.tail(3)]))
    assert numbers["full"].of("bleu", "dev") == Number(30.0, 29.0, 31.0, None, 40.5)
    assert numbers["full"].of("parameters") == Number(900.0)
    change = Number(-1.0, -2.0, 0.5, 0.2, 40.5)
    assert numbers["small"].rows() == [("dev", "bleu", "full", -1.0, -2.0, 0.5, 0.2, 40.5)]
    assert numbers["small"].of("bleu", "dev", "full") == change
    assert numbers["small"].of("bleu", "test") == Number(), "was not measured"
