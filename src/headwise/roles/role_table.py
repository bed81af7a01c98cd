"""Our own role tests, a row each. Needs no torch."""

from __future__ import annotations

from functools import partial
from typing import Any

from headwise.roles.role import role

chance = partial(role.row, untrained="the baseline")  # random weights are no better than it


def of_language_models(name: str, **facts: Any) -> None:
    """A role of heads of a decoder that only language models are expected to have, and no sentence shows."""
    usual = {"untrained": "the baseline", "kinds": ("decoder-self",), "example": None}
    role.row(name, expected={"language model": (name,)}, **{**usual, **facts})


# Cross attention, on sentence pairs
pairs = partial(role.row, data=("pairs",), kinds=("cross",), row=0, example=None)
pairs(
    "alignment",
    home="alignment:alignment",
    takes=("links",),
    needs=("links",),
    margin=0.10,
    baseline="the diagonal, best shift",
    caption="share of target words whose writing position points at an aligned source word",
    order=4,
)
pairs(
    "reading",
    home="alignment:reading",
    margin=0.10,
    baseline="the diagonal, best shift",
    caption="share of copied words whose reading position points at the same word of the source",
    source="derived here",
    order=5,
)
chance(
    "monotonicity",
    home="alignment:monotonicity",
    data=("pairs",),
    kinds=("cross",),
    baseline="random words",
    caption="share of neighbouring target words where the second looks further on",
    row=1,
)

role.row(
    "coreference",
    home="coreference:coreference",
    data=("treebank",),
    margin=0.10,
    expected={"encoder-self": ("coreference",)},
    baseline="best of three rules",
    short="coref",
    caption="antecedent selection, of all mentions and of pronouns, proper nouns and other nouns",
    source="Clark et al. 2019, 4.3",
    order=3,
    row=4,
    example=4,
)
for name, caption in {
    "same-word": "share of words pointing at another word of the same form",
    "same-lemma": "share of words pointing at another form of the same lemma",
    "same-entity": "share of mentions pointing at another mention of the entity",
}.items():
    chance(
        name,
        home="coreference:matching_words",
        data=("treebank",),
        baseline="another random word",
        caption=caption,
        row=5,
    )

of_language_models(
    "induction",
    home="induction:repetition",
    data=("repeats",),
    threshold=0.5,
    causal="repeats",
    baseline="even weight",
    caption="mean weight on what followed the same token before",
    source="Olsson et al. 2022",
    order=8,
    row=20,
)
of_language_models(
    "duplicate-token",
    home="induction:repetition",
    data=("repeats",),
    threshold=0.5,
    causal="names",
    baseline="even weight",
    short="duplicate",
    caption="mean weight on the same token before",
    source="Wang et al. 2023",
    order=7,
    row=20,
)
chance(
    "induction.-1",
    home="induction:repetition",
    data=("repeats",),
    kinds=("decoder-self",),
    baseline="even weight",
    display="induction −1",
    caption="mean weight on what preceded the same token before, the other reading of Olsson's words",
    source="Olsson et al. 2022",
    row=20,
)
role.row(
    "copying",
    home="induction:copying",
    data=("repeats",),
    kinds=("decoder-self",),
    takes=("outputs", "embeddings"),
    needs=("outputs", "embeddings"),
    baseline="",
    untrained="unknown",
    caption="rise of the attended token through the head's own path to the logits, −1 … 1",
    source="Olsson et al. 2022",
    row=21,
)

positional = partial(
    chance,
    home="positional:positional",
    data=("treebank", "pairs", "speech"),
    takes=("edges",),
    baseline="a random token",
)
positional(
    "positional",
    variants="offset",
    threshold=0.9,
    expected={
        "encoder-self": ("positional.-1", "positional.1"),
        "decoder-self": ("positional.-1",),
    },
    caption="share of subwords, or of sound frames (20 ms), with argmax A_h[q, ·] = q + r, r = −3 … 3",
    source="Voita et al. 2019, 5.1",
    order=0,
    row=0,
    example=0,
)
positional(
    "attention-at",
    caption="mean of A_h[q, q + r], as `attention-at.r`",
    source="Olsson et al. 2022; Vig 2019",
    row=1,
)
of_language_models(
    "previous-token",
    home="positional:previous_token",
    data=("treebank",),
    threshold=0.5,
    causal="repeats",
    baseline="even weight",
    short="previous",
    caption="mean of A_h[q, q − 1] on text",
    source="Olsson et al. 2022",
    order=6,
    row=9,
    example=1,
)

rare = partial(
    role.row,
    home="rare:rare",
    data=("treebank",),
    kinds=("encoder-self",),
    takes=("counts", "top"),
    needs=("counts",),
    display="rare tokens",
    row=11,
)
rare(
    "rare.rarest",
    baseline="another random token",
    untrained="the baseline",
    caption="share of subwords pointing at the rarest of the sentence",
    source="Voita et al. 2019, 5.3",
)
rare(
    "rare.two-rarest",
    threshold=0.5,  # the least of what Voita et al. 2019 report
    baseline="another random token",
    untrained="the baseline",
    short="rare",
    caption="share of subwords pointing at one of the two rarest",
    source="Voita et al. 2019, 5.3",
    order=2,
    example=3,
)
rare(
    "rare.rarest.own",
    baseline="a random token",
    untrained="the baseline",
    caption="as `rare.rarest`, with queries that are rarest themselves",
)
rare(
    "rare.rarest.vote",
    baseline="a random token",
    untrained="unknown",
    caption="as `rare.rarest`, one vote a sentence",
)

