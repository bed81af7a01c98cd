"""What a model of Marian computes, by itself: numpy in float64, from the matrices of its file, one sentence at a time.

Written from the toolkit's sources (src/models/transformer.h, src/rnn/cells.h, src/graph/node_initializers.cpp), without
anything of headwise or of torch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def logits(
    arrays: dict[str, np.ndarray],
    options: dict[str, Any],
    source: list[int],
    target: list[int],
    silent: tuple[str, ...] = (),
) -> np.ndarray:
    """The logits of every target token, target × words: each from the tokens before it, the first from none.

    silent: heads whose outputs are zero, as `encoder_l1_self:0`.
    """
    w = {name: array.astype(np.float64) for name, array in arrays.items()}
    marian = Computing(w, options, silent)
    shared = options["tied-embeddings-all"] or options["tied-embeddings-src"]
    source_words = w["Wemb" if shared else "encoder_Wemb"]
    target_words = w["Wemb" if shared else "decoder_Wemb"]

    encoded = marian.start("encoder", source_words[source])
    for layer in range(1, options["enc-depth"] + 1):
        name = f"encoder_l{layer}"
        encoded = marian.attention(f"{name}_self", encoded, encoded)
        encoded = marian.feed_forward(f"{name}_ffn", encoded)
    encoded = marian.after("encoder_top", "transformer-postprocess-top", encoded, encoded)

    nothing = np.zeros((1, source_words.shape[1]))
    decoded = marian.start("decoder", np.concatenate([nothing, target_words[target[:-1]]]))
    for layer in options["transformer-tied-layers"] or range(1, options["dec-depth"] + 1):
        name = f"decoder_l{layer}"
        if options["transformer-decoder-autoreg"] == "rnn":
            decoded = marian.ssru(f"{name}_rnn", decoded)
        else:
            decoded = marian.attention(f"{name}_self", decoded, decoded, causal=True)
        decoded = marian.attention(f"{name}_context", decoded, encoded)
        decoded = marian.feed_forward(f"{name}_ffn", decoded)
    decoded = marian.after("decoder_top", "transformer-postprocess-top", decoded, decoded)

    tied = options["tied-embeddings-all"] or options["tied-embeddings"]
    output = target_words.T if tied else w["decoder_ff_logit_out_W"]
    made: np.ndarray = decoded @ output + w.get("decoder_ff_logit_out_b", 0)
    return made


class Computing:
    def __init__(self, w: dict[str, np.ndarray], options: dict[str, Any], silent: tuple[str, ...]):
        self.w, self.options, self.silent = w, options, silent
        # v1.12.42 …: what pre-norm and gelu mean depends on it.
        numbers = str(options.get("version", "v1.9.0")).split()[0].removeprefix("v").split(".")
        self.version = [int(number) for number in numbers]

    def start(self, side: str, embedded: np.ndarray) -> np.ndarray:
        """Embeddings times √width, and positions; without positions the embeddings alone."""
        emb, steps = f"{side}_emb", self.options["transformer-postprocess-emb"]
        if self.options.get("transformer-disable-position-embeddings"):
            return self.before(emb, embedded, steps)
        tokens, width = embedded.shape
        half = width // 2
        rates = np.exp(-np.arange(half) * np.log(10_000) / (half - 1))
        angles = np.arange(tokens)[:, None] * rates
        placed = embedded * np.sqrt(width) + np.concatenate([np.sin(angles), np.cos(angles)], 1)
        return self.before(emb, placed, steps)

    def norm(self, name: str, x: np.ndarray, ending: str = "") -> np.ndarray:
        inner = x - x.mean(-1, keepdims=True)
        unit = inner / np.sqrt((inner**2).mean(-1, keepdims=True) + 1e-6)
        return unit * self.w[f"{name}_ln_scale{ending}"] + self.w[f"{name}_ln_bias{ending}"]

    def before(self, name: str, x: np.ndarray, operations: str | None = None) -> np.ndarray:
        for operation in operations or self.options["transformer-preprocess"] * (
            operations is None
        ):
            x = self.norm(name, x, "_pre") if operation == "n" else x
        return x

    def after(self, name: str, which: str, x: np.ndarray, input: np.ndarray) -> np.ndarray:
        for operation in self.options[which]:
            x = self.norm(name, x) if operation == "n" else x + input if operation == "a" else x
        return x

    def attention(
        self, name: str, x: np.ndarray, keys: np.ndarray, causal: bool = False
    ) -> np.ndarray:
        w, heads = self.w, self.options["transformer-heads"]
        q = self.before(f"{name}_Wo", x) @ w[f"{name}_Wq"] + w[f"{name}_bq"]
        if keys is x and self.version >= [1, 11]:
            keys = self.before(f"{name}_Wo", x)
        k = keys @ w[f"{name}_Wk"] + w[f"{name}_bk"]
        v = keys @ w[f"{name}_Wv"] + w[f"{name}_bv"]
        size = q.shape[1] // heads
        outputs = []
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            scores = q[:, part] @ k[:, part].T / np.sqrt(size)
            if causal:
                scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            output = weights / weights.sum(-1, keepdims=True) @ v[:, part]
            outputs.append(output * (f"{name}:{head}" not in self.silent))
        joined = np.concatenate(outputs, 1)
        if not self.options.get("transformer-no-projection"):
            joined = joined @ w[f"{name}_Wo"] + w[f"{name}_bo"]
        return self.after(f"{name}_Wo", "transformer-postprocess", joined, x)

    def ssru(self, name: str, x: np.ndarray) -> np.ndarray:
        input = self.before(name, x)
        keep = 1 / (1 + np.exp(-(input @ self.w[f"{name}_Wf"] + self.w[f"{name}_bf"])))
        new = input @ self.w[f"{name}_W"]
        state, states = np.zeros(x.shape[1]), []
        for f, value in zip(keep, new, strict=True):
            state = f * state + (1 - f) * value
            states.append(np.maximum(state, 0))
        return self.after(f"{name}_ffn", "transformer-postprocess", np.stack(states), x)

    def feed_forward(self, name: str, x: np.ndarray) -> np.ndarray:
        w = self.w
        inner = self.before(f"{name}_ffn", x) @ w[f"{name}_W1"] + w[f"{name}_b1"]
        kind = self.options["transformer-ffn-activation"]
        slope = {"swish": 1, "gelu": 1.702}.get(kind)
        if kind == "gelu" and self.version >= [1, 12, 3]:
            inner = inner * (1 + np.vectorize(math.erf)(inner / math.sqrt(2))) / 2
        else:
            inner = np.maximum(inner, 0) if slope is None else inner / (1 + np.exp(-inner * slope))
        made = inner @ w[f"{name}_W2"] + w[f"{name}_b2"]
        return self.after(f"{name}_ffn", "transformer-postprocess", made, x)
