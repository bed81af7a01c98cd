"""Our own role tests, a row each, in the order of the table of scores. Needs no torch."""

from __future__ import annotations

from functools import partial
from typing import Any

from headwise.roles.role import role

trees = partial(role.row, data=("treebank",))
chance = partial(role.row, untrained="the baseline")  # random weights are no better than it
cross = partial(role.row, data=("pairs",), kinds=("cross",), example=None)


def of_language_models(name: str, **facts: Any) -> None:
    """A role that only language models are expected to have, and that no sentence can show."""
    usual = {
        "kinds": ("decoder-self",),
        "threshold": 0.5,
        "example": None,
        "expected": {"language model": (name,)},
    }
    chance(name, **{**usual, **facts})


cross(
    "alignment",
    home="alignment:alignment",
    takes=("links",),
    needs=("links",),
    margin=0.10,
    baseline="the diagonal, best shift",
    caption="share of target words whose writing position points at an aligned source word",
    order=4,
)
cross(
    "reading",
    home="alignment:reading",
    margin=0.10,
    baseline="the diagonal, best shift",
    caption="share of copied words whose reading position points at the same word of the source",
    source="derived here",
    order=5,
)
positional = partial(
    chance,
    home="positional:positional",
    data=("treebank", "pairs", "speech"),
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
    example=0,
)
cross(
    "monotonicity",
    home="alignment:monotonicity",
    baseline="random words",
    untrained="the baseline",
    caption="share of neighbouring target words where the second looks further on",
)
positional(
    "attention-at",
    caption="mean of A_h[q, q + r], as `attention-at.r`",
    source="Olsson et al. 2022; Vig 2019",
)

EXPECTED_ARCS = tuple(
    f"syntactic.{relation}.{direction}"
    for relation in ("nsubj", "obj", "amod", "advmod")
    for direction in ("to-governor", "to-dependent")
)
trees(
    "syntactic",
    home="syntactic:syntactic",
    variants="relation",
    may_rest=True,
    margin=0.10,
    excluded=("punct",),  # attention to full stops needs no syntax
    expected={"encoder-self": EXPECTED_ARCS, "language model": EXPECTED_ARCS},
    caption="`to-governor`: share of words with a governor by REL that point at it; `to-dependent`: share of words "
    "that have a REL and point at one",
    source="Voita et al. 2019, 5.2; Clark et al. 2019, 4.2",
    order=1,
    example=2,
)
trees(
    "attachment",
    home="syntactic:attachment",
    caption="share of dependents at which their governor looks most of all words, by REL",
    source="Clark et al. 2019, transposed map",
)
trees(
    "coreference",
    home="coreference:coreference",
    may_rest=True,
    margin=0.10,
    expected={"encoder-self": ("coreference",)},
    baseline="best of three rules",
    short="coref",
    caption="antecedent selection, of all mentions and of pronouns, proper nouns and other nouns",
    source="Clark et al. 2019, 4.3",
    order=3,
    example=4,
)
matching = partial(
    chance,
    home="coreference:matching_words",
    data=("treebank",),
    baseline="another random word",
)
matching("same-word", caption="share of words pointing at another word of the same form")
matching("same-lemma", caption="share of words pointing at another form of the same lemma")
matching("same-entity", caption="share of mentions pointing at another mention of the entity")

shape = partial(trees, home="shape:shape", baseline="")
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
of_language_models(
    "sink",
    of_weights=True,
    home="shape:sink",
    data=("treebank", "pairs", "speech"),
    kinds=("encoder-self", "decoder-self", "cross"),
    baseline="even weight",
    caption="mean weight on tokens that are no words",
    source="Clark et al. 2019, 3.2",
    order=9,
)
trees(
    "variability",
    home="shape:variability",
    takes=("mean",),
    baseline="",
    untrained="near 0",
    caption="how much the first 10 tokens' weights differ between sentences",
    source="Vig & Belinkov 2019, eq. 5",
)
of_language_models(
    "previous-token",
    of_weights=True,
    home="positional:previous_token",
    data=("treebank",),
    causal="repeats",
    baseline="even weight",
    short="previous",
    caption="mean of A_h[q, q − 1] on text",
    source="Olsson et al. 2022",
    order=6,
    example=1,
)
of_language_models(
    "delimiter",
    of_weights=True,
    home="shape:delimiter",
    data=("treebank",),
    baseline="even weight",
    caption="mean weight on punctuation, of tokens behind some",
    source="Clark et al. 2019, 3.2",
    order=10,
)

