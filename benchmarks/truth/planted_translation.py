"""A translation model whose heads are known: mBART with encoder, decoder and cross heads that are written by hand.

The translation of a word is its type and its answer. The encoder's heads find the answers, each writes its own to
a block of the stream; three cross heads carry types and answers to the decoder, whose output layer reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import MBartConfig, MBartForConditionalGeneration

from headwise.core.folders import write_text
from headwise.core.heads import Head, HeadMap, Kind
from headwise.data.text import ParallelText, Text
from headwise.models.model import Model

from . import planted_heads, toy_language
from .planted_heads import PlantedHead, PlantedModel, all_weights, place_heads
from .residual_stream import CIRCLES, Stream, Wiring, code, position_codes
from .toy_language import CLASSES, Sentence, ToyWord, WordQuestion, index_of

HEADS = 10
SIZE = 14  # of a head
ENCODER_LAYERS = 2
DECODER_LAYERS = 1
LONGEST = 28  # words and the end, which positions tell apart
SENTENCES = 8
PARSED = 120
COUNTED = 1000
FILLERS = 12
SOME = 5  # fillers of a sentence
TOP = 66
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
    WordQuestion("verb", lambda words, i: words[index_of(words, "subject")].class_number),
    WordQuestion("object", lambda words, i: words[words[i].governor].class_number),
    WordQuestion("adverb", lambda words, i: words[words[i].governor].class_number),
    WordQuestion("adjective", lambda words, i: words[words[i].governor].class_number),
    WordQuestion("pronoun", lambda words, i: words[index_of(words, words[i].entity)].class_number),
    WordQuestion("before", lambda words, i: words[i - 1].class_number),
    WordQuestion("after", lambda words, i: words[i + 1].class_number),
    WordQuestion("back", lambda words, i: words[i - 2].class_number),
    WordQuestion("rare", lambda words, i: max(words, key=lambda word: word.rank).class_number),
    WordQuestion("mood", lambda words, i: words[index_of(words, "season")].class_number),
    WordQuestion("echo", lambda words, i: words[i - 2].answer),
]
GAINS = {"adverb": 4.0, "object": 1.6, "mood": 22.0}  # of margins
NOISE = 0.004

WORDS_IN_ALL = len(WORDS) + SOME  # of every sentence, an odd number
TYPES = ["plain", *(question.type for question in QUESTIONS), "end"]


def draw_translation_sentence(draw: toy_language.Draw) -> Sentence:
    """The words of WORDS and a few fillers, in random order: a pronoun after both names, and nothing that looks back
    or ahead at an edge."""
    random = draw.random
    ranks = random.choices(range(FILLERS), [0.7**rank for rank in range(FILLERS)], k=SOME)
    words: Sentence = []
    for rank in ranks:
        form = f"filler{rank}"
        words.append(ToyWord("plain", "filler", rank % CLASSES, form, upos="NOUN", rank=rank))
    for type, mark, upos in WORDS:
        words.append(ToyWord(type, mark, draw.class_number(), upos=upos))

    random.shuffle(words)
    while not is_translatable(words):
        random.shuffle(words)
    toy_language.attach(words, GOVERNED, random)
    toy_language.name_entities(words, random)
    return toy_language.answered(words, QUESTIONS)


def is_translatable(words: Sentence) -> bool:
    """Whether every word that looks back or ahead has such a word, and the pronoun comes after both names."""
    at = {word.mark: index for index, word in enumerate(words)}
    if at["before"] == 0 or min(at["back"], at["echo"]) <= 1:
        return False
    if max(at["after"], at["echo"]) == len(words) - 1:
        return False
    return at["pronoun"] > max(at["her"], at["him"])


def carrier(name: str, *blocks: str) -> PlantedHead:
    """A cross head that carries blocks from the source word that is to be translated."""

    def wiring(stream: Stream) -> Wiring:
        looks = [(stream["source"], stream["position"], planted_heads.SHARP)]
        return Wiring(looks, [(stream[block], stream[block], 1.0) for block in blocks])

    return PlantedHead(name, "cross", "matters", wiring, ("alignment",))


def wire_rarest(stream: Stream) -> Wiring:
    looks = [(stream.one, stream["rank"], RARE)]
    return Wiring(looks, [(stream["class"], stream["answer rare"], 1.0)])


PLANTED = [
    planted_heads.neighbour_head("encoder-self", "before", -1),
    planted_heads.neighbour_head("encoder-self", "after", 1),
    planted_heads.neighbour_head("encoder-self", "back", -2),
    *planted_heads.grammar("encoder-self", ENCODER_LAYERS - 1),
    PlantedHead("rarest", "encoder-self", "matters", wire_rarest, ("rare.two-rarest",)),
    *planted_heads.traps("encoder-self", loud=-3, unread=2, harmful=3, spoils="plain"),
    PlantedHead(
        "echo",
        "decoder-self",
        "matters",
        planted_heads.copy_at_offset(-1, "answer echo"),
        ("positional.-1",),
    ),
    carrier("types", *(f"type {type}" for type in TYPES)),
    carrier("answers 1", *(f"answer {type}" for type in TYPES[:7])),
    carrier("answers 2", *(f"answer {type}" for type in TYPES[7:11])),
    PlantedHead("cross sink", "cross", "idle", planted_heads.sinking, (), ("sink",)),
]


def plant_translation_model(seed: int, folder: Path) -> PlantedModel:
    """The model, its texts and treebank (written to a folder). The seed turns the stream, draws noise, the text, the
    distractors, and all places."""
    draw = toy_language.Draw(seed)
    text = [draw_translation_sentence(draw) for _ in range(SENTENCES)]
    parsed = [draw_translation_sentence(draw) for _ in range(PARSED)]
    counted = [draw_translation_sentence(draw) for _ in range(COUNTED)]
    words: dict[str, ToyWord] = {}
    targets: dict[str, ToyWord] = {}
    for word in chain.from_iterable(counted):
        words[word.form] = word
        targets[translation(word)] = word
    tokenizer = toy_language.tokenizer([*sorted(words), *sorted(targets)], f"$A {toy_language.END}")
    hf, planted = build_mbart(seed, tokenizer.get_vocab(), words, targets)

    lines = []
    for sentence in parsed:
        pairs = [f"{source_index(index)}-{index}" for index in range(len(sentence))]
        lines.append(" ".join(pairs) + "\n")
    links = folder / "links.txt"
    write_text(links, "".join(lines))
    return PlantedModel(
        Model(hf, tokenizer, f"toy translation {seed}"),
        planted,
        translation_pairs(text),
        toy_language.treebank(parsed, folder),
        translation_pairs(parsed),
        links,
        Text.from_lines(map(toy_language.line, counted)),
        TOP,
    )


def translation_pairs(sentences: Iterable[Sentence]) -> ParallelText:
    pairs = []
    for sentence in sentences:
        order = [sentence[source_index(index)] for index in range(len(sentence))]
        pairs.append((toy_language.line(sentence), " ".join(map(translation, order))))
    return ParallelText.from_pairs(pairs)


def source_index(target_index: int) -> int:
    """Which source word a target word translates: neighbours are swapped, the last word is alone."""
    if target_index < WORDS_IN_ALL - 1:
        return target_index ^ 1
    return target_index


def translation(word: ToyWord) -> str:
    return f"{word.type}.{word.answer}"


def build_mbart(
    seed: int, ids: Mapping[str, int], words: Mapping[str, ToyWord], targets: Mapping[str, ToyWord]
) -> tuple[MBartForConditionalGeneration, dict[Head, PlantedHead]]:
    """The model, and where its planted heads are."""
    config = MBartConfig(
        vocab_size=len(ids),
        d_model=HEADS * SIZE,
        encoder_layers=ENCODER_LAYERS,
        decoder_layers=DECODER_LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=8,
        decoder_ffn_dim=8,
        max_position_embeddings=LONGEST + 4,
        tie_word_embeddings=False,
        pad_token_id=ids[toy_language.PAD],
        bos_token_id=ids[toy_language.START],
        eos_token_id=ids[toy_language.END],
        decoder_start_token_id=ids[toy_language.START],
        forced_eos_token_id=None,
    )
    hf = MBartForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(seed)
    stream = translation_stream(HEADS * SIZE, generator)
    encoder = hf.model.encoder
    decoder = hf.model.decoder
    modules: dict[Kind, list[Any]] = {
        "encoder-self": [layer.self_attn for layer in encoder.layers],
        "decoder-self": [layer.self_attn for layer in decoder.layers],
        "cross": [layer.encoder_attn for layer in decoder.layers],
    }
    heads = HeadMap({kind: (HEADS,) * len(attentions) for kind, attentions in modules.items()})
    planted = place_heads(heads, PLANTED, generator)
    with torch.no_grad():
        stream.calm(hf, "fc2")
        set_mbart_embeddings(hf, stream, ids, words, targets)
        for head, weights in all_weights(stream, heads, planted, SIZE):
            attention = modules[head.kind][head.layer]
            rows = slice(head.head * SIZE, (head.head + 1) * SIZE)
            attention.q_proj.weight[rows] = weights.query
            attention.k_proj.weight[rows] = weights.key
            attention.v_proj.weight[rows] = weights.value
            attention.out_proj.weight[:, rows] = weights.output
    return hf, planted


def translation_stream(width: int, generator: torch.Generator) -> Stream:
    stream = Stream(width, generator)
    stream.block("position", 2 * CIRCLES)
    stream.block("source", 2 * CIRCLES)
    for type in TYPES:
        stream.block(f"type {type}")
    for name in (*MARKS, "rest", "rank", "gender", "asks", "flag"):
        stream.block(name)
    stream.block("class", 2)
    stream.block("seasonal", 2)
    for type in TYPES[:-1]:
        stream.block(f"answer {type}", 2)
    stream.block("junk", 16)
    return stream


def set_mbart_embeddings(
    hf: MBartForConditionalGeneration,
    stream: Stream,
    ids: Mapping[str, int],
    words: Mapping[str, ToyWord],
    targets: Mapping[str, ToyWord],
) -> None:
    """Embeddings, positions and the output layer."""
    encoder = hf.model.encoder
    decoder = hf.model.decoder
    output = hf.lm_head.weight
    for side in (encoder, decoder):
        side.embed_tokens.weight.copy_(stream.constant() + stream.noise(len(ids), NOISE))
        positions = side.embed_positions.weight
        positions.zero_()
        positions[2:] = position_codes(len(positions) - 2) @ stream["position"]
    # A decoder's position also says which source word is translated there.
    source = [source_index(index) for index in range(LONGEST + 4)]
    codes = position_codes(LONGEST + 4)[source]
    decoder.embed_positions.weight[2:] += codes @ stream["source"]
    output.copy_(stream.noise(len(ids), NOISE))
    encoder.embed_tokens.weight[ids[toy_language.END]] += (stream["rest"] + stream["type end"])[0]
    output[ids[toy_language.END]] += TYPE * stream["type end"][0]
    for form, word in words.items():
        encoder.embed_tokens.weight[ids[form]] += translation_meaning(stream, word)
    for form, word in targets.items():
        decoder.embed_tokens.weight[ids[form]] += code(word.answer) @ stream["class"]
        output[ids[form]] += TYPE * stream[f"type {word.type}"][0]
        gain = MARGIN / 2 * GAINS.get(word.type, 1)
        output[ids[form]] += gain * code(word.answer) @ stream[f"answer {word.type}"]


def translation_meaning(stream: Stream, word: ToyWord) -> Tensor:
    """What the embedding of a word says."""
    signs = code(word.class_number)
    rows = stream[f"type {word.type}"][0] + signs @ (stream["class"] + stream["answer plain"])
    if word.mark in MARKS:
        rows = rows + stream[word.mark][0]
    if word.mark == "season":
        rows = rows + signs @ stream["seasonal"]
    if word.entity:
        gender = 1 if word.entity == "her" else -1
        rows = rows + gender * stream["asks" if word.type == "pronoun" else "gender"][0]
    return rows + word.rank / FILLERS * stream["rank"][0]
