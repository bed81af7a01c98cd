"""Successor heads: from Monday to Tuesday, from three to four (Gould et al. 2023, "Successor heads")."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.roles.alignment import split_into_words
from headwise.roles.generated import Generated, Readout, first_subwords, last_tokens
from headwise.roles.passage import Passage, View
from headwise.roles.probe import Probe, sum_over_queries
from headwise.roles.role import role

TEXTS = 80
LONGEST = 12  # items of a text
SEQUENCES = {  # each goes round, except that the last number, ordinal and letter are in no text
    "days": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "months": "January February March April May June July August September October November December",
    "numbers": "one two three four five six seven eight nine ten eleven twelve",
    "ordinals": "first second third fourth fifth sixth seventh eighth ninth tenth",
    "digits": "1 2 3 4 5 6 7 8 9",
    "letters": "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
}
ROUND = ("days", "months")


@role(
    "successor",
    data=("texts",),
    kinds=("decoder-self",),
    takes=("readout", "seed"),
    needs=("readout",),
    threshold=0.5,
    expected={"language model": ("successor",)},
    baseline="a random item",
    untrained="the baseline",
    caption="of the items of a sequence in random order, the share where the head's own path raises the successor of "
    "the attended item most",
    source="Gould et al. 2023",
    order=10,
    row=32,
    example=None,
)
def successor_texts(tokenizer: Any, readout: Readout, seed: int) -> Generated:
    """Items of one sequence in random order. Raises HeadwiseError where the tokenizer tells the items of no sequence
    apart by their first subwords."""
    usable: dict[str, dict[str, int]] = {}
    for name, words in SEQUENCES.items():
        first = first_subwords(tokenizer, words.split())
        if len(first) == len(words.split()):
            usable[name] = first
    if not usable:
        raise HeadwiseError(
            f"Successor heads were not tested: the tokenizer does not tell the items of {', '.join(SEQUENCES)} apart "
            "by their first subword."
        )
    draw = random.Random(seed)
    texts = []
    for number in range(TEXTS):
        name = list(usable)[number // 2 % len(usable)]
        drawn = list(usable[name])
        if name not in ROUND:
            drawn = drawn[:-1]
        text = " ".join(draw.sample(drawn, min(LONGEST, len(drawn))))
        texts.append(split_into_words(text, f"{number} {name}"))
    items = []
    for name, first in usable.items():
        for number, word in enumerate(first):
            items.append(
                SequenceItem(name, word, first[word], list(first)[(number + 1) % len(first)])
            )
    return Generated("sequences", texts, partial(successor, readout=readout, items=items))


class SequenceItem(NamedTuple):
    """An item of a sequence, its first subword, and the item that follows it."""

    sequence: str
    word: str
    token: int
    successor: str


def successor(passage: Passage, readout: Readout, items: Sequence[SequenceItem]) -> Probe:
    """How often a head's output raises the successor of the item that it looks at.

    successor = share of the items q (at their last subword) where, of all items of the sequence, the output of the head
    raises the logit of the successor of argmax_k A_h[q, k] most, on the direct path; q itself is among the keys k. The
    order of the text is random, so that no place tells. Baseline: a random item of the sequence. items: of all
    sequences, each in its order.
    """
    device = passage.ids.device
    names = [text.id.partition(" ")[2] for text in passage.sentences]
    numbers = {(item.sequence, item.word): number for number, item in enumerate(items)}
    following = torch.full(passage.subwords.shape, -1)  # the number of each word's successor
    for row, text in enumerate(passage.sentences):
        for column, word in enumerate(text.words[: following.shape[1]]):
            number = numbers.get((names[row], word.form))
            if number is not None:
                item = items[number]
                following[row, column] = numbers[item.sequence, item.successor]
    following = following.to(device)
    inside = torch.tensor([[name == item.sequence for item in items] for name in names])  # B n
    inside = inside.to(device)
    tokens = torch.tensor([item.token for item in items], device=device)
    last = last_tokens(passage)
    queries = (passage.subwords > 0) & (following >= 0)
    rows = torch.arange(len(names), device=device)[:, None]
    chance = queries.sum(1) / inside.sum(1)

    def answer(view: View) -> Tensor:
        assert view.call is not None
        heads = view.weights.shape[1]
        raised = readout.logits(view.call, view.call.output[rows, last], tokens)  # B W H n
        raised = raised.masked_fill(~inside[:, None, None], -torch.inf)
        best = raised.argmax(-1).transpose(1, 2)  # B H W
        right = following[:, None].expand(-1, heads, -1).gather(2, view.between.argmax(-1))
        return sum_over_queries(queries, (best == right).float())[..., None]

    return Probe(["successor"], queries.sum(1)[:, None].float(), chance[:, None, None], answer)
