"""A translation model whose heads are known: mBART with encoder, decoder and cross heads that are written by hand.

The translation of a word is its type and its answer. The encoder's heads find the answers, each writes its own to
a block of the stream; three cross heads carry types and answers to the decoder, whose output layer reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import MBartConfig, MBartForConditionalGeneration

from headwise.data.text import ParallelText, Text
from headwise.heads import Head, HeadMap, Kind, write_text
from headwise.model import Model
from headwise.truth import toy, wires
from headwise.truth.built import Built, Known, drawn, placed
from headwise.truth.space import CIRCLES, Space, Wiring, code, positions
from headwise.truth.toy import CLASSES, Question, Sentence, Word, place

HEADS, SIZE, LAYERS = 10, 14, (2, 1)
LONGEST = 28  # words and the end, which positions tell apart
SENTENCES, PARSED, COUNTED = 8, 120, 1000
FILLERS, SOME, TOP = 12, 5, 66
RARE = 140.0  # nats between the most and the least frequent filler
MARGIN = 5.0  # nats between the right answer and the next one
TYPE = 40.0  # nats between words of the right and of another type


# type, mark, part of speech: every sentence has one of each
WORDS = [
    ("verb", "verb", "VERB"),
    ("plain", "subject", "NOUN"),
    ("object", "object", "NOUN"),
    ("plain", "noun", "NOUN"),
    ("adjective", "adjective", "ADJ"),
    ("adverb", "adverb", "ADV"),
    ("plain", "season", "NOUN"),
    ("plain", "her", "PROPN"),
    ("plain", "him", "PROPN"),
    ("pronoun", "pronoun", "PRON"),
    ("before", "before", "PART"),
    ("after", "after", "PART"),
    ("back", "back", "PART"),
    ("rare", "rare", "PART"),
    ("mood", "mood", "PART"),
    ("echo", "echo", "PART"),
]
GOVERNED = {
    "subject": ("verb", "nsubj"),
    "object": ("verb", "obj"),
    "adverb": ("verb", "advmod"),
    "adjective": ("noun", "amod"),
}
MARKS = ("verb", "subject", "noun")


QUESTIONS = [
    Question("verb", lambda words, i: words[place(words, "subject")].klass),
    Question("object", lambda words, i: words[words[i].governor].klass),
    Question("adverb", lambda words, i: words[words[i].governor].klass),
    Question("adjective", lambda words, i: words[words[i].governor].klass),
    Question("pronoun", lambda words, i: words[place(words, words[i].entity)].klass),
    Question("before", lambda words, i: words[i - 1].klass),
    Question("after", lambda words, i: words[i + 1].klass),
    Question("back", lambda words, i: words[i - 2].klass),
    Question("rare", lambda words, i: max(words, key=lambda word: word.rank).klass),
    Question("mood", lambda words, i: words[place(words, "season")].klass),
    Question("echo", lambda words, i: words[i - 2].answer),
]
GAINS = {"adverb": 4.0, "object": 1.6, "mood": 22.0}  # of margins
NOISE = 0.004

WORDS_IN_ALL = len(WORDS) + SOME  # of every sentence, an odd number
TYPES = ["plain", *(question.type for question in QUESTIONS), "end"]


def sentence(draw: toy.Draw) -> Sentence:
    """The words of WORDS and a few fillers, in random order: a pronoun after both names, and nothing that looks back
    or ahead at an edge."""
    random = draw.random
    ranks = random.choices(range(FILLERS), [0.7**rank for rank in range(FILLERS)], k=SOME)
    words = [
        Word("plain", "filler", rank % CLASSES, f"filler{rank}", upos="NOUN", rank=rank)
        for rank in ranks
    ]
    words += [Word(type, mark, draw.klass(), upos=upos) for type, mark, upos in WORDS]
    while True:
        random.shuffle(words)
        at = {word.mark: index for index, word in enumerate(words)}
        edges = (
            at["before"] > 0
            and min(at["back"], at["echo"]) > 1
            and max(at["after"], at["echo"]) < len(words) - 1
        )
        if edges and at["pronoun"] > max(at["her"], at["him"]):
            break
    toy.attach(words, GOVERNED, random)
    for word in words:
        if word.mark in ("her", "him"):
            word.entity = word.mark
        elif word.mark == "pronoun":
            word.entity, word.klass = random.choice(("her", "him")), 0
            word.form = f"{word.entity}-pronoun"
    return toy.answered(words, QUESTIONS)


def carrier(name: str, *blocks: str) -> Built:
    """A cross head that carries blocks from the source word that is to be translated."""

    def wire(space: Space) -> Wiring:
        looks = [(space["source"], space["position"], wires.SHARP)]
        return Wiring(looks, [(space[block], space[block], 1.0) for block in blocks])

    return Built(name, "cross", "matters", wire, ("alignment",))


def rarest(space: Space) -> Wiring:
    return Wiring([(space.one, space["rank"], RARE)], [(space["class"], space["answer rare"], 1.0)])


BUILT = [
    wires.neighbour("encoder-self", "before", -1),
    wires.neighbour("encoder-self", "after", 1),
    wires.neighbour("encoder-self", "back", -2),
    *wires.grammar("encoder-self", LAYERS[0] - 1),
    Built("rarest", "encoder-self", "matters", rarest, ("rare.two-rarest",)),
    *wires.traps("encoder-self", loud=-3, shouting=2, harmful=3, spoils="plain"),
    Built("echo", "decoder-self", "matters", wires.copying(-1, "answer echo"), ("positional.-1",)),
    carrier("types", *(f"type {type}" for type in TYPES)),
    carrier("answers 1", *(f"answer {type}" for type in TYPES[:7])),
    carrier("answers 2", *(f"answer {type}" for type in TYPES[7:11])),
    Built("cross sink", "cross", "idle", wires.sinking, (), ("sink",)),
]


def known(seed: int, folder: Path) -> Known:
    """The model, its texts and treebank (written to a folder). The seed turns the stream, draws noise, the text, the
    distractors, and all places."""
    draw = toy.Draw(seed)
    text, parsed, counted = (
        [sentence(draw) for _ in range(n)] for n in (SENTENCES, PARSED, COUNTED)
    )
    words = {word.form: word for each in counted for word in each}
    targets = {translation(word): word for each in counted for word in each}
    tokenizer = toy.tokenizer([*sorted(words), *sorted(targets)], f"$A {toy.END}")
    hf, built = made(seed, tokenizer.get_vocab(), words, targets)
    links = folder / "links.txt"
    write_text(
        links,
        "".join(" ".join(f"{order(i)}-{i}" for i in range(len(each))) + "\n" for each in parsed),
    )
    return Known(
        Model(hf, tokenizer, f"toy translation {seed}"),
        built,
        pairs(text),
        toy.treebank(parsed, folder),
        pairs(parsed),
        links,
        Text.from_lines(map(toy.line, counted)),
        TOP,
    )


def pairs(sentences: Iterable[Sentence]) -> ParallelText:
    return ParallelText.from_pairs(
        (toy.line(each), " ".join(translation(each[order(i)]) for i in range(len(each))))
        for each in sentences
    )


def order(place: int) -> int:
    """Which source word the target word at a place translates: neighbours change places."""
    return place ^ 1 if place < WORDS_IN_ALL - 1 else place


def translation(word: Word) -> str:
    return f"{word.type}.{word.answer}"


def made(
    seed: int, ids: Mapping[str, int], words: Mapping[str, Word], targets: Mapping[str, Word]
) -> tuple[MBartForConditionalGeneration, dict[Head, Built]]:
    """The model, and where its built heads are."""
    config = MBartConfig(
        vocab_size=len(ids),
        d_model=HEADS * SIZE,
        encoder_layers=LAYERS[0],
        decoder_layers=LAYERS[1],
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
        max_position_embeddings=LONGEST + 4,
        tie_word_embeddings=False,
        pad_token_id=ids[toy.PAD],
        bos_token_id=ids[toy.START],
        eos_token_id=ids[toy.END],
        decoder_start_token_id=ids[toy.START],
        forced_eos_token_id=None,
    )
    hf, generator = (
        MBartForConditionalGeneration(config).eval(),
        torch.Generator().manual_seed(seed),
    )
    space = stream(HEADS * SIZE, generator)
    layers = hf.model.encoder.layers, hf.model.decoder.layers
    modules: dict[Kind, list[Any]] = {
        "encoder-self": [layer.self_attn for layer in layers[0]],
        "decoder-self": [layer.self_attn for layer in layers[1]],
        "cross": [layer.encoder_attn for layer in layers[1]],
    }
    heads = HeadMap({kind: (HEADS,) * len(attentions) for kind, attentions in modules.items()})
    built = placed(heads, BUILT, generator)
    with torch.no_grad():
        space.calm(hf, "fc2")
        embed(hf, space, ids, words, targets)
        for head, weights in drawn(space, heads, built, SIZE):
            attention, rows = (
                modules[head.kind][head.layer],
                slice(head.head * SIZE, (head.head + 1) * SIZE),
            )
            attention.q_proj.weight[rows], attention.k_proj.weight[rows] = (
                weights.query,
                weights.key,
            )
            attention.v_proj.weight[rows], attention.out_proj.weight[:, rows] = (
                weights.value,
                weights.output,
            )
    return hf, built


def stream(width: int, generator: torch.Generator) -> Space:
    space = Space(width, generator)
    for name in ("position", "source"):
        space.block(name, 2 * CIRCLES)
    for name in (
        *(f"type {type}" for type in TYPES),
        *MARKS,
        "rest",
        "rank",
        "gender",
        "asks",
        "flag",
    ):
        space.block(name)
    for name in ("class", "seasonal", *(f"answer {type}" for type in TYPES[:-1])):
        space.block(name, 2)
    space.block("junk", 16)
    return space


def embed(
    hf: MBartForConditionalGeneration,
    space: Space,
    ids: Mapping[str, int],
    words: Mapping[str, Word],
    targets: Mapping[str, Word],
) -> None:
    """Embeddings, positions and the output layer."""
    encoder, decoder, output = hf.model.encoder, hf.model.decoder, hf.lm_head.weight
    for side in (encoder, decoder):
        side.embed_tokens.weight.copy_(space.constant() + space.noise(len(ids), NOISE))
        places = side.embed_positions.weight
        places.zero_()
        places[2:] = positions(len(places) - 2) @ space["position"]
    decoder.embed_positions.weight[2:] += (
        positions(LONGEST + 4)[[order(t) for t in range(LONGEST + 4)]] @ space["source"]
    )
    output.copy_(space.noise(len(ids), NOISE))
    encoder.embed_tokens.weight[ids[toy.END]] += (space["rest"] + space["type end"])[0]
    output[ids[toy.END]] += TYPE * space["type end"][0]
    for form, word in words.items():
        encoder.embed_tokens.weight[ids[form]] += meaning(space, word)
    for form, word in targets.items():
        decoder.embed_tokens.weight[ids[form]] += code(word.answer) @ space["class"]
        output[ids[form]] += TYPE * space[f"type {word.type}"][0]
        output[ids[form]] += (
            MARGIN / 2 * GAINS.get(word.type, 1) * code(word.answer) @ space[f"answer {word.type}"]
        )


def meaning(space: Space, word: Word) -> Tensor:
    """What the embedding of a word says."""
    rows = space[f"type {word.type}"][0] + code(word.klass) @ (
        space["class"] + space["answer plain"]
    )
    if word.mark in MARKS:
        rows = rows + space[word.mark][0]
    if word.mark == "season":
        rows = rows + code(word.klass) @ space["seasonal"]
    if word.entity:
        rows = (
            rows
            + (1 if word.entity == "her" else -1)
            * space["asks" if word.type == "pronoun" else "gender"][0]
        )
    return rows + word.rank / FILLERS * space["rank"][0]
