"""What a model is asked about a sentence, and what it says: its own translation, the next token of a text, a hidden
token, or a vector.

Log-probabilities (nats) of these tokens are the numbers of the lab.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from headwise.attention import classifies
from headwise.attention.discover import output_of
from headwise.decoding.translator import decode, longest, most_written
from headwise.errors import HeadwiseError
from headwise.lab.changes import Means
from headwise.lab.sentence import Sentence, read, sentence_of
from headwise.lab.trees import Trees, with_tree
from headwise.model import Model
from headwise.options import Search

Task = Literal["translation", "causal", "masked", "embedding"]
MOST = 128  # tokens of a sentence
LIKELY = 8  # most likely tokens that are shown


@contextmanager
def one_thread() -> Iterator[None]:
    """One token of one sentence at a time is too little work for several threads: two take twice as long as one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Column:
    """A predicted token: where its logits are, its id, and whether it is part of the output (a language model's own
    text is shown, too)."""

    place: int
    token: int
    counted: bool


@dataclass(frozen=True)
class Heard:
    """What a forward says: the log-probabilities of the columns, of all tokens at the place that is shown (V), the
    likeliest tokens where the output is, and an embedding model's vectors (S M)."""

    logs: Tensor
    next: Tensor | None = None
    likeliest: str = ""
    vectors: Tensor | None = None


@dataclass(frozen=True)
class Base:
    """A sentence and what the full model makes of it. text: the output. means: the heads' mean outputs, H D by site."""

    inputs: dict[str, Tensor]
    source: Sentence
    target: Sentence | None
    columns: tuple[Column, ...]
    place: int | None
    text: str
    heard: Heard
    means: Means

    @property
    def length(self) -> int:
        """The number of positions whose next, own or hidden token can be asked for."""
        return self.inputs["decoder_input_ids" if self.target else "input_ids"].shape[1]


