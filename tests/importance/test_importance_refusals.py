"""What scoring refuses: the call, and the words that say what was found and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import headwise as hw
from headwise.data.text import PromptPairs
from headwise.importance.interactions import interactions
from headwise.importance.measures import measure, resolve_measures
from headwise.importance.options import TimedScoring
from headwise.importance.untrained import untrained
from headwise.models.evaluation.corrupted_outputs import corrupted_outputs
from models.attention.families import FAMILIES, build
from models.tasks.askers import IDS, asker, embedder, lines, pairs
from models.training.letters import letters
from refusals import refuses


def scored(family: str, measures: list[str], **options: Any) -> object:
    return hw.score(
        asker(family), pairs(4) if family == "marian" else lines(4), measures, **options
    )


def classifier() -> hw.Model:
    name = "BertForTokenClassification"
    return hw.Model(build(name, **{**FAMILIES["bert"][1], **IDS}), letters(), name)


def prompts() -> PromptPairs:
    return PromptPairs.from_rows([("a b c", "a d c", "e", "f")])


def without_corrupted_ids() -> object:
    model = asker("gpt2")
    return corrupted_outputs(model.hf, model.discovery, {})


def batches() -> list[dict[str, torch.Tensor]]:
    return [{"input_ids": torch.ones(1, 3, dtype=torch.long)}]


REFUSED: list[tuple[Callable[[], object], str]] = [
    # measures by name
    (lambda: resolve_measures(["gradiant"]), "'gradiant' is unknown … did you mean 'gradient'"),
    (lambda: resolve_measures(["fame"]), "'fame' is unknown; there is confidence, … lrp, ablation"),
    (lambda: scored("marian", ["fame"]), "The measure 'fame' is unknown; there is confidence"),
    (lambda: measure("mine", larger="better")(print), "say 'more important' or 'less important'"),
    *(
        (lambda name=name: measure(name)(print), "cannot be called")
        for name in ("all", "a/b", "", "../up")
    ),
    # what a model, or a text, cannot be scored by
    (lambda: scored("gpt2", ["ablation.bleu"]), "needs translations, which … does not write"),
    (
        lambda: scored("gpt2", ["attention-to-end"]),
        "No score could be made: … for any head: none sees",
    ),
    (lambda: scored("gpt2", ["ablation.counterpart"]), "corrupted prompts"),
    (lambda: hw.score(classifier(), lines(4), ["gradient"]), "should answer … give tagged text"),
    (lambda: hw.score(embedder(), lines(4), ["gradient"]), "predicts no words"),
    (lambda: hw.score(asker("bert"), prompts(), ["gradient"]), "one-sided text"),
    (lambda: hw.evaluate(asker("gpt2"), prompts()), "prompts in pairs"),
    (without_corrupted_ids, "corrupted_ids"),
    # judging, sampling, controls
    (lambda: scored("marian", ["lrp"], judge=True), "judged by ablation.zero, … add it"),
    (lambda: hw.score(asker("gpt2"), lines(6), judge=True, time="1m"), "leave the time out"),
    (lambda: untrained(asker(), -1), "The seed is -1"),
    (lambda: scored("marian", ["confidence"], untrained=-1), "'untrained' is -1"),
    *(
        (lambda words=words: TimedScoring(time=words), "such as 90s, 10m or 1h")
        for words in ("", "10", "m", "-1m", "0s", "0.0h", "10 m", "10min", "1e3s")
    ),
    # interactions
    (lambda: interactions(asker(), pairs(30), count=0), "at least 1"),
    (lambda: interactions(asker(), pairs(19)), "at least 20"),
    (lambda: interactions(embedder(), lines(30)), "predicts nothing"),
    (lambda: interactions(asker("gpt2"), batches()), "give text"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words[:40] for _, words in REFUSED])
def test_one_sentence_says_what_was_found(call: Callable[[], object], words: str) -> None:
    refuses(call, words)
