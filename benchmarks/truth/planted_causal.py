"""A language model whose heads are known: GPT-2 with heads that are written by hand.

A word that asks is followed by its answer, `TYPE.CLASS`; all other words are random, but for a row of words that comes
twice, which only an induction head can foresee, and visitors, who are new or have been here before.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from headwise.core.heads import Head, HeadMap
from headwise.data.text import Text
from headwise.models.model import Model

from . import planted_heads, toy_language
from .planted_heads import PlantedHead, PlantedModel, all_weights, place_heads
from .residual_stream import CIRCLES, ROUND, Stream, Wiring, code, position_codes
from .toy_language import CLASSES, Sentence, ToyWord, WordQuestion, index_of

HEADS = 10
SIZE = 16  # of a head
LAYERS = 3
SENTENCES = 10
PARSED = 120
FILLERS = 16
ROW = 4  # fillers
VISITORS = 6
MARGIN = 5.0  # nats between the right answer and the next one
TYPE = 40.0  # nats between words of the right and of another type
NOISE = 0.004
GAINS = {"adverb": 4.0, "object": 1.6, "mood": 16.0}  # of margins
IDENTITY = 9  # numbers that tell words apart; answers have none
PREDICTED = 6.0  # nats that induction adds to a word
SAME = 40.0  # nats on a word with itself
NEITHER = 30.0  # nats on `rest`, where there is none
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
    WordQuestion("verb", lambda words, i: words[index_of(words, "subject")].class_number),
    WordQuestion("object", lambda words, i: words[index_of(words, "verb")].class_number),
    WordQuestion("adverb", lambda words, i: words[index_of(words, "verb")].class_number),
    WordQuestion("adjective", lambda words, i: words[index_of(words, "noun")].class_number),
    WordQuestion("pronoun", lambda words, i: words[index_of(words, words[i].entity)].class_number),
    WordQuestion("before", lambda words, i: words[i - 1].class_number),
    WordQuestion("back", lambda words, i: words[i - 2].class_number),
    WordQuestion("mood", lambda words, i: words[index_of(words, "season")].class_number),
    WordQuestion(
        "visitor",
        lambda words, i: 0 if words[i].form in {word.form for word in words[:i]} else CLASSES - 1,
    ),
]
TYPES = ["plain", *(question.type for question in QUESTIONS)]
ASKING = TYPES[1:]


def draw_causal_sentence(draw: toy_language.Draw) -> Sentence:
    """The words of WORDS, visitors of whom one comes twice, and a row of fillers that comes twice."""
    random = draw.random
    units: list[Sentence] = []  # words that stay together
    for type, mark, upos in WORDS:
        units.append([ToyWord(type, mark, draw.class_number(), upos=upos)])
    returning, other = random.sample(range(VISITORS), 2)
    for guest in (returning, returning, other):
        visitor = ToyWord("visitor", "visitor", guest % CLASSES, f"visitor{guest}", upos="NOUN")
        units.append([visitor])
    fillers = random.sample(range(FILLERS), ROW)
    for _ in range(2):
        row = []
        for filler in fillers:
            form = f"filler{filler}"
            row.append(ToyWord("plain", "filler", filler % CLASSES, form, upos="NOUN"))
        units.append(row)

    words: Sentence = []
    while not words or not is_answerable(words):
        random.shuffle(units)
        words = list(chain.from_iterable(units))
    toy_language.name_entities(words, random)
    words = with_answers(words)
    toy_language.attach(words, GOVERNED, random)
    return words


def is_answerable(words: Sentence) -> bool:
    """Whether every word finds what it asks for before it, and copies are far apart."""
    at = {word.mark: index for index, word in enumerate(words)}
    if at["before"] == 0 or at["back"] <= 1:
        return False
    for first, later in LATER:
        if at[first] > at[later]:
            return False

    last_seen: dict[str, int] = {}
    for index, word in enumerate(words):
        if word.form in last_seen and index - last_seen[word.form] < APART:
            return False
        last_seen[word.form] = index
    return True


def with_answers(words: Sentence) -> Sentence:
    """The sentence with an answer behind every word that asks."""
    ask = {question.type: question.answer for question in QUESTIONS}
    out: Sentence = []
    for word in words:
        out.append(word)
        if word.type in ask:
            class_number = ask[word.type](out, len(out) - 1)
            out.append(ToyWord("plain", "answer", class_number, f"{word.type}.{class_number}"))
    return out


def wire_induction(stream: Stream) -> Wiring:
    """From a word to the one after its earlier copy, whose identity it writes."""
    looks = [
        (stream["identity"], stream["identity before"], SAME),
        (stream.one, stream["rest"], NEITHER),
    ]
    return Wiring(looks, [(stream["identity"], stream["identity next"], 1.0)])


def wire_duplicate(stream: Stream) -> Wiring:
    """From a word to its earlier copies, not to itself or its neighbours; a visitor has been here before."""
    near = stream["position"][SLOWEST]
    looks = [
        (stream["identity"], stream["identity"], SAME),
        (stream.one, stream["rest"], NEITHER),
        (near, near, -12.0),
    ]
    return Wiring(looks, [(stream["visitor"], stream["answer visitor"], 2.0)])


def wire_previous(stream: Stream) -> Wiring:
    """What induction needs: the identity of the word before."""
    return Wiring(
        [planted_heads.at_offset(stream, -1)],
        [(stream["identity"], stream["identity before"], 1.0)],
    )


PLANTED = [
    PlantedHead(
        "previous",
        "decoder-self",
        "matters",
        wire_previous,
        ("positional.-1", "previous-token"),
        layers=(0, 0),
    ),
    PlantedHead(
        "induction",
        "decoder-self",
        "matters",
        wire_induction,
        ("induction", "sink"),
        layers=(1, LAYERS - 1),
    ),
    PlantedHead(
        "duplicate", "decoder-self", "matters", wire_duplicate, ("duplicate-token", "sink")
    ),
    planted_heads.neighbour_head("decoder-self", "before", -1, "previous-token"),
    planted_heads.neighbour_head("decoder-self", "back", -2),
    *planted_heads.grammar("decoder-self", LAYERS - 1),
    *planted_heads.traps("decoder-self", loud=0, unread=-2, harmful=-3, spoils="before"),
]


def plant_causal_model(seed: int, folder: Path) -> PlantedModel:
    """The model, its texts and treebank (written to a folder). The seed turns the stream, draws noise, the text, the
    distractors, and all places."""
    draw = toy_language.Draw(seed)
    text = [draw_causal_sentence(draw) for _ in range(SENTENCES)]
    parsed = [draw_causal_sentence(draw) for _ in range(PARSED)]
    words = {word.form: word for word in chain(*text, *parsed)}
    tokenizer = toy_language.tokenizer(sorted(words), f"{toy_language.START} $A")
    hf, planted = build_gpt2(seed, tokenizer.get_vocab(), words)
    lines = Text.from_lines(map(toy_language.line, text))
    return PlantedModel(
        Model(hf, tokenizer, f"toy language model {seed}"),
        planted,
        lines,
        toy_language.treebank(parsed, folder),
    )


def build_gpt2(
    seed: int, ids: Mapping[str, int], words: Mapping[str, ToyWord]
) -> tuple[GPT2LMHeadModel, dict[Head, PlantedHead]]:
    """The model, and where its planted heads are."""
    width = HEADS * SIZE
    config = GPT2Config(
        vocab_size=len(ids),
        n_embd=width,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=ROUND,
        n_inner=8,
        tie_word_embeddings=False,
        bos_token_id=ids[toy_language.START],
        eos_token_id=ids[toy_language.END],
        pad_token_id=ids[toy_language.PAD],
    )
    hf = GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(seed)
    stream = causal_stream(width, generator)
    heads = HeadMap({"decoder-self": (HEADS,) * LAYERS})
    planted = place_heads(heads, PLANTED, generator)
    with torch.no_grad():
        stream.calm(hf, "mlp.c_proj")
        set_gpt2_embeddings(hf, stream, ids, words)
        for head, weights in all_weights(stream, heads, planted, SIZE):
            attention = hf.transformer.h[head.layer].attn
            rows = slice(head.head * SIZE, (head.head + 1) * SIZE)
            # Queries, keys and values side by side.
            joint = attention.c_attn.weight.view(width, 3, width)
            joint[:, 0, rows] = weights.query.T
            joint[:, 1, rows] = weights.key.T
            joint[:, 2, rows] = weights.value.T
            attention.c_proj.weight[rows] = weights.output.T
    return hf, planted


def causal_stream(width: int, generator: torch.Generator) -> Stream:
    stream = Stream(width, generator)
    stream.block("position", 2 * CIRCLES)
    for type in TYPES:
        stream.block(f"type {type}")
    for name in (*MARKS, "rest", "gender", "asks", "flag"):
        stream.block(name)
    stream.block("class", 2)
    stream.block("seasonal", 2)
    for type in ASKING:
        if type != "visitor":
            stream.block(f"answer {type}", 2)
    stream.block("answer visitor")
    for name in ("identity", "identity before", "identity next"):
        stream.block(name, IDENTITY)
    stream.block("junk", 16)
    return stream


def set_gpt2_embeddings(
    hf: GPT2LMHeadModel, stream: Stream, ids: Mapping[str, int], words: Mapping[str, ToyWord]
) -> None:
    """Embeddings, positions and the output layer."""
    embedding = hf.transformer.wte.weight
    output = hf.lm_head.weight
    positions = hf.transformer.wpe.weight
    embedding.copy_(stream.constant() + stream.noise(len(ids), NOISE))
    output.copy_(stream.noise(len(ids), NOISE))
    positions.copy_(position_codes(len(positions)) @ stream["position"])
    embedding[ids[toy_language.START]] += (stream["rest"] + stream["type plain"])[0]
    directions = spread_vectors(len(ids), IDENTITY, stream.generator)
    identity = directions @ stream["identity"]
    following = directions @ stream["identity next"]
    for form, word in words.items():
        embedding[ids[form]] += causal_meaning(stream, word)
        output[ids[form]] += said(stream, word)
        if word.mark != "answer":
            embedding[ids[form]] += identity[ids[form]]
            output[ids[form]] += PREDICTED * following[ids[form]]


def spread_vectors(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Random unit vectors that have moved away from each other: count x size."""
    vectors = torch.randn(count, size, generator=generator)
    for _ in range(100):
        vectors = nn.functional.normalize(vectors, dim=1)
        nearness = (10 * (vectors @ vectors.T).fill_diagonal_(-1)).softmax(1)
        vectors = vectors - 0.3 * nearness @ vectors
    return nn.functional.normalize(vectors, dim=1)


def causal_meaning(stream: Stream, word: ToyWord) -> Tensor:
    """What the embedding of a word says, apart from its identity."""
    rows = stream[f"type {word.type}"][0] + code(word.class_number) @ stream["class"]
    if word.mark in MARKS:
        rows = rows + stream[word.mark][0]
    if word.mark == "visitor":
        rows = rows - stream["answer visitor"][0]
    if word.mark == "season":
        rows = rows + code(word.class_number) @ stream["seasonal"]
    if word.entity:
        sign = 1 if word.entity == "her" else -1
        rows = rows + sign * stream["asks" if word.type == "pronoun" else "gender"][0]
    return rows


def said(stream: Stream, word: ToyWord) -> Tensor:
    """What the output layer reads to say a word."""
    type = word.form.partition(".")[0] if word.mark == "answer" else "plain"
    rows = TYPE * stream[f"type {type}"][0]
    if type == "plain":
        return rows
    answers = stream[f"answer {type}"]
    signs = code(word.class_number)[: len(answers)]
    return rows + MARGIN / 2 * GAINS.get(type, 1.0) * signs @ answers