rare = partial(
    chance,
    home="rare:rare",
    data=("treebank",),
    kinds=("encoder-self",),
    takes=("counts", "top"),
    needs=("counts",),
    baseline="a random token",
    display="rare tokens",
)
rare(
    "rare.rarest",
    baseline="another random token",
    caption="share of subwords pointing at the rarest of the sentence",
    source="Voita et al. 2019, 5.3",
)
rare(
    "rare.two-rarest",
    threshold=0.5,  # the least of what Voita et al. 2019 report
    baseline="another random token",
    short="rare",
    caption="share of subwords pointing at one of the two rarest",
    source="Voita et al. 2019, 5.3",
    order=2,
    example=3,
)
rare("rare.rarest.own", caption="as `rare.rarest`, with queries that are rarest themselves")
rare(
    "rare.rarest.vote",
    untrained="unknown",
    caption="as `rare.rarest`, one vote per sentence",
)

repeats: dict[str, Any] = {
    "home": "induction:repetition",
    "data": ("repeats",),
    "baseline": "even weight",
}
of_language_models(
    "induction",
    causal="repeats",
    caption="mean weight on what followed the same token before",
    source="Olsson et al. 2022",
    order=8,
    **repeats,
)
of_language_models(
    "duplicate-token",
    causal="names",
    short="duplicate",
    caption="mean weight on the same token before",
    source="Wang et al. 2023",
    order=7,
    **repeats,
)
chance(
    "induction.-1",
    kinds=("decoder-self",),
    display="induction −1",
    caption="mean weight on what preceded the same token before, the other reading of Olsson's words",
    source="Olsson et al. 2022",
    **repeats,
)
role.row(
    "copying",
    home="induction:copying",
    data=("repeats",),
    kinds=("decoder-self",),
    takes=("readout",),
    needs=("readout",),
    baseline="",
    untrained="unknown",
    caption="rise of the attended token through the head's own path to the logits, −1 … 1",
    source="Olsson et al. 2022",
)

names = partial(
    of_language_models,
    home="templates:names_texts",
    data=("texts",),
    takes=("readout", "seed"),
    causal="names",
    untrained="less than the baseline",
    source="Wang et al. 2023",
)
names(
    "name-mover",
    path="direct",
    caption="of sentences up to the indirect object (IO), the share where the last word attends most to the IO **and** "
    "the head's own path raises the IO most of all names",
    order=12,
)
names(
    "s-inhibition",
    causal_needed=True,
    path="indirect",
    display="S-inhibition",
    short="S-inhib.",
    caption="of the same sentences, the share where the last word attends most to the second place of the subject; a "
    "role only where the logit difference falls with the head off, by more than twice what the head itself adds to it",
    order=13,
)
names(
    "copy-suppression",
    path="direct",
    expected={},
    short="suppress",
    caption="of the same sentences, the share where the last word attends most to a name **and** the head's own path "
    "lowers that name most of all names",
    source="McDougall et al. 2023",
    order=15,
)
of_language_models(
    "retrieval",
    home="templates:retrieval_texts",
    data=("texts",),
    takes=("longest", "seed"),
    threshold=None,
    margin=0.10,  # 0.1 in Wu et al. 2024, without a baseline
    causal="needle",
    baseline="best fixed offset, or random",
    untrained="less than the baseline",
    caption="share of the tokens of an answer where the head attends most to that token in the needle",
    source="Wu et al. 2024",
    order=14,
)
of_language_models(
    "successor",
    home="templates:successor_texts",
    data=("texts",),
    takes=("readout", "seed"),
    needs=("readout",),
    baseline="a random item",
    caption="of the items of a sequence in random order, the share where the head's own path raises the successor of "
    "the attended item most",
    source="Gould et al. 2023",
    order=11,
)
