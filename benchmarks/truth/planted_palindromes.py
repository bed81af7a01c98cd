"""A language model that tells palindromes, with four heads written by hand: a head that carries positions alone.

It reads `<s> x1 … x20 <end>` and says there whether the letters are a palindrome. In layer 0, `mirror` brings each
letter of the second half the letter that it must equal, and `marker` marks the second half, whatever the letters are.
In layer 1, `above` and `below` look, from the end, for a marked letter that is above or below the one it must equal.

`marker` computes nothing from the text: the same at each position in every text, it could be a constant. The mean over
all positions is an output that it never gives, and the model fails as if it mattered most.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from headwise.core.heads import Head
from headwise.importance.scores import score
from headwise.models.model import Model
from headwise.models.token_rows import IGNORED

from .residual_stream import (
    CIRCLES,
    ROUND,
    Stream,
    Wiring,
    circle_frequencies,
    position_codes,
)

LENGTH = 20  # letters
TEXTS = 200
SIZE = 16  # of a head
LETTERS = 4  # with values from −1 to 1, STEP apart
STEP = 2 / (LETTERS - 1)
START = LETTERS
END = LETTERS + 1
YES = LETTERS + 2
NO = LETTERS + 3
WORDS = LETTERS + 4
MARGIN = 3.0  # nats of an answer above the middle of both
ANSWER = 20.0  # nats of both answers above all other words
SURE = 12.0  # nats between what a head of layer 1 looks for, `<s>`, and all else
MARKED = 90.0  # nats on marked positions
NAMES = (("mirror", "marker"), ("above", "below"))
MEASURES = (
    "ablation.zero",
    "ablation.mean",
    "ablation.position-mean",
    "ablation.example",
)


@dataclass(frozen=True)
class PalindromeModel:
    """The model, its heads by name, and its texts as batches with the answer as the only label."""

    model: Model
    heads: Mapping[str, Head]
    batches: list[dict[str, Tensor]]


def plant_palindrome_model(seed: int) -> PalindromeModel:
    """The seed turns the stream, draws the texts, and which head of its layer is which."""
    order = random.Random(seed)
    heads = {}
    for layer, names in enumerate(NAMES):
        for number, name in enumerate(order.sample(names, len(names))):
            heads[name] = Head("decoder-self", layer, number)
    hf = build_palindrome_gpt2(heads, torch.Generator().manual_seed(seed))
    ids = torch.tensor([draw_palindrome_text(order) for _ in range(TEXTS)])
    labels = torch.full_like(ids, IGNORED)
    labels[:, -1] = ids[:, -1]
    return PalindromeModel(
        Model(hf, None, f"palindromes {seed}"), heads, [{"input_ids": ids, "labels": labels}]
    )


def draw_palindrome_text(draw: random.Random) -> list[int]:
    """The ids of a text with its answer. In half of all texts one to three letters break the palindrome."""
    half = [draw.randrange(LETTERS) for _ in range(LENGTH // 2)]
    letters = half + half[::-1]
    if draw.random() < 0.5:
        return [START, *letters, END, YES]
    for place in draw.sample(range(LENGTH // 2, LENGTH), draw.randint(1, 3)):
        others = [letter for letter in range(LETTERS) if letter != letters[place]]
        letters[place] = draw.choice(others)
    return [START, *letters, END, NO]


def build_palindrome_gpt2(heads: Mapping[str, Head], generator: torch.Generator) -> GPT2LMHeadModel:
    width = 2 * SIZE
    config = GPT2Config(
        vocab_size=WORDS,
        n_embd=width,
        n_layer=2,
        n_head=2,
        n_positions=ROUND,
        n_inner=8,
        tie_word_embeddings=False,
        bos_token_id=START,
        eos_token_id=END,
    )
    hf = GPT2LMHeadModel(config).eval()
    hf.loss_type = "ForCausalLM"
    stream = Stream(width, generator)
    stream.block("position", 2 * CIRCLES)
    for name in ("class", "mirrored", "letter", "second half", "marked", "start", "answer"):
        stream.block(name)
    stream.block("junk", 2)
    with torch.no_grad():
        stream.calm(hf, "mlp.c_proj")
        set_palindrome_embeddings(hf, stream)
        for name, head in heads.items():
            weights = wiring(name, stream).weights(SIZE, stream)
            attention = hf.transformer.h[head.layer].attn
            rows = slice(head.head * SIZE, (head.head + 1) * SIZE)
            joint = attention.c_attn.weight.view(width, 3, width)  # query, key, value
            joint[:, 0, rows] = weights.query.T
            joint[:, 1, rows] = weights.key.T
            joint[:, 2, rows] = weights.value.T
            attention.c_proj.weight[rows] = weights.output.T
    return hf


def wiring(name: str, stream: Stream) -> Wiring:
    """What a head looks at and what it moves."""
    if name == "mirror":
        position = stream["position"]
        return Wiring(
            [(mirrored(LENGTH + 1) @ position, position, 10.0)],
            [(stream["class"], stream["mirrored"], 1.0)],
        )
    if name == "marker":  # only the second half looks at the start
        looks = [
            (stream.one, stream["start"], -2 * SURE),
            (stream["second half"], stream["start"], 4 * SURE),
        ]
        return Wiring(looks, [(stream["start"], stream["marked"], 1.0)])
    sign = 1.0 if name == "above" else -1.0
    looks = [
        (stream.one, stream["class"] - stream["mirrored"], sign * 2 * SURE / STEP),
        (stream.one, stream["marked"], MARKED),
        (stream.one, stream["start"], SURE),
    ]
    return Wiring(looks, [(stream["letter"], stream["answer"], -2.0)])


def mirrored(total: int) -> Tensor:
    """The matrix that turns the code of a position p into that of total − p."""
    angle = total * circle_frequencies()
    cos = angle.cos().diag()
    sin = angle.sin().diag()
    return torch.cat([torch.cat([cos, sin], 1), torch.cat([sin, -cos], 1)])


def set_palindrome_embeddings(hf: GPT2LMHeadModel, stream: Stream) -> None:
    """Embeddings, positions and the output layer."""
    embedding = hf.transformer.wte.weight
    positions = hf.transformer.wpe.weight
    output = hf.lm_head.weight
    embedding.copy_(stream.constant().expand_as(embedding))
    positions.copy_(position_codes(len(positions)) @ stream["position"])
    positions[LENGTH // 2 + 1 : LENGTH + 1] += stream["second half"]
    for letter in range(LETTERS):
        embedding[letter] += (letter * STEP - 1) * stream["class"][0] + stream["letter"][0]
    embedding[START] += stream["start"][0]
    embedding[END] += stream["answer"][0]
    output.zero_()
    output[YES] = ANSWER * stream.one[0] + MARGIN * stream["answer"][0]
    output[NO] = ANSWER * stream.one[0] - MARGIN * stream["answer"][0]


def palindrome_scores(seed: int) -> pd.DataFrame:
    """What ablations say of each head, in nats per answer. Columns seed, head (its name), measure, value."""
    planted = plant_palindrome_model(seed)
    names = {head: name for name, head in planted.heads.items()}
    table = score(planted.model, planted.batches, MEASURES, seed=seed).table
    addresses = table[["kind", "layer", "head"]].itertuples(index=False, name=None)
    named = [names[Head(*address)] for address in addresses]
    return pd.DataFrame(
        {"seed": seed, "head": named, "measure": table["measure"], "value": table["value"]}
    )
