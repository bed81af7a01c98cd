"""Sentences about bad input: a misspelled name is guessed."""

from __future__ import annotations

import pytest

from headwise.errors import did_you_mean

NAMES = ["ablation.zero", "gradient", "encoder-self", "GGUF"]


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("gradiant", " (did you mean 'gradient'?)"),
        ("ENCODER", " (did you mean 'encoder-self'?)"),
        ("gguff", " (did you mean 'GGUF'?)"),
        ("gradient", ""),
        ("fame", ""),
        ("", ""),
        ("x" * 1_000_000, ""),
    ],
)
def test_a_name_is_guessed(name: str, guess: str) -> None:
    assert did_you_mean(name, NAMES) == guess


def test_a_guess_may_stand_in_a_folder_and_must_be_as_alike_as_asked() -> None:
    assert did_you_mean("vall.en", ["val.en"], "data/") == " (did you mean 'data/val.en'?)"
    assert did_you_mean("test.en", ["dev.en"]) != ""
    assert did_you_mean("test.en", ["dev.en"], alike=0.75) == ""
