"""Calls in processes of their own: results, errors, crashes, and calls without an end."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headwise.models.engines.native import EngineFailed, apart


def test_a_result_comes_without_what_the_process_prints() -> None:
    assert apart("json:loads", '[1.5, {"ü": null}]') == [1.5, {"ü": None}]
    assert apart("os:system", "echo printed") == 0
    assert apart("builtins:eval", "'torch' in __import__('sys').modules") is False


@pytest.mark.parametrize(
    ("function", "given", "words"),
    [
        ("json:loads", ["{"], "Expecting property name"),
        ("no_module:at_all", [], "No module named 'no_module'"),
        ("os:abort", [], "crashed with SIGABRT"),
        ("os:_exit", [3], "crashed with status 3"),
        ("time:sleep", [1000], "no answer in 2 seconds"),
    ],
)
def test_no_result_is_one_sentence(function: str, given: list[Any], words: str) -> None:
    began = time.monotonic()
    with pytest.raises(EngineFailed, match=words) as failed:
        apart(function, *given, seconds=2 if function == "time:sleep" else 60)
    assert "\n" not in str(failed.value) and time.monotonic() - began < 60
    if function == "os:abort":
        assert "in answer" in failed.value.log, "where it crashed"
