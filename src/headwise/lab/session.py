"""The questions that a page asks about a model and one sentence, and their answers, ready for JSON.

A `Session` serves one page: the lab in a browser, the widget in a notebook, or a script. It has the
model, perhaps the pruned model of the same run, and what the run says of its heads.
"""

from __future__ import annotations

import base64
import difflib
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
    models), or after which the next one is predicted (language models). begun, steps: of the search
    for the smallest set.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    text: str
    gates: dict[str, float] = Field(default_factory=dict)
    ablation: Ablation = "zero"
    beam: int = Field(default=5, ge=1, le=10)
    position: int | None = None
    model: Literal["full", "pruned"] = "full"
    begun: list[str] = Field(default_factory=list)
    steps: int | None = Field(default=None, ge=1)


class Cancel:
    """Ends the computation of an answer at its next layer: when nobody waits for it any more, or
    after its time."""

    def __init__(self, seconds: float = math.inf) -> None:
        self.seconds = seconds
        self.deadline = math.inf
        self.cancelled = False

    def start(self) -> None:
        """The computation begins, and with it its time."""
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
            "compare": layout(model, pruned) if pruned else None,
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
        self, name: str, asked: Mapping[str, Any], cancel: Cancel, progress: Report = silent
    ) -> Any:
        """The answer to a page's question. Raises HeadwiseError for one that cannot be answered."""
        if name == "about":
            return self.about
        try:
            question = Question(**asked)
        except ValidationError as error:
            wrong = error.errors()[0]
            field = ".".join(map(str, wrong["loc"]))
            raise HeadwiseError(
                f"The question is not understood ({field}: {wrong['msg']})."
            ) from None

        if self.lock.locked():
            progress(0.0, "Another question is answered first.")
        with self.lock:
            cancel.start()
            if name == "look":
                return self.look(question, cancel)
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

    def look(self, question: Question, cancel: Cancel | None = None) -> dict[str, Any]:
        """The output before and after a change of heads, what it costs, and every head's attention
        after it.

        Attention maps are float32, H Q K, in base64.
        """
        start = time.perf_counter()
        predictor = self.predictor(question)
        gates = predictor.gates(question.gates)
        check = (cancel or Cancel()).check
        maps: dict[Site, Tensor] = {}

        def keep_map(call: AttentionCall) -> None:
            assert call.weights is not None
            maps[call.site] = call.weights[0].float().cpu()

        with evaluating(predictor.hf), torch.no_grad():
            prompt, full = predictor.full(question.text, question.beam, question.position, check)
            replacement = predictor.replacement(prompt, question.ablation)
            output = predictor.output(prompt, gates, replacement, question.beam, check)
            with predictor.turned_down(gates, replacement, check, keep_map):
                same_tokens = predictor.predict(prompt)
                new = same_tokens if output is prompt else predictor.predict(output)

        columns = []
        tokens = predictor.names([column.token for column in prompt.columns])
        logs = zip(full.logs.tolist(), same_tokens.logs.tolist(), strict=True)
        for column, token, (before, after) in zip(prompt.columns, tokens, logs, strict=True):
            columns.append(
                {
                    "token": token,
                    "position": column.position,
                    "counted": column.counted,
                    "before": before,
                    "after": after,
                }
            )
        likely = None
        if full.next is not None and new.next is not None:
            likely = predictor.likely(full.next, new.next)
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
                "before": output_log_probability(prompt.columns, full.logs),
                "after": output_log_probability(prompt.columns, same_tokens.logs),
                "new": output_log_probability(output.columns, new.logs),
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
        self, question: Question, cancel: Cancel | None = None, progress: Report = silent
    ) -> dict[str, Any]:
        """The exact change of every predicted token's log-probability when one more head is
        switched off. Above 0: the token is likelier without the head."""
        start = time.perf_counter()
        predictor = self.predictor(question)
        gates = predictor.gates(question.gates)
        check = (cancel or Cancel()).check
        with evaluating(predictor.hf), torch.no_grad():
            prompt, full = predictor.full(question.text, question.beam, question.position, check)
            replacement = predictor.replacement(prompt, question.ablation)
            values = predictor.effects(prompt, full, gates, replacement, check, progress)

        if prompt.columns:
            tokens = predictor.names([column.token for column in prompt.columns])
            counted = [column.counted for column in prompt.columns]
        else:
            tokens = ["similarity"]
            counted = [True]
        return {
            "heads": [str(head) for head in predictor.heads],
            "tokens": tokens,
            "counted": counted,
            "values": six_decimals(values),
            "total": six_decimals(values[:, torch.tensor(counted)].sum(1)),
            "seconds": time.perf_counter() - start,
        }

    def smallest(
        self, question: Question, cancel: Cancel | None = None, progress: Report = silent
    ) -> dict[str, Any]:
        """A small set of heads that changes the output when it is switched off, in addition to the
        question's gates.

        Greedy: each step switches off the head that lowers the output's log-probability most; when
        the output has changed, each head that is not needed is switched on again. So no head of the
        set can be spared, but another set may be smaller. changed: False where the output stays
        even without any head.

        steps: the most steps that are made; where they did not suffice, the answer says
        `unfinished`, and another question with its heads as `begun` continues: so a notebook can
        stop in between.
        """
        start = time.perf_counter()
        predictor = self.predictor(question)
        gates = predictor.gates(question.gates)
        begun = list(predictor.gates(dict.fromkeys(question.begun, 0.0)))
        check = (cancel or Cancel()).check
        with evaluating(predictor.hf), torch.no_grad():
            prompt, full = predictor.full(question.text, question.beam, question.position, check)
            if not prompt.columns:
                raise HeadwiseError(
                    "This model writes no output that could change: look at the similarity instead."
                )
            counted = tuple(column for column in prompt.columns if column.counted)
            prompt = replace(prompt, columns=counted)
            replacement = predictor.replacement(prompt, question.ablation)

            def without(heads: Sequence[Head]) -> dict[Head, float]:
                return {**gates, **dict.fromkeys(heads, 0.0)}

            def output_without(heads: Sequence[Head]) -> str:
                now = without(heads)
                output = predictor.output(prompt, now, replacement, question.beam, check)
                with predictor.turned_down(now, replacement, check):
                    return predictor.predict(output).text

            before = output_without([])
            chosen = list(begun)
            after = output_without(chosen)
            on = [gates.get(head, 1.0) > 0 and head not in chosen for head in predictor.heads]
            while after == before and any(on):
                if len(chosen) - len(begun) == question.steps:
                    return {"unfinished": True, "heads": [str(head) for head in chosen]}
                note = f"{len(chosen)} heads off, trying the next"

                def share_done(share: float, _: str, note: str = note) -> None:
                    progress(share, note)

                changes = predictor.effects(
                    prompt, full, without(chosen), replacement, check, share_done
                ).sum(1)
                changes[~torch.tensor(on)] = math.inf
                index = int(changes.argmin())
                chosen.append(predictor.heads[index])
                on[index] = False
                after = output_without(chosen)

            # Switch heads on again, one after the other, as long as the output stays changed.
            spared = after != before
            while spared and len(chosen) > 1:
                spared = False
                for head in chosen:
                    rest = [other for other in chosen if other != head]
                    output = output_without(rest)
                    if output != before:
                        chosen = rest
                        after = output
                        spared = True
                        break
        return {
            "heads": [str(head) for head in chosen],
            "changed": after != before,
            "before": before,
            "after": after,
            "seconds": time.perf_counter() - start,
        }


def layout(model: Model, pruned: Model) -> dict[str, list[list[int]]]:
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


def output_log_probability(columns: Sequence[PredictedToken], logs: Tensor) -> float:
    """The log-probability of the output."""
    summed = 0.0
    for column, value in zip(columns, logs.tolist(), strict=True):
        if column.counted:
            summed += value
    return summed


def word_changes(before: str, after: str) -> list[tuple[str, str]]:
    """What changed from one output to another, in order: `same`, `removed` and `added` pieces of
    words and marks."""
    first = re.findall(r"\s+|\w+|[^\w\s]", before)
    second = re.findall(r"\s+|\w+|[^\w\s]", after)
    pieces = []
    matcher = difflib.SequenceMatcher(None, first, second, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        old = "".join(first[i1:i2])
        new = "".join(second[j1:j2])
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
