"""Alignment heads: which heads say what a target word, or a spoken word, belongs to.

Translated text: a target word is aligned with the source word that the positions writing it attend to most. A language
model has source and translation in one prompt; its attention is read at the position that writes a token, as
CTranslate2's `return_attention` does.

Spoken text: when words are spoken, read from a Whisper model's cross attention, against reference times. Heads are read
as their users read them (OpenAI's whisper/timing.py, transformers' `return_timestamps="word"`, CTranslate2's `align`):
attention of the position that predicts each token, normalised over the tokens, smoothed by a median filter over time,
averaged over heads, and aligned with time by dynamic time warping. A word starts where the path reaches the position
that predicts its first token. That position reads the token before, of which transformers stores the end.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, Kind
from headwise.core.options import SEED
from headwise.core.progress import OnProgress, silent
from headwise.core.result import Result, ends
from headwise.core.tables import ALIGNMENT, ALIGNMENT_SETS
from headwise.data.store import AnyText
from headwise.data.text import ParallelText, Text
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.offload import device_of
from headwise.models.environment import signature_of
from headwise.models.forecast import Forecast, model_line, text_line, text_seconds
from headwise.models.generators import check_seed
from headwise.models.loading import AnyModel, as_model
from headwise.models.model import Model
from headwise.models.tasks import Given
from headwise.roles.alignment import (
    LINKS,
    AlignedPair,
    Gold,
    LinkedText,
    PromptTemplate,
    WordLinks,
    drawn_links,
    links_of,
    need_eflomal,
    pairs_for,
)
from headwise.roles.halves import Half
from headwise.roles.head_sets import AlignmentBatch, AlignmentBatches, choose_heads
from headwise.roles.observation import (
    PassageBatch,
    Subject,
    batched,
    halves_of_pairs,
    of_half,
    pair_batches,
    passage_inputs,
    subject_of,
    subword_pairs,
)
from headwise.roles.passage import Passage, View, moved
from headwise.roles.probe import REACH, same_way

ALIGNING: tuple[Kind, ...] = ("cross", "decoder-self")  # by preference
WEIGHTS_COST = 1.2  # forwards that one with all attention weights takes as long as
EXPECTED_ROUNDS = 4  # times that a set grows, as is expected before it is known


@dataclass(repr=False)
class AlignmentHeads(Result):
    """The result of `align`.

    heads: the chosen ones, the best first. measure: the error they were chosen by. table: a row per head and
    measure on the whole text, columns of ALIGNMENT. sets: the error on the half that did not choose, a row for `chosen`,
    `best head`, and `own` where the model names alignment heads already; baseline: the best rule without attention;
    difference, difference_low, difference_high: from `own`, with its paired interval. signature: how they were found.
    links: those that eflomal drew, which are written into LINKS and can be given to another run.
    """

    heads: list[Head]
    measure: str
    table: pd.DataFrame
    sets: pd.DataFrame
    signature: dict[str, Any]
    links: WordLinks | None = None

    FILES = (ALIGNMENT.file, ALIGNMENT_SETS.file, "alignment.json", LINKS)
    TOP = ("set", "measure", "value", "low", "high")

    @property
    def confirmed(self) -> bool:
        """Whether the chosen heads err less than the baseline on the other half: their interval is below it."""
        row = self.sets.iloc[0]
        return bool(row["high"] < row["baseline"])

    @property
    def own(self) -> pd.Series | None:
        """The row of `sets` of the heads that the model names already; None where it names none."""
        of_model = self.sets[self.sets["set"] == "own"]
        return None if of_model.empty else of_model.iloc[0]

    @property
    def better_than_own(self) -> bool:
        """Whether the chosen heads err less on the other half than those that the model names already: the interval of
        the difference is below 0. True where it names none."""
        return self.own is None or bool(self.sets.iloc[0]["difference_high"] < 0)

    def lines(self) -> list[str]:
        """The error of every set, and whether the chosen heads err less than those that the model names."""
        lines = [f"  {self.signature['made']}."] if self.signature.get("made") else []
        for row in self.sets.to_dict("records"):
            interval = f"{row['value']:.3f} {ends(row['low'], row['high'], '.3f')}"
            lines.append(
                f"  {row['set']}: {row['measure']} {interval}, without attention {row['baseline']:.3f}"
            )
            lines.append(f"    {row['heads']}")
        if self.own is None:
            return lines
        chosen = self.sets.iloc[0]
        interval = ends(chosen["difference_low"], chosen["difference_high"], "+.3f")
        lines.append(
            f"  chosen − own: {chosen['difference']:+.3f} {interval}, on the half that did not choose"
        )
        shown = "The chosen heads" if self.better_than_own else "The chosen heads are not shown to"
        lines.append(f"  {shown} err less than those.")
        return lines

    def files(self) -> dict[str, str]:
        """alignment.csv has a row per head and measure; alignment.json names the chosen heads as generation_config.json
        does."""
        table = ALIGNMENT.csv(self.table)
        sets = ALIGNMENT_SETS.csv(self.sets)
        facts = {
            "alignment_heads": [[head.layer, head.head] for head in self.heads],
            "confirmed": self.confirmed,
            "better_than_own": self.better_than_own,
            "signature": self.signature,
        }
        contents = [table, sets, json.dumps(facts, indent=1) + "\n"]
        if self.links is not None:
            contents.append(self.links.written())
        return dict(zip(self.FILES, contents, strict=False))

    @property
    def summary(self) -> str:
        return ", ".join(map(str, self.heads))

    def ranked(self) -> pd.DataFrame:
        """The error of the sets."""
        return self.sets


@dataclass(frozen=True)
class AlignmentData(ABC):
    """What heads are ranked on. name: in results. made: how a part of it was made, where a user did not give all of it.
    links: the file of reference links."""

    name: str
    made: str = field(default="", kw_only=True)
    links: str | None = field(default=None, kw_only=True)

    @abstractmethod
    def batches(
        self, subject: Subject, progress: OnProgress
    ) -> tuple[AlignmentBatches, Sequence[Half], OnProgress]:
        """Batches by half, the half of every sentence or recording, and what their reading reports to."""

    @abstractmethod
    def forecast(self, model: Model, times: float) -> tuple[str, float]:
        """A line about the text, and the seconds in which it is read so many times."""


@dataclass(frozen=True)
class AlignmentPairs(AlignmentData):
    """Sentence pairs, with reference links or those of eflomal. template: how a language model is asked."""

    text: ParallelText | LinkedText
    template: PromptTemplate | None

    def batches(
        self, subject: Subject, progress: OnProgress
    ) -> tuple[AlignmentBatches, Sequence[Half], OnProgress]:
        text = list(self.text)
        gold = self.text.gold if isinstance(self.text, LinkedText) else None
        if gold is None:
            gold = subject.links = drawn_links(text)
        pairs = subword_pairs(subject, text, gold, self.template)
        reference = links_of(pairs, text, gold)
        # Always by seed 0: the seed of `align` draws intervals alone.
        # One half chooses heads, the other confirms them.
        halves = halves_of_pairs(pairs)
        in_prompts = self.template is not None
        passages = prompt_batches if in_prompts else pair_batches
        kind: Kind = "decoder-self" if in_prompts else "cross"

        def batches(half: Half) -> Iterator[AlignmentBatch]:
            for batch in passages(subject, of_half(pairs, halves, half), half):
                target, source = batch.sides[kind]
                yield pair_batch(batch.inputs, target, source, reference)

        return batches, halves, progress

    def forecast(self, model: Model, times: float) -> tuple[str, float]:
        text = self.text
        given: ParallelText | Text = text.text if isinstance(text, LinkedText) else text
        if self.template is not None:
            written = [self.template.written(source, target)[0] for source, target in text]
            given = Text.from_lines(written, text.name)
        batches = model.task.batches(given)
        return text_line(batches), WEIGHTS_COST * times * text_seconds(model, batches)


def align(
    model: AnyModel,
    text: LinkedText | AnyText | Given,
    *,
    prompt: str | None = None,
    one_layer: bool = False,
    seed: int = SEED,
    progress: OnProgress = silent,
) -> AlignmentHeads:
    """Rank heads by how well they align, and choose a set of them: cross heads of an encoder-decoder, or those of a
    language model that translates.

    text: sentence pairs (a `LinkedText` has their reference links; for others eflomal draws them), or one side, whose
    targets a translation model writes itself; for Whisper speech with word times. prompt: for a language model, how it
    is asked, such as "{source} => {target}". one_layer: only heads of one layer, as CTranslate2 and Marian average
    them. seed: of the resamples that intervals are made of, and of nothing else: the halves and the heads are the same
    for every seed, and eflomal has none. Heads are chosen on one half of the text, and confirmed and compared with
    `model.alignment_heads` on the other. To keep them in a model, where `found.confirmed` and `found.better_than_own`:
    `model.alignment_heads = found.heads`, then `model.save(folder)`. Raises HeadwiseError for a model that cannot align,
    and for other text.
    """
    check_seed(seed)
    model = as_model(model)
    data = alignment_data(model, text, prompt)
    subject = subject_of(model)
    batches, halves, reading = data.batches(subject, progress)
    found = choose_heads(
        model.hf,
        model.discovery,
        aligning_kind(model),
        reported(batches, halves, reading),
        model.alignment_heads,
        one_layer,
        seed,
    )
    signature = signature_of(
        model,
        text=data.name,
        made=data.made,
        links=data.links,
        prompt=prompt,
        one_layer=one_layer,
        seed=seed,
        coverage={name: asdict(each) for name, each in subject.coverage.items()},
    )
    return AlignmentHeads(*found, signature, subject.links)


def alignment_data(model: Model, text: LinkedText | AnyText, prompt: str | None) -> AlignmentData:
    """What is given to `align`. Raises HeadwiseError for a model that cannot align, for other text than it reads, and for
    a missing prompt or one too many."""
    language_model = aligning_kind(model) == "decoder-self"
    if language_model and prompt is None:
        raise HeadwiseError(
            f"{model.name} is a language model: say how it is asked to translate, such as "
            "--prompt 'Translate to German: {source} => {target}'."
        )
    if not language_model and prompt is not None:
        raise HeadwiseError(
            f"A prompt was given, but {model.name} is a {type(model.hf).__name__}, which reads source and target apart: "
            "leave it out."
        )
    if not isinstance(text, LinkedText):
        text = model.task.text_of(text)
    own = model.task.alignment_data(text)
    if isinstance(own, AlignmentData):
        return own
    if not isinstance(text, ParallelText | Text | LinkedText):
        raise HeadwiseError(
            f"{model.name} is a {type(model.hf).__name__}: alignment heads are found on sentence pairs (two files)."
        )
    model.task.check_tokenizer()
    template = None if prompt is None else PromptTemplate.parse(prompt)
    if not isinstance(text, LinkedText):
        need_eflomal()
    pairs = pairs_for(model, text)
    links = pairs.file if isinstance(pairs, LinkedText) else None
    return AlignmentPairs(pairs.name, pairs, template, made=pairs.made, links=links)


def aligning_kind(model: Model) -> Kind:
    """The kind of attention that alignment is read from. Raises HeadwiseError for a model without any."""
    for kind in ALIGNING:
        if kind in model.heads.kinds:
            return kind
    raise HeadwiseError(
        f"{model.name} is a {type(model.hf).__name__}, which does not translate: give an encoder-decoder or a language "
        "model."
    )


def align_forecast(model: Model, text: LinkedText | AnyText, prompt: str | None = None) -> Forecast:
    """What `align` will take, where the set grows in EXPECTED_ROUNDS rounds. Takes a few seconds itself. Raises
    HeadwiseError for what `align` refuses."""
    times = readings([0, 1], EXPECTED_ROUNDS) / 2  # that a sentence is read, on average
    line, seconds = alignment_data(model, text, prompt).forecast(model, times)
    return Forecast((model_line(model), line), [f"reading it about {times:g} times"], seconds)


def reported(
    batches: AlignmentBatches, halves: Sequence[Half], progress: OnProgress
) -> AlignmentBatches:
    """Batches that report the share that was read of what is expected: the set may stop growing before, or go on.

    halves: that of every sentence or recording.
    """
    done = 0
    times = {0: 0, 1: 0}  # that each half was read, this one included

    def read(half: Half) -> Iterator[AlignmentBatch]:
        nonlocal done
        # Each call reads the half once more; which reading it is says what it is for.
        times[half] += 1
        # One reading of the first half was for single heads; each further one is a round of growth.
        total = readings(halves, max(EXPECTED_ROUNDS, times[0] - 1))
        if times[1] == 2:  # the set is chosen
            total = done + halves.count(1)
        for batch in batches(half):
            yield batch
            done += len(batch.rules)
            progress(min(1.0, done / total), f"{done} of about {total} read")

    return read


def readings(halves: Sequence[Half], rounds: int) -> int:
    """How many sentences or recordings are read where a set grows in so many rounds: the first half for single heads and
    in every round, the second for single heads and to confirm the set."""
    return halves.count(0) * (1 + rounds) + halves.count(1) * 2


def prompt_batches(
    subject: Subject, pairs: Sequence[AlignedPair], half: Half
) -> Iterator[PassageBatch]:
    """Batches of pairs in prompts: target words as queries, at the positions that write them, source words as keys."""
    device = device_of(subject.model)
    for batch in batched(pairs, lambda pair: len(pair[0].ids), subject.positions):
        source, target = (
            Passage.of(side, subject.pad, device) for side in zip(*batch, strict=True)
        )
        # A token is written where the one before it is read.
        target = replace(target, word_of=moved(target.word_of, -1, -1))
        yield PassageBatch(half, passage_inputs(source), {"decoder-self": (target, source)})


def pair_batch(
    inputs: dict[str, Tensor], target: Passage, source: Passage, reference: Mapping[str, Gold]
) -> AlignmentBatch:
    """A batch of sentence pairs.

    A target word is aligned with the source word to which the positions that write it attend most, A. With the sure
    links S and the possible ones P ⊇ S, alignment.error = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|), the alignment error
    rate of Och & Ney (2003), and alignment = the share of target words with a possible link whose link in A is one.
    Rules: the diagonal, shifted by a fixed number of words. A link outside the sentence is wrong.
    """
    sure_links = []
    possible_links = []
    for sentence in target.sentences:
        sure_of, possible_of = reference[sentence.id]
        sure_links.append(sure_of)
        possible_links.append(possible_of)
    # One source word too many: a rule's link outside the sentence is a link to it.
    shape = (len(target.ids), target.subwords.shape[1], source.subwords.shape[1] + 1)
    present = target.subwords > 0
    sure = link_mask(sure_links, shape).to(present.device) & present[:, :, None]
    possible = link_mask(possible_links, shape).to(present.device) & present[:, :, None]
    linked = possible.any(-1)
    # The divisor is the same for every head: |A| is the number of target words.
    size = present.sum(1) + sure.sum((1, 2))  # |A| + |S|

    def hits(links: Tensor, answers: Tensor) -> Tensor:
        """Whether each word's link is among the given ones: answers B C W in and out."""
        links_of_all = links[:, None].expand(-1, answers.shape[1], -1, -1)
        return links_of_all.gather(3, answers[..., None])[..., 0] & present[:, None]

    def counted(answers: Tensor) -> dict[str, Tensor]:
        among_possible = hits(possible, answers)
        right = hits(sure, answers).sum(-1) + among_possible.sum(-1)
        sizes = size[:, None].expand_as(right)
        words = linked.sum(-1)[:, None].expand_as(right)
        aligned = (among_possible & linked[:, None]).sum(-1)
        return {
            "alignment.error": torch.stack([sizes - right, sizes], -1),
            "alignment": torch.stack([aligned, words], -1),
        }

    return AlignmentBatch(
        inputs,
        partial(between, target, source),
        partial(attended_words, source),
        diagonals(target, source),
        counted,
    )