of_language_models(
    "sink",
    home="shape:sink",
    data=("treebank", "pairs", "speech"),
    kinds=("encoder-self", "decoder-self", "cross"),
    threshold=0.5,
    baseline="even weight",
    caption="mean weight on tokens that are no words",
    source="Clark et al. 2019, 3.2",
    order=9,
    row=7,
)
of_language_models(
    "delimiter",
    home="shape:delimiter",
    data=("treebank",),
    threshold=0.5,
    baseline="even weight",
    caption="mean weight on punctuation, of tokens behind some",
    source="Clark et al. 2019, 3.2",
    order=10,
    row=10,
)
shape = partial(role.row, home="shape:shape", data=("treebank",), baseline="", row=6)
shape(
    "distance",
    untrained="the mean distance of two subwords",
    caption="mean distance of subwords, weighted by attention",
    source="Vig & Belinkov 2019, eq. 6",
)
shape(
    "dependency-alignment",
    untrained="the share of such pairs",
    caption="share of attention between words of which one governs the other",
    source="Vig & Belinkov 2019, eq. 4",
)
shape(
    "pos",
    untrained="the share of such words",
    caption="share of attention that goes to words of a part of speech, as `pos.TAG`",
    source="Vig & Belinkov 2019, eq. 3",
)
role.row(
    "variability",
    home="shape:variability",
    data=("treebank",),
    takes=("mean",),
    baseline="",
    untrained="near 0",
    caption="how much the first 10 tokens' weights differ between sentences",
    source="Vig & Belinkov 2019, eq. 5",
    row=8,
)

chance(
    "diagonal",
    home="sound:diagonal",
    data=("speech",),
    kinds=("encoder-self",),
    threshold=0.9,
    weaker_than="positional",
    expected={},
    baseline="a random frame",
    caption="share of sound frames with argmax A_h[q, ·] at most 2 frames (40 ms) from q; not of heads at one offset",
    source="Yang et al. 2020",
    order=15,
    row=2,
    example=None,
)
role.row(
    "spoken-word",
    home="sound:spoken_word",
    data=("speech",),
    kinds=("cross",),
    margin=0.10,
    baseline="an even pace, best shift",
    caption="share of tokens whose writing position points at a frame of their word",
    display="alignment",
    order=16,
    row=2,
    example=None,
)

EXPECTED_ARCS = tuple(
    f"syntactic.{relation}.{direction}"
    for relation in ("nsubj", "obj", "amod", "advmod")
    for direction in ("to-governor", "to-dependent")
)
role.row(
    "syntactic",
    home="syntactic:syntactic",
    data=("treebank",),
    takes=("per_arc",),
    variants="relation",
    margin=0.10,
    excluded=("punct",),  # attention to full stops needs no syntax
    expected={"encoder-self": EXPECTED_ARCS, "language model": EXPECTED_ARCS},
    caption="`to-governor`: share of words with a governor by REL that point at it; `to-dependent`: share of words "
    "that have a REL and point at one",
    source="Voita et al. 2019, 5.2; Clark et al. 2019, 4.2",
    order=1,
    row=2,
    example=2,
)
role.row(
    "attachment",
    home="syntactic:attachment",
    data=("treebank",),
    caption="share of dependents at which their governor looks most of all words, by REL",
    source="Clark et al. 2019, transposed map",
    row=3,
)

# Generated texts
names = partial(
    of_language_models,
    home="templates:names_texts",
    data=("texts",),
    takes=("readout", "seed"),
    threshold=0.5,
    causal="names",
    untrained="less than the baseline",
    source="Wang et al. 2023",
    row=30,
)
names(
    "name-mover",
    caption="of sentences up to the indirect object (IO), the share where the last word attends most to the IO **and** "
    "the head's own path raises the IO most of all names",
    order=12,
)
names(
    "s-inhibition",
    causal_needed=True,
    display="S-inhibition",
    short="S-inhib.",
    caption="of the same sentences, the share where the last word attends most to the second place of the subject; a "
    "role only where the logit difference falls with the head off",
    order=13,
)
of_language_models(
    "retrieval",
    home="templates:retrieval_texts",
    data=("texts",),
    takes=("longest", "seed"),
    margin=0.10,  # 0.1 in Wu et al. 2024, without a baseline
    causal="needle",
    baseline="best fixed offset, or random",
    untrained="less than the baseline",
    caption="share of the tokens of an answer where the head attends most to that token in the needle",
    source="Wu et al. 2024",
    order=14,
    row=31,
)
of_language_models(
    "successor",
    home="templates:successor_texts",
    data=("texts",),
    takes=("readout", "seed"),
    needs=("readout",),
    threshold=0.5,
    baseline="a random item",
    caption="of the items of a sequence in random order, the share where the head's own path raises the successor of "
    "the attended item most",
    source="Gould et al. 2023",
    order=11,
    row=32,
)
