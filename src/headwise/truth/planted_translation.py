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
from headwise.truth import planted_heads, toy_language
from headwise.truth.planted_heads import PlantedHead, PlantedModel, all_weights, place_heads
from headwise.truth.residual_stream import CIRCLES, Stream, Wiring, code, position_codes
from headwise.truth.toy_language import CLASSES, Sentence, ToyWord, WordQuestion, index_of

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
    words = [
        ToyWord("plain", "filler", rank % CLASSES, f"filler{rank}", upos="NOUN", rank=rank)
        for rank in ranks
    ]
    words += [ToyWord(type, mark, draw.class_number(), upos=upos) for type, mark, upos in WORDS]
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
    toy_language.attach(words, GOVERNED, random)
    for word in words:
        if word.mark in ("her", "him"):
            word.entity = word.mark
        elif word.mark == "pronoun":
            word.entity, word.class_number = random.choice(("her", "him")), 0
            word.form = f"{word.entity}-pronoun"
    return toy_language.answered(words, QUESTIONS)


def carrier(name: str, *blocks: str) -> PlantedHead:
    """A cross head that carries blocks from the source word that is to be translated."""

    def wiring(stream: Stream) -> Wiring:
        looks = [(stream["source"], stream["position"], planted_heads.SHARP)]
        return Wiring(looks, [(stream[block], stream[block], 1.0) for block in blocks])

    return PlantedHead(name, "cross", "matters", wiring, ("alignment",))


def wire_rarest(stream: Stream) -> Wiring:
    return Wiring(
        [(stream.one, stream["rank"], RARE)], [(stream["class"], stream["answer rare"], 1.0)]
    )


PLANTED = [
    planted_heads.neighbour_head("encoder-self", "before", -1),
    planted_heads.neighbour_head("encoder-self", "after", 1),
    planted_heads.neighbour_head("encoder-self", "back", -2),
    *planted_heads.grammar("encoder-self", LAYERS[0] - 1),
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
    text, parsed, counted = (
        [draw_translation_sentence(draw) for _ in range(n)] for n in (SENTENCES, PARSED, COUNTED)
    )
    words = {word.form: word for each in counted for word in each}
    targets = {translation(word): word for each in counted for word in each}
    tokenizer = toy_language.tokenizer([*sorted(words), *sorted(targets)], f"$A {toy_language.END}")
    hf, planted = build_mbart(seed, tokenizer.get_vocab(), words, targets)
    links = folder / "links.txt"
    write_text(
        links,
        "".join(
            " ".join(f"{source_place(i)}-{i}" for i in range(len(each))) + "\n" for each in parsed
        ),
    )
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
    return ParallelText.from_pairs(
        (
            toy_language.line(each),
            " ".join(translation(each[source_place(i)]) for i in range(len(each))),
        )
        for each in sentences
    )


def source_place(place: int) -> int:
    """Which source word the target word at a place translates: neighbours change places."""
    return place ^ 1 if place < WORDS_IN_ALL - 1 else place


def translation(word: ToyWord) -> str:
    return f"{word.type}.{word.answer}"


def build_mbart(
    seed: int, ids: Mapping[str, int], words: Mapping[str, ToyWord], targets: Mapping[str, ToyWord]
) -> tuple[MBartForConditionalGeneration, dict[Head, PlantedHead]]:
    """The model, and where its planted heads are."""
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
        pad_token_id=ids[toy_language.PAD],
        bos_token_id=ids[toy_language.START],
        eos_token_id=ids[toy_language.END],
        decoder_start_token_id=ids[toy_language.START],
        forced_eos_token_id=None,
    )
    hf, generator = (
        MBartForConditionalGeneration(config).eval(),
        torch.Generator().manual_seed(seed),
    )
    stream = translation_stream(HEADS * SIZE, generator)
    layers = hf.model.encoder.layers, hf.model.decoder.layers
    modules: dict[Kind, list[Any]] = {
        "encoder-self": [layer.self_attn for layer in layers[0]],
        "decoder-self": [layer.self_attn for layer in layers[1]],
        "cross": [layer.encoder_attn for layer in layers[1]],
    }
    heads = HeadMap({kind: (HEADS,) * len(attentions) for kind, attentions in modules.items()})
    planted = place_heads(heads, PLANTED, generator)
    with torch.no_grad():
        stream.calm(hf, "fc2")
        set_mbart_embeddings(hf, stream, ids, words, targets)
        for head, weights in all_weights(stream, heads, planted, SIZE):
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
    return hf, planted


def translation_stream(width: int, generator: torch.Generator) -> Stream:
    stream = Stream(width, generator)
    for name in ("position", "source"):
        stream.block(name, 2 * CIRCLES)
    for name in (
        *(f"type {type}" for type in TYPES),
        *MARKS,
        "rest",
        "rank",
        "gender",
        "asks",
        "flag",
    ):
        stream.block(name)
    for name in ("class", "seasonal", *(f"answer {type}" for type in TYPES[:-1])):
        stream.block(name, 2)
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
    encoder, decoder, output = hf.model.encoder, hf.model.decoder, hf.lm_head.weight
    for side in (encoder, decoder):
        side.embed_tokens.weight.copy_(stream.constant() + stream.noise(len(ids), NOISE))
        places = side.embed_positions.weight
        places.zero_()
        places[2:] = position_codes(len(places) - 2) @ stream["position"]
    decoder.embed_positions.weight[2:] += (
        position_codes(LONGEST + 4)[[source_place(t) for t in range(LONGEST + 4)]]
        @ stream["source"]
    )
    output.copy_(stream.noise(len(ids), NOISE))
    encoder.embed_tokens.weight[ids[toy_language.END]] += (stream["rest"] + stream["type end"])[0]
    output[ids[toy_language.END]] += TYPE * stream["type end"][0]
    for form, word in words.items():
        encoder.embed_tokens.weight[ids[form]] += translation_meaning(stream, word)
    for form, word in targets.items():
        decoder.embed_tokens.weight[ids[form]] += code(word.answer) @ stream["class"]
        output[ids[form]] += TYPE * stream[f"type {word.type}"][0]
        output[ids[form]] += (
            MARGIN / 2 * GAINS.get(word.type, 1) * code(word.answer) @ stream[f"answer {word.type}"]
        )


def translation_meaning(stream: Stream, word: ToyWord) -> Tensor:
    """What the embedding of a word says."""
    rows = stream[f"type {word.type}"][0] + code(word.class_number) @ (
        stream["class"] + stream["answer plain"]
    )
    if word.mark in MARKS:
        rows = rows + stream[word.mark][0]
    if word.mark == "season":
        rows = rows + code(word.class_number) @ stream["seasonal"]
    if word.entity:
        rows = (
            rows
            + (1 if word.entity == "her" else -1)
            * stream["asks" if word.type == "pronoun" else "gender"][0]
        )
    return rows + word.rank / FILLERS * stream["rank"][0]
