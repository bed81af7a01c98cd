"""The questions that a page asks about a model and one sentence, and their answers, ready for JSON.

A `Session` serves one page: the lab in a browser, the widget in a notebook, or a script. It has the
model, perhaps the pruned model of the same run, and what the run says of its heads.
"""

from __future__ import annotations

import base64
import difflib
import json
import math
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from headwise.attention import AttentionCall, evaluating
from headwise.data.treebank import Treebank
from headwise.errors import HeadwiseError
from headwise.heads import Head, Site
from headwise.lab.details import head_details, pruned_model, run_of, run_sentences
from headwise.lab.predictor import Ablation, PredictedToken, Predictor, mean_cosine
from headwise.lab.sentence import Trees, example_trees, pickable, run_treebank, trees_of
from headwise.loading import load
from headwise.model import Model
from headwise.progress import Report, silent
from headwise.report.run_folder import FinishedRun


class Question(BaseModel):
    """What is asked of a model about a sentence.

    gates: by head, from 0 (off) to 1 (on). position: of the token that is hidden (masked language
    models), or after which the next one is predicted (language models). Of the search for the
    smallest set: continue_from, the heads that an unfinished search had switched off, and
    max_steps, how many more it may.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    text: str
    gates: dict[str, float] = Field(default_factory=dict)
    ablation: Ablation = "zero"
    beam: int = Field(default=5, ge=1, le=10)
    position: int | None = None
    model: Literal["full", "pruned"] = "full"
    continue_from: list[str] = Field(default_factory=list)
    max_steps: int | None = Field(default=None, ge=1)

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """A question as it arrived. Raises HeadwiseError for what is none."""
        try:
            json.dumps(fields, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise HeadwiseError(
                "The question has half of a character in it (a surrogate without its other half): type the text again."
            ) from None
        try:
            return cls(**fields)
        except ValidationError as error:
            wrong = error.errors()[0]
            field = ".".join(map(str, wrong["loc"]))
            raise HeadwiseError(
                f"The question is not understood ({field}: {wrong['msg']})."
            ) from None


class CancelToken:
    """Ends the computation of an answer at its next layer: when nobody waits for it any more
    (`cancelled`), or after `seconds`."""

    def __init__(self, seconds: float = math.inf) -> None:
        self.seconds = seconds
        self.deadline = math.inf
        self.cancelled = False

    def start(self) -> None:
        """Begin to count the seconds: a question may wait for another one before it is computed."""
        self.deadline = time.monotonic() + self.seconds

    def check(self) -> None:
        """Raises HeadwiseError when the computation has to end."""
        if self.cancelled:
            raise HeadwiseError("Stopped.")
        if time.monotonic() > self.deadline:
            raise HeadwiseError(
                f"This took longer than {self.seconds:.0f} s and was stopped: give a shorter sentence."
            )


class Session:
    """A model and all that a page asks about it. `about`: what the page shows of the model before
    any question."""

    def __init__(
        self,
        model: Model,
        pruned: Model | None = None,
        run: FinishedRun | None = None,
        trees: Trees | None = None,
        examples: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """trees: by the text of a sentence. examples: sentences to pick, by where they are from."""
        self.predictors = {"full": Predictor(model, trees)}
        if pruned:
            self.predictors["pruned"] = Predictor(pruned, trees)
        self.model = model
        self.lock = threading.Lock()
        self.about = {
            "name": model.name,
            "title": run.folder.resolve().name if run else Path(model.name).name,
            "task": self.predictors["full"].task,
            "heads": {kind: list(counts) for kind, counts in model.heads.query.items()},
            "compare": full_model_numbers(model, pruned) if pruned else None,
            "sentences": {name: list(some) for name, some in (examples or {}).items() if some},
            **head_details(run),
        }

    @classmethod
    def open(
        cls,
        model: Model | str | PathLike[str],
        device: str = "cpu",
        treebank: Treebank | None = None,
        text: Sequence[str] = (),
    ) -> Self:
        """A session with a model; with a study's folder, also with its scores, roles, treebank and
        chosen pruned model.

        treebank: its sentences can be picked and have their trees drawn. text: more sentences to
        pick. Without any sentence, those of the embedded corpus (English) can be picked.
        """
        run = None if isinstance(model, Model) else run_of(str(model))
        pruned = pruned_model(run) if run else None
        examples = {"Your text": list(text), "The run's text": run_sentences(run) if run else []}
        if treebank is None and run:
            treebank = run_treebank(run.folder)
        if treebank:
            trees = trees_of(treebank)
            listed = {*examples["Your text"], *examples["The run's text"]}
            examples["With dependencies"] = pickable(trees, without=listed)
        else:
            trees = example_trees()
            if not any(examples.values()):
                examples["English examples"] = pickable(trees)
        full = model if isinstance(model, Model) else load(str(model), device)
        return cls(full, load(pruned, device) if pruned else None, run, trees, examples)

    def answer(
        self, name: str, fields: Mapping[str, Any], cancel: CancelToken, progress: Report = silent
    ) -> Any:
        """The answer to a page's question. fields: of the `Question`, as they arrived. Raises
        HeadwiseError for a question that cannot be answered."""
        if name == "about":
            return self.about
        question = Question.read(fields)

        if self.lock.locked():
            progress(0.0, "Another question is answered first.")
        with self.lock:
            cancel.start()
            if name == "inspect":
                return self.inspect(question, cancel)
            if name == "ablate":
                return self.ablate(question, cancel, progress)
            if name == "smallest":
                return self.smallest(question, cancel, progress)
        raise HeadwiseError(f"There is no question '{name[:40]}'.")

    def predictor(self, question: Question) -> Predictor:
        """The model that is asked. Raises HeadwiseError where there is no pruned one."""
        if question.model not in self.predictors:
            raise HeadwiseError(
                "There is no pruned model to compare with: open the folder of a run that chose one."
            )
        return self.predictors[question.model]

    def inspect(self, question: Question, cancel: CancelToken | None = None) -> dict[str, Any]:
        """The output before and after a change of heads, what it costs, and every head's attention
        after it.

        Attention maps are float32, H Q K, in base64.
        """
        start = time.perf_counter()
        predictor = self.predictor(question)
        gates = predictor.parse_gates(question.gates)
        check = (cancel or CancelToken()).check
        maps: dict[Site, Tensor] = {}

        def keep_map(call: AttentionCall) -> None:
            assert call.weights is not None
            maps[call.site] = call.weights[0].float().cpu()

        with evaluating(predictor.hf), torch.no_grad():
            prompt, full = predictor.full_prediction(
                question.text, question.beam, question.position, check
            )
            replacement = predictor.replacement(prompt, question.ablation)
            output = predictor.output(prompt, gates, replacement, question.beam, check)
            with predictor.turned_down(gates, replacement, check, keep_map):
                # Two questions: how likely is the full model's output now, and what is the new one?
                same_tokens = predictor.predict(prompt)
                new = same_tokens if output is prompt else predictor.predict(output)

        columns = []
        tokens = predictor.token_names([column.token for column in prompt.columns])
        before = full.log_probabilities.tolist()
        after = same_tokens.log_probabilities.tolist()
        for index, column in enumerate(prompt.columns):
            columns.append(
                {
                    "token": tokens[index],
                    "position": column.position,
                    "in_output": column.in_output,
                    "before": before[index],
                    "after": after[index],
                }
            )
        likely = None
        if full.next is not None and new.next is not None:
            likely = predictor.likeliest_next(full.next, new.next)
        cosine = None
        if full.vectors is not None and new.vectors is not None:
            cosine = mean_cosine(full.vectors, new.vectors).item()
        return {
            "task": predictor.task,
            "source": prompt.source.to_json(),
            "target": output.target.to_json() if output.target else None,
            "before": full.text,
            "after": new.text,
            "changes": word_changes(full.text, new.text),
            "columns": columns,
            "log_probability": {
                "before": output_log_probability(prompt.columns, full.log_probabilities),
                "after": output_log_probability(prompt.columns, same_tokens.log_probabilities),
                "new": output_log_probability(output.columns, new.log_probabilities),
            },
            "next": likely,
            "position": prompt.position,
            "maps": [
                {
                    "kind": site.kind,
                    "layer": site.layer,
                    "shape": list(weights.shape),
                    "data": base64_floats(weights),
                }
                for site, weights in maps.items()
            ],
            "similarity": cosine,
            "seconds": time.perf_counter() - start,
        }

    def ablate(
        self, question: Question, cancel: CancelToken | None = None, progress: Report = silent
    ) -> dict[str, Any]:
        """The exact change of every predicted token's log-probability when one more head is
        switched off. Above 0: the token is likelier without the head."""
        start = time.perf_counter()
        predictor = self.predictor(question)
        gates = predictor.parse_gates(question.gates)
        check = (cancel or CancelToken()).check
        with evaluating(predictor.hf), torch.no_grad():
            prompt, full = predictor.full_prediction(
                question.text, question.beam, question.position, check
            )
            replacement = predictor.replacement(prompt, question.ablation)
            values = predictor.effects(prompt, full, gates, replacement, check, progress)

        if prompt.columns:
            tokens = predictor.token_names([column.token for column in prompt.columns])
            in_output = [column.in_output for column in prompt.columns]
        else:
            # An embedding model has one column, its similarity to the full model.
            tokens = ["similarity"]
            in_output = [True]
        return {
            "heads": [str(head) for head in predictor.heads],
            "tokens": tokens,
            "in_output": in_output,
            "values": six_decimals(values),
            "total": six_decimals(values[:, torch.tensor(in_output)].sum(1)),
            "seconds": time.perf_counter() - start,
        }

    def smallest(
        self, question: Question, cancel: CancelToken | None = None, progress: Report = silent
    ) -> dict[str, Any]:
        """A small set of heads that changes the output when it is switched off, in addition to the
        question's gates.

        Greedy: each step switches off the head that lowers the output's log-probability most. When
        the output has changed, each head whose absence it does not need is switched on again. So
        every head of the set is needed, but another set may be smaller. changed: False where the
        output stays even without any head.

        A search that took `max_steps` without a change answers `unfinished` with its heads so far,
        and another question with `continue_from` goes on with them: so a notebook can stop between
        two steps.
        """
        start = time.perf_counter()
        predictor = self.predictor(question)
        gates = predictor.parse_gates(question.gates)
        earlier = list(predictor.parse_gates(dict.fromkeys(question.continue_from, 0.0)))
        check = (cancel or CancelToken()).check
        with evaluating(predictor.hf), torch.no_grad():
            prompt, full = predictor.full_prediction(
                question.text, question.beam, question.position, check
            )
            if not prompt.columns:
                raise HeadwiseError(
                    "This model writes no output that could change: look at the similarity instead."
                )
            # Only tokens of the output matter to the search, not those of a language model's text.
            in_output = tuple(column for column in prompt.columns if column.in_output)
            prompt = replace(prompt, columns=in_output)
            replacement = predictor.replacement(prompt, question.ablation)

            def gates_without(heads: Sequence[Head]) -> dict[Head, float]:
                return {**gates, **dict.fromkeys(heads, 0.0)}

            def output_without(heads: Sequence[Head]) -> str:
                lower = gates_without(heads)
                output = predictor.output(prompt, lower, replacement, question.beam, check)
                with predictor.turned_down(lower, replacement, check):
                    return predictor.predict(output).text

            before = output_without([])
            off = list(earlier)
            after = output_without(off)
            is_on = [gates.get(head, 1.0) > 0 and head not in off for head in predictor.heads]
            while after == before and any(is_on):
                if len(off) - len(earlier) == question.max_steps:
                    return {"unfinished": True, "heads": [str(head) for head in off]}
                note = f"{len(off)} heads off, trying the next"

                def report(share: float, _: str, note: str = note) -> None:
                    progress(share, note)

                changes = predictor.effects(
                    prompt, full, gates_without(off), replacement, check, report
                )
                losses = changes.sum(1)
                losses[~torch.tensor(is_on)] = math.inf  # never chosen
                index = int(losses.argmin())
                off.append(predictor.heads[index])
                is_on[index] = False
                after = output_without(off)

            # Switch on again what the change does not need, one head after the other. With every
            # head that is on again, others may be needed no more: begin again.
            shrinking = after != before
            while shrinking and len(off) > 1:
                shrinking = False
                for head in off:
                    others = [other for other in off if other != head]
                    output = output_without(others)
                    if output != before:
                        off = others
                        after = output
                        shrinking = True
                        break
        return {
            "heads": [str(head) for head in off],
            "changed": after != before,
            "before": before,
            "after": after,
            "seconds": time.perf_counter() - start,
        }


def full_model_numbers(model: Model, pruned: Model) -> dict[str, list[list[int]]]:
    """By kind and layer, which heads of the full model those of the pruned one are."""
    kept = pruned.layout
    if kept is None or kept.heads.query != model.heads.query:
        raise HeadwiseError(
            f"{pruned.name} was not pruned from {model.name}, so they cannot be compared. "
            "Open the run's model/ folder instead."
        )
    numbers: dict[str, list[list[int]]] = {kind: [] for kind in model.heads.kinds}
    for site in model.heads.sites:
        numbers[site.kind].append(kept.of(site))
    return numbers


def output_log_probability(columns: Sequence[PredictedToken], log_probabilities: Tensor) -> float:
    """The log-probability of the output, in nats: the sum over its tokens."""
    total = 0.0
    for column, value in zip(columns, log_probabilities.tolist(), strict=True):
        if column.in_output:
            total += value
    return total


def word_changes(before: str, after: str) -> list[tuple[str, str]]:
    """What changed from one output to another, in order: `same`, `removed` and `added` pieces of
    words and marks."""
    first = re.findall(r"\s+|\w+|[^\w\s]", before)
    second = re.findall(r"\s+|\w+|[^\w\s]", after)
    pieces = []
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    for tag, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        old = "".join(first[old_start:old_end])
        new = "".join(second[new_start:new_end])
        if tag == "equal":
            pieces.append(("same", old))
            continue
        if old:
            pieces.append(("removed", old))
        if new:
            pieces.append(("added", new))
    return pieces


def base64_floats(weights: Tensor) -> str:
    """Numbers as base64 of little-endian float32, in the order of memory."""
    return base64.b64encode(weights.contiguous().numpy().astype("<f4").tobytes()).decode()


def floats_of(data: str, shape: Sequence[int]) -> np.ndarray:
    """The numbers that `base64_floats` wrote."""
    return np.frombuffer(base64.b64decode(data), "<f4").reshape(shape)


def six_decimals(values: Tensor) -> Any:
    """Nested lists of six decimals: enough for a page, and a third of the text."""
    return np.round(values.numpy().astype(float), 6).tolist()
