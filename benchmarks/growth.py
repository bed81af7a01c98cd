"""How time and memory grow: processor seconds and peak memory of each part against the sentences of a text, the heads,
layers and words of a model, and the tokens of a text.

    python benchmarks/growth.py work growth.csv growth.png
    python benchmarks/growth.py work growth.csv growth.png --most 30

The model is a small Qwen3 with random weights, the text the embedded corpus, repeated; on the last axis sentences are
joined, and there are as many tokens in all. One size changes at a time (SIZES); the others are as in BASE. Each number is
of a process of its own, with one thread: processor seconds of the part alone, and what it adds to the memory at its start
(Linux). A part that takes more than --most seconds at one size is not run at the next, nor one whose text is too short
for it (repair). Finished numbers lie in the work folder, so that a killed run goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import vl_convert
from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

import headwise as hw
from headwise.data import embedded
from headwise.data.text import Text
from headwise.models.training.tokenizer import learn_subwords
from roles import peak

BASE = {"sentences": 100, "heads": 24, "layers": 4, "words": 8_000, "length": 0}
SIZES = {
    "sentences": [100, 1_000, 10_000, 100_000],
    "heads": [24, 96, 384, 1_536],
    "layers": [2, 6, 12, 24, 48],
    "words": [8_000, 32_000, 128_000, 262_000],
    "length": [20, 100, 500, 1_000, 4_000],
}
HEADS_A_LAYER = 4  # where layers grow
ALL_TOKENS = 8_000  # where the length grows
COLOURS = ["#8a8a8a", "#1f5fbf", "#d9822b", "#4f9d4f", "#b3478f", "#3d3d3d"]


def scored(measure: str) -> Callable[[Any, Any], object]:
    return lambda model, text: hw.score(model, text, [measure])


def repaired(model: hw.Model, text: Text) -> object:
    """Half of the heads, chosen by repair and repaired."""
    dev = Text.from_lines([source for source, _ in embedded.pairs("dev", 100)])
    return hw.prune(model, text, hw.Greedy(keep=model.heads.total // 2), dev=dev)


PARTS: dict[str, Callable[[Any, Any], object]] = {
    "evaluate": hw.evaluate,
    "confidence": scored("confidence"),
    "gradient": scored("gradient"),
    "lrp.ding.pooled": scored("lrp.ding.pooled"),
    "ablation.zero": scored("ablation.zero"),
    "repair": repaired,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("table", type=Path, nargs="?")
    parser.add_argument("picture", type=Path, nargs="?")
    parser.add_argument("--most", type=float, default=60.0)
    parser.add_argument("--one", help="what one process measures: axis, size and part")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(*json.loads(options.one))))
        return
    options.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for axis, sizes in SIZES.items():
        for part in PARTS:
            for size in sizes:
                row = kept(options.work, axis, size, part)
                print(row, flush=True)
                if "refused" in row:
                    break
                rows.append(row)
                if row["seconds"] > options.most:
                    break
    table = pd.DataFrame(rows)
    table.to_csv(options.table, index=False, float_format="%.4g")
    print(exponents(table).to_string(index=False))
    options.picture.write_bytes(vl_convert.vegalite_to_png(drawn(table), scale=2))


def kept(work: Path, axis: str, size: int, part: str) -> dict[str, Any]:
    """A number from the work folder, or of a new process."""
    file = work / f"{axis}-{size}-{part}.json"
    if not file.exists():
        done = subprocess.run(
            [sys.executable, __file__, str(work), "--one", json.dumps([axis, size, part])],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{axis} {size} {part}: {done.stderr[-2000:]}")
        file.write_text(done.stdout.splitlines()[-1])
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def measured(axis: str, size: int, part: str) -> dict[str, Any]:
    """Processor seconds and megabytes of a part, and its making."""
    torch.set_num_threads(1)
    model, text = subject(**{**BASE, axis: size})
    PARTS["evaluate"](model, text.head(2))  # what comes only once
    before = peak()
    begun = time.process_time()
    found = {"axis": axis, "size": size, "part": part}
    try:
        PARTS[part](model, text)
    except hw.HeadwiseError as refusal:  # a text too short for repair
        return {**found, "refused": str(refusal)}
    return {
        **found,
        "seconds": time.process_time() - begun,
        "megabytes": peak() - before,
        "torch": torch.__version__,
    }


def subject(sentences: int, heads: int, layers: int, words: int, length: int) -> Any:
    """A model of such a size, and a text."""
    lines = [source for source, _ in embedded.pairs("train", 6_000)]
    tokenizer = learn_subwords(lines, 2_000)
    torch.manual_seed(0)
    by_layer = HEADS_A_LAYER if layers != BASE["layers"] else heads // layers
    shape = Qwen3Config(
        vocab_size=words,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=by_layer,
        num_key_value_heads=by_layer,
        head_dim=8,
        max_position_embeddings=8_192,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = hw.Model(Qwen3ForCausalLM(shape).eval(), tokenizer, "random")
    if length:
        return model, Text.from_lines(joined(lines, tokenizer, length))
    turns = math.ceil(sentences / len(lines))
    return model, Text.from_lines((lines * turns)[:sentences])


def joined(lines: list[str], tokenizer: PreTrainedTokenizerBase, length: int) -> list[str]:
    """Lines of about so many tokens each, and as many tokens in all."""
    found: list[str] = []
    words: list[str] = []
    tokens = 0
    for line, ids in zip(lines, tokenizer(lines)["input_ids"], strict=True):
        words.append(line)
        tokens += len(ids)
        if tokens >= length:
            found.append(" ".join(words))
            words, tokens = [], 0
        if len(found) * length >= ALL_TOKENS:
            break
    return found


def exponents(table: pd.DataFrame) -> pd.DataFrame:
    """By axis and part the power of the size with which seconds and megabytes grow, over the last two sizes."""
    rows = []
    for (axis, part), some in table.groupby(["axis", "part"], sort=False):
        steps = [*pairwise(some.to_dict("records"))]
        if not steps:
            continue
        last, now = steps[-1]
        by = math.log(now["size"] / last["size"])
        power = math.log(now["seconds"] / last["seconds"]) / by
        rows.append({"axis": axis, "part": part, "to": now["size"], "power": round(power, 2)})
    return pd.DataFrame(rows)


def drawn(table: pd.DataFrame) -> dict[str, Any]:
    """A panel for each axis, seconds above megabytes, both scales logarithmic."""
    colour = {
        "field": "part",
        "type": "nominal",
        "title": None,
        "scale": {"domain": [*PARTS], "range": COLOURS},
        "legend": {"orient": "bottom"},
    }

    def panel(axis: str, value: str) -> dict[str, Any]:
        some = table[table.axis == axis].assign(
            megabytes=lambda found: found.megabytes.clip(lower=1)
        )
        return {
            "width": 150,
            "height": 150,
            "data": {"values": some.to_dict("records")},
            "mark": {"type": "line", "point": True},
            "encoding": {
                "x": {
                    "field": "size",
                    "type": "quantitative",
                    "title": axis,
                    "scale": {"type": "log", "nice": False},
                    "axis": {"values": SIZES[axis], "format": ","},
                },
                "y": {
                    "field": value,
                    "type": "quantitative",
                    "title": "processor seconds" if value == "seconds" else "MB beyond the start",
                    "scale": {"type": "log"},
                    "axis": {"format": "~s"},
                },
                "color": colour,
            },
        }

    rows = [
        {"hconcat": [panel(axis, value) for axis in SIZES]} for value in ("seconds", "megabytes")
    ]
    return {"$schema": "https://vega.github.io/schema/vega-lite/v5.json", "vconcat": rows}


if __name__ == "__main__":
    main()
