"""Which heads a control keeps beside its twin."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headwise.heads import KINDS, HeadMap, HeadMask
from headwise.study.making import control_mask

HEADS = HeadMap({"encoder-self": (4, 4), "decoder-self": (4, 4), "cross": (4, 4)})


def test_a_random_control_keeps_as_many_of_each_kind_as_its_twin(tmp_path: Path) -> None:
    keep = [head for head in HEADS if head.kind == "cross" or (head.kind == "encoder-self" and head.head == 0)]
    twin = HeadMask.full(HEADS).without(set(HEADS) - set(keep))
    twin.save(tmp_path / "layouts/keep-10.json")
    study: Any = SimpleNamespace(
        full=SimpleNamespace(heads=HEADS), run=SimpleNamespace(folder=tmp_path),
        plan=SimpleNamespace(seed=1, pruning=[SimpleNamespace(kinds=KINDS)]),
    )  # fmt: skip
    drawn = []
    for number in range(5):
        setting: Any = SimpleNamespace(name=f"random-{number}", sweep=0, control="random", of="keep-10")
        drawn.append(control_mask(study, setting))
    assert all(mask.count(kind) == twin.count(kind) for mask in drawn for kind in KINDS)
    assert len({mask.kept for mask in drawn}) > 1
