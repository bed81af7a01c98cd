"""A language model whose heads are known: GPT-2 with heads that are written by hand.

A word that asks is followed by its answer, `TYPE.CLASS`; all other words are random, but for a row of words that comes
twice, which only an induction head can foresee, and visitors, who are new or have been here before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from headwise.data.text import Text
from headwise.heads import Head, HeadMap
from headwise.model import Model
from headwise.truth import toy, wires
from headwise.truth.built import Built, Known, drawn, placed
from headwise.truth.space import CIRCLES, ROUND, Space, Wiring, code, positions
from headwise.truth.toy import CLASSES, Question, Sentence, Word, place

HEADS, SIZE, LAYERS = 10, 16, 3
SENTENCES, PARSED = 10, 120
FILLERS, ROW, VISITORS = 16, 4, 6
MARGIN, TYPE, NOISE = 5.0, 40.0, 0.004
GAINS = {"adverb": 4.0, "object": 1.6, "mood": 16.0}  # of margins
IDENTITY = 9  # numbers that tell words apart; answers have none
FORESEEN = 6.0  # nats that induction adds to a word
SAME, NEITHER = 40.0, 30.0  # nats on a word with itself, and on `rest` where there is none
SLOWEST = [0, 1, 2, CIRCLES, CIRCLES + 1, CIRCLES + 2]  # circles of positions
APART = 6  # tokens between copies, at least
WORDS = [
    ("plain", "subject", "NOUN"),
    ("verb", "verb", "VERB"),
    ("object", "object", "NOUN"),
    ("adverb", "adverb", "ADV"),
    ("plain", "noun", "NOUN"),
    ("adjective", "adjective", "ADJ"),
    ("plain", "season", "NOUN"),
    ("mood", "mood", "PART"),
    ("plain", "her", "PROPN"),
    ("plain", "him", "PROPN"),
    ("pronoun", "pronoun", "PRON"),
    ("before", "before", "PART"),
    ("back", "back", "PART"),
]
LATER = [  # what stands before what
    ("subject", "verb"),
    ("verb", "object"),
    ("verb", "adverb"),
    ("noun", "adjective"),
    ("season", "mood"),
    ("her", "pronoun"),
    ("him", "pronoun"),
]
GOVERNED = {
    "subject": ("verb", "nsubj"),
    "object": ("verb", "obj"),
    "adverb": ("verb", "advmod"),
    "adjective": ("noun", "amod"),
}
MARKS = ("verb", "subject", "noun", "visitor")
QUESTIONS = [
    Question("verb", lambda words, i: words[place(words, "subject")].klass),
    Question("object", lambda words, i: words[place(words, "verb")].klass),
    Question("adverb", lambda words, i: words[place(words, "verb")].klass),
    Question("adjective", lambda words, i: words[place(words, "noun")].klass),
    Question("pronoun", lambda words, i: words[place(words, words[i].entity)].klass),
    Question("before", lambda words, i: words[i - 1].klass),
    Question("back", lambda words, i: words[i - 2].klass),
    Question("mood", lambda words, i: words[place(words, "season")].klass),
    Question(
        "visitor",
        lambda words, i: 0 if words[i].form in {word.form for word in words[:i]} else CLASSES - 1,
    ),
]
TYPES = ["plain", *(question.type for question in QUESTIONS)]
ASKING = TYPES[1:]


def sentence(draw: toy.Draw) -> Sentence:
    """The words of WORDS, visitors of whom one comes twice, and a row of fillers that comes twice."""
    random = draw.random
    units = [[Word(type, mark, draw.klass(), upos=upos)] for type, mark, upos in WORDS]
    guests = random.sample(range(VISITORS), 2)
    units += [
        [Word("visitor", "visitor", guest % CLASSES, f"visitor{guest}", upos="NOUN")]
        for guest in (guests[0], guests[0], guests[1])
    ]
    row = random.sample(range(FILLERS), ROW)
    units += [
        [Word("plain", "filler", each % CLASSES, f"filler{each}", upos="NOUN") for each in row]
        for _ in range(2)
    ]
    while True:
        random.shuffle(units)
        words = [word for unit in units for word in unit]
        at = {word.mark: index for index, word in enumerate(words)}
        right = (
            at["before"] > 0
            and at["back"] > 1
            and all(at[first] < at[then] for first, then in LATER)
        )
        if right and all(later - first >= APART for first, later in copies(words)):
            break
    for word in words:
        if word.mark in ("her", "him"):
            word.entity = word.mark
        elif word.mark == "pronoun":
            word.entity, word.klass = random.choice(("her", "him")), 0
            word.form = f"{word.entity}-pronoun"
    words = with_answers(words)
    toy.attach(words, GOVERNED, random)
    return words


def copies(words: Sentence) -> list[tuple[int, int]]:
    """The places of words that come twice."""
    places: dict[str, list[int]] = {}
    for index, word in enumerate(words):
        places.setdefault(word.form, []).append(index)
    return [(two[0], two[1]) for two in places.values() if len(two) == 2]


def with_answers(words: Sentence) -> Sentence:
    """The sentence with an answer behind every word that asks."""
    ask = {question.type: question.answer for question in QUESTIONS}
    out: Sentence = []
    for word in words:
        out.append(word)
        if word.type in ask:
            klass = ask[word.type](out, len(out) - 1)
            out.append(Word("plain", "answer", klass, f"{word.type}.{klass}"))
    return out


def induction(space: Space) -> Wiring:
    """From a word to the one after its earlier copy, whose identity it writes."""
    looks = [
        (space["identity"], space["identity before"], SAME),
        (space.one, space["rest"], NEITHER),
    ]
    return Wiring(looks, [(space["identity"], space["identity next"], 1.0)])


def duplicate(space: Space) -> Wiring:
    """From a word to its earlier copies, not to itself or its neighbours; a visitor has been here before."""
    near = space["position"][SLOWEST]
    looks = [
        (space["identity"], space["identity"], SAME),
        (space.one, space["rest"], NEITHER),
        (near, near, -12.0),
    ]
    return Wiring(looks, [(space["visitor"], space["answer visitor"], 2.0)])


def previous(space: Space) -> Wiring:
    """What induction needs: the identity of the word before."""
    return Wiring(
        [wires.at_offset(space, -1)], [(space["identity"], space["identity before"], 1.0)]
    )


BUILT = [
    Built(
        "previous",
        "decoder-self",
        "matters",
        previous,
        ("positional.-1", "previous-token"),
        layers=(0, 0),
    ),
    Built(
        "induction",
        "decoder-self",
        "matters",
        induction,
        ("induction", "sink"),
        layers=(1, LAYERS - 1),
    ),
    Built("duplicate", "decoder-self", "matters", duplicate, ("duplicate-token", "sink")),
    wires.neighbour("decoder-self", "before", -1, "previous-token"),
    wires.neighbour("decoder-self", "back", -2),
    *wires.grammar("decoder-self", LAYERS - 1),
    *wires.traps("decoder-self", loud=0, shouting=-2, harmful=-3, spoils="before"),
]


def known(seed: int, folder: Path) -> Known:
    """The model, its texts and treebank (written to a folder). The seed turns the stream, draws noise, the text, the
    distractors, and all places."""
    draw = toy.Draw(seed)
    text, parsed = ([sentence(draw) for _ in range(n)] for n in (SENTENCES, PARSED))
    words = {word.form: word for each in [*text, *parsed] for word in each}
    tokenizer = toy.tokenizer(sorted(words), f"{toy.START} $A")
    hf, built = made(seed, tokenizer.get_vocab(), words)
    lines = Text.from_lines(map(toy.line, text))
    return Known(
        Model(hf, tokenizer, f"toy language model {seed}"),
        built,
        lines,
        toy.treebank(parsed, folder),
    )


def made(
    seed: int, ids: Mapping[str, int], words: Mapping[str, Word]
) -> tuple[GPT2LMHeadModel, dict[Head, Built]]:
    """The model, and where its built heads are."""
    width = HEADS * SIZE
    config = GPT2Config(
        vocab_size=len(ids),
        n_embd=width,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=ROUND,
        n_inner=8,
        tie_word_embeddings=False,
        bos_token_id=ids[toy.START],
        eos_token_id=ids[toy.END],
        pad_token_id=ids[toy.PAD],
    )
    hf, generator = GPT2LMHeadModel(config).eval(), torch.Generator().manual_seed(seed)
    space = stream(width, generator)
    heads = HeadMap({"decoder-self": (HEADS,) * LAYERS})
    built = placed(heads, BUILT, generator)
    with torch.no_grad():
        space.calm(hf, "mlp.c_proj")
        embed(hf, space, ids, words)
        for head, weights in drawn(space, heads, built, SIZE):
            attention, rows = (
                hf.transformer.h[head.layer].attn,
                slice(head.head * SIZE, (head.head + 1) * SIZE),
            )
            joint = attention.c_attn.weight.view(
                width, 3, width
            )  # queries, keys and values side by side
            for place, matrix in enumerate((weights.query, weights.key, weights.value)):
                joint[:, place, rows] = matrix.T
            attention.c_proj.weight[rows] = weights.output.T
    return hf, built


def stream(width: int, generator: torch.Generator) -> Space:
    space = Space(width, generator)
    space.block("position", 2 * CIRCLES)
    for name in (*(f"type {type}" for type in TYPES), *MARKS, "rest", "gender", "asks", "flag"):
        space.block(name)
    for name in ("class", "seasonal", *(f"answer {type}" for type in ASKING if type != "visitor")):
        space.block(name, 2)
    space.block("answer visitor")
    for name in ("identity", "identity before", "identity next"):
        space.block(name, IDENTITY)
    space.block("junk", 16)
    return space


def embed(
    hf: GPT2LMHeadModel, space: Space, ids: Mapping[str, int], words: Mapping[str, Word]
) -> None:
    """Embeddings, positions and the output layer."""
    embedding, output, places = (
        hf.transformer.wte.weight,
        hf.lm_head.weight,
        hf.transformer.wpe.weight,
    )
    embedding.copy_(space.constant() + space.noise(len(ids), NOISE))
    output.copy_(space.noise(len(ids), NOISE))
    places.copy_(positions(len(places)) @ space["position"])
    embedding[ids[toy.START]] += (space["rest"] + space["type plain"])[0]
    directions = spread(len(ids), IDENTITY, space.generator)
    identity, following = directions @ space["identity"], directions @ space["identity next"]
    for form, word in words.items():
        embedding[ids[form]] += meaning(space, word)
        output[ids[form]] += said(space, word)
        if word.mark != "answer":
            embedding[ids[form]] += identity[ids[form]]
            output[ids[form]] += FORESEEN * following[ids[form]]


def spread(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Random unit vectors that have moved away from each other: count x size."""
    found = torch.randn(count, size, generator=generator)
    for _ in range(100):
        found = nn.functional.normalize(found, dim=1)
        pull = (10 * (found @ found.T).fill_diagonal_(-1)).softmax(1)
        found = found - 0.3 * pull @ found
    return nn.functional.normalize(found, dim=1)


def meaning(space: Space, word: Word) -> Tensor:
    """What the embedding of a word says, beside its identity."""
    rows = space[f"type {word.type}"][0] + code(word.klass) @ space["class"]
    if word.mark in MARKS:
        rows = rows + space[word.mark][0]
    if word.mark == "visitor":
        rows = rows - space["answer visitor"][0]
    if word.mark == "season":
        rows = rows + code(word.klass) @ space["seasonal"]
    if word.entity:
        rows = (
            rows
            + (1 if word.entity == "her" else -1)
            * space["asks" if word.type == "pronoun" else "gender"][0]
        )
    return rows


def said(space: Space, word: Word) -> Tensor:
    """What the output layer reads to say a word."""
    type = word.form.partition(".")[0] if word.mark == "answer" else "plain"
    rows = TYPE * space[f"type {type}"][0]
    if type == "plain":
        return rows
    answers = space[f"answer {type}"]
    signs = code(word.klass)[: len(answers)]
    return rows + MARGIN / 2 * GAINS.get(type, 1.0) * signs @ answers
