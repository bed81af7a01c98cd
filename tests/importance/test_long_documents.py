"""Scores of long documents: windows that half overlap, every token counted once, a document one unit of intervals.

The slow and obvious way: each window alone through the stock model, with hooks at the output projections of GPT-2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import headwise as hw
from headwise.core.heads import Site
from headwise.core.progress import silent
from headwise.importance import scores
from headwise.importance.interactions import removal_effects
from headwise.importance.options import TimedScoring
from headwise.importance.passes import run_passes
from headwise.importance.scores import ScorePlan
from headwise.importance.work import work_on
from headwise.models.forecast import text_line
from headwise.models.tasks.batches import Fold
from models.tasks.askers import asker
from models.training.letters import LETTERS, letters

LONGEST, STRIDE = 10, 5
SIZES = (25, 7, 10, 18, 3)  # letters of each document
WINDOWS = 4 + 1 + 1 + 3 + 1
READ = sum(SIZES) + 5 * (3 + 2)  # tokens of all windows
MEASURES = ["ablation.zero", "ablation.mean", "ablation.position-mean"]
MEASURES += ["gradient", "gradient.token", "attribution.zero", "confidence"]


@dataclass(frozen=True)
class Window:
    """A part of a document: its ids, and from which of them on they are new."""

    document: int
    ids: list[int]
    new: int


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> hw.Model:
    monkeypatch.setattr("headwise.models.tasks.task.MOST_SENTENCE_TOKENS", LONGEST)
    return hw.Model(asker("gpt2").hf, letters("$A"), "reader")


def text(sizes: tuple[int, ...] = SIZES) -> hw.Text:
    return hw.Text.from_lines(
        " ".join(LETTERS[(7 * place + number) % 26] for place in range(size))
        for number, size in enumerate(sizes)
    )


def windows(model: hw.Model) -> list[Window]:
    cut = []
    for number, line in enumerate(text().lines):
        ids = model.tokenizer(line)["input_ids"]
        cut.append(Window(number, ids[:LONGEST], 0))
        start = 0
        while start + LONGEST < len(ids):
            start += STRIDE
            cut.append(Window(number, ids[start : start + LONGEST], LONGEST - STRIDE))
    return cut


@contextmanager
def projected(model: hw.Model, change: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """change: of a layer's number and the heads' outputs Q H D, what goes on instead."""

    def hook_of(layer: int) -> Callable[..., Any]:
        def hook(module: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
            heads = inputs[0][0].unflatten(-1, (model.hf.config.n_head, -1))
            return (change(layer, heads).flatten(1)[None],)

        return hook

    projections = [block.attn.c_proj for block in model.hf.transformer.h]
    hooks = [
        projection.register_forward_pre_hook(hook_of(layer))
        for layer, projection in enumerate(projections)
    ]
    yield
    for hook in hooks:
        hook.remove()


def loss(model: hw.Model, window: Window) -> Tensor:
    """Of the tokens that no window before predicts."""
    ids = torch.tensor(window.ids)
    logits = model.hf(ids[None]).logits[0].log_softmax(-1)
    first = max(1, window.new)
    return -logits[range(first - 1, len(ids) - 1), ids[first:]].sum()


def replaced(layer: int, head: int, replacement: Tensor) -> Callable[[int, Tensor], Tensor]:
    """A change for `projected`: the head's output at each position of a window, Q D."""

    def put(at: int, heads: Tensor) -> Tensor:
        changed = heads.clone()
        if at == layer:
            changed[:, head] = replacement[: len(heads)]
        return changed

    return put


