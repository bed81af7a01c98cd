"""A batch of annotated sentences as a model's tokens, and the attention of a layer between tokens and between words.

Attention *to* a word is the sum over its subwords, *from* a word the mean over its subwords, so that rows still sum to
1 (Clark et al. 2019, section 4.1). Special tokens are left out as keys and as queries.
So is the first word of a causal model without a start token: it can attend only to itself, and it is an attention sink.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from headwise.data.annotated import Annotated
from headwise.data.subwords import Aligned
from headwise.models.attention.kernel import AttentionCall


@dataclass
class Passage:
    """One side of a batch: B sentences of at most S tokens and W words.

    ids B S; mask B S, False on padding; word_of B S, the word of every token, −1 for special tokens, padding and words left
    out; sentences B (none for text without annotation); causal: a token attends only to itself and earlier ones.
    """

    ids: Tensor
    mask: Tensor
    word_of: Tensor
    sentences: Sequence[Annotated] = ()
    causal: bool = False

    def __post_init__(self) -> None:
        if self.causal:
            first = self.word_of[:, :1]
            # It can attend only to itself (see above); a start token in front has −1, and nothing changes.
            self.word_of = torch.where((self.word_of == first) & (first >= 0), -1, self.word_of)

    @classmethod
    def of(
        cls,
        aligned: Sequence[Aligned],
        pad: int,
        device: torch.device | str = "cpu",
        causal: bool = False,
    ) -> Passage:
        """Sentences in subwords, padded on the right."""
        length = max(len(each.ids) for each in aligned)
        ids = torch.full((len(aligned), length), pad)
        word_of = torch.full_like(ids, -1)
        for row, each in enumerate(aligned):
            ids[row, : len(each.ids)] = torch.tensor(each.ids)
            word_of[row, : len(each.ids)] = torch.tensor(each.word_of)
        lengths = torch.tensor([len(each.ids) for each in aligned])
        mask = torch.arange(length) < lengths[:, None]
        sentences = [each.sentence for each in aligned]
        return cls(ids.to(device), mask.to(device), word_of.to(device), sentences, causal)

    def changed(self, change: Callable[[Tensor], Tensor]) -> Passage:
        """The same with another part, or place, of all its tensors."""
        return replace(
            self,
            ids=change(self.ids),
            mask=change(self.mask),
            word_of=change(self.word_of),
        )

    @cached_property
    def words(self) -> Tensor:
        """Which tokens are subwords of words: B S."""
        return self.word_of >= 0

    @cached_property
    def membership(self) -> Tensor:
        """Which token belongs to which word, as 0 and 1: B S W."""
        # No word (−1) is column 0, which is cut off; a batch without words keeps one column.
        words = max(int(self.word_of.max()) + 1, 1)
        # As a matrix, so that weights of words are products with it.
        return torch.nn.functional.one_hot(self.word_of + 1, words + 1)[..., 1:].float()

    @cached_property
    def as_query(self) -> Tensor:
        """The weight of every token in the attention from every word: B S W."""
        return self.membership / self.subwords[:, None].clamp_min(1)

    @cached_property
    def subwords(self) -> Tensor:
        """How many subwords every word has, 0 where there is no such word: B W."""
        return self.membership.sum(1)

    @cached_property
    def present(self) -> list[set[int]]:
        """The words of every sentence that have a token."""
        present = []
        for row in self.subwords.tolist():
            present.append({word for word, count in enumerate(row) if count})
        return present

    @cached_property
    def visible(self) -> Tensor:
        """How many other words a word can attend to: B W."""
        present = (self.subwords > 0).float()
        if self.causal:
            # The words before it; itself does not count.
            return present * (present.cumsum(1) - 1)
        return present * (present.sum(1, keepdim=True) - 1)


def moved(values: Tensor, by: int, empty: int = 0) -> Tensor:
    """Values … S, each so many places further on (or back, where `by` is below 0); `empty` where none comes from."""
    # What rolls in at the other end is emptied below.
    out = values.roll(by, -1)
    if by > 0:
        out[..., :by] = empty
    elif by < 0:
        out[..., by:] = empty
    return out


def at_keys(values: Tensor, keys: Tensor) -> Tensor:
    """Values B K of the keys that queries attend to, B H Q."""
    return values[:, None].expand(-1, keys.shape[1], -1).gather(2, keys)


class View:
    """The attention of one layer on a batch, weights B H Q K, and quantities that are computed on first use.

    call: the full attention call, if there is a model. Among keys with equal weights the first counts as the largest.
    """

    def __init__(
        self, weights: Tensor, queries: Passage, keys: Passage, call: AttentionCall | None = None
    ) -> None:
        self.weights = weights
        self.queries = queries
        self.keys = keys
        self.call = call

    @cached_property
    def attended(self) -> Tensor:
        """The subword of a word that every token attends to most, itself allowed: B H Q."""
        # Below every weight, so that a token outside words is never the largest.
        return self.weights.masked_fill(~self.keys.words[:, None, None], -1).argmax(-1)

    @cached_property
    def between(self) -> Tensor:
        """Attention between words, B H W V: the sum over the key's subwords, the mean over the query's."""
        batch, heads, queries, keys = self.weights.shape
        as_key = self.keys.membership.to(self.weights.dtype)
        # Keys first: there are fewer words than tokens, and all heads are one product.
        to_words = self.weights.reshape(batch, heads * queries, keys) @ as_key
        as_query = self.queries.as_query.transpose(1, 2)[:, None].to(to_words.dtype)
        return torch.matmul(as_query, to_words.view(batch, heads, queries, to_words.shape[-1]))

    @cached_property
    def others(self) -> Tensor:
        """Attention between words, −1 on a word itself and where there is no word: B H W V."""
        hidden = (self.keys.subwords == 0)[:, None, :].expand(-1, self.between.shape[2], -1)
        # Between two texts, words of one number are not one word.
        if self.queries is self.keys:
            hidden = hidden | torch.eye(hidden.shape[1], dtype=torch.bool, device=hidden.device)
        return self.between.masked_fill(hidden[:, None], -1)

    @cached_property
    def attended_words(self) -> Tensor:
        """The other word that every word attends to most: B H W."""
        return self.others.argmax(-1)

    @cached_property
    def attending_words(self) -> Tensor:
        """The other word that attends most to every word: B H V."""
        absent = (self.queries.subwords == 0)[:, None, :, None]
        return self.others.masked_fill(absent, -1).argmax(-2)
