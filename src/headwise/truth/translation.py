"""A translation model whose heads are known: mBART with encoder, decoder and cross heads that are written by hand.

The translation of a word is its type and its answer. The encoder's heads find the answers, each writes its own to
a block of the stream; three cross heads carry types and answers to the decoder, whose output layer reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MBartConfig, MBartForConditionalGeneration

from headwise.data.text import ParallelText, Text
from headwise.heads import Head, HeadMap, Kind
from headwise.model import Model
from headwise.truth import toy
from headwise.truth.built import Built, Known, distractor, placed
from headwise.truth.space import CIRCLES, Space, Wiring, positions, shift
from headwise.truth.toy import CLASSES, Question, Sentence, Word, place

HEADS, SIZE, LAYERS = 8, 16, (3, 2)
LONGEST = 28  # words and the end, which positions tell apart
SENTENCES, PARSED, COUNTED = 16, 120, 1000
FILLERS, TOP = 12, 24
SHARP = 10.0  # strength of a look at a position: 13 nats more than its neighbours
FOUND, DEFAULT = 16.0, 8.0  # nats on what is looked for, and on the end of the sentence where it is not there
MARGIN = 5.0  # nats between the right answer and the next one
TYPE = 20.0  # nats between words of the right and of another type


# type, mark, part of speech: every sentence has one of each
WORDS = [
    ("verb", "verb", "VERB"), ("plain", "subject", "NOUN"), ("object", "object", "NOUN"), ("plain", "noun", "NOUN"),
    ("adjective", "adjective", "ADJ"), ("adverb", "adverb", "ADV"), ("plain", "season", "NOUN"),
    ("plain", "her", "PROPN"), ("plain", "him", "PROPN"), ("pronoun", "pronoun", "PRON"), ("before", "before", "PART"),
    ("after", "after", "PART"), ("back", "back", "PART"), ("rare", "rare", "PART"), ("mood", "mood", "PART"),
    ("echo", "echo", "PART"),
]  # fmt: skip
GOVERNED = {
    "subject": ("verb", "nsubj"), "object": ("verb", "obj"),
    "adverb": ("verb", "advmod"), "adjective": ("noun", "amod"),
}  # fmt: skip
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

TYPES = ["plain", *(question.type for question in QUESTIONS), "end"]


def sentence(draw: toy.Draw) -> Sentence:
    """The words of WORDS and a few fillers, in random order: a pronoun after both names, and nothing that looks back
    or ahead at an edge."""
    random = draw.random
    ranks = random.choices(range(FILLERS), [0.75**rank for rank in range(FILLERS)], k=5)
    words = [Word("plain", "filler", rank % CLASSES, f"filler{rank}", upos="NOUN", rank=rank) for rank in ranks]
    words += [Word(type, mark, draw.klass(), upos=upos) for type, mark, upos in WORDS]
    while True:
        random.shuffle(words)
        at = {word.mark: index for index, word in enumerate(words)}
        edges = at["before"] > 0 and min(at["back"], at["echo"]) > 1 and at["after"] < len(words) - 1
        if edges and at["pronoun"] > max(at["her"], at["him"]):
            break
    others = [index for index, word in enumerate(words) if word.mark not in ("verb", "filler")]
    for word in words:
        governor, word.relation = GOVERNED.get(word.mark, ("verb", "discourse"))
        word.governor = at[governor]
        if word.mark == "filler":
            word.governor, word.relation = random.choice(others), "dep"
        elif word.mark in ("her", "him"):
            word.entity, word.relation = word.mark, "obl"
        elif word.mark == "pronoun":
            word.entity = random.choice(("her", "him"))
            word.form = f"{word.entity}-{word.mark}{word.klass}"
        elif word.mark == "verb":
            word.governor, word.relation = -1, "root"
    return toy.answered(words, QUESTIONS)


def at_offset(space: Space, offset: int) -> tuple[Tensor, Tensor, float]:
    """A look at the token at an offset."""
    return shift(offset) @ space["position"], space["position"], SHARP


def finding(space: Space, type: str, mark: str) -> list[tuple[Tensor, Tensor, float]]:
    """Looks from a word of a type to the word with a mark; all other words look at the end."""
    return [(space[f"type {type}"], space[mark], FOUND), at_end(space)]


def at_end(space: Space) -> tuple[Tensor, Tensor, float]:
    return space.one, space["end"], DEFAULT


def relation(name: str, type: str, mark: str, role: str, **more: Any) -> Built:
    """A head that looks along a dependency and writes the class of what it finds."""

    def wire(space: Space) -> Wiring:
        return Wiring(finding(space, type, mark), [(space["class"], space[f"answer {type}"], 1.0)])

    return Built(name, "encoder-self", "matters", wire, (role, "sink"), **more)


def neighbour(name: str, offset: int) -> Built:
    """A head that writes the class of the word at an offset, the answer of words of the type `name`."""

    def wire(space: Space) -> Wiring:
        return Wiring([at_offset(space, offset)], [(space["class"], space[f"answer {name}"], 1.0)])

    return Built(name, "encoder-self", "matters", wire, (f"positional.{offset}",))


def carrier(name: str, *blocks: str) -> Built:
    """A cross head that carries blocks from the source word at the same position."""

    def wire(space: Space) -> Wiring:
        return Wiring([at_offset(space, 0)], [(space[block], space[block], 1.0) for block in blocks])

    return Built(name, "cross", "matters", wire, ("alignment",))


def antecedent(space: Space) -> Wiring:
    looks = [(space["asks"], space["gender"], FOUND), at_end(space)]
    return Wiring(looks, [(space["class"], space["answer pronoun"], 1.0)])


def rarest(space: Space) -> Wiring:
    return Wiring([(space.one, space["rank"], 140.0)], [(space["class"], space["answer rare"], 1.0)])


def season(space: Space) -> Wiring:
    return Wiring([], [(space["seasonal"], space["answer mood"], 1.0)])


def primary(space: Space) -> Wiring:
    moves = [(space["class"], space["answer adjective"], 1.0), (space["noun"], space["flag"], 1.0)]
    return Wiring(finding(space, "adjective", "noun"), moves)


def backup(space: Space) -> Wiring:
    looks = [*finding(space, "adjective", "noun"), (space["flag"], space["end"], 3 * FOUND)]
    return Wiring(looks, [(space["class"], space["answer adjective"], 1.0)])


def harmful(space: Space) -> Wiring:
    return Wiring([at_offset(space, 3)], [(space["class"], space["answer plain"], 0.8)])


def loud(space: Space) -> Wiring:
    return Wiring([at_offset(space, -3)], [])


def shouting(space: Space) -> Wiring:
    return Wiring([at_offset(space, 2)], [(space["class"], space["junk"][:2], 3.0)])


def sinking(space: Space) -> Wiring:
    return Wiring([(space.one, space["end"], DEFAULT)], [(space["class"], space["junk"][2:4], 1.0)])


def echoing(space: Space) -> Wiring:
    return Wiring([at_offset(space, -1)], [(space["class"], space["answer echo"], 1.0)])


BUILT = [
    neighbour("before", -1), neighbour("after", 1), neighbour("back", -2),
    relation("subject", "verb", "subject", "syntactic.nsubj.to-dependent"),
    relation("saturated", "adverb", "verb", "syntactic.advmod.to-governor"),
    relation("redundant 1", "object", "verb", "syntactic.obj.to-governor", beside=("redundant 2",)),
    relation("redundant 2", "object", "verb", "syntactic.obj.to-governor", beside=("redundant 1",)),
    Built("antecedent", "encoder-self", "matters", antecedent, ("coreference", "sink")),
    Built("rarest", "encoder-self", "matters", rarest, ("rare.two-rarest",)),
    Built("quiet", "encoder-self", "matters", season),
    Built("primary", "encoder-self", "matters", primary, ("syntactic.amod.to-governor", "sink"), beside=("backup",),
          layers=(0, 0)),
    Built("backup", "encoder-self", "matters", backup, ("sink",), ("syntactic.amod.to-governor",), ("primary",),
          layers=(1, 2)),
    Built("harmful", "encoder-self", "harms", harmful, ("positional.3",)),
    Built("loud", "encoder-self", "idle", loud, ("positional.-3",)),
    Built("shouting", "encoder-self", "idle", shouting, ("positional.2",)),
    Built("sink", "encoder-self", "idle", sinking, ("sink",)),
    Built("echo", "decoder-self", "matters", echoing, ("positional.-1",)),
    carrier("types", *(f"type {type}" for type in TYPES)),
    carrier("answers 1", *(f"answer {type}" for type in TYPES[:8])),
    carrier("answers 2", *(f"answer {type}" for type in TYPES[8:11])),
    Built("cross sink", "cross", "idle", sinking, (), ("sink",)),
]  # fmt: skip


def known(seed: int, folder: Path) -> Known:
    """The model, its texts and treebank (written to a folder). The seed turns the stream, draws noise, the text, the
    distractors, and all places."""
    draw = toy.Draw(seed)
    text, parsed, counted = ([sentence(draw) for _ in range(n)] for n in (SENTENCES, PARSED, COUNTED))
    words = {word.form: word for each in counted for word in each}
    targets = {translation(word): word for each in counted for word in each}
    tokenizer = toy.tokenizer([*sorted(words), *sorted(targets)], f"$A {toy.END}")
    hf, built = made(seed, tokenizer.get_vocab(), words, targets)
    pairs = [(" ".join(word.form for word in each), " ".join(map(translation, each))) for each in text]
    return Known(
        Model(hf, tokenizer, f"toy translation {seed}"), built, ParallelText.from_pairs(pairs),
        toy.treebank(parsed, folder), Text.from_lines(" ".join(word.form for word in each) for each in counted), TOP,
        [" ".join(f"{i}-{i}" for i in range(len(each))) for each in text],
    )  # fmt: skip


def translation(word: Word) -> str:
    return f"{word.type}.{word.answer}"


def made(
    seed: int, ids: Mapping[str, int], words: Mapping[str, Word], targets: Mapping[str, Word]
) -> tuple[MBartForConditionalGeneration, dict[Head, Built]]:
    """The model, and where its built heads are."""
    config = MBartConfig(
        vocab_size=len(ids), d_model=HEADS * SIZE, encoder_layers=LAYERS[0], decoder_layers=LAYERS[1],
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=8, decoder_ffn_dim=8,
        max_position_embeddings=LONGEST + 4, tie_word_embeddings=False, pad_token_id=ids[toy.PAD],
        bos_token_id=ids[toy.START], eos_token_id=ids[toy.END], decoder_start_token_id=ids[toy.START],
        forced_eos_token_id=None,
    )  # fmt: skip
    hf, generator = MBartForConditionalGeneration(config).eval(), torch.Generator().manual_seed(seed)
    space = stream(HEADS * SIZE, generator)
    layers = hf.model.encoder.layers, hf.model.decoder.layers
    modules: dict[Kind, list[Any]] = {"encoder-self": [layer.self_attn for layer in layers[0]],
               "decoder-self": [layer.self_attn for layer in layers[1]],
               "cross": [layer.encoder_attn for layer in layers[1]]}  # fmt: skip
    heads = HeadMap({kind: (HEADS,) * len(attentions) for kind, attentions in modules.items()})
    built = placed(heads, BUILT, generator)
    with torch.no_grad():
        for name, module in hf.named_modules():
            if isinstance(module, nn.LayerNorm):
                space.norm(module)
            elif isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
            if name.endswith("fc2"):
                module.weight.copy_(0.1 * (torch.randn(8, len(space["junk"]), generator=generator) @ space["junk"]).T)
        embed(hf, space, ids, words, targets)
        for head in heads:
            attention, rows = modules[head.kind][head.layer], slice(head.head * SIZE, (head.head + 1) * SIZE)
            weights = built[head].wire(space).weights(SIZE, space) if head in built else distractor(space, SIZE)
            attention.q_proj.weight[rows], attention.k_proj.weight[rows] = weights.query, weights.key
            attention.v_proj.weight[rows], attention.out_proj.weight[:, rows] = weights.value, weights.output
    return hf, built


def stream(width: int, generator: torch.Generator) -> Space:
    space = Space(width, generator)
    space.block("position", 2 * CIRCLES)
    for name in (*(f"type {type}" for type in TYPES), *MARKS, "end", "rank", "gender", "asks", "flag"):
        space.block(name)
    for name in ("class", "seasonal", *(f"answer {type}" for type in TYPES[:-1])):
        space.block(name, 2)
    space.block("junk", 16)
    return space


def embed(
    hf: MBartForConditionalGeneration, space: Space, ids: Mapping[str, int], words: Mapping[str, Word],
    targets: Mapping[str, Word],
) -> None:  # fmt: skip
    """Embeddings, positions and the output layer."""
    encoder, decoder, output = hf.model.encoder, hf.model.decoder, hf.lm_head.weight
    for side in (encoder, decoder):
        side.embed_tokens.weight.copy_(space.constant() + space.noise(len(ids), NOISE))
        places = side.embed_positions.weight
        places.zero_()
        places[2:] = positions(len(places) - 2) @ space["position"]
    output.copy_(space.noise(len(ids), NOISE))
    encoder.embed_tokens.weight[ids[toy.END]] += (space["end"] + space["type end"])[0]
    output[ids[toy.END]] += TYPE * space["type end"][0]
    for form, word in words.items():
        encoder.embed_tokens.weight[ids[form]] += meaning(space, word)
    for form, word in targets.items():
        decoder.embed_tokens.weight[ids[form]] += code(word.answer) @ space["class"]
        output[ids[form]] += TYPE * space[f"type {word.type}"][0]
        output[ids[form]] += MARGIN / 2 * GAINS.get(word.type, 1) * code(word.answer) @ space[f"answer {word.type}"]


def meaning(space: Space, word: Word) -> Tensor:
    """What the embedding of a word says."""
    rows = space[f"type {word.type}"][0] + code(word.klass) @ (space["class"] + space["answer plain"])
    if word.mark in MARKS:
        rows = rows + space[word.mark][0]
    if word.mark == "season":
        rows = rows + code(word.klass) @ space["seasonal"]
    if word.entity:
        rows = rows + (1 if word.entity == "her" else -1) * space["asks" if word.type == "pronoun" else "gender"][0]
    return rows + word.rank / FILLERS * space["rank"][0]


def code(klass: int) -> Tensor:
    """A class as two signs."""
    return torch.tensor([1.0 - 2 * (klass & 1), 1.0 - (klass & 2)])
