"""Scoring every head of a model by many measures: which function makes which, the text as a stream, the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import pandas as pd
import torch
from accelerate import PartialState

from headwise.attention import masked
from headwise.data.text import ParallelText, Text
from headwise.errors import HeadwiseError
from headwise.heads import Head, HeadMask
from headwise.importance.ablation import ABLATIONS, ablate, removal_losses
from headwise.importance.curves import CURVES, area_rows, curve_rows, removal_curves
from headwise.importance.dormancy import relative
from headwise.importance.gating import GATINGS, gate_heads
from headwise.importance.gradient import GRADIENTS, gradients, unit
from headwise.importance.judge import FAITHFULNESS, agreement, exceptions, head_values
from headwise.importance.lrp.relevance import relevance
from headwise.importance.lrp.rules import RULES
from headwise.importance.objective import IGNORED
from headwise.importance.reading import READINGS, read
from headwise.importance.tally import Tally
from headwise.model import Model
from headwise.study.stage import surroundings
from headwise.translation.batches import Encoded, batches
from headwise.translation.language import Lines

DEFAULTS = {"lrp": "lrp.ding", "ablation": "ablation.zero"}
LRP = [f"lrp.{rule}{ending}" for rule in RULES for ending in ("", ".pooled")]
MEASURES = (*READINGS, *LRP, *GRADIENTS, *ABLATIONS, *GATINGS)
SCALES = {"gradient.normalised": unit, "dormancy": relative}
LOW_IS_IMPORTANT = ("entropy",)
BATCHWISE = "gradient.batch"  # has no sentences that could be parted into two halves
RESCORED = ("gradient", "confidence")  # quick enough to be measured anew at every step of their removal curves
USUAL = ("confidence", "lrp.ding", "gradient", "ablation.zero")
LRP_COLUMNS = ("measure", "mode", "what", "value", "low", "high")


class Stream:
    """The batches of a text for a model, as often as wanted; of several processes, each gets every n-th batch."""

    def __init__(self, model: Model, text: ParallelText | Text) -> None:
        self.model, self.text = model, text
        config: Any = model.hf.config
        if model.tokenizer is None:
            raise HeadwiseError(f"{model.name} has no tokenizer beside its weights: save one there.")
        if config.is_encoder_decoder != isinstance(text, ParallelText):
            needed = "parallel text (source and target)" if config.is_encoder_decoder else "one-sided text (--text)"
            raise HeadwiseError(f"{model.name} is a {type(model.hf).__name__}, which is scored on {needed}.")
        self.data: Encoded | Lines
        if isinstance(text, ParallelText):
            self.data = Encoded(text, model.tokenizer, longest(model))
        else:
            causal = "decoder-self" in model.heads.kinds
            self.data = Lines(text.lines, model.tokenizer, longest(model), causal)

    @property
    def dropped(self) -> int:
        return self.data.dropped

    def __iter__(self) -> Iterator[dict[str, Any]]:
        state = PartialState()
        return islice(self.whole(), state.process_index, None, state.num_processes)

    def whole(self) -> Iterator[dict[str, Any]]:
        if isinstance(self.data, Lines):
            return self.data.batches()
        return batches(self.data, self.model.tokenizer, self.model.hf.config.decoder_start_token_id)


class Half:
    """Every other sentence of a stream, counted as tallies count them: the even ones (0) or the odd ones (1)."""

    def __init__(self, stream: Stream, which: int) -> None:
        self.stream, self.which = stream, which

    def __iter__(self) -> Iterator[dict[str, Any]]:
        state = PartialState()
        return islice(self.whole(), state.process_index, None, state.num_processes)

    def whole(self) -> Iterator[dict[str, Any]]:
        start = 0
        for batch in self.stream.whole():
            size = len(batch["labels"])
            mine = (torch.arange(start, start + size) % 2 == self.which) & (batch["labels"] != IGNORED).any(1)
            start += size
            if bool(mine.any()):
                yield {name: tensor[mine] for name, tensor in batch.items()}


def longest(model: Model) -> int:
    """The longest sentence, in tokens, that a model is given."""
    config: Any = model.hf.config
    generation: Any = getattr(model.hf, "generation_config", None)
    limit = int(getattr(generation, "max_length", None) or 512) if config.is_encoder_decoder else 512
    return min(limit, getattr(config, "max_position_embeddings", 512))


def chosen(measures: Iterable[str]) -> list[str]:
    """Measures by their full names: a bare family stands for its default, `all` for everything."""
    names = [full for name in measures for full in (MEASURES if name == "all" else (DEFAULTS.get(name, name),))]
    for name in names:
        if name not in MEASURES:
            raise HeadwiseError(
                f"The measure '{name}' was asked for; there is {', '.join(MEASURES)}, lrp, ablation, all."
            )
    return list(dict.fromkeys(names))


@dataclass
class Made:
    """What a job gave: tallies by measure, rows of measures that have none, the balance of a relevance run."""

    tallies: Mapping[str, Tally] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    balance: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """Measures that come from the same passes over a text, and the function that makes them."""

    label: str
    measures: tuple[str, ...]
    make: Callable[[], Made]


def jobs(model: Model, stream: Stream | Half, measures: Iterable[str], seed: int = 0) -> list[Job]:
    """The jobs that make some measures. Relevance rules give both readings: the other one comes beside it."""
    wanted, hf, found = chosen(measures), model.hf, model.found
    special = {i for i in model.tokenizer.all_special_ids if i != model.tokenizer.unk_token_id}
    families: dict[str, tuple[Sequence[str], Callable[[list[Any]], Made]]] = {
        "readings": (READINGS, lambda names: Made(read(hf, found, stream, special, names))),
        "gradients": (GRADIENTS, lambda names: Made(picked(gradients(hf, found, stream), names))),
        **{name: ((name,), lambda names: by_relevance(model, stream, names[0])) for name in LRP},
        "ablation": (tuple(ABLATIONS), lambda names: Made(ablate(hf, found, stream, names))),
        "gating": (GATINGS, lambda names: Made(rows=gated(model, stream, names, seed))),
    }
    made = []
    for label, (offered, make) in families.items():
        if names := [name for name in offered if name in wanted]:
            made.append(Job(label, tuple(names), partial(make, names)))
    return made


def picked(tallies: Mapping[str, Tally], names: Iterable[str]) -> dict[str, Tally]:
    return {name: tallies[name] for name in names}


def by_relevance(model: Model, stream: Stream | Half, name: str) -> Made:
    """One relevance rule in one mode: `lrp.RULE` is per step, `lrp.RULE.pooled` is pooled."""
    rule, _, pooled = name.removeprefix("lrp.").partition(".")
    found = relevance(model.hf, model.found, stream, RULES[rule], "pooled" if pooled else "per-step")
    return Made(found.tallies, balance=found.balance)


def gated(model: Model, stream: Stream | Half, names: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """Causal head gating; every process runs it on the whole text."""
    rows = gate_heads(model.hf, model.found, stream.whole(), seeds=(seed,))
    return [row for row in rows if row["measure"] in names]


def signed(model: Model, stream: Stream, measures: Sequence[str], seed: int) -> dict[str, Any]:
    """How the scores were made: what a table of them carries along."""
    made: dict[str, Any] = {
        "model": model.name, "heads": model.heads.to_json(), "text": stream.text.fingerprint,
        "sentences": len(stream.text) - stream.dropped, "dropped": stream.dropped, "measures": list(measures),
        "exclude": "keyquery", "mode": "evaluation (no dropout)", "dtype": str(model.hf.dtype).removeprefix("torch."),
    }  # fmt: skip
    if model.hf.dtype in (torch.float16, torch.bfloat16):
        made["relevance"] = "float32"
    return {**made, "seed": seed, **surroundings()}


def balance_table(balances: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Where relevance went, as shares of what was started: rows of LRP_COLUMNS."""
    rows = [
        (name.removesuffix(".pooled"), "pooled" if name.endswith(".pooled") else "per-step", what, value, None, None)
        for name, shares in balances.items()
        for what, value in {"started": 1.0, **shares}.items()
    ]
    return pd.DataFrame(rows, columns=list(LRP_COLUMNS))


