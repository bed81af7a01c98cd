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

from headwise.data.text import Text
from headwise.heads import Head, HeadMap
from headwise.model import Model
from headwise.roles.names import NAMES, PLACES, TEMPLATES
from headwise.roles.names import THINGS as GIVEN
from headwise.roles.names import written as choice
from headwise.roles.retrieval import COLOURS, FILLING, THINGS, hidden
from headwise.roles.successor import ROUND, SEQUENCES
from headwise.truth import toy
from headwise.truth.built import Built, Known, drawn, placed
from headwise.truth.causal import spread
from headwise.truth.space import CIRCLES, Space, Wiring, positions
from headwise.truth.wires import at_offset

HEADS, SIZE, LAYERS = 6, 64, 3
LONGEST = 62  # tokens, which positions tell apart
SCORED, PARSED = 24, 120  # texts
CODE = 48  # numbers of a code
FOUND, REST = (
    20.0,
    10.0,
)  # nats on what is looked for, and on the start where there is nothing to find
GAIN = 12.0  # logit of a token whose code is written once
NOISE = 0.004
MARKS = ",.?"
LAST = "to"  # the word before the receiver
_WORD = re.compile(r"\w+|[^\w\s]")


def at_start(space: Space) -> tuple[Tensor, Tensor, float]:
    return space.one, space["start"], REST


def previous(space: Space) -> Wiring:
    return Wiring([at_offset(space, -1)], [(space["id"], space["before"], 1.0)])


def induction(space: Space) -> Wiring:
    looks = [(space["id"], space["before"], FOUND), at_start(space)]
    return Wiring(looks, [(space["id"], space["out"], 1.0)])


def duplicate(space: Space) -> Wiring:
    away = (space["position"], space["position"], -FOUND / CIRCLES)  # not the token itself
    return Wiring(
        [(space["id"], space["id"], FOUND), away, at_start(space)],
        [(space["name"], space["flag"], 1.0)],
    )


def inhibition(space: Space) -> Wiring:
    looks = [(space["last"], space["flag"], FOUND), at_start(space)]
    return Wiring(looks, [(space["id"], space["blocked"], 1.0)])


def mover(space: Space) -> Wiring:
    looks = [
        (space["last"], space["name"], FOUND),
        (space["blocked"], space["id"], -FOUND),
        at_start(space),
    ]
    return Wiring(looks, [(space["id"], space["out"], 1.0)])


def successor(space: Space) -> Wiring:
    return Wiring([at_offset(space, 0)], [(space["next"], space["out"], 1.0)])


def delimiter(space: Space) -> Wiring:
    return Wiring(
        [(space.one, space["mark"], FOUND), at_start(space)],
        [(space["id"][:2], space["junk"][:2], 1.0)],
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
        ("induction", "retrieval"),
        ("sink",),
        layers=(1, 2),
    ),
    Built(
        "duplicate",
        "decoder-self",
        "matters",
        duplicate,
        ("duplicate-token",),
        ("sink",),
        layers=(0, 0),
    ),
    Built(
        "S-inhibition",
        "decoder-self",
        "matters",
        inhibition,
        ("s-inhibition",),
        ("sink",),
        layers=(1, 1),
    ),
    Built(
        "name mover", "decoder-self", "matters", mover, ("name-mover",), ("sink",), layers=(2, 2)
    ),
    Built("successor", "decoder-self", "matters", successor, ("successor", "positional.0")),
    Built("delimiter", "decoder-self", "idle", delimiter, ("delimiter",), ("sink",)),
]


