"""What the lab computes for one sentence: the model's output with some heads turned down, and every head's attention.

Every kind of model is asked about predicted tokens: those of its own translation, the next token of a text, or a hidden
one. Their log-probabilities (nats) before and after a change are the numbers of the lab.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from headwise.attention import AttentionCall, evaluating
from headwise.attention.discover import output_of
from headwise.errors import HeadwiseError
from headwise.heads import Head, Site, describe
from headwise.importance.objective import predicts
from headwise.lab.answers import compared, packed, rounded
from headwise.lab.changes import Ablation, Check, Means, turned_down
from headwise.lab.sentence import Sentence, read, sentence_of
from headwise.model import Model
from headwise.options import Search
from headwise.progress import Report, silent
from headwise.translation.decode import decode, longest

Task = Literal["translation", "causal", "masked", "embedding"]
MOST = 128  # tokens of a sentence
LIKELY = 8  # most likely tokens that are shown
LOGITS, POSITIONS = 1 << 26, 1 << 13  # numbers and positions of a forward with many rows
KNOWN = 64  # sentences whose full output is kept


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


def refuse_nobody() -> None:
    """The work is always wanted."""


class Bench:
    """A model and the questions about one sentence. One question at a time: the model's layers carry the hooks."""

    def __init__(self, model: Model, most: int = MOST) -> None:
        if model.tokenizer is None:
            raise HeadwiseError(f"{model.name} has no tokenizer, so no sentence can be typed: put one into its folder.")
        hf: Any = model.hf
        if getattr(hf, "main_input_name", "input_ids") != "input_ids":
            raise HeadwiseError(f"{model.name} is a {type(hf).__name__}, which reads no text: give a model of text.")
        self.model, self.hf, self.tokenizer = model, hf, model.tokenizer
        self.most = min(most, longest(hf))
        self.heads = list(model.heads)
        self.known: OrderedDict[tuple[Any, ...], Base] = OrderedDict()

    @property
    def task(self) -> Task:
        """What the model does: the lab shows its output accordingly."""
        if self.hf.config.is_encoder_decoder and self.hf.can_generate():
            return "translation"
        if not predicts(self.hf):
            return "embedding"
        return "causal" if "decoder-self" in self.model.heads.kinds else "masked"

    def gates(self, given: Mapping[str, float]) -> Tensor:
        """The gates of all heads in the order of the map, 1 where none is given. Raises HeadwiseError for strangers."""
        gates = torch.ones(len(self.heads))
        places = {head: place for place, head in enumerate(self.heads)}
        for name, value in given.items():
            head = Head.parse(name)
            if head not in places:
                raise HeadwiseError(
                    f"{name} was to be changed, but this model has no such head ({describe(self.model.heads)})."
                )
            if not 0 <= value <= 1:
                raise HeadwiseError(f"{name} was to be turned to {value}: give a number from 0 (off) to 1 (on).")
            gates[places[head]] = value
        return gates

    def look(
        self, text: str, gates: Mapping[str, float] | None = None, ablation: Ablation = "zero", beam: int = 5,
        place: int | None = None, check: Check = refuse_nobody,
    ) -> dict[str, Any]:  # fmt: skip
        """The output before and after a change, what it costs, and every head's attention after it.

        gates: by head, from 0 (off) to 1. place: of the token that is hidden (masked models), or after which the next
        one is predicted (language models). Attention maps are float32, H Q K, in base64.
        """
        began, vector = time.perf_counter(), self.gates(gates or {})
        with evaluating(self.hf), torch.no_grad():
            base = self.base(text, beam, place, check)
            maps: dict[Site, Tensor] = {}
            target = base.target.ids if base.target else None
            if base.target and bool((vector != 1).any()):
                with turned_down(self.model, vector, ablation, means_for(base, ablation), check):
                    target = self.translated(base.inputs, beam)
            same = base.target is None or target == base.target.ids
            with turned_down(self.model, vector, ablation, means_for(base, ablation), check, keep(maps)):
                heard = self.asked(base)
                out = base if same else self.with_translation(base, target or [])
                new = heard if same else self.asked(out)
        was, after = base.heard, heard.likeliest or out.text
        return {
            "task": self.task,
            "source": base.source.to_json(),
            "target": out.target.to_json() if out.target else None,
            "before": base.text,
            "after": after,
            "changes": compared(base.text, after),
            "columns": [
                {"token": token, "place": c.place, "counted": c.counted, "before": old, "after": now}
                for c, token, old, now in zip(
                    base.columns, self.names(base), was.logs.tolist(), heard.logs.tolist(), strict=False
                )
            ],
            "log_probability": {
                "before": total(base.columns, was.logs), "after": total(base.columns, heard.logs),
                "new": total(out.columns, new.logs),
            },
            "next": None if was.next is None or heard.next is None else self.likely(was.next, heard.next),
            "place": base.place,
            "maps": [
                {"kind": site.kind, "layer": site.layer, "shape": list(each.shape), "data": packed(each)}
                for site, each in maps.items()
            ],
            "similarity": None
            if was.vectors is None or heard.vectors is None
            else similar(was.vectors, heard.vectors).item(),
            "seconds": time.perf_counter() - began,
        }  # fmt: skip

    def ablate(
        self, text: str, gates: Mapping[str, float] | None = None, ablation: Ablation = "zero", beam: int = 5,
        place: int | None = None, check: Check = refuse_nobody, progress: Report = silent,
    ) -> dict[str, Any]:  # fmt: skip
        """The change of the log-probability of every predicted token when one more head is switched off: exactly, all
        heads as rows of one batch. Above 0: the token becomes likelier without the head."""
        began = time.perf_counter()
        with evaluating(self.hf), torch.no_grad():
            base = self.base(text, beam, place, check)
            values = self.without_each(base, self.gates(gates or {}), ablation, check, progress)
        counted = [c.counted for c in base.columns] or [True]
        return {
            "heads": [str(head) for head in self.heads],
            "tokens": self.names(base),
            "counted": counted,
            "values": rounded(values),
            "total": rounded(values[:, torch.tensor(counted)].sum(1)),
            "seconds": time.perf_counter() - began,
        }

    def base(self, text: str, beam: int, place: int | None, check: Check) -> Base:
        """What the full model makes of a sentence; kept, so that the next change does not compute it again."""
        key = (text, beam if self.task == "translation" else 0, place)
        if key not in self.known:
            ones, means = torch.ones(len(self.heads)), dict[Site, Tensor]()

            def note(call: AttentionCall) -> None:
                means[call.site] = call.output[0].float().mean(0)

            with turned_down(self.model, ones, "zero", {}, check):
                base = self.prepared(text, beam, place)
            with turned_down(self.model, ones, "zero", {}, check, note):
                heard = self.asked(base)
            self.known[key] = replace(base, heard=heard, text=base.text or heard.likeliest, means=means)
            while len(self.known) > KNOWN:
                self.known.popitem(last=False)
        self.known.move_to_end(key)
        return self.known[key]

    def prepared(self, text: str, beam: int, place: int | None) -> Base:
        """A sentence as tensors, with the tokens that the model is asked about."""
        source = read(self.tokenizer, text, self.most)
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
        known = [(at, number) for at, number in enumerate(source.ids[1:])] if self.task == "causal" else []
        columns = [Column(at, number, False) for at, number in known]
        places = [at for at, number in enumerate(source.ids) if number == self.tokenizer.mask_token_id]
        columns += [Column(at, best[at], True) for at in (places if self.task == "masked" else [place])]
        return replace(empty, inputs=inputs, source=source, columns=tuple(columns), place=place)

    def hidden(self, source: Sentence, place: int | None) -> tuple[Sentence, int]:
        """The sentence with a token replaced by the mask token, if it has none yet: at a place, or in the middle."""
        mask, special = self.tokenizer.mask_token_id, set(self.tokenizer.all_special_ids)
        if mask is None:
            raise HeadwiseError("This model's tokenizer has no mask token, so nothing can be asked of it.")
        if mask in source.ids:
            masks = [at for at, number in enumerate(source.ids) if number == mask]
            return source, place if place in masks else masks[0]
        free = [at for at, number in enumerate(source.ids) if number not in special] or [0]
        at = place if place in free else free[len(free) // 2]
        ids = [mask if here == at else number for here, number in enumerate(source.ids)]
        return replace(sentence_of(self.tokenizer, ids, source.note), words=source.words), at

    def translated(self, inputs: Mapping[str, Tensor], beam: int) -> list[int]:
        """The ids of a translation, from the start token to the end of the sentence."""
        source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        written: list[int] = decode(self.hf, self.tokenizer, source, Search(beam=beam))[0].tolist()
        return written

    def with_translation(self, base: Base, target: Sequence[int]) -> Base:
        """The sentence with a translation: its tokens are what the model is asked about."""
        words = sentence_of(self.tokenizer, target)
        inputs = {**base.inputs, "decoder_input_ids": torch.tensor([target[:-1] or target], device=self.hf.device)}
        columns = tuple(Column(place, number, True) for place, number in enumerate(target[1:]))
        text = str(self.tokenizer.decode(target, skip_special_tokens=True)).strip()
        return replace(base, inputs=inputs, target=words, columns=columns, text=text)

    def asked(self, base: Base) -> Heard:
        """One forward."""
        if self.task == "embedding":
            return Heard(torch.empty(0), vectors=output_of(self.hf.base_model, base.inputs)[0][0].float().cpu())
        logs = output_of(self.hf, base.inputs).logits[0].float().log_softmax(-1).cpu()
        places, tokens = [c.place for c in base.columns], [c.token for c in base.columns]
        if base.target:
            return Heard(logs[places, tokens])
        best = [int(logs[c.place].argmax()) for c in base.columns if c.counted]
        return Heard(logs[places, tokens], logs[base.place], " ".join(sentence_of(self.tokenizer, best).tokens))

    def without_each(self, base: Base, gates: Tensor, ablation: Ablation, check: Check, progress: Report) -> Tensor:
        """The change of the columns' log-probabilities with each head off, heads x columns; of an embedding model one
        column, the change of the similarity to the full model."""
        means = means_for(base, ablation)
        rows = gates.repeat(len(self.heads) + 1, 1)
        rows[1:].fill_diagonal_(0)
        size = base.inputs["input_ids"].shape[1] + (base.inputs["decoder_input_ids"].shape[1] if base.target else 0)
        words = self.hf.config.get_text_config().vocab_size if self.task != "embedding" else 1
        many = max(1, min(POSITIONS // size, LOGITS // (size * words)))
        found = []
        for start in range(0, len(rows), many):
            part = rows[start : start + many]
            inputs = {name: tensor.expand(len(part), -1) for name, tensor in base.inputs.items()}
            with turned_down(self.model, part, ablation, means, check):
                found.append(self.of_rows(base, inputs))
            progress(
                min(1.0, (start + many) / len(rows)), f"{min(start + many, len(rows)) - 1} of {len(rows) - 1} heads"
            )
        values = torch.cat(found)
        return values[1:] - values[0]

    def of_rows(self, base: Base, inputs: Mapping[str, Tensor]) -> Tensor:
        """The columns' log-probabilities in every row of a batch of copies, B C."""
        if base.heard.vectors is not None:
            vectors = output_of(self.hf.base_model, inputs)[0].float().cpu()
            return similar(base.heard.vectors, vectors)[:, None]
        logits = output_of(self.hf, inputs).logits
        places = torch.tensor([c.place for c in base.columns], device=logits.device)
        tokens = torch.tensor([c.token for c in base.columns], device=logits.device)
        some: Tensor = logits[:, places].float().log_softmax(-1)
        return some.gather(-1, tokens.expand(len(some), -1)[..., None])[..., 0].cpu()

    def written(self, base: Base, gates: Tensor, ablation: Ablation, beam: int, check: Check) -> str:
        """The output as text: a translation, or the likeliest tokens at the asked places."""
        with turned_down(self.model, gates, ablation, means_for(base, ablation), check):
            return (
                self.with_translation(base, self.translated(base.inputs, beam)).text
                if base.target
                else self.asked(base).likeliest
            )

    def names(self, base: Base) -> list[str]:
        """The texts of the columns' tokens."""
        if self.task == "embedding":
            return ["similarity"]
        return sentence_of(self.tokenizer, [c.token for c in base.columns]).tokens

    def likely(self, before: Tensor, after: Tensor) -> list[dict[str, Any]]:
        """The tokens that are likeliest before or after, with both probabilities."""
        best = dict.fromkeys([*before.topk(LIKELY).indices.tolist(), *after.topk(LIKELY).indices.tolist()])
        tokens = sentence_of(self.tokenizer, list(best)).tokens
        return [
            {"token": token, "before": math.exp(before[number]), "after": math.exp(after[number])}
            for token, number in zip(tokens, best, strict=True)
        ]


def means_for(base: Base, ablation: Ablation) -> Means:
    """What stands in for heads: their mean outputs over the tokens of the sentence in the full model, or nothing."""
    return base.means if ablation == "mean" else {}


def keep(maps: dict[Site, Tensor]) -> Any:
    """A watcher that keeps the attention weights of a sentence, H Q K by site."""

    def note(call: AttentionCall) -> None:
        assert call.weights is not None
        maps[call.site] = call.weights[0].float().cpu()

    return note


def similar(one: Tensor, other: Tensor) -> Tensor:
    """The cosine of sentences' mean vectors, S M or B S M each."""
    return torch.cosine_similarity(one.mean(-2), other.mean(-2), dim=-1)


def total(columns: Sequence[Column], logs: Tensor) -> float:
    """The log-probability of the output."""
    return sum(float(value) for c, value in zip(columns, logs.tolist(), strict=True) if c.counted)