def by_hand(model: hw.Model) -> dict[str, dict[tuple[int, int], float]]:
    """Every measure of each head, by layer and number."""
    cut = windows(model)
    predicted = sum(SIZES) - len(SIZES)
    layers, count = model.hf.config.n_layer, model.hf.config.n_head
    every = [(layer, head) for layer in range(layers) for head in range(count)]
    outputs = []  # by window and layer, Q H D, with their gradients
    for window in cut:
        seen: dict[int, Tensor] = {}

        def keep(layer: int, heads: Tensor, seen: dict[int, Tensor] = seen) -> Tensor:
            seen[layer] = heads.detach().requires_grad_()
            return heads + 0 * seen[layer] + (seen[layer] - seen[layer].detach())

        with projected(model, keep):
            loss(model, window).backward()
        outputs.append(seen)

    with torch.no_grad():
        whole_loss = sum(float(loss(model, window)) for window in cut)
    found: dict[str, dict[tuple[int, int], float]] = {name: {} for name in MEASURES}
    for layer, head in every:
        of_head = [seen[layer][:, head].detach() for seen in outputs]
        moves = []
        for seen in outputs:
            moved = seen[layer].detach() * seen[layer].grad
            moves.append(moved[:, head].sum(-1))
        whole = [float(of_window.sum()) for of_window in moves]
        found["gradient"][layer, head] = float(np.mean(np.abs(whole)))
        found["attribution.zero"][layer, head] = -sum(whole) / predicted
        once = [move[window.new :].abs() for move, window in zip(moves, cut, strict=True)]
        found["gradient.token"][layer, head] = float(torch.cat(once).mean())

        new = [output[window.new :] for output, window in zip(of_head, cut, strict=True)]
        mean = torch.cat(new).mean(0)
        by_position = torch.stack([mean] * LONGEST)
        for place in range(LONGEST):
            pairs = zip(of_head, cut, strict=True)
            there = [out[place] for out, window in pairs if window.new <= place < len(window.ids)]
            if len(there) > 1:
                by_position[place] = torch.stack(there).mean(0)
        zero = torch.zeros_like(by_position)
        replacements = {"zero": zero, "mean": zero + mean, "position-mean": by_position}
        for name, replacement in replacements.items():
            lost = 0.0
            for number, window in enumerate(cut):
                of_window = replacement.clone()
                if name == "position-mean":  # of the other windows that have the place
                    for place in range(window.new, len(window.ids)):
                        others = [
                            out[place]
                            for other, (out, each) in enumerate(zip(of_head, cut, strict=True))
                            if other != number and each.new <= place < len(each.ids)
                        ]
                        if others:
                            of_window[place] = torch.stack(others).mean(0)
                with torch.no_grad(), projected(model, replaced(layer, head, of_window)):
                    lost += float(loss(model, window))
            found[f"ablation.{name}"][layer, head] = (lost - whole_loss) / predicted

    largest: dict[tuple[int, int], list[float]] = {address: [] for address in every}
    model.hf.set_attn_implementation("eager")
    for window in cut:
        with torch.no_grad():
            attended = model.hf(torch.tensor([window.ids]), output_attentions=True).attentions
        for layer, head in every:
            for query in range(max(1, window.new), len(window.ids)):
                weights = attended[layer][0, head, query, 1:]  # the first token is no key
                largest[layer, head].append(float(weights.max()))
    model.hf.set_attn_implementation("sdpa")
    found["confidence"] = {address: float(np.mean(some)) for address, some in largest.items()}
    return found


def test_a_long_document_is_scored_as_its_windows_by_hand(model: hw.Model) -> None:
    wanted = by_hand(model)
    scores = hw.score(model, text(), MEASURES, progress=silent)
    for name in MEASURES:
        values = scores.of(name)
        assert len(values) == model.heads.total
        for head, value in values.items():
            hand = wanted[name][head.layer, head.head]
            assert value == pytest.approx(hand, rel=1e-3, abs=2e-6), (name, head)
    numbers = scores.table.groupby("measure")["n"].first()
    assert numbers["ablation.zero"] == sum(SIZES) - len(SIZES)
    assert numbers["gradient"] == WINDOWS
    assert numbers["confidence"] == sum(SIZES) - len(SIZES)
    assert numbers["gradient.token"] == sum(SIZES)
    assert scores.signature["sentences"] == len(SIZES) and not scores.signature["left_out"]


