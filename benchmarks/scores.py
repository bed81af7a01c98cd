"""What every score costs, beside a forward and a forward + backward of the same batch in fp32 with eager attention.

    python benchmarks/scores.py --rounds 3                          # a Transformer-base, 16 pairs of 20 tokens
    python benchmarks/scores.py --pairs 1 --tokens 20 --original    # the shape that the original code was timed on
    python benchmarks/scores.py --shapes    # exact ablation of all heads of three shapes of language models

Every score is timed in turn with the two yardsticks, `rounds` times; the ratio within each round is what counts, and
its median is printed with the range. Per-step relevance is given for one step. The bound of zero-ablation is what
reuse of the layers before the head leaves to be computed: for each head, the share of a forward from its layer on.
Peak memory is that of a process of its own (--memory, Linux).

With --shapes, multiplications are counted instead of seconds: of a forward with its loss, and of exact ablation.
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
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    M2M100Config,
    M2M100ForConditionalGeneration,
)

from headwise.importance.ablation import ablate
from headwise.importance.attention_statistics import read_statistics
from headwise.importance.gradient import gradients
from headwise.importance.lrp.relevance import Mode, relevance
from headwise.importance.lrp.rules import RULES
from headwise.models.attention.discover import Discovery, discover
from headwise.models.attention.output import run_layers
from headwise.models.tasks import objective
from headwise.models.tasks.objective import inputs_of
from headwise.models.token_rows import IGNORED

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
    parser.add_argument("--shapes", action="store_true", help="count forwards of exact ablation")
    options = parser.parse_args()
    if options.shapes:
        objective.CHUNK = 0  # a large batch never has all its logits, and these are small ones
        for name, model in language_models().items():
            print(ablation_line(name, model), flush=True)
        return
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


def language_models() -> dict[str, Any]:
    """Random language models by name: their layers, heads and words, with narrow layers."""
    torch.manual_seed(0)
    gpt2 = GPT2Config(n_embd=96, n_layer=12, n_head=12)
    gemma = Gemma3TextConfig(
        hidden_size=64,
        intermediate_size=205,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=26,
        vocab_size=262_144,
    )
    llama = LlamaConfig(
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=32,
        num_attention_heads=8,
        vocab_size=32_000,
    )
    return {
        "GPT-2-like, 12 x 12 heads, 50,257 words": GPT2LMHeadModel(gpt2).eval(),
        "Gemma-like, 18 x 4 heads, 262,144 words": Gemma3ForCausalLM(gemma).eval(),
        "32 layers of 8 heads, 32,000 words": LlamaForCausalLM(llama).eval(),
    }


def ablation_line(name: str, model: Any) -> str:
    """Exact ablation of all heads, in forwards with their loss: what it took, and the bound when layers before a head's
    are not computed again and only positions with a label are projected. 8 sentences of 10 to 17 tokens."""
    discovery = discover(model)
    lengths = torch.arange(8) + 10
    places = torch.arange(17) < lengths[:, None]
    ids = torch.randint(5, model.config.vocab_size, places.shape)
    labels = ids.roll(-1, 1).masked_fill(~places.roll(-1, 1) | ~places, IGNORED)
    labels[:, -1] = IGNORED
    batch = {"input_ids": ids, "attention_mask": places.long(), "labels": labels}

    with torch.no_grad():
        layers = multiplications(lambda: run_layers(model, inputs_of(batch)))
    asked = int((labels != IGNORED).sum())
    whole = layers + 2.0 * asked * model.get_output_embeddings().weight.numel()
    spent = multiplications(lambda: ablate(model, discovery, [batch], ["ablation.zero"]))
    count = len(discovery.heads.sites)
    bound = whole
    for site in discovery.heads.sites:
        rest = layers * (count - site.layer) / count + whole - layers
        bound += discovery.heads.count(site) * rest
    return (
        f"{name}: {spent / whole:.1f} forwards, bound {bound / whole:.1f}, ratio {spent / bound:.3f}; "
        f"{discovery.heads.total + 1} without reuse; output layer {1 - layers / whole:.0%} of a forward"
    )


def multiplications(job: Callable[[], object]) -> float:
    with FlopCounterMode(display=False) as counter:
        job()
    return float(counter.get_total_flops())


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
