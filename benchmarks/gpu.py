"""What updates, scores and decoding ask of a processor: time, launches, waits and memory.

    python benchmarks/gpu.py                          # on a GPU: Transformer-base in bf16, some minutes
    python benchmarks/gpu.py --device cpu --small     # a small model; launches and waits are about those on a GPU

An update is one of a training: full batch of random pieces, loss without logits, gradient clipping, AdamW. A gated one
draws its gates and pays for them. A score is one pass over some pairs, in float32. Launches are operators that compute
(not views and not allocations). Waits are places where the processor asks the device for a number. The aim of a gated
update is at most 1.05 ungated ones.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from utilisation import Facts, chip, model_flops

from headwise.api.batches import Batches
from headwise.api.scoring import run_pass
from headwise.attention import capture
from headwise.data.text import ParallelText
from headwise.heads import HeadMask, Kind
from headwise.importance.measures import BLEU, PASSES
from headwise.model import Model
from headwise.options import Architecture, Recipe, Search
from headwise.pruning.gates import Gates, HardConcrete
from headwise.study.estimate import best, random_batch
from headwise.translation.build import build
from headwise.translation.decode import Generate, translate
from headwise.translation.dropout import fast_dropout
from headwise.translation.loss_forward import loss_forward
from headwise.translation.subwords import learn_subwords
from headwise.translation.train import bfloat16

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from syncs import syncs

BASE = Architecture(norm="pre", encoder_layers=6, decoder_layers=6, width=512, feedforward=2048, vocabulary=16000)
SMALL = Architecture(norm="pre", encoder_layers=2, decoder_layers=2, width=32, feedforward=64, vocabulary=300)
LENGTH, WORDS = 16, 6  # pieces of a sentence of an update; words of one that is scored
LONG = ("gating", BLEU)  # a training of many updates, a translation for every head
ENCODER: list[Kind] = ["encoder-self"]


class Launches(TorchDispatchMode):
    """Inside this block `count` rises with every operator that computes something."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not function.is_view and "empty" not in function.__name__
        return function(*args, **(kwargs or {}))


class Table:
    """Rows that are printed as they are measured, with their times as multiples of the row `yard`."""

    def __init__(self, device: str, yard: str) -> None:
        self.device, self.yard, self.rows = device, yard, dict[str, Facts]()

    def add(self, name: str, job: Callable[[], object], tokens: int = 0) -> None:
        """Seconds of a job (the best of three), tokens per second, launches, waits, and on a GPU the peak of memory."""
        gpu = self.device == "cuda"
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        try:
            row: Facts = {"seconds": best(job, self.device)}
        except torch.OutOfMemoryError:
            print(f"| {name} | out of memory | | | | | |", flush=True)
            return
        row |= {"tokens_per_second": tokens / row["seconds"]} if tokens else {}
        row |= {"peak_megabytes": torch.cuda.max_memory_allocated() / 1e6} if gpu else {}
        with syncs() as seen, Launches() as launches:  # type: ignore[no-untyped-call]
            job()
        self.rows[name] = row = {**row, "launches": launches.count, "waits": len(seen)}
        times = row["seconds"] / self.rows[self.yard]["seconds"] if self.yard in self.rows else float("nan")
        speed, memory = (f"{row[key]:,.0f}" if key in row else "" for key in ("tokens_per_second", "peak_megabytes"))
        print(f"| {name} | {1e3 * row['seconds']:.1f} | {times:.2f} | {speed} | {row['launches']:,} | {row['waits']} | "
              f"{memory} |", flush=True)  # fmt: skip