def link_mask(links: Sequence[Iterable[tuple[int, int]]], shape: tuple[int, int, int]) -> Tensor:
    """The links (source word, target word) of B sentences as booleans, B W V."""
    out = torch.zeros(shape, dtype=torch.bool)
    indices = []
    for number, of_sentence in enumerate(links):
        for read, written in of_sentence:
            indices.append((number, written, read))
    out[torch.tensor(indices, dtype=torch.long).view(-1, 3).unbind(1)] = True
    return out


def between(target: Passage, source: Passage, call: AttentionCall) -> Tensor:
    """Attention from target words to source words: B H W V."""
    assert call.weights is not None
    return View(call.weights, target, source).between


def attended_words(source: Passage, maps: Tensor) -> Tensor:
    """The source word that each target word attends to most: B C W."""
    # Below every weight, so that a place without a word never wins.
    return maps.masked_fill((source.subwords == 0)[:, None, None], -1).argmax(-1)


def diagonals(target: Passage, source: Passage) -> Tensor:
    """The source words on the diagonal, shifted by −REACH … REACH words: B R W; the number of words where outside."""
    size, words = target.subwords.shape
    sentence, query = torch.ones_like(target.subwords).nonzero().unbind(1)
    diagonal = same_way(sentence, query, target, source).view(size, 1, words)
    shifts = torch.arange(-REACH, REACH + 1, device=diagonal.device)[:, None]
    shifted = diagonal + shifts
    # The column that `pair_batch` has added: a link to it is wrong.
    outside = source.subwords.shape[1]
    return torch.where((shifted >= 0) & (shifted < outside), shifted, outside)