class Asker:
    """A model, the task that it does, and the trees of sentences that it may be asked about."""

    def __init__(self, model: Model, most: int = MOST, trees: Trees | None = None) -> None:
        if model.tokenizer is None:
            raise HeadwiseError(
                f"{model.name} has no tokenizer, so no sentence can be typed: put one into its folder."
            )
        hf: Any = model.hf
        if getattr(hf, "main_input_name", "input_ids") != "input_ids":
            raise HeadwiseError(
                f"{model.name} is a {type(hf).__name__}, which reads no text: give a model of text."
            )
        if classifies(hf):
            raise HeadwiseError(
                f"{model.name} is a classifier: the lab is for models that write, or that read words."
            )
        self.model, self.hf, self.tokenizer = model, hf, model.tokenizer
        self.most, self.trees = min(most, longest(hf)), trees or {}

    @property
    def task(self) -> Task:
        """What the model does: the lab shows its output accordingly."""
        shown: dict[str, Task] = {"causal-lm": "causal", "masked-lm": "masked"}
        if self.model.task.generates:
            return "translation"
        return shown.get(self.model.task.name, "embedding")

    def prepared(self, text: str, beam: int, place: int | None) -> Base:
        """A sentence as tensors, with the tokens that the model is asked about."""
        source = with_tree(
            self.tokenizer, read(self.tokenizer, text, self.most), self.trees.get(text.strip())
        )
        ids = torch.tensor([source.ids], device=self.hf.device)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        empty = Base(inputs, source, None, (), None, "", Heard(torch.empty(0)), {})
        if self.task == "translation":
            return self.with_translation(empty, self.translated(inputs, beam))
        if self.task == "embedding":
            return empty
        if self.task == "masked":
            source, place = self.hidden(source, place)
            inputs["input_ids"] = torch.tensor([source.ids], device=self.hf.device)
        elif place is None or not 0 <= place < len(source.ids):
            place = len(source.ids) - 1
        best = output_of(self.hf, inputs).logits[0].argmax(-1).tolist()
        known = (
            [(at, number) for at, number in enumerate(source.ids[1:])]
            if self.task == "causal"
            else []
        )
        columns = [Column(at, number, False) for at, number in known]
        places = [
            at for at, number in enumerate(source.ids) if number == self.tokenizer.mask_token_id
        ]
        columns += [
            Column(at, best[at], True) for at in (places if self.task == "masked" else [place])
        ]
        return replace(empty, inputs=inputs, source=source, columns=tuple(columns), place=place)

    def hidden(self, source: Sentence, place: int | None) -> tuple[Sentence, int]:
        """The sentence with a token replaced by the mask token, if it has none yet: at a place, or in the middle."""
        mask, special = self.tokenizer.mask_token_id, set(self.tokenizer.all_special_ids)
        if mask is None:
            raise HeadwiseError(
                "This model's tokenizer has no mask token, so nothing can be asked of it."
            )
        if mask in source.ids:
            masks = [at for at, number in enumerate(source.ids) if number == mask]
            return source, place if place in masks else masks[0]
        free = [at for at, number in enumerate(source.ids) if number not in special] or [0]
        at = place if place in free else free[len(free) // 2]
        ids = [mask if here == at else number for here, number in enumerate(source.ids)]
        hidden = sentence_of(self.tokenizer, ids, source.note)
        return replace(hidden, words=source.words, tree=source.tree), at

    def translated(self, inputs: Mapping[str, Tensor], beam: int) -> list[int]:
        """The ids of a translation, from the start token to the end of the sentence."""
        source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        length = most_written(source["input_ids"].shape[1], longest(self.hf))
        with one_thread():
            written: list[int] = decode(self.hf, self.tokenizer, source, Search(beam=beam), length)[
                0
            ].tolist()
        return written

    def with_translation(self, base: Base, target: Sequence[int]) -> Base:
        """The sentence with a translation: its tokens are what the model is asked about."""
        words = sentence_of(self.tokenizer, target)
        inputs = {
            **base.inputs,
            "decoder_input_ids": torch.tensor([target[:-1] or target], device=self.hf.device),
        }
        columns = tuple(Column(place, number, True) for place, number in enumerate(target[1:]))
        text = str(self.tokenizer.decode(target, skip_special_tokens=True)).strip()
        return replace(base, inputs=inputs, target=words, columns=columns, text=text)

    def heard(self, base: Base) -> Heard:
        """What one forward says."""
        if self.task == "embedding":
            return Heard(
                torch.empty(0),
                vectors=output_of(self.hf.base_model, base.inputs)[0][0].float().cpu(),
            )
        logs = output_of(self.hf, base.inputs).logits[0].float().log_softmax(-1).cpu()
        places, tokens = [c.place for c in base.columns], [c.token for c in base.columns]
        if base.target:
            return Heard(logs[places, tokens])
        best = [int(logs[c.place].argmax()) for c in base.columns if c.counted]
        return Heard(
            logs[places, tokens],
            logs[base.place],
            " ".join(sentence_of(self.tokenizer, best).tokens),
        )

    def logs(self, base: Base, copies: int = 1) -> Tensor:
        """The columns' log-probabilities in every one of some copies of a sentence, B C. Of an embedding model one
        column, the similarity to the full model."""
        inputs = {name: tensor.expand(copies, -1) for name, tensor in base.inputs.items()}
        if base.heard.vectors is not None:
            vectors = output_of(self.hf.base_model, inputs)[0].float().cpu()
            return similar(base.heard.vectors, vectors)[:, None]
        places = torch.tensor([c.place for c in base.columns], device=self.hf.device)
        tokens = torch.tensor([c.token for c in base.columns], device=self.hf.device)
        with logits_at(self.hf, places, (copies, base.length)):
            logits = output_of(self.hf, inputs).logits
        whole = logits.shape[1] == base.length and not torch.equal(
            places, torch.arange(base.length, device=places.device)
        )
        some: Tensor = (logits[:, places] if whole else logits).float().log_softmax(-1)
        return some.gather(-1, tokens.expand(copies, -1)[..., None])[..., 0].cpu()

    def names(self, base: Base) -> list[str]:
        """The texts of the columns' tokens."""
        if self.task == "embedding":
            return ["similarity"]
        return sentence_of(self.tokenizer, [c.token for c in base.columns]).tokens

    def likely(self, before: Tensor, after: Tensor) -> list[dict[str, Any]]:
        """The tokens that are likeliest before or after, with both probabilities."""
        best = dict.fromkeys(
            [*before.topk(LIKELY).indices.tolist(), *after.topk(LIKELY).indices.tolist()]
        )
        tokens = sentence_of(self.tokenizer, list(best)).tokens
        return [
            {"token": token, "before": math.exp(before[number]), "after": math.exp(after[number])}
            for token, number in zip(tokens, best, strict=True)
        ]


@contextmanager
def logits_at(hf: Any, places: Tensor, shape: tuple[int, int]) -> Iterator[None]:
    """A block in which a forward of B T tokens computes the logits of some places only, where they are fewer."""

    def shorten(_: Any, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        fits = given[0].dim() == 3 and given[0].shape[:2] == shape
        return (given[0][:, places], *given[1:]) if fits else None

    hook = (
        hf.get_output_embeddings().register_forward_pre_hook(shorten)
        if len(places) < shape[1]
        else None
    )
    try:
        yield
    finally:
        if hook:
            hook.remove()


def similar(one: Tensor, other: Tensor) -> Tensor:
    """The cosine of sentences' mean vectors, S M or B S M each."""
    return torch.cosine_similarity(one.mean(-2), other.mean(-2), dim=-1)


def total(columns: Sequence[Column], logs: Tensor) -> float:
    """The log-probability of the output."""
    return sum(float(value) for c, value in zip(columns, logs.tolist(), strict=True) if c.counted)
