"""Word alignments read from cross attention, against reference links of sentence pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from headwise.attention import AttentionCall
from headwise.data.annotated import Annotated
from headwise.data.subwords import Coverage
from headwise.errors import HeadwiseError
from headwise.roles.alignment import Gold, aligned_pairs, links, merged, refuse_other_pairs
from headwise.roles.alignment_heads import Counts, Trial, Trials
from headwise.roles.observe import half_of
from headwise.roles.passage import Passage, View
from headwise.roles.passes import Subject, pair_batches
from headwise.roles.question import REACH, same_way


def pair_trials(
    subject: Subject, text: Sequence[tuple[str, str]], gold: Sequence[Gold] | None
) -> Trials:
    """Trials on sentence pairs, with reference links or, without any, with those of eflomal."""
    read, written = (subject.coverage.setdefault(name, Coverage()) for name in ("source", "target"))
    if gold is None:
        pairs = aligned_pairs(text, subject.tokenizer, subject.limit, read, written)
        reference = {name: (both, both) for name, both in links(pairs).items()}
    else:
        refuse_other_pairs(text, gold)
        pairs = aligned_pairs(
            text, subject.tokenizer, subject.limit, read, written, words=Annotated.plain
        )
        reference = {pair[0].sentence.id: merged(pair, text, gold) for pair in pairs}
    if not pairs:
        raise HeadwiseError(
            f"No sentence pair can be used: none has at most {subject.limit} subwords on both sides."
        )

    def trials(half: int) -> Iterator[Trial]:
        for batch in pair_batches(
            subject, [pair for pair in pairs if half_of(pair[0].sentence) == half]
        ):
            target, source = batch.sides["cross"]
            yield trial(batch.inputs, target, source, reference)

    return trials


def trial(
    inputs: dict[str, Tensor], target: Passage, source: Passage, reference: Mapping[str, Gold]
) -> Trial:
    """A batch of sentence pairs.

    A target word is aligned with the source word to which the positions that write it attend most, A. With the sure
    links S and the possible ones P ⊇ S, alignment.error = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|), the alignment error
    rate of Och & Ney (2003), and alignment = the share of target words with a possible link whose link in A is one.
    Rules: the diagonal, shifted by a fixed number of words. A link outside the sentence is wrong.
    """
    shape = (len(target.ids), target.subwords.shape[1], source.subwords.shape[1] + 1)
    numbered = list(enumerate(reference[sentence.id] for sentence in target.sentences))
    sure, possible = (
        marked(
            [(number, written, read) for number, gold in numbered for read, written in gold[which]],
            shape,
        )
        for which in (0, 1)
    )
    there = target.subwords > 0
    sure, possible = (matrix.to(there.device) & there[:, :, None] for matrix in (sure, possible))
    linked, length = possible.any(-1), there.sum(1) + sure.sum((1, 2))

    def judged(answers: Tensor) -> Counts:
        at = answers[..., None]
        hits = [
            matrix[:, None].expand(-1, answers.shape[1], -1, -1).gather(3, at)[..., 0]
            & there[:, None]
            for matrix in (sure, possible)
        ]
        right = hits[0].sum(-1) + hits[1].sum(-1)
        asked = length[:, None].expand_as(right)
        words = linked.sum(-1)[:, None].expand_as(right)
        return {
            "alignment.error": (asked - right, asked),
            "alignment": ((hits[1] & linked[:, None]).sum(-1), words),
        }

    return Trial(
        inputs,
        partial(between, target, source),
        partial(pointed, source),
        diagonals(target, source),
        judged,
    )


def marked(places: Sequence[tuple[int, int, int]], shape: tuple[int, int, int]) -> Tensor:
    """Booleans, true at some places."""
    out = torch.zeros(shape, dtype=torch.bool)
    out[torch.tensor(places, dtype=torch.long).view(-1, 3).unbind(1)] = True
    return out


def between(target: Passage, source: Passage, call: AttentionCall) -> Tensor:
    """Attention from target words to source words: B H W V."""
    assert call.weights is not None
    return View(call.weights, target, source).between


def pointed(source: Passage, maps: Tensor) -> Tensor:
    """The source word that each target word attends to most: B C W."""
    return maps.masked_fill((source.subwords == 0)[:, None, None], -1).argmax(-1)


def diagonals(target: Passage, source: Passage) -> Tensor:
    """The source words on the diagonal, shifted by −REACH … REACH words: B R W; the number of words where outside."""
    rows, words = target.subwords.shape
    sentence, query = torch.ones_like(target.subwords).nonzero().unbind(1)
    place = same_way(sentence, query, target, source).view(rows, 1, words)
    shifts = torch.arange(-REACH, REACH + 1, device=place.device)[:, None]
    outside = source.subwords.shape[1]
    found = place + shifts
    return torch.where((found >= 0) & (found < outside), found, outside)