def known(seed: int, folder: Path) -> Known:
    """The model, its text and treebank (written to a folder)."""
    draw = toy.Draw(seed)
    every = [
        *TEMPLATES,
        *FILLING,
        *NAMES,
        *PLACES,
        *GIVEN,
        *COLOURS,
        *THINGS,
        *SEQUENCES.values(),
        *(hidden(draw.random, number, 0.25).text for number in range(20)),
    ]
    words = sorted({word for text in every for word in _WORD.findall(re.sub(r"{\w+}", "", text))})
    tokenizer = toy.tokenizer(words, f"{toy.START} $A")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]
    )
    hf, built = made(seed, tokenizer.get_vocab())
    chosen = [choice(draw.random, [*NAMES], number) for number in range(PARSED + SCORED)]
    lines = [f"{one.text} {one.id.partition(' ')[2]}" for one in chosen[PARSED:]]
    lines += [hidden(draw.random, number, 0.25).text for number in range(SCORED)]
    for number in range(SCORED):
        items = [*SEQUENCES.values()][number % len(SEQUENCES)].split()
        start = draw.random.randrange(len(items) - 5)
        lines.append(" ".join(items[start : start + 6]))
    parsed = [
        [
            toy.Word(
                "plain",
                "word",
                0,
                word.form,
                place - 1,
                "punct" if place else "root",
                "PUNCT" if word.form in MARKS else "X",
            )
            for place, word in enumerate(one.words)
        ]
        for one in chosen[:PARSED]
    ]
    return Known(
        Model(hf, tokenizer, f"toy templates {seed}"),
        built,
        Text.from_lines(lines),
        toy.treebank(parsed, folder),
    )


def made(seed: int, ids: Mapping[str, int]) -> tuple[OPTForCausalLM, dict[Head, Built]]:
    """The model, and where its built heads are."""
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
        pad_token_id=ids[toy.PAD],
        bos_token_id=ids[toy.START],
        eos_token_id=ids[toy.END],
    )
    hf, generator = OPTForCausalLM(config).eval(), torch.Generator().manual_seed(seed)
    space = Space(width, generator)
    space.block("position", 2 * CIRCLES)
    space.block("class", 2)
    for name in ("id", "before", "blocked", "next", "out"):
        space.block(name, CODE)
    for name in ("start", "name", "last", "flag", "mark"):
        space.block(name)
    space.block("junk", 16)
    heads = HeadMap({"decoder-self": (HEADS,) * LAYERS})
    built = placed(heads, BUILT, generator)
    with torch.no_grad():
        space.calm(hf, "fc2")
        embed(hf, space, ids)
        for head, weights in drawn(space, heads, built, SIZE):
            attention = hf.model.decoder.layers[head.layer].self_attn
            rows = slice(head.head * SIZE, (head.head + 1) * SIZE)
            attention.q_proj.weight[rows], attention.k_proj.weight[rows] = (
                weights.query,
                weights.key,
            )
            attention.v_proj.weight[rows], attention.out_proj.weight[:, rows] = (
                weights.value,
                weights.output,
            )
    return hf, built


def embed(hf: OPTForCausalLM, space: Space, ids: Mapping[str, int]) -> None:
    """Embeddings, positions and the output layer."""
    decoder = hf.model.decoder
    codes = spread(len(ids), CODE, space.generator)
    codes[[ids[name] for name in NAMES]] = torch.eye(CODE)[: len(NAMES)]
    codes[ids[toy.START]] = 0  # a head that looks there writes nothing
    embeddings = space.constant() + space.noise(len(ids), NOISE) + codes @ space["id"]
    embeddings += (
        torch.randn(len(ids), 2, generator=space.generator).sign() @ space["class"]
    )  # which nobody asks for
    for names, block in (
        ([toy.START], "start"),
        (NAMES, "name"),
        ([LAST], "last"),
        (MARKS, "mark"),
    ):
        embeddings[[ids[name] for name in names]] += space[block][0]
    for name, items in SEQUENCES.items():
        order = items.split()
        for item, after in zip(order, [*order[1:], order[0]], strict=True):
            if after != order[0] or name in ROUND:
                embeddings[ids[item]] += codes[ids[after]] @ space["next"]
    decoder.embed_tokens.weight.copy_(embeddings)
    places = decoder.embed_positions.weight
    places.zero_()
    places[2:] = positions(len(places) - 2) @ space["position"]
    hf.lm_head.weight.copy_(space.noise(len(ids), NOISE) + GAIN * codes @ space["out"])
