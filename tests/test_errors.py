"""Sentences about bad input: a misspelled name is guessed, and a loss that is no number comes with a remedy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from headwise.core.errors import HeadwiseError, did_you_mean
from headwise.core.heads import Site
from headwise.models.evaluation.soundness import refuse_unsound
from headwise.models.evaluation.sums import check_finite

NAMES = ["ablation.zero", "gradient", "encoder-self", "GGUF"]
SITE = Site("cross", 0)
NO_NUMBERS = np.array([np.nan])


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


@pytest.mark.parametrize(
    "refuse",
    [
        lambda: check_finite(SITE, NO_NUMBERS),
        lambda: refuse_unsound({SITE: torch.tensor(True)}, torch.tensor([torch.nan])),
    ],
)
def test_numbers_that_are_none_come_with_a_remedy(refuse: Callable[[], None]) -> None:
    with pytest.raises(HeadwiseError, match=r"NaN or infinite.*--dtype float32"):
        refuse()
