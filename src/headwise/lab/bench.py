"""What the lab computes for one sentence: the output with some heads turned down, and every head's attention."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headwise.attention import AttentionCall, evaluating
from headwise.errors import HeadwiseError
from headwise.heads import Head, Site, describe
from headwise.lab.answers import compared, packed, rounded
from headwise.lab.asker import MOST, Asker, Base, Task, similar, total
from headwise.lab.changes import Ablation, Check, Means, turned_down
from headwise.lab.effects import without_each
from headwise.lab.trees import Trees
from headwise.model import Model
from headwise.progress import Report, silent

KNOWN = 64  # sentences whose full output is kept


def refuse_nobody() -> None:
    """The work is always wanted."""


class Bench:
    """A model and the questions about one sentence. One question at a time: the model's layers carry the hooks."""

    def __init__(self, model: Model, most: int = MOST, trees: Trees | None = None) -> None:
        self.asker, self.model = Asker(model, most, trees), model
        self.heads = list(model.heads)
        self.known: OrderedDict[tuple[Any, ...], Base] = OrderedDict()

    @property
    def task(self) -> Task:
        """What the model does."""
        return self.asker.task

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
                raise HeadwiseError(
                    f"{name} was to be turned to {value}: give a number from 0 (off) to 1 (on)."
                )
            gates[places[head]] = value
        return gates

    def look(
        self,
        text: str,
        gates: Mapping[str, float] | None = None,
        ablation: Ablation = "zero",
        beam: int = 5,
        place: int | None = None,
        check: Check = refuse_nobody,
    ) -> dict[str, Any]:
        """The output before and after a change, what it costs, and every head's attention after it.

        gates: by head, from 0 (off) to 1. place: of the token that is hidden (masked models), or after which the next
        one is predicted (language models). Attention maps are float32, H Q K, in base64.
        """
        began, vector = time.perf_counter(), self.gates(gates or {})
        with evaluating(self.model.hf), torch.no_grad():
            base = self.base(text, beam, place, check)
            maps: dict[Site, Tensor] = {}
            target = base.target.ids if base.target else None
            if base.target and bool((vector != 1).any()):
                with turned_down(self.model, vector, ablation, means_for(base, ablation), check):
                    target = self.asker.translated(base.inputs, beam)
            same = base.target is None or target == base.target.ids
            with turned_down(
                self.model, vector, ablation, means_for(base, ablation), check, keep(maps)
            ):
                heard = self.asker.heard(base)
                out = base if same else self.asker.with_translation(base, target or [])
                new = heard if same else self.asker.heard(out)
        was, after = base.heard, heard.likeliest or out.text
        return {
            "task": self.task,
            "source": base.source.to_json(),
            "target": out.target.to_json() if out.target else None,
            "before": base.text,
            "after": after,
            "changes": compared(base.text, after),
            "columns": [
                {
                    "token": token,
                    "place": c.place,
                    "counted": c.counted,
                    "before": old,
                    "after": now,
                }
                for c, token, old, now in zip(
                    base.columns,
                    self.asker.names(base),
                    was.logs.tolist(),
                    heard.logs.tolist(),
                    strict=False,
                )
            ],
            "log_probability": {
                "before": total(base.columns, was.logs),
                "after": total(base.columns, heard.logs),
                "new": total(out.columns, new.logs),
            },
            "next": None
            if was.next is None or heard.next is None
            else self.asker.likely(was.next, heard.next),
            "place": base.place,
            "maps": [
                {
                    "kind": site.kind,
                    "layer": site.layer,
                    "shape": list(each.shape),
                    "data": packed(each),
                }
                for site, each in maps.items()
            ],
            "similarity": None
            if was.vectors is None or heard.vectors is None
            else similar(was.vectors, heard.vectors).item(),
            "seconds": time.perf_counter() - began,
        }

    def ablate(
        self,
        text: str,
        gates: Mapping[str, float] | None = None,
        ablation: Ablation = "zero",
        beam: int = 5,
        place: int | None = None,
        check: Check = refuse_nobody,
        progress: Report = silent,
    ) -> dict[str, Any]:
        """The change of the log-probability of every predicted token when one more head is switched off: exactly, all
        heads as rows of one batch. Above 0: the token becomes likelier without the head."""
        began = time.perf_counter()
        with evaluating(self.model.hf), torch.no_grad():
            base = self.base(text, beam, place, check)
            values = self.without_each(base, self.gates(gates or {}), ablation, check, progress)
        counted = [c.counted for c in base.columns] or [True]
        return {
            "heads": [str(head) for head in self.heads],
            "tokens": self.asker.names(base),
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
                base = self.asker.prepared(text, beam, place)
            with turned_down(self.model, ones, "zero", {}, check, note):
                heard = self.asker.heard(base)
            self.known[key] = replace(
                base, heard=heard, text=base.text or heard.likeliest, means=means
            )
            while len(self.known) > KNOWN:
                self.known.popitem(last=False)
        self.known.move_to_end(key)
        return self.known[key]

    def without_each(
        self, base: Base, gates: Tensor, ablation: Ablation, check: Check, progress: Report
    ) -> Tensor:
        """The change of the columns' log-probabilities without each head, heads x columns: see `effects`."""
        return without_each(
            self.asker, base, gates, ablation, means_for(base, ablation), check, progress
        )

    def written(
        self, base: Base, gates: Tensor, ablation: Ablation, beam: int, check: Check
    ) -> str:
        """The output as text: a translation, or the likeliest tokens at the asked places."""
        with turned_down(self.model, gates, ablation, means_for(base, ablation), check):
            return (
                self.asker.with_translation(base, self.asker.translated(base.inputs, beam)).text
                if base.target
                else self.asker.heard(base).likeliest
            )


def means_for(base: Base, ablation: Ablation) -> Means:
    """What stands in for heads: their mean outputs over the tokens of the sentence in the full model, or nothing."""
    return base.means if ablation == "mean" else {}


def keep(maps: dict[Site, Tensor]) -> Any:
    """A watcher that keeps the attention weights of a sentence, H Q K by site."""

    def note(call: AttentionCall) -> None:
        assert call.weights is not None
        maps[call.site] = call.weights[0].float().cpu()

    return note