def test_the_windows_of_a_document_are_one_unit(model: hw.Model) -> None:
    batches = model.task.batches(text())
    sums = run_passes(model, batches, ["ablation.zero", "gradient"], 0).sums
    site = Site("decoder-self", 0)
    assert sorted(sums["ablation.zero"].whole(site)[1]) == sorted(size - 1 for size in SIZES)
    assert sorted(sums["gradient"].whole(site)[1]) == [1, 1, 1, 3, 4]
    alone = hw.score(model, text((25,)), ["gradient"], progress=silent)
    assert alone.table["low"].isna().all()  # not the interval of its four windows
    effects = removal_effects(model, text(), [*model.heads][:1], [])
    assert sorted(effects.tokens) == sorted(size - 1 for size in SIZES)


def test_a_fold_has_whole_documents(model: hw.Model) -> None:
    """The halves that the judge compares share no text, and are those of the sums."""
    batches, rows = model.task.batches(text()), list[set[int]]()
    whole = run_passes(model, batches, ["ablation.zero"], 0).sums["ablation.zero"]
    for which in (0, 1):
        fold = Fold(batches, which)
        rows.append({int(row) for batch in fold for row in batch["rows"]})
        tokens = sum(int((batch["labels"] >= 0).sum()) for batch in fold)
        assert tokens == whole.fold(which).whole(Site("decoder-self", 0))[1].sum()
        assert fold.documents is not None
        assert sum(len(batch["rows"]) for batch in fold) == len(fold.documents)
    assert not rows[0] & rows[1] and rows[0] | rows[1] == set(range(len(SIZES)))


def test_a_sample_of_windows(model: hw.Model) -> None:
    """With time for all of them they give what the whole text gives; documents are counted, not windows."""
    names = ["ablation.zero", "ablation.mean"]
    whole = hw.score(model, text(), names, progress=silent)
    sampled = hw.score(model, text(), names, time="10m", progress=silent)
    for name in names:
        for head, value in whole.of(name).items():
            assert sampled.of(name)[head] == pytest.approx(value, rel=1e-3, abs=1e-6)
        facts = sampled.signature["sampled"][name]
        assert (facts["sentences"], facts["of"]) == (len(SIZES), len(SIZES))
        assert facts["ended"] == "whole text"


def test_resampling_takes_another_document(model: hw.Model) -> None:
    """The next window shares half of its text: `ablation.example` takes the next document's output."""
    alone = text((25,))
    with pytest.raises(hw.HeadwiseError, match="each is alone in its batch"):
        hw.score(model, alone, ["ablation.example"], progress=silent)
    scores = hw.score(model, text(), ["ablation.example"], progress=silent)
    assert scores.table["n"].unique() == [sum(SIZES) - len(SIZES)]


def test_what_a_score_will_take_counts_windows(
    model: hw.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = model.task.batches(text())
    work = work_on(model.heads, batches)
    assert work.sentences == len(SIZES)
    assert work.sentences * work.tokens == pytest.approx(READ)
    said = text_line(batches)
    assert f"{WINDOWS} windows, {READ} tokens, of 5 sentences" in said
    assert "windows of 10 tokens, each 5 after the last; left out: nothing" in said
    one = ScorePlan(model, text(), TimedScoring(measures=["ablation.zero"])).forecast()
    assert one.parts == ["ablation.zero"] and one.seconds > 0
    monkeypatch.setattr(scores, "text_seconds", lambda model, text: 1.0)
    one = ScorePlan(model, text(), TimedScoring(measures=["ablation.zero"])).forecast()
    few = ScorePlan(model, text(), TimedScoring(measures=["ablation.zero"], untrained=2)).forecast()
    assert few.seconds == pytest.approx(3 * one.seconds)


def test_gradients_report_after_every_backward_pass(
    model: hw.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch takes several on a large model, seconds each."""
    monkeypatch.setattr("headwise.importance.gradient.rows_together", lambda *given: 1)
    shares: list[float] = []
    hw.score(model, text(), ["gradient"], progress=lambda share, what: shares.append(share))
    assert len(set(shares)) >= WINDOWS and shares == sorted(shares)
