"""The questions that a page asks about a model and one sentence, and their answers, ready for JSON.

A `Session` serves one page: the lab in a browser, the widget in a notebook, or a script. It has the
model, perhaps the pruned model of the same run, and the run's facts about the heads.
"""

from __future__ import annotations

import base64
import difflib
import json
import math
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from headwise.core.errors import HeadwiseError, shown_value
from headwise.core.heads import Head
from headwise.core.progress import OnProgress, silent
from headwise.data.treebank import Treebank, TreeFiles, read_trees
from headwise.faces.lab.details import (
    given_model,
    head_details,
    pruned_model,
    run_of,
    run_recordings,
    run_sentences,
    run_treebank,
)
from headwise.faces.lab.predictor import (
    Ablation,
    Change,
    Prediction,
    Predictor,
    Prompt,
)
from headwise.faces.lab.sentence import (
    ENGLISH,
    OPENING,
    Trees,
    example_trees,
    sentences_to_pick,
    trees_of,
)
from headwise.faces.report.glossary import glossary, relations
from headwise.faces.report.run_folder import RunContents
from headwise.models.attention.discover import evaluating
from headwise.models.attention.kernel import AttentionCall
from headwise.models.loading import AnyModel, as_model, load
from headwise.models.model import Model
from headwise.models.tasks import AnyText

OPENING_SECONDS = 3.0  # in which a sentence to begin with is looked for