def updates(model: Model, recipe: Recipe, device: str) -> dict[str, Facts]:
    """Updates without gates, with gates on the encoder's heads, and with gates on all heads."""
    hf: Any = model.hf
    batch = random_batch(hf, recipe.batch_tokens // LENGTH, LENGTH)
    tokens, optimizer = batch["labels"].numel(), torch.optim.AdamW(hf.parameters(), lr=0.0, fused=True)
    explicit = device == "cpu"  # as in a training

    def update() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=bfloat16(recipe.dtype, device)):
            loss: Tensor = hf(**batch, smoothing=0.1) / tokens
        loss.backward()
        torch.nn.utils.clip_grad_norm_(hf.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    table = Table(device, "update")
    gated = {"update": [], "gates on the encoder": ENCODER, "gates on all heads": [*model.heads.kinds]}

    def row(name: str, gates: Gates | None) -> None:
        with (
            capture(hf, model.found, gates=gates.by_site() if gates else None, explicit=explicit),
            loss_forward(hf, gates.draw if gates else None, (lambda: 0.01 * gates.penalty()) if gates else None),
            fast_dropout(hf),
        ):  # fmt: skip
            hf.train()
            table.add(name, update, tokens)
            hf.eval()

    for name, kinds in gated.items():
        row(name, Gates(model.heads.only(kinds), HardConcrete(), 3.0).to(device) if kinds else None)
    return table.rows


def scores(model: Model, text: ParallelText, device: str) -> dict[str, Facts]:
    """A forward and a backward pass of a text, and every pass of scores."""
    hf: Any = model.hf
    batches = Batches(model, text)
    (batch,) = [{name: each[name].to(device) for name in each if name != "rows"} for each in batches.whole()]

    def forward() -> None:
        with torch.no_grad():
            hf(**batch, use_cache=False)

    def backward() -> None:
        hf(**batch, use_cache=False).loss.backward()
        hf.zero_grad()

    table = Table(device, "forward and backward")
    table.add("forward and backward", backward)
    table.add("forward", forward)
    for label, names in PASSES.items():
        if label not in LONG:
            table.add(label, partial(run_pass, model, batches, label, [*names]))
    return table.rows


def decoding(model: Model, sentences: list[str], device: str) -> dict[str, Facts]:
    """Beam search for some sentences, 20 pieces each, by the whole model and by one with every second head."""
    half = HeadMask(model.heads, frozenset(head for head in model.heads if head.head % 2))
    table = Table(device, "decoding")
    for name, each in {"decoding": model, "with half of the heads": model.remove(half)}.items():
        job = partial(translate, Generate(each.hf, each.tokenizer), sentences, Search(), exactly=20)
        table.add(name, job, 20 * len(sentences))
    return table.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="a small model: for counts, not for times")
    parser.add_argument("--out", type=Path, help="write all numbers to this file (JSON)")
    options = parser.parse_args()
    small, device = options.small or options.device == "cpu", options.device
    shape = SMALL if small else BASE
    recipe = Recipe(batch_tokens=1024 if small else 40320, dtype="fp32" if small else "bf16")
    drawn = random.Random(0)
    words = ["".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(3 * shape.vocabulary)]
    tokenizer = learn_subwords(words, shape.vocabulary)
    model = Model(build(shape, tokenizer, 0).to(device), tokenizer, "random")
    sides = [[" ".join(drawn.choices(words, k=WORDS)) for _ in range(2 if small else 64)] for _ in range(2)]
    found: dict[str, Any] = {"chip": chip(shape, recipe, device, 512 if small else 8192)}
    print(f"{found['chip']['name']}, torch {torch.__version__}, {recipe.dtype}, {model}")
    print("| what | ms | × | tokens/s | launches | waits | peak MB |\n|---|---|---|---|---|---|---|")
    found["updates"] = updates(model, recipe, device)
    found["scores"] = scores(model, ParallelText.from_pairs(zip(*sides, strict=True)), device)
    found["decoding"] = decoding(model, sides[0], device)
    tokens = recipe.batch_tokens
    rate = model_flops(shape, len(tokenizer), tokens, tokens, LENGTH) / found["updates"]["update"]["seconds"] / 1e12
    found["utilisation"] = rate / found["chip"]["matrix_tflops"]["large"]
    print(f"An update: {rate:.3g} TFLOP/s, {found['utilisation']:.1%} of what a large matrix product reaches here")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
