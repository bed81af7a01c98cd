"""What every score costs, beside a forward and a forward + backward of the same batch in fp32 with eager attention.

    python benchmarks/scores.py --rounds 3                          # a Transformer-base, 16 pairs of 20 tokens
    python benchmarks/scores.py --pairs 1 --tokens 20 --original    # the shape that the original code was timed on

Every score is timed in turn with the two yardsticks, `rounds` times; the ratio within each round is what counts, and
its median is printed with the range. Per-step relevance is given for one step. The bound of zero-ablation is what
reuse of the layers before the head leaves to be computed: for each head, the share of a forward from its layer on.
Peak memory is that of a process of its own (--memory, Linux).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import M2M100Config, M2M100ForConditionalGeneration

from headwise.attention import Discovery, discover
from headwise.importance.ablation import ablate
from headwise.importance.attention_statistics import read_statistics
from headwise.importance.gradient import gradients
from headwise.importance.lrp.relevance import Mode, relevance
from headwise.importance.lrp.rules import RULES

ORIGINAL = {
    "seconds": 11.2,
    "megabytes": 8419,
}  # one target position of a 20-token pair, one core (Voita et al.'s code)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument(
        "--original", action="store_true", help="per step in seconds, beside the original code"
    )
    parser.add_argument(
        "--memory", default="", help="run this one score (or 'backward') and print the peak memory"
    )
    options = parser.parse_args()
    model, batch = base(options.pairs, options.tokens)
    discovery = discover(model)
    forward, backward = yardsticks(model, batch)
    scores = jobs(model, discovery, batch)
    if options.memory:
        (backward if options.memory == "backward" else scores[options.memory][0])()
        print(*re.findall(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text()))
        return
    print(
        json.dumps(
            {
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "pairs": options.pairs,
                "tokens": options.tokens,
                "rounds": options.rounds,
            }
        )
    )
    for name, (job, steps, against) in scores.items():
        if options.only not in name:
            continue
        rounds = [
            (seconds(forward), seconds(backward), seconds(job) / steps)
            for _ in range(options.rounds)
        ]
        yard = 0 if against == "forward" else 1
        ratios = [times[2] / times[yard] for times in rounds]
        line = f"{name:28} {median_and_range(ratios)} x {against}"
        if name == "ablation.zero":
            bound = reuse_bound(discovery)
            line = f"{name:28} {median_and_range([ratio / bound for ratio in ratios])} x its bound of {bound:.1f} forwards"
        if options.original:
            line += (
                f"   {min(times[2] for times in rounds):.3f} s, original {ORIGINAL['seconds']} s"
            )
            line += f"   {peak(name, options):.0f} MB, backward {peak('backward', options):.0f} MB"
        print(line, flush=True)


def median_and_range(values: list[float]) -> str:
    return f"{statistics.median(values):6.2f} ({min(values):.2f} to {max(values):.2f})"


def base(pairs: int, tokens: int) -> tuple[Any, dict[str, Tensor]]:
    """A Transformer-base (6 + 6 layers, 8 heads, width 512, feed-forward 2048, 8,000 words), pre-norm, and a batch."""
    torch.manual_seed(0)
    sizes = {"d_model": 512, "vocab_size": 8000, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
    shape = {
        f"{side}_{what}": n
        for side in ("encoder", "decoder")
        for what, n in (("layers", 6), ("attention_heads", 8))
    }
    off = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    model = M2M100ForConditionalGeneration(M2M100Config(**sizes, **shape, **off)).eval()
    ids = torch.randint(5, 8000, (3, pairs, tokens))
    batch = {
        "input_ids": ids[0],
        "attention_mask": torch.ones_like(ids[0]),
        "decoder_input_ids": ids[1],
        "labels": ids[2],
    }
    return model, batch


def yardsticks(
    model: Any, batch: dict[str, Tensor]
) -> tuple[Callable[[], object], Callable[[], object]]:
    """A forward, and a forward + backward with weight gradients, both with eager attention."""

    def forward() -> None:
        model.set_attn_implementation("eager")
        with torch.no_grad():
            model(**batch, use_cache=False)
        model.set_attn_implementation("sdpa")

    def backward() -> None:
        model.set_attn_implementation("eager")
        model.zero_grad()
        model(**batch, use_cache=False).loss.backward()
        model.set_attn_implementation("sdpa")

    return forward, backward


def jobs(
    model: Any, discovery: Discovery, batch: dict[str, Tensor]
) -> dict[str, tuple[Callable[[], object], int, str]]:
    """By name: what to run, the number of steps it stands for, and the yardstick."""
    steps = batch["labels"].shape[1]

    def by_relevance(rule: str, mode: Mode) -> Callable[[], object]:
        return lambda: relevance(model, discovery, [batch], RULES[rule], mode)

    special = {0, 1, 2}
    made: dict[str, tuple[Callable[[], object], int, str]] = {
        "attention statistics": (
            lambda: read_statistics(model, discovery, [batch], special),
            1,
            "forward",
        ),
        "gradients": (lambda: gradients(model, discovery, [batch]), 1, "forward + backward"),
    }
    for rule in RULES:
        made[f"lrp.{rule}.pooled"] = (by_relevance(rule, "pooled"), 1, "forward + backward")
        made[f"lrp.{rule}"] = (by_relevance(rule, "per-step"), steps, "forward + backward, a step")
    made["ablation.zero"] = (
        lambda: ablate(model, discovery, [batch], ["ablation.zero"]),
        1,
        "forward",
    )
    return made


def reuse_bound(discovery: Discovery) -> float:
    """Forwards that zero-ablation of all heads needs when layers before the head's are not computed again.

    Layers count by their matrix products: an encoder layer 12, a decoder layer 16 (times the width squared), the
    output layer as it is. One forward more is needed for the whole model.
    """
    encoder, decoder = (
        len(discovery.heads.query[kind]) for kind in ("encoder-self", "decoder-self")
    )
    output = 8000 / 512
    whole = 12 * encoder + 16 * decoder + output
    total = whole
    for site in discovery.heads.sites:
        after = (
            12 * (encoder - site.layer) + 16 * decoder
            if site.kind == "encoder-self"
            else 16 * (decoder - site.layer)
        )
        total += discovery.heads.count(site) * (after + output)
    return total / whole


def seconds(job: Callable[[], object]) -> float:
    begun = time.perf_counter()
    job()
    return time.perf_counter() - begun


def peak(name: str, options: argparse.Namespace) -> float:
    """Peak memory in MB of a process that runs one score."""
    sizes = ["--pairs", str(options.pairs), "--tokens", str(options.tokens)]
    done = subprocess.run(
        [sys.executable, __file__, *sizes, "--memory", name], capture_output=True, check=True
    )
    return float(done.stdout.split()[-1]) / 1024


if __name__ == "__main__":
    main()
