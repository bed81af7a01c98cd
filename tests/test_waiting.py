"""How often scores and roles make the processor wait for a GPU: a few times a batch, whatever the number of heads."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import headwise as hw
from headwise.core.progress import silent
from headwise.data.embedded import write_treebank
from headwise.importance import gating
from headwise.importance.gating import gate_heads
from headwise.importance.measures import passes
from headwise.importance.passes import run_pass
from headwise.roles.observation import RoleOptions
from headwise.roles.rare import count_tokens
from headwise.roles.role_data import RoleTexts
from headwise.roles.role_tests import find_roles
from models.tasks.askers import asker, lines
from syncs import syncs

A_BATCH = 20  # waits that do not depend on the model's size
KERNEL = "kernel.py"  # the attention interface's own have their test there


class Ready:
    """The batches of a text, made before anything is counted."""

    def __init__(self, batches: list[dict[str, Any]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.batches)

    whole = __iter__
    time_limit = None
    progress = staticmethod(silent)

    def intact(self) -> Ready:
        return self


def waits(label: str, layers: int, heads: int, times: int) -> list[str]:
    """What one pass over a batch, `times` times, waits for."""
    model = asker("gpt2", n_layer=layers, n_head=heads)
    text = Ready([*model.task.batches(lines(3)).whole()] * times)
    with syncs() as seen:
        run_pass(model, text, passes(["all"])[label])  # type: ignore[arg-type]
    return [each for each in seen if KERNEL not in each]


@pytest.mark.parametrize(
    "label",
    [
        name
        for name in passes(["all"])
        if name in ("lrp.ding", "lrp.alpha-beta") or not name.startswith("lrp.")
    ],
)
def test_scores(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rules of relevance share their walk."""
    monkeypatch.setattr(gating, "gate_heads", partial(gate_heads, steps=3))
    one, wider, deeper, longer = (
        waits(label, *sizes) for sizes in ((1, 2, 1), (1, 4, 1), (2, 2, 1), (1, 2, 3))
    )
    # Sums of mean outputs are added on the host, site by site: nothing waits for a device there.
    one, wider, deeper, longer = (
        [each for each in seen if "a tensor from a list in mean_outputs" not in each]
        for seen in (one, wider, deeper, longer)
    )
    assert len(one) == len(wider) and len(deeper) - len(one) <= 1, (one, deeper)
    assert len(longer) - len(one) <= 2 * A_BATCH, one


def test_roles(tmp_path: Path) -> None:
    found = {}
    trees = hw.Treebank.read(write_treebank(tmp_path / "dev.conllu", 20))
    for layers, heads in ((1, 2), (2, 4)):
        model = asker("bert", num_hidden_layers=layers, num_attention_heads=heads)
        counts = count_tokens((sentence.text for sentence in trees), model.tokenizer)
        options = RoleOptions(max_length=60)
        with syncs() as seen:
            find_roles(model, RoleTexts(trees, frequencies=counts), options=options)
        found[layers] = [each for each in seen if KERNEL not in each]
    assert abs(len(found[1]) - len(found[2])) <= 2, "of some 180, for 12 batches"
