"""What updates, scores and decoding ask of a processor: time, launches, waits and memory.

    python benchmarks/gpu.py                          # on a GPU: Transformer-base in bf16, some minutes
    python benchmarks/gpu.py --device cpu --small     # a small model; launches and waits are about those on a GPU
    python benchmarks/gpu.py --device cpu --only updates   # what gates cost on a processor

An update is one of a training: full batch of random pieces, loss without logits, gradient clipping, AdamW. A gated one
draws its gates and pays for them; the aim is at most 1.05 ungated ones. A score is one pass over some pairs, in
float32. Times are medians of five, ratios of five pairs with their range. Launches are operators that compute (not
views and not allocations). Waits are places where the processor asks the device for a number.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from utilisation import Facts, chip, model_flops

from headwise.core.heads import Kind
from headwise.core.layout import HeadMask
from headwise.core.options import Architecture, Search, Training
from headwise.data.text import ParallelText
from headwise.importance.measures import measure, passes
from headwise.importance.passes import run_pass
from headwise.models.attention.capture import capture
from headwise.models.decoding.translator import Generate, translate
from headwise.models.forecast import wait_for
from headwise.models.model import Model
from headwise.models.training.dropout import fast_dropout
from headwise.models.training.loss import loss_forward
from headwise.models.training.tokenizer import learn_subwords
from headwise.models.training.trainer import bfloat16
from headwise.models.training.translation_model import build_model
from headwise.pruning.gates import HardConcrete, HeadGates
from headwise.study.forecast import random_batch

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from syncs import syncs

BASE = Architecture(
    norm="pre", encoder_layers=6, decoder_layers=6, width=512, feedforward=2048, vocabulary=16000
)
SMALL = Architecture(
    norm="pre", encoder_layers=2, decoder_layers=2, width=32, feedforward=64, vocabulary=300
)
LENGTH, WORDS = 16, 6  # pieces of a sentence of an update; words of one that is scored
ENCODER: list[Kind] = ["encoder-self"]
ROUNDS = 5

Job = Callable[[], object]
Around = Callable[[], AbstractContextManager[None]]


class Launches(TorchDispatchMode):
    """Inside this block `count` rises with every operator that computes something."""

    count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += not function.is_view and "empty" not in function.__name__
        return function(*args, **(kwargs or {}))


class Table:
    """Rows that are printed as they are measured. The first is the yardstick: each later one is timed in turn with it,
    and its ratio is a median with its range."""

    def __init__(self, device: str) -> None:
        self.device, self.rows = device, dict[str, Facts]()
        self.yard: tuple[Job, Around] | None = None

    def add(self, name: str, job: Job, tokens: int = 0, around: Around = nullcontext) -> None:
        """Seconds of a job, tokens per second, launches, waits, and on a GPU the peak of memory. around: a block in
        which the job runs, and which is not timed."""
        gpu = self.device == "cuda"
        self.yard = self.yard or (job, around)
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        try:
            times = [(self.seconds(*self.yard), self.seconds(job, around)) for _ in range(ROUNDS)]
        except torch.OutOfMemoryError:
            print(f"| {name} | out of memory | | | | | |", flush=True)
            return
        ratios = sorted(mine / yard for yard, mine in times)
        row: Facts = {
            "seconds": statistics.median(mine for _, mine in times),
            "ratio": statistics.median(ratios),
            "least_ratio": ratios[0],
            "most_ratio": ratios[-1],
        }
        row |= {"tokens_per_second": tokens / row["seconds"]} if tokens else {}
        row |= {"peak_megabytes": torch.cuda.max_memory_allocated() / 1e6} if gpu else {}
        with around():
            job()
            with syncs() as seen, Launches() as launches:  # type: ignore[no-untyped-call]
                job()
        self.rows[name] = row = {**row, "launches": launches.count, "waits": len(seen)}
        speed, memory = (
            f"{row[key]:,.0f}" if key in row else ""
            for key in ("tokens_per_second", "peak_megabytes")
        )
        times_as_long = f"{row['ratio']:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(
            f"| {name} | {1e3 * row['seconds']:.1f} | {times_as_long} | {speed} | {row['launches']:,} | "
            f"{row['waits']} | {memory} |",
            flush=True,
        )

    def seconds(self, job: Job, around: Around) -> float:
        """Seconds of a second run: the first is there to warm up."""
        with around():
            job()
            wait_for(self.device)
            begun = time.perf_counter()
            job()
            wait_for(self.device)
            return time.perf_counter() - begun


def updates(model: Model, recipe: Training, device: str) -> dict[str, Facts]:
    """Updates without gates, with gates on the encoder's heads, and with gates on all heads."""
    hf: Any = model.hf
    batch = random_batch(hf, recipe.batch_tokens // LENGTH, LENGTH)
    tokens, optimizer = (
        batch["labels"].numel(),
        torch.optim.AdamW(hf.parameters(), lr=0.0, fused=True),
    )
    explicit = device == "cpu"  # as in a training

    def update() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=bfloat16(recipe.dtype, device)):
            loss: Tensor = hf(**batch, smoothing=0.1) / tokens
        loss.backward()
        torch.nn.utils.clip_grad_norm_(hf.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    @contextmanager
    def training(kinds: Sequence[Kind]) -> Iterator[None]:
        gates = (
            HeadGates(model.heads.only(kinds), HardConcrete(), 3.0).to(device) if kinds else None
        )
        with (
            capture(
                hf, model.discovery, gates=gates.by_site() if gates else None, explicit=explicit
            ),
            loss_forward(
                hf,
                gates.draw if gates else None,
                (lambda: 0.01 * gates.penalty()) if gates else None,
            ),
            fast_dropout(hf),
        ):
            hf.train()
            yield
            hf.eval()

    table = Table(device)
    gated: dict[str, list[Kind]] = {
        "update": [],
        "gates on the encoder": ENCODER,
        "gates on all": [*model.heads.kinds],
    }
    for name, kinds in gated.items():
        table.add(name, update, tokens, partial(training, kinds))
    return table.rows


def scores(model: Model, text: ParallelText, device: str) -> dict[str, Facts]:
    """A forward and a backward pass of a text, and every pass of scores."""
    hf: Any = model.hf
    batches = model.task.batches(text)
    (batch,) = [
        {name: each[name].to(device) for name in each if name != "rows"} for each in batches.whole()
    ]

    def forward() -> None:
        with torch.no_grad():
            hf(**batch, use_cache=False)

    def backward() -> None:
        hf(**batch, use_cache=False).loss.backward()
        hf.zero_grad()

    table = Table(device)
    table.add("forward and backward", backward)
    table.add("forward", forward)
    for label, names in passes(["all"]).items():
        if not measure[names[0]].expensive:
            table.add(label, partial(run_pass, model, batches, names))
    return table.rows


def decoding(model: Model, sentences: list[str], device: str) -> dict[str, Facts]:
    """Beam search for some sentences, 20 pieces each, by the whole model and by one with every second head."""
    half = HeadMask(model.heads, frozenset(head for head in model.heads if head.head % 2))
    table = Table(device)
    for name, each in {"decoding": model, "with half of the heads": model.only(half)}.items():
        job = partial(translate, Generate(each.hf, each.tokenizer), sentences, Search(), exactly=20)
        table.add(name, job, 20 * len(sentences))
    return table.rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--small", action="store_true", help="a small model: for counts, not for times"
    )
    parser.add_argument("--only", choices=("updates", "scores", "decoding"))
    parser.add_argument("--out", type=Path, help="write all numbers to this file (JSON)")
    options = parser.parse_args()
    small, device = options.small, options.device
    gpu = device == "cuda"
    shape = SMALL if small else BASE if gpu else Architecture()
    recipe = Training(
        batch_tokens=1024 if small else 40320 if gpu else 2520,
        dtype="float32" if small or not gpu else "bfloat16",
    )
    drawn = random.Random(0)
    words = [
        "".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=6))
        for _ in range(3 * shape.vocabulary)
    ]
    tokenizer = learn_subwords(words, shape.vocabulary)
    model = Model(build_model(shape, tokenizer, 0).to(device), tokenizer, "random")
    sides = [
        [" ".join(drawn.choices(words, k=WORDS)) for _ in range(2 if small else 64)]
        for _ in range(2)
    ]
    found: dict[str, Any] = {"chip": chip(shape, recipe, device, 512 if small else 8192)}
    print(f"{found['chip']['name']}, torch {torch.__version__}, {recipe.dtype}, {model}")
    print(
        "| what | ms | × | tokens/s | launches | waits | peak MB |\n|---|---|---|---|---|---|---|"
    )
    if options.only in (None, "updates"):
        found["updates"] = updates(model, recipe, device)
        tokens = recipe.batch_tokens
        rate = (
            model_flops(shape, len(tokenizer), tokens, tokens, LENGTH)
            / found["updates"]["update"]["seconds"]
            / 1e12
        )
        found["utilisation"] = rate / found["chip"]["matrix_tflops"]["large"]
        print(
            f"An update: {rate:.3g} TFLOP/s, {found['utilisation']:.1%} of what a large matrix product reaches here"
        )
    if options.only in (None, "scores"):
        found["scores"] = scores(model, ParallelText.from_pairs(zip(*sides, strict=True)), device)
    if options.only in (None, "decoding"):
        found["decoding"] = decoding(model, sides[0], device)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