class Question(BaseModel):
    """A question about a sentence.

    text: the sentence, or the name of a recording. gates: by head, from 0 (off) to 1 (on).
    position: the token that is hidden (masked language models), or the last one before the token
    that is predicted (language models). model: the full one, or the pruned one of the same run.

    The search for the smallest set has two fields of its own. continue_from: the heads that an
    unfinished search had switched off. max_steps: how many more heads it may switch off.
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
        """The question in the fields of a message. Raises HeadwiseError for fields or values that
        a question does not take."""
        # JSON may hold half of a surrogate pair, which no tokenizer of Rust takes.
        try:
            json.dumps(fields, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise HeadwiseError(
                "The question has an incomplete character in it (one half of a surrogate pair): "
                "type the text again."
            ) from None
        try:
            return cls(**fields)
        except ValidationError as error:
            wrong = error.errors()[0]
            field = ".".join(map(str, wrong["loc"]))
            raise HeadwiseError(
                f"The field '{field}' of the question is wrong: {wrong['msg']}."
            ) from None


class CancelToken:
    """Ends the computation of an answer at its next layer: when nobody waits for it any more
    (`cancelled`), or after some seconds."""

    def __init__(self, seconds: float = math.inf) -> None:
        self.seconds = seconds
        self.deadline = math.inf
        self.cancelled = False

    def start(self, times: float = 1.0) -> None:
        """Begin to count the seconds: a question may wait for another one before it is computed.
        times: how many times longer it may take."""
        self.seconds *= times
        self.deadline = time.monotonic() + self.seconds

    def raise_if_cancelled(self) -> None:
        """Raises HeadwiseError when the computation has to end."""
        if self.cancelled:
            raise HeadwiseError("Stopped.")
        if time.monotonic() > self.deadline:
            raise HeadwiseError(
                f"This took longer than {self.seconds:.0f} s and was stopped: "
                "give a shorter sentence, or a smaller model."
            )


NEVER_CANCELLED = CancelToken()


class Session:
    """A model and all that a page asks about it. `about`: the facts about the model that the page
    shows before any question."""

    def __init__(
        self,
        model: Model,
        pruned: Model | None = None,
        run: RunContents | None = None,
        trees: Trees | None = None,
        examples: Mapping[str, Sequence[str]] | None = None,
        recordings: AnyText | None = None,
    ) -> None:
        """trees: by the text of a sentence. examples: sentences to pick, by the name of their
        source, such as "The run's text". recordings: what a speech model can be asked about; raises
        HeadwiseError for a speech model without, and for another model with it."""
        refuse_other_input(model, recordings)
        self.predictors: dict[str, Predictor] = {}
        for name, each in {"full": model, "pruned": pruned}.items():
            if each:
                make = each.task.predictor_class() or Predictor
                self.predictors[name] = make(each, trees if recordings is None else recordings)
        self.model = model
        said = self.predictors["full"].said
        if said is not None and recordings is not None:
            examples = {recordings.name: list(said)}
        # The model carries the hooks, so one question is computed at a time.
        self.lock = threading.Lock()

        # The page's script reads these keys (page/lab.js). title: the model's own name, or None
        # where a run trained it; run: the name of the run whose full model it is, else None.
        # heads: by kind, the number of heads in each layer. attention: by kind and layer `full` or
        # `sliding 512`, of a model with both. compare: by kind and layer, the numbers in the full
        # model of the pruned model's heads; None without a pruned model. sentences: by their
        # source; of a speech model the names of recordings, and recordings: what is said in each.
        # opening: the one that the page begins with (`open` looks for a good one), or None.
        # audio: the file of their table, where it is known (`open`). terms: what words of the page
        # mean, by each spelling; relations: the same of the relations in trees. `head_details` adds
        # scores, roles and pruned.
        self.about = {
            "name": model.name,
            "title": given_model(run) if run else Path(model.name).name,
            "run": run.folder.resolve().name if run else None,
            "task": self.predictors["full"].task_output,
            "noun": model.task.noun,
            "heads": {kind: list(counts) for kind, counts in model.heads.query.items()},
            "attention": model.discovery.window_names(),
            "compare": indices_in_full_model(model, pruned) if pruned else None,
            "sentences": {name: list(some) for name, some in (examples or {}).items() if some},
            "opening": next((text for some in (examples or {}).values() for text in some), None),
            "recordings": said,
            "audio": None,
            "terms": {word: term.text for term in glossary() for word in term.spellings},
            "relations": relations(),
            **head_details(run),
        }

    @classmethod
    def open(
        cls,
        model: AnyModel,
        device: str = "cpu",
        treebank: Treebank | TreeFiles | None = None,
        text: Sequence[str] = (),
        audio: str | PathLike[str] | None = None,
    ) -> Self:
        """A session with a model; with a study's folder, also with its scores, roles, treebank,
        recordings and chosen pruned model.

        treebank: its sentences can be picked and have their trees drawn. text: more sentences to
        pick. Without any sentence, those of the embedded corpus (English) can be picked. audio: of
        a speech model, the table of its recordings.
        """
        run = None
        if isinstance(model, str | PathLike):
            run = run_of(fspath(model))
            full = load(fspath(model), device)
        else:
            full = as_model(model)
        pruned = pruned_model(run) if run else None
        small = load(pruned, device) if pruned else None
        if full.task.reads_audio or audio:
            if full.task.reads_audio and (treebank or text):
                raise HeadwiseError(
                    f"{full.name} is {full.task.noun}, which hears recordings and reads no text: "
                    "leave --text and --treebank out."
                )
            if audio is None and run:
                audio = run_recordings(run.folder)
            refuse_other_input(full, audio)
            session = cls(full, small, run, recordings=full.task.read(audio))
            session.about["audio"] = str(audio)
            session.about["opening"] = session.opening()
            return session
        of_run = run_sentences(run, type(full.task)) if run else []
        examples = {"Your text": list(text), "The run's text": of_run}
        bank = read_trees(treebank)
        if bank is None and run:
            bank = run_treebank(run.folder)
        if bank is not None and not isinstance(bank, Treebank):
            raise HeadwiseError(
                f"The treebank is {shown_value(bank)}: give hw.Treebank.read(…), or its file."
            )
        if bank:
            trees = trees_of(bank)
            listed = {*examples["Your text"], *examples["The run's text"]}
            examples["With dependencies"] = sentences_to_pick(trees, without=listed)
        else:
            trees = example_trees()
            if not any(examples.values()):
                examples["English examples"] = [OPENING, *ENGLISH]
        session = cls(full, small, run, trees, examples)
        session.about["opening"] = session.opening()
        return session

    def opening(self) -> Any:
        """The first sentence to pick whose output changes without the head that it needs most; the very first one where
        none was found in `OPENING_SECONDS`, and None without sentences."""
        every = [text for some in self.about["sentences"].values() for text in some]
        cancel = CancelToken(OPENING_SECONDS)
        cancel.start()
        for text in every:
            try:
                found = self.smallest(Question(text=text, max_steps=1), cancel)
            except (
                HeadwiseError
            ):  # no time is left, or the model writes no output that could change
                break
            if found.get("changed"):
                return text
        return self.about["opening"]

    def answer(
        self,
        question_name: str,
        fields: Mapping[str, Any],
        cancel: CancelToken,
        progress: OnProgress = silent,
    ) -> Any:
        """The answer to a page's question: `about`, or what `sound`, `inspect`, `head_effects` and
        `smallest` return. The page's script reads their keys, so a change of a key changes both.

        fields: of the `Question`, as they arrived. Raises HeadwiseError for a question that cannot
        be answered.
        """
        if question_name == "about":
            return self.about
        question = Question.read(fields)
        if question_name == "sound":  # which runs no model, so it need not wait
            return self.sound(question)

        if self.lock.locked():
            progress(0.0, "Another question is answered first.")
        with self.lock:
            cancel.start(self.predictors["full"].patience)
            if question_name == "inspect":
                return self.inspect(question, cancel)
            if question_name == "head_effects":
                return self.head_effects(question, cancel, progress)
            if question_name == "smallest":
                return self.smallest(question, cancel, progress)
        raise HeadwiseError(
            f"Unknown request '{question_name[:40]}': ask for about, sound, inspect, head_effects "
            "or smallest."
        )

    def predictor(self, question: Question) -> Predictor:
        """The model that is asked. Raises HeadwiseError where there is no pruned one."""
        if question.model not in self.predictors:
            raise HeadwiseError(
                "There is no pruned model to compare with: open the folder of a run that chose one."
            )
        return self.predictors[question.model]

    def sound(self, question: Question) -> dict[str, Any]:
        """The recording of a question: `wav`, a file in base64, and what the page draws of it."""
        return self.predictor(question).sound(question.text)

    @contextmanager
    def asking(
        self, question: Question, cancel: CancelToken
    ) -> Iterator[tuple[Predictor, Change, Prompt, Prediction]]:
        """A block that computes an answer, and ends when the question is cancelled. Gives the model, the
        change of its heads, the prompt, and the prediction without the change."""
        predictor = self.predictor(question)
        gates = predictor.parse_gates(question.gates)
        # Both models: a question about the pruned one also runs the full one.
        for each in self.predictors.values():
            each.raise_if_cancelled = cancel.raise_if_cancelled
        try:
            with evaluating(predictor.hf), torch.no_grad():
                prompt, unchanged = predictor.unchanged_prediction(
                    question.text, question.beam, question.position
                )
                yield predictor, Change(gates, question.ablation, prompt.means), prompt, unchanged
        finally:
            for each in self.predictors.values():
                each.raise_if_cancelled = NEVER_CANCELLED.raise_if_cancelled

    def inspect(self, question: Question, cancel: CancelToken = NEVER_CANCELLED) -> dict[str, Any]:
        """The output before and after a change of heads, what it costs, and every head's attention
        after it.

        The old output is the model's without gates, the new one with them; `changes` are from the
        full model's output without gates to the new one. `similarity`: for an embedding model, the
        cosine of the text's vector with that of the full model without gates.
        `head_effects_seconds`: about the most that `head_effects` takes, from the processor time of
        one forward. `before` and `after`: numbers of the same token without and with the gates.
        Attention maps are float32, H Q K, in base64.
        """
        with self.asking(question, cancel) as (predictor, change, prompt, unchanged):
            # A speech model encodes once: half a minute of sound is most of its work.
            prompt = predictor.encoded(prompt, change)
            maps = dict(predictor.maps_of_encoder(prompt))

            def keep_map(call: AttentionCall) -> None:
                maps[call.site] = predictor.map_of(prompt, call)

            # First the changed model writes freely, in a block of its own: the many passes of a
            # beam search have no maps to keep. The block below only scores outputs that are
            # written, and its last pass leaves its maps: how likely is the old output now, and the
            # new one?
            new_prompt = predictor.prompt_with_new_translation(prompt, change, question.beam)
            with predictor.changed(change, keep_map):
                forward_start = time.thread_time()  # not slowed down by other programs
                old_output_now = predictor.predict(prompt)
                forward_seconds = time.thread_time() - forward_start
                new_output = old_output_now
                if new_prompt is not prompt:
                    new_output = predictor.predict(new_prompt)

            # Changes are shown from the full model, also those of the pruned one.
            of_full = unchanged
            if question.model != "full":
                _, of_full = self.predictors["full"].unchanged_prediction(
                    question.text, question.beam, question.position
                )

        tokens = predictor.token_names([predicted.token for predicted in prompt.predicted_tokens])
        before = unchanged.log_probabilities.tolist()
        after = old_output_now.log_probabilities.tolist()
        next_tokens = None
        if (
            unchanged.shown_log_probabilities is not None
            and new_output.shown_log_probabilities is not None
        ):
            next_tokens = predictor.likeliest_next(
                unchanged.shown_log_probabilities, new_output.shown_log_probabilities
            )
        cosine = None
        # Only models of embeddings have vectors.
        if of_full.vector is not None and new_output.vector is not None:
            cosine = torch.cosine_similarity(of_full.vector, new_output.vector, dim=0).item()
        return {
            "task": predictor.task_output,
            "sound": predictor.sound_json(prompt, unchanged.text, new_output.text),
            "source": prompt.source.to_json(),
            "target": new_prompt.target.to_json() if new_prompt.target else None,
            "old_output": unchanged.text,
            "new_output": new_output.text,
            "changes": word_changes(of_full.text, new_output.text),
            "predicted_tokens": [
                {
                    "token": tokens[index],
                    "position": predicted.position,
                    "in_output": predicted.in_output,
                    "before": before[index],
                    "after": after[index],
                }
                for index, predicted in enumerate(prompt.predicted_tokens)
            ],
            "log_probability": {
                "old_output": output_log_probability(prompt, unchanged),
                "old_output_now": output_log_probability(prompt, old_output_now),
                "new_output": output_log_probability(new_prompt, new_output),
            },
            "next": next_tokens,
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
            "head_effects_seconds": forward_seconds * len(predictor.heads),
        }

    def head_effects(
        self,
        question: Question,
        cancel: CancelToken = NEVER_CANCELLED,
        progress: OnProgress = silent,
    ) -> dict[str, Any]:
        """The exact change of every predicted token's log-probability when one more head is
        switched off. Above 0: the token is likelier without the head."""
        with self.asking(question, cancel) as (predictor, change, prompt, unchanged):
            values = predictor.effects(prompt, unchanged, change, progress)

        if prompt.predicted_tokens:
            tokens = predictor.token_names([each.token for each in prompt.predicted_tokens])
            in_output = [each.in_output for each in prompt.predicted_tokens]
        else:
            # An embedding model has one column, the similarity to its vector without any gate.
            tokens = ["similarity"]
            in_output = [True]
        return {
            "heads": [str(head) for head in predictor.heads],
            "tokens": tokens,
            "in_output": in_output,
            "values": six_decimals(values),
            "total": six_decimals(values[:, torch.tensor(in_output)].sum(1)),
        }

    def smallest(
        self,
        question: Question,
        cancel: CancelToken = NEVER_CANCELLED,
        progress: OnProgress = silent,
    ) -> dict[str, Any]:
        """A small set of heads that changes the output when it is switched off, in addition to the
        question's gates.

        Greedy: each step switches off the head that lowers the output's log-probability most. When
        the output has changed, heads are switched on again one by one as long as the output stays
        changed. So every head of the set is needed, but another set may be smaller. old_output: with
        the question's gates. changed: False where the output stays even with all heads off.

        Where `max_steps` heads were switched off and the output has not changed, the answer is
        `unfinished` and the `heads` that are off. A new question continues with them as its
        `continue_from`, so that a notebook can stop between two steps.
        """
        with self.asking(question, cancel) as (predictor, change, prompt, unchanged):
            # Through the same check as gates: names of a message are not trusted.
            already_off = list(predictor.parse_gates(dict.fromkeys(question.continue_from, 0.0)))
            if not prompt.predicted_tokens:
                raise HeadwiseError(
                    "This model writes no output that could change: look at the similarity instead."
                )

            # A language model also predicts the tokens of its text. They are given, so they cannot
            # change; with them, the search would lower their probability instead of the output's.
            in_output = tuple(each for each in prompt.predicted_tokens if each.in_output)
            prompt = replace(prompt, predicted_tokens=in_output)

            def output_without(heads: Sequence[Head]) -> str:
                lowered = change.without(heads)
                encoded = predictor.encoded(prompt, lowered)
                new_prompt = predictor.prompt_with_new_translation(encoded, lowered, question.beam)
                with predictor.changed(lowered):
                    return predictor.predict(new_prompt).text

            off = list(already_off)
            lowered = change.without(off).gates
            # Heads that can still be switched off.
            on = [head for head in predictor.heads if lowered.get(head, 1.0) > 0]

            def show_progress(share: float, _: str) -> None:
                progress(share, f"{len(off)} head{'s' * (len(off) != 1)} off, trying the next")

            old_output = output_without([])  # with the question's gates
            new_output = output_without(off)
            while new_output == old_output and on:
                if len(off) - len(already_off) == question.max_steps:
                    return {"unfinished": True, "heads": [str(head) for head in off]}
                effects = predictor.effects(prompt, unchanged, change.without(off), show_progress)
                effect_of_head = dict(zip(predictor.heads, effects.sum(1).tolist(), strict=True))
                # The head without which the output becomes least likely.
                head = min(on, key=effect_of_head.__getitem__)
                on.remove(head)
                off.append(head)
                new_output = output_without(off)

            # Switch on again what the change does not need, one head after the other. Once a head
            # is on again, a head that was needed before it may not be needed now: begin again.
            shrinking = new_output != old_output
            while shrinking and len(off) > 1:
                shrinking = False
                for head in off:
                    others = [other for other in off if other != head]
                    output = output_without(others)
                    if output != old_output:
                        off = others
                        new_output = output
                        shrinking = True
                        break
        return {
            "heads": [str(head) for head in off],
            "changed": new_output != old_output,
            "old_output": old_output,
            "new_output": new_output,
        }


def refuse_other_input(model: Model, recordings: object) -> None:
    """Raise HeadwiseError for a speech model without recordings, and for recordings where the model
    reads text."""
    if model.task.reads_audio and recordings is None:
        raise HeadwiseError(
            f"{model.name} is {model.task.noun}: name recordings with --audio FILE (in Python "
            "audio=FILE), a table of audio and text."
        )
    if recordings is not None and not model.task.reads_audio:
        raise HeadwiseError(
            f"--audio was given, but {model.name} is {model.task.noun}, which needs "
            f"{model.task.needs}."
        )


def indices_in_full_model(model: Model, pruned: Model) -> dict[str, list[list[int]]]:
    """By kind and layer: for each head of the pruned model, its number in the full model. Raises
    HeadwiseError where the pruned model was not made from the full one."""
    kept = pruned.layout
    if kept is None or kept.heads.query != model.heads.query:
        raise HeadwiseError(
            f"{pruned.name} was not pruned from {model.name}, so they cannot be compared. "
            "Open the run's model/ folder instead."
        )
    full_indices: dict[str, list[list[int]]] = {kind: [] for kind in model.heads.kinds}
    for site in model.heads.sites:
        # The layout of the pruned model lists, by layer, the numbers of the heads it kept.
        full_indices[site.kind].append(kept.of(site))
    return full_indices


def output_log_probability(prompt: Prompt, prediction: Prediction) -> float:
    """The log-probability of a prompt's output, in nats: the sum over its tokens."""
    total = 0.0
    values = prediction.log_probabilities.tolist()
    for predicted, value in zip(prompt.predicted_tokens, values, strict=True):
        if predicted.in_output:
            total += value
    return total


def word_changes(before: str, after: str) -> list[tuple[str, str]]:
    """What changed from one output to another, in order: `same`, `removed` and `added` pieces of
    words and marks."""
    first = re.findall(r"\s+|\w+|[^\w\s]", before)
    second = re.findall(r"\s+|\w+|[^\w\s]", after)
    pieces = []
    # autojunk would ignore the spaces of long texts, because they are frequent.
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


def json_text(content: Any) -> str:
    """A line of JSON. Raises HeadwiseError for a number that is not finite, which JSON has not."""
    try:
        return json.dumps(content, allow_nan=False, ensure_ascii=False)
    except ValueError:
        raise HeadwiseError(
            "The model computed a number that is not finite (NaN or infinity): its weights may be "
            "damaged, or too large for their type; try another sentence or other heads."
        ) from None


def base64_floats(weights: Tensor) -> str:
    """Numbers as base64 of little-endian float32, in the order of memory."""
    return base64.b64encode(weights.contiguous().numpy().astype("<f4").tobytes()).decode()


def six_decimals(values: Tensor) -> Any:
    """Nested lists of six decimals: enough for a page, and a third of the text."""
    return np.round(values.numpy().astype(float), 6).tolist()
