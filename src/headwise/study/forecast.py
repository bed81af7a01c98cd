"""About how long a study takes: one forward over sentences of its dev text is timed, and each step counts as so many.
While it runs, the time left follows from the pace of the steps that are done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headwise.core.errors import few_names
from headwise.core.options import Architecture
from headwise.models.attention.configuration import start_token
from headwise.models.evaluation.quality import translation_seconds
from headwise.models.forecast import best, expected_pieces, text_seconds
from headwise.models.model import Model
from headwise.models.token_rows import IGNORED
from headwise.models.training.tokenizer import SPECIAL_TOKENS
from headwise.models.training.translation_model import build_model
from headwise.study.evaluation_steps import Translate
from headwise.study.model_steps import Prune
from headwise.study.run_context import RunContext
from headwise.study.step import Job

TIMED_ROWS = 16  # of the batch that is timed


def forwards_of(job: Job) -> float:
    """About how many sentences, read forward, a job takes as long as; 0 where its texts or heads are not known yet."""
    run = job.run
    if run.heads is None or not {"train", "dev"} <= run.texts.keys():
        return 0.0
    return job.step.forwards(run)


def seconds_of(jobs: Sequence[Job], run: RunContext, given: Model | None) -> float:
    """About how many seconds jobs take; takes a few itself. given: the model that the plan names, whose translations are
    timed as well."""
    forwards = 0.0
    translated = 0
    for job in jobs:
        # How long sentences become is the model's own way: its translations are timed, not counted in forwards.
        if isinstance(job.step, Translate) and given is not None:
            translated += job.run.sentences_of(job.step.split)
        else:
            forwards += forwards_of(job)
    seconds = forwards * sentence_seconds(run, given) if forwards else 0.0
    if given is not None and translated:
        text = run.text("dev")
        each = translation_seconds(given, text, run.plan.search) / len(text)
        seconds += translated * each
    return seconds


def sentence_seconds(run: RunContext, given: Model | None) -> float:
    """About how many seconds a forward over a sentence of the dev text takes; takes a few itself. given: the model that
    the plan names; of a shape one with random weights is timed, on random pieces."""
    text = run.text("dev")
    if given is not None:
        return text_seconds(given, given.task.batches(text)) / len(text)
    assert isinstance(run.plan.model, Architecture)
    shape = run.plan.model
    hf: Any = blank(shape).to(run.device).eval()
    length = min(
        shape.max_length, max(2, round(expected_pieces(text, shape.vocabulary) / len(text)))
    )
    batch = random_batch(hf, TIMED_ROWS, length)
    with torch.no_grad():
        return best(lambda: hf(**batch), hf.device.type) / TIMED_ROWS


def blank(shape: Architecture) -> PreTrainedModel:
    """A model of the shape with random weights and no tokenizer."""

    # All that `build_model` asks of a tokenizer; learning a real one would take longer than what is timed.
    class Pieces:
        pad_token_id = 0
        eos_token_id = 1
        bos_token_id = 2

        def __len__(self) -> int:
            return shape.vocabulary

    return build_model(shape, cast(PreTrainedTokenizerBase, Pieces()), seed=0)


def random_batch(hf: PreTrainedModel, rows: int, length: int) -> dict[str, Tensor]:
    """A full batch of random pieces: rows × length, as training gets it."""
    generator = torch.Generator().manual_seed(0)
    source, target = torch.randint(
        len(SPECIAL_TOKENS), hf.config.vocab_size, (2, rows, length), generator=generator
    ).to(hf.device)
    # The decoder reads the token before the one that it predicts, at the beginning the start token.
    start = target.roll(1, 1)
    start[:, 0] = start_token(hf)
    labels = target.clone()
    # Below ten pieces a tenth is none, and a slice from -0 would hide them all.
    labels[:, -(length // 10) or length :] = IGNORED  # about as much as padding is
    return {
        "input_ids": source,
        "attention_mask": torch.ones_like(source),
        "decoder_input_ids": start,
        "labels": labels,
    }


def model_lines(jobs: Sequence[Job]) -> list[str]:
    """The models that a plan makes, in a line."""
    names = [job.step.variant.name for job in jobs if isinstance(job.step, Prune)]
    number = f"{len(names)} model{'s' * (len(names) > 1)}"
    return [f"{number}: {few_names(names)}"] if names else []


def plan_lines(jobs: Sequence[Job]) -> list[str]:
    """What a study does: a line for each sort of step, with what it is done to; and how many steps there are."""
    sorts: dict[tuple[str, bool], list[str]] = {}
    for job in jobs:
        sort, _, of = job.words.partition(": ")
        sorts.setdefault((sort, job.done_before), []).append(of)
    lines = []
    for (sort, done_before), several in sorts.items():
        state = " (done)" if done_before else ""
        of = ", ".join(filter(None, several))
        lines.append(f"{sort}{state}: {of}" if of else f"{sort}{state}")
    done = sum(job.done_before for job in jobs)
    return [*lines, f"{len(jobs)} steps, {done} of them done" if done else f"{len(jobs)} steps"]
