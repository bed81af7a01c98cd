"""A language model with the heads that texts from templates ask for: names, successors, a needle, punctuation.

Every token has a code, `id`; heads write codes to the block `out`, which the output layer reads. The choice between
two names is a chain of three heads, as in Wang et al. 2023: a name that was there before is flagged, the last word
blocks the flagged name, and looks at the other one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import OPTConfig, OPTForCausalLM

from headwise.core.heads import Head, HeadMap
from headwise.data.annotated import Annotated
from headwise.data.text import Text
from headwise.models.model import Model
from headwise.roles.templates import (
    COLOUR_WORDS,
    FILLING,
    FIRST_NAMES,
    GIFTS,
    ORDERED_ITEMS,
    PLACES,
    ROUND,
    TEMPLATES,
    THINGS,
    draw_name_sentence,
    hidden_needle,
)

from . import toy_language
from .planted_causal import spread_vectors
from .planted_heads import (
    PlantedHead,
    PlantedModel,
    all_weights,
    at_offset,
    place_heads,
)
from .residual_stream import CIRCLES, Stream, Wiring, position_codes

HEADS = 6
SIZE = 64  # of a head
LAYERS = 3
LONGEST = 62  # tokens, which positions tell apart
SCORED = 24  # texts
PARSED = 120
CODE = 48  # numbers of a code
TARGET = 20.0  # nats on what is looked for
REST = 10.0  # nats on the start, where there is nothing to find
GAIN = 12.0  # logit of a token whose code is written once
NOISE = 0.004
MARKS = ",.?"
LAST = "to"  # the word before the receiver
_WORD = re.compile(r"\w+|[^\w\s]")


def at_start(stream: Stream) -> tuple[Tensor, Tensor, float]:
    return stream.one, stream["start"], REST


def wire_template_previous(stream: Stream) -> Wiring:
    return Wiring([at_offset(stream, -1)], [(stream["id"], stream["before"], 1.0)])


def wire_template_induction(stream: Stream) -> Wiring:
    looks = [(stream["id"], stream["before"], TARGET), at_start(stream)]
    return Wiring(looks, [(stream["id"], stream["out"], 1.0)])


def wire_template_duplicate(stream: Stream) -> Wiring:
    away = (stream["position"], stream["position"], -TARGET / CIRCLES)  # not the token itself
    return Wiring(
        [(stream["id"], stream["id"], TARGET), away, at_start(stream)],
        [(stream["name"], stream["flag"], 1.0)],
    )


def inhibition(stream: Stream) -> Wiring:
    looks = [(stream["last"], stream["flag"], TARGET), at_start(stream)]
    return Wiring(looks, [(stream["id"], stream["blocked"], 1.0)])


def mover(stream: Stream) -> Wiring:
    looks = [
        (stream["last"], stream["name"], TARGET),
        (stream["blocked"], stream["id"], -TARGET),
        at_start(stream),
    ]
    return Wiring(looks, [(stream["id"], stream["out"], 1.0)])


def wire_successor(stream: Stream) -> Wiring:
    return Wiring([at_offset(stream, 0)], [(stream["next"], stream["out"], 1.0)])


def wire_delimiter(stream: Stream) -> Wiring:
    return Wiring(
        [(stream.one, stream["mark"], TARGET), at_start(stream)],
        [(stream["id"][:2], stream["junk"][:2], 1.0)],
    )


PLANTED = [
    PlantedHead(
        "previous",
        "decoder-self",
        "matters",
        wire_template_previous,
        ("positional.-1", "previous-token"),
        layers=(0, 0),
    ),
    PlantedHead(
        "induction",
        "decoder-self",
        "matters",
        wire_template_induction,
        ("induction", "retrieval"),
        ("sink",),
        layers=(1, 2),
    ),
    PlantedHead(
        "duplicate",
        "decoder-self",
        "matters",
        wire_template_duplicate,
        ("duplicate-token",),
        ("sink",),
        layers=(0, 0),
    ),
    PlantedHead(
        "S-inhibition",
        "decoder-self",
        "matters",
        inhibition,
        ("s-inhibition",),
        ("sink",),
        layers=(1, 1),
    ),
    PlantedHead(
        "name mover", "decoder-self", "matters", mover, ("name-mover",), ("sink",), layers=(2, 2)
    ),
    PlantedHead(
        "successor", "decoder-self", "matters", wire_successor, ("successor", "positional.0")
    ),
    PlantedHead("delimiter", "decoder-self", "idle", wire_delimiter, ("delimiter",), ("sink",)),
]


def plant_template_model(seed: int, folder: Path) -> PlantedModel:
    """The model, its text and treebank (written to a folder)."""
    draw = toy_language.Draw(seed)
    texts = [
        *TEMPLATES,
        *FILLING,
        *FIRST_NAMES,
        *PLACES,
        *GIFTS,
        *COLOUR_WORDS,
        *THINGS,
        *ORDERED_ITEMS.values(),
    ]
    texts += [hidden_needle(draw.random, number, 0.25).text for number in range(20)]
    vocabulary: set[str] = set()
    for text in texts:
        without_fields = re.sub(r"{\w+}", "", text)
        vocabulary.update(_WORD.findall(without_fields))
    words = sorted(vocabulary)
    tokenizer = toy_language.tokenizer(words, f"{toy_language.START} $A")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]
    )
    hf, planted = build_opt(seed, tokenizer.get_vocab())

    names = [*FIRST_NAMES]
    drawn = [draw_name_sentence(draw.random, names, n) for n in range(PARSED + SCORED)]
    lines = []
    for sentence in drawn[PARSED:]:
        _, _, receiver = sentence.id.partition(" ")
        lines.append(f"{sentence.text} {receiver}")
    lines += [hidden_needle(draw.random, number, 0.25).text for number in range(SCORED)]
    sequences = [items.split() for items in ORDERED_ITEMS.values()]
    for number in range(SCORED):
        items = sequences[number % len(sequences)]
        start = draw.random.randrange(len(items) - 5)
        lines.append(" ".join(items[start : start + 6]))
    parsed = [chained(sentence) for sentence in drawn[:PARSED]]
    return PlantedModel(
        Model(hf, tokenizer, f"toy templates {seed}"),
        planted,
        Text.from_lines(lines),
        toy_language.treebank(parsed, folder),
    )


def chained(sentence: Annotated) -> toy_language.Sentence:
    """The sentence with a tree in which every word depends on the one before it."""
    words = []
    for index, word in enumerate(sentence.words):
        relation = "punct" if index else "root"
        upos = "PUNCT" if word.form in MARKS else "X"
        words.append(toy_language.ToyWord("plain", "word", 0, word.form, index - 1, relation, upos))
    return words


def build_opt(seed: int, ids: Mapping[str, int]) -> tuple[OPTForCausalLM, dict[Head, PlantedHead]]:
    """The model, and where its planted heads are."""
    width = HEADS * SIZE
    config = OPTConfig(
        vocab_size=len(ids),
        hidden_size=width,
        word_embed_proj_dim=width,
        num_hidden_layers=LAYERS,
        ffn_dim=8,
        num_attention_heads=HEADS,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=False,
        pad_token_id=ids[toy_language.PAD],
        bos_token_id=ids[toy_language.START],
        eos_token_id=ids[toy_language.END],
    )
    hf = OPTForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed)
    stream = Stream(width, generator)
    stream.block("position", 2 * CIRCLES)
    stream.block("class", 2)
    for name in ("id", "before", "blocked", "next", "out"):
        stream.block(name, CODE)
    for name in ("start", "name", "last", "flag", "mark"):
        stream.block(name)
    stream.block("junk", 16)
    heads = HeadMap({"decoder-self": (HEADS,) * LAYERS})
    planted = place_heads(heads, PLANTED, generator)
    with torch.no_grad():
        stream.calm(hf, "fc2")
        set_opt_embeddings(hf, stream, ids)
        for head, weights in all_weights(stream, heads, planted, SIZE):
            attention = hf.model.decoder.layers[head.layer].self_attn
            rows = slice(head.head * SIZE, (head.head + 1) * SIZE)
            attention.q_proj.weight[rows] = weights.query
            attention.k_proj.weight[rows] = weights.key
            attention.v_proj.weight[rows] = weights.value
            attention.out_proj.weight[:, rows] = weights.output
    return hf, planted


def set_opt_embeddings(hf: OPTForCausalLM, stream: Stream, ids: Mapping[str, int]) -> None:
    """Embeddings, positions and the output layer."""
    decoder = hf.model.decoder
    codes = spread_vectors(len(ids), CODE, stream.generator)
    codes[[ids[name] for name in FIRST_NAMES]] = torch.eye(CODE)[: len(FIRST_NAMES)]
    codes[ids[toy_language.START]] = 0  # a head that looks there writes nothing
    embeddings = stream.constant() + stream.noise(len(ids), NOISE) + codes @ stream["id"]
    # Classes, which no head reads.
    signs = torch.randn(len(ids), 2, generator=stream.generator).sign()
    embeddings += signs @ stream["class"]
    marked = {"start": [toy_language.START], "name": FIRST_NAMES, "last": [LAST], "mark": MARKS}
    for block, tokens in marked.items():
        embeddings[[ids[token] for token in tokens]] += stream[block][0]
    for name, items in ORDERED_ITEMS.items():
        order = items.split()
        for item, after in zip(order, [*order[1:], order[0]], strict=True):
            if after != order[0] or name in ROUND:
                embeddings[ids[item]] += codes[ids[after]] @ stream["next"]
    decoder.embed_tokens.weight.copy_(embeddings)
    positions = decoder.embed_positions.weight
    positions.zero_()
    positions[2:] = position_codes(len(positions) - 2) @ stream["position"]
    hf.lm_head.weight.copy_(stream.noise(len(ids), NOISE) + GAIN * codes @ stream["out"])
