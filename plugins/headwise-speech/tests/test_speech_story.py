"""The story of a speech model: its heads are tested on recordings, which need no trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwise.study.plan_of_story import completed_story, plan_of_story
from hearers import hearer, recordings


@pytest.mark.parametrize(("count", "tested"), [(60, 30), (30, 0), (240, 100)])
def test_heads_are_tested_on_recordings(tmp_path: Path, count: int, tested: int) -> None:
    """On the half that is held out, where it is large enough, and on so many at most."""
    table = recordings(tmp_path, count, 0.1)
    plan = plan_of_story("hearer", {"data": {"train": str(table)}})
    whole, lines = completed_story(plan, hearer())
    assert whole.roles.recordings == tested
    said = f"finds what they do on {tested} recordings" if tested else "fewer than 20 recordings"
    assert said in lines[0] and "treebank" not in lines[0]


def test_what_a_plan_says_of_recordings_stays(tmp_path: Path) -> None:
    table = recordings(tmp_path, 60, 0.1)
    plan = plan_of_story("hearer", {"data": {"train": str(table)}, "roles": {"recordings": 0}})
    whole, _ = completed_story(plan, hearer())
    assert whole.roles.recordings == 0