def balance_line(name: str, balance: Mapping[str, float]) -> str:
    """The conservation residual of a relevance run, in a line."""
    absorbed = ", ".join(f"{what} {value:+.3f}" for what, value in balance.items() if what != "arrived")
    return f"  {name}: of relevance 1, {balance.get('arrived', 0.0):.3f} arrived at the embeddings; taken by {absorbed}"


@dataclass(frozen=True)
class Verdict:
    """The judge's tables: faithfulness.csv and curves.csv."""

    faithfulness: pd.DataFrame
    curves: pd.DataFrame


def told(name: str) -> str:
    """How the judge is told of a measure: with a minus where low values mean important."""
    return f"-{name}" if name in LOW_IS_IMPORTANT else name


def again(model: Model, stream: Stream, name: str, mask: HeadMask) -> dict[Head, float]:
    """A measure's values on the even sentences when only the heads of a mask are left."""
    with masked(model.hf, model.found, mask):
        (job,) = jobs(model, Half(stream, 0), [name])
        return head_values(job.make().tallies[name].gather())


def judge(model: Model, stream: Stream, tallies: Mapping[str, Tally], orders: int, seed: int = 0) -> Verdict:
    """Which score to believe: scores of the even sentences, held against exact ablation of the odd ones.

    Raises HeadwiseError when `ablation.zero`, the truth, is not among the tallies.
    """
    if "ablation.zero" not in tallies:
        raise HeadwiseError("Scores are judged by ablation.zero, which is not among the measures: add it.")
    sides = [
        {told(name): tally.half(which) for name, tally in tallies.items() if name != BATCHWISE} for which in (0, 1)
    ]
    scores, truth = sides[0], sides[1]["ablation.zero"]
    rows = agreement(scores, truth, seed)
    values = {name: head_values(tally) for name, tally in scores.items() if tally.heads.query == model.heads.query}
    lose = partial(removal_losses, model.hf, model.found, Half(stream, 1))
    rescore = {name: partial(again, model, stream, name) for name in RESCORED if name in values}
    curves = removal_curves(model.heads, values, lose, rescore, range(orders))
    rows += area_rows(curves, seed)
    for name in (name for name in values if name in LRP and "confidence" in values):
        rows += exceptions(values[name], values["confidence"], names=(name, "confidence")).rows
    return Verdict(
        pd.DataFrame(rows, columns=list(FAITHFULNESS)), pd.DataFrame(curve_rows(curves, seed), columns=list(CURVES))
    )
