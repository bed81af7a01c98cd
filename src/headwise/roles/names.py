"""Heads that choose between two names: name movers and S-inhibition (Wang et al. 2023, "Interpretability in the wild").

"When Mary and John went to the store, John gave a drink to": the next word is Mary, the indirect object (IO). John is
the subject (S), S2 its second place, END the last word.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headwise.data.annotated import Annotated
from headwise.errors import HeadwiseError
from headwise.roles.alignment import split_into_words
from headwise.roles.generated import Generated, Readout, first_subwords, last_tokens, with_mentions
from headwise.roles.passage import Passage, View
from headwise.roles.probe import Arc, Probe, pointing
from headwise.roles.role import role

TEXTS = 200
NAMES = (
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Frank",
    "Grace",
    "Henry",
    "Ivan",
    "John",
    "Kate",
    "Laura",
    "Mary",
    "Nina",
    "Oscar",
    "Paul",
    "Rosa",
    "Sam",
    "Tom",
    "Victor",
    "William",
)
FEWEST = 6  # names that the tokenizer must tell apart
PLACES = ("store", "park", "school", "office", "station", "garden")
THINGS = ("drink", "book", "ring", "letter", "ball", "picture")
TEMPLATES = (
    "When {one} and {other} went to the {place}, {subject} gave a {thing} to",
    "After {one} and {other} had a long talk at the {place}, {subject} said to",
    "Then {one} and {other} found a {thing} at the {place}, and {subject} decided to give it to",
    "While {one} and {other} were working at the {place}, {subject} wanted to show the old {thing} to",
    "Yesterday {one} and {other} got a {thing}. In the {place}, {subject} handed it over to",
    "As {one} and {other} left the {place}, {subject} brought a very small {thing} with flowers to",
)


@role(
    "name-mover",
    data=("texts",),
    kinds=("decoder-self",),
    takes=("readout", "seed"),
    threshold=0.5,
    expected={"language model": ("name-mover",)},
    baseline="best fixed offset",
    caption="of sentences up to the indirect object (IO), the share where the last word attends most to the IO **and** "
    "the head's own path raises the IO most of all names",
    source="Wang et al. 2023",
    order=11,
    row=30,
    example=None,
)
@role(
    "s-inhibition",
    data=("texts",),
    kinds=("decoder-self",),
    takes=("readout", "seed"),
    threshold=0.5,
    expected={"language model": ("s-inhibition",)},
    baseline="best fixed offset",
    display="S-inhibition",
    short="S-inhib.",
    caption="of the same sentences, the share where the last word attends most to the second place of the subject",
    source="Wang et al. 2023",
    order=12,
    row=30,
    example=None,
)
def names_texts(tokenizer: Any, readout: Readout | None, seed: int) -> Generated:
    """Sentences that end before the name of the indirect object. Raises HeadwiseError where the tokenizer cannot tell
    names apart by their first subwords."""
    first = first_subwords(tokenizer, NAMES)
    if len(first) < FEWEST:
        raise HeadwiseError(
            f"Name movers and S-inhibition were not tested: the tokenizer tells only {len(first)} of {len(NAMES)} "
            "names apart by their first subword."
        )
    draw = random.Random(seed)
    texts = [draw_name_sentence(draw, [*first], number) for number in range(TEXTS)]
    return Generated("names", texts, partial(names, readout=readout, first=first))


def draw_name_sentence(draw: random.Random, usable: list[str], number: int) -> Annotated:
    """A sentence with its indirect object ("io") and the second place of its subject ("s") marked."""
    first, second = draw.sample(usable, 2)
    subject = draw.choice((first, second))
    receiver = second if subject == first else first
    text = draw.choice(TEMPLATES).format(
        one=first,
        other=second,
        subject=subject,
        place=draw.choice(PLACES),
        thing=draw.choice(THINGS),
    )
    plain = split_into_words(text, f"{number} {receiver}")
    last = {word.form: index for index, word in enumerate(plain.words)}  # the last place of each
    spans = []
    for entity, name in (("io", receiver), ("s", subject)):
        spans.append((entity, last[name], last[name] + 1))
    return with_mentions(plain, spans)


def names(passage: Passage, readout: Readout | None, first: Mapping[str, int]) -> Probe:
    """Where END looks, and whether the name there is copied.

    s-inhibition = share of sentences where argmax_k A_h[END, k] over the words k is S2.
    name-mover = share where it is the IO *and*, of all names of the task, the head's output at END raises the logit of
    the IO most, on the direct path (left out without a readout). Baseline: the best rule of `pointing`; names are in
    both orders and at many distances. first: the first subword of each name.
    """
    measures = {"io": "name-mover", "s": "s-inhibition"} if readout else {"s": "s-inhibition"}
    ends = [len(text.words) - 1 for text in passage.sentences]
    arcs = []
    for entity, measure in measures.items():
        for row, text in enumerate(passage.sentences):
            places = {mention.entity: mention.head for mention in text.mentions}
            arcs.append(Arc(row, ends[row], places[entity], measure))
    attends = pointing(arcs, passage, passage, "offset")
    if readout is None:
        return attends

    device = passage.ids.device
    rows = torch.arange(len(ends), device=device)
    end = last_tokens(passage)[rows, torch.tensor(ends, device=device)]
    usable = list(first)
    tokens = torch.tensor(list(first.values()), device=device)
    receivers = [usable.index(text.id.partition(" ")[2]) for text in passage.sentences]
    io = torch.tensor(receivers, device=device)

    def answer(view: View) -> Tensor:
        assert view.call is not None
        raised = readout.logits(view.call, view.call.output[rows, end], tokens)  # B H n
        hits = attends.answer(view)
        hits[..., 0] *= raised.argmax(-1) == io[:, None]
        return hits

    return replace(attends, answer=answer)
