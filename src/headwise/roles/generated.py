"""What the texts made from templates share: words that a tokenizer tells apart, and logits on the direct path.

Some roles of language models show only where a text asks for them: a choice between names, a sequence, a needle. Their
texts are English. A word may have several subwords: attention to it is summed over them, and it is predicted by its
first one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.attention import AttentionCall
from headwise.data.annotated import Annotated, Mention
from headwise.data.subwords import Coverage, align_subwords
from headwise.heads import Site
from headwise.roles.passage import Passage
from headwise.roles.probe import Probe


@dataclass(frozen=True)
class Generated:
    """Texts with a test. Even texts belong to the first half, odd ones to the second."""

    name: str
    texts: Sequence[Annotated]
    test: Callable[[Passage], Probe]


@dataclass(frozen=True)
class Readout:
    """The direct path from a head's output to logits, without the final norm.

    outputs: the output projection by layer, H D M; embeddings: the output embedding, V M.
    """

    outputs: Mapping[Site, Tensor]
    embeddings: Tensor

    def logits(self, call: AttentionCall, states: Tensor, tokens: Tensor) -> Tensor:
        """The logits of n tokens from the outputs of heads … H D: … H n, but for a constant."""
        if not states.shape[-2]:
            return states.new_zeros(*states.shape[:-1], len(tokens))  # a layer without heads
        to_tokens = self.outputs[call.site] @ self.embeddings[tokens].T  # H D n
        return torch.einsum("...hd,hdn->...hn", states, to_tokens)


def first_subwords(tokenizer: Any, words: Sequence[str]) -> dict[str, int]:
    """The first subword of each word inside a text, for the words whose first subword no other one has."""
    first: dict[str, int] = {}
    for aligned in align_subwords(tokenizer, [f"and {word}" for word in words], 512, Coverage()):
        if len(aligned.sentence.words) == 2:
            word = aligned.sentence.words[1].form
            first[word] = aligned.ids[aligned.word_of.index(1)]
    shared = Counter(first.values())
    unknown = tokenizer.unk_token_id
    return {word: token for word, token in first.items() if shared[token] == 1 and token != unknown}


def with_mentions(sentence: Annotated, spans: Iterable[tuple[str, int, int]]) -> Annotated:
    """The sentence with mentions: a name and the words [start, end) of each."""
    mentions = tuple(Mention(name, 0, start, end, start, "proper") for name, start, end in spans)
    return Annotated(sentence.words, sentence.id, sentence.document, mentions, sentence.written)


def last_tokens(passage: Passage) -> Tensor:
    """The last token of every word, 0 where there is no such word: B W."""
    place = torch.arange(passage.ids.shape[1], device=passage.ids.device)
    last: Tensor = (passage.membership * place[:, None]).amax(1).long()
    return last
