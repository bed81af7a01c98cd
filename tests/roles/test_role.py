"""The table of role tests."""

from __future__ import annotations

import pytest

from headwise.roles.role import (
    category,
    display_name,
    evidence,
    expected_roles,
    ordered_roles,
    role,
    role_of,
)


def test_every_test_says_what_it_measures() -> None:
    for declared in role.own.values():
        assert declared.caption and declared.untrained, declared.name
        assert set(declared.needs) <= set(declared.takes), declared.name
        assert callable(declared.function)
    orders = [declared.order for declared in ordered_roles() if declared.name in role.own]
    assert orders == list(range(len(orders)))


def test_roles_that_a_model_is_expected_to_have() -> None:
    first = ["positional.-1", "positional.1", "syntactic.nsubj.to-governor"]
    assert expected_roles("encoder-self")[:3] == first
    assert {"rare.two-rarest", "coreference"} <= {*expected_roles("encoder-self")}
    assert "alignment" in expected_roles("cross")
    of_language = expected_roles("language model")
    assert of_language[0] == "previous-token" and "syntactic.advmod.to-dependent" in of_language


@pytest.mark.parametrize(
    ("measure", "name", "sort", "is_role"),
    [
        ("positional.-1", "positional −1", "positional", True),
        ("positional.2", "positional +2", "positional", True),
        ("positional.0", "positional 0", "positional", True),
        ("rare.two-rarest", "rare tokens", "rare tokens", True),
        ("rare.rarest", "rare tokens", "rare tokens", False),
        ("syntactic.obj.to-governor", "obj→verb", "syntactic", True),
        ("syntactic.amod.to-dependent", "noun→amod", "syntactic", True),
        ("syntactic.case.to-governor", "case→governor", "syntactic", True),
        ("syntactic.punct.to-governor", "punct→governor", "syntactic", False),
        ("previous-token", "previous token", "previous token", True),
        ("s-inhibition", "S-inhibition", "S-inhibition", True),
        ("coreference.pronoun", "coreference.pronoun", "coreference.pronoun", False),
        ("induction.-1", "induction −1", "induction −1", False),
        ("of-another-script", "of another script", "of another script", False),
    ],
)
def test_names_for_readers(measure: str, name: str, sort: str, is_role: bool) -> None:
    assert display_name(measure) == name and category(measure) == sort
    assert (role_of(measure) is not None) == is_role


def test_evidence() -> None:
    assert evidence("syntactic.obj.to-governor", 0.84, 0.46) == "obj→verb (0.84 vs 0.46)"
    assert evidence("sink", 0.9, 0.1) == "sink (0.90)"
