"""Successor heads: from Monday to Tuesday, from three to four (Gould et al. 2023, "Successor heads")."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headwise.errors import HeadwiseError
from headwise.roles.alignment import sentence
from headwise.roles.generated import Generated, Readout, first_subwords, last_tokens
from headwise.roles.passage import Passage, View
from headwise.roles.probe import Probe, over
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
    items = {name: first_subwords(tokenizer, words.split()) for name, words in SEQUENCES.items()}
    usable = {
        name: first for name, first in items.items() if len(first) == len(SEQUENCES[name].split())
    }
    if not usable:
        raise HeadwiseError(
            f"Successor heads were not tested: the tokenizer does not tell the items of {', '.join(SEQUENCES)} apart "
            "by their first subword."
        )
    draw, texts = random.Random(seed), []
    for number in range(TEXTS):
        name = [*usable][number // 2 % len(usable)]
        words = [*usable[name]][: None if name in ROUND else -1]
        text = " ".join(draw.sample(words, min(LONGEST, len(words))))
        texts.append(sentence(text, f"{number} {name}"))
    known = [
        (name, word, first) for name, firsts in usable.items() for word, first in firsts.items()
    ]
    return Generated("sequences", texts, partial(successor, readout=readout, known=known))


def successor(passage: Passage, readout: Readout, known: Sequence[tuple[str, str, int]]) -> Probe:
    """How often a head's output raises the successor of the item that it looks at.

    successor = share of the items q (at their last subword) where, of all items of the sequence, the output of the head
    raises the logit of the successor of argmax_k A_h[q, k] most, on the direct path; q itself is among the keys k. The
    order of the text is random, so that no place tells. Baseline: a random item of the sequence. known: of every item
    the name of its sequence, the word, and its first subword, in the order of the sequence.
    """
    device = passage.ids.device
    names = [one.id.partition(" ")[2] for one in passage.sentences]
    place = {(name, word): number for number, (name, word, _) in enumerate(known)}
    after = [
        number + 1
        if number + 1 < len(known) and known[number + 1][0] == name
        else place[name, first_of(name, known)]
        for number, (name, _, _) in enumerate(known)
    ]
    following = torch.full(passage.subwords.shape, -1)
    for row, one in enumerate(passage.sentences):
        for column, word in enumerate(one.words):
            if (names[row], word.form) in place and column < following.shape[1]:
                following[row, column] = after[place[names[row], word.form]]
    following = following.to(device)
    inside = torch.tensor(
        [[name == each for each, _, _ in known] for name in names], device=device
    )  # B n
    tokens, last = (
        torch.tensor([first for _, _, first in known], device=device),
        last_tokens(passage),
    )
    asked = (passage.subwords > 0) & (following >= 0)
    rows = torch.arange(len(names), device=device)[:, None]
    chance = asked.sum(1) / inside.sum(1)

    def answer(view: View) -> Tensor:
        assert view.call is not None
        heads = view.weights.shape[1]
        raised = readout.logits(view.call, view.call.output[rows, last], tokens)  # B W H n
        best = (
            raised.masked_fill(~inside[:, None, None], -torch.inf).argmax(-1).transpose(1, 2)
        )  # B H W
        right = following[:, None].expand(-1, heads, -1).gather(2, view.between.argmax(-1))
        return over(asked, (best == right).float())[..., None]

    return Probe(["successor"], asked.sum(1)[:, None].float(), chance[:, None, None], answer)


def first_of(name: str, known: Sequence[tuple[str, str, int]]) -> str:
    return next(word for each, word, _ in known if each == name)
