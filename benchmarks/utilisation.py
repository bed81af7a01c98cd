"""How much of a processor a training uses: what the chip can do, what a model asks of it, and where the time goes.

    python benchmarks/utilisation.py --device cuda

RunContext by itself it prints what this machine reaches at the shapes of Transformer-base; `paper_scale.py` compares a
real training with that.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.profiler import profile
from transformers import AutoTokenizer

from headwise.core.errors import HeadwiseError
from headwise.core.options import Architecture, Training
from headwise.models.attention import kernel
from headwise.models.forecast import best, drawn
from headwise.models.training.trainer import bfloat16
from headwise.study.run_context import RunContext

CALLS = 20  # matrix products between two looks at the clock
SAMPLE = 20_000  # training pairs whose lengths are looked at
SORTS = {  # what a kernel does, by a part of its name; the first that fits
    "attention": ("fmha", "flash", "attention", "attn"),
    "matrix products": (
        "gemm",
        "nvjet",
        "cutlass",
        "xmma",
        "matmul",
        "addmm",
        "::mm",
        "::bmm",
        "linear",
    ),
    "optimiser": ("multi_tensor", "adam"),
    "norms": ("layer_norm", "layernorm", "gammabeta"),
    "dropout": ("dropout",),
    "softmax": ("softmax", "logsumexp"),
    "copies": ("memcpy", "memset", "copy"),
    "reductions": ("reduce",),
    "element by element": ("elementwise",),
    "picking rows": ("index", "gather", "scatter", "embedding"),
}

Facts = dict[str, Any]


def where_time_goes(seen: profile, device: str) -> Facts:
    """Shares of the time of all kernels (on a CPU: operations), by sort and name; how long a GPU stood idle."""
    totals: dict[str, float] = defaultdict(float)
    spans: list[tuple[float, float]] = []
    for event in seen.events():
        if device == "cuda":
            if event.device_type.name == "CUDA" and not event.name.startswith(
                ("Optimizer.", "ProfilerStep")
            ):
                spans.append((event.time_range.start, event.time_range.end))
                totals[event.name] += event.time_range.end - event.time_range.start
        else:
            totals[event.name] += event.self_cpu_time_total
    whole = sum(totals.values()) or 1.0
    sorts: dict[str, float] = defaultdict(float)
    for name, spent in totals.items():
        words = name.lower()
        sorts[
            next((s for s, parts in SORTS.items() if any(p in words for p in parts)), "other")
        ] += spent / whole
    top = sorted(totals.items(), key=lambda item: -item[1])[:15]
    found: Facts = {
        "sorts": dict(sorted(sorts.items(), key=lambda item: -item[1])),
        "top": {name[:120]: spent / whole for name, spent in top},
    }
    if spans:
        busy, end = 0.0, min(start for start, _ in spans)
        for start, stop in sorted(spans):
            busy, end = busy + max(0.0, stop - max(start, end)), max(end, stop)
        wall = end - min(start for start, _ in spans)
        found |= {"kernels": len(spans), "idle": 1 - busy / wall, "microseconds": wall}
    return found


def model_flops(
    shape: Architecture, vocabulary: int, source: float, target: float, length: float
) -> float:
    """Operations of one update on so many source and target positions, in sentences of `length` positions.

    6 a weight and position (2 forward, 4 backward) of every matrix: queries, keys, values and outputs 4 d² a layer, of
    cross attention keys and values on the source side; feed-forward 2 d f; output layer d V. And 6 · 2 d L a position
    of every attention layer for q kᵀ and A v. Norms, softmax, dropout, embeddings and the optimiser count nothing.
    """
    d, f, encoder, decoder = (
        shape.width,
        shape.feedforward,
        shape.encoder_layers,
        shape.decoder_layers,
    )
    weights = source * (encoder * (4 * d * d + 2 * d * f) + decoder * 2 * d * d)
    weights += target * (decoder * (6 * d * d + 2 * d * f) + d * vocabulary)
    attention = 2 * d * length * (encoder * source + 2 * decoder * target)
    return 6 * (weights + attention)


def chip(shape: Architecture, recipe: Training, device: str, size: int) -> Facts:
    """What this machine can do at most: matrix products (a large one, and those of the plan's width), copies, and one
    attention layer of a batch, forward and backward, both ways.
    """
    rows, d, f = recipe.batch_tokens, shape.width, shape.feedforward
    dtype = torch.bfloat16 if bfloat16(recipe.dtype, device) else torch.float32
    shapes = {
        "large": (size, size, size),
        "attention projection": (rows, d, d),
        "feed-forward in": (rows, d, f),
        "feed-forward out": (rows, f, d),
        "output layer": (min(rows, 8192), d, shape.vocabulary),
    }
    found: Facts = {
        "name": torch.cuda.get_device_name()
        if device == "cuda"
        else f"CPU, {torch.get_num_threads()} threads",
        "torch": version("torch"),
        "dtype": str(dtype).removeprefix("torch."),
        "large": size,
    }
    found["matrix_tflops"] = {
        name: product_rate(*sides, dtype, device) for name, sides in shapes.items()
    }
    block = torch.empty(2**30 if device == "cuda" else 2**24, dtype=torch.uint8, device=device)
    found["copy_gigabytes_per_second"] = 2 * block.numel() / best(block.clone, device) / 1e9
    found["attention_layer_seconds"] = attention_layer(
        rows, shape.heads, d // shape.heads, dtype, device
    )
    return found


def product_rate(rows: int, inner: int, columns: int, dtype: torch.dtype, device: str) -> float:
    """10¹² operations a second of a matrix product on random numbers (zeros are quicker)."""
    one, other = (
        torch.randn(sides, device=device).to(dtype) for sides in ((rows, inner), (inner, columns))
    )
    out = torch.empty(rows, columns, dtype=dtype, device=device)

    def several() -> None:
        for _ in range(CALLS):
            torch.matmul(one, other, out=out)

    return 2 * rows * inner * columns * CALLS / best(several, device) / 1e12


def attention_layer(
    rows: int, heads: int, size: int, dtype: torch.dtype, device: str, length: int = 16
) -> Facts:
    """Forward and backward of one attention layer of a batch of short sentences, by torch's fused kernel and by plain
    matrix products.

    The last sentence is empty, as some are in the last batch of an epoch. Raises HeadwiseError where that gives no
    numbers: the model would be lost after one epoch.
    """
    shape = (max(2, rows // length), heads, length, size)
    inputs = [torch.randn(shape, device=device).to(dtype).requires_grad_() for _ in range(3)]
    mask = torch.ones(shape[0], 1, length, length, dtype=torch.bool, device=device).tril()
    mask[-1] = False

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return kernel.explicit(nn.Identity(), q, k, v, mask, None, 0.0, {})[0]

    found = {}
    for name, way in {"fused": fused, "plain": plain}.items():
        found[name] = best(lambda way=way: way(*inputs).sum().backward(), device)  # type: ignore[misc]
        if not all(bool(each.grad.isfinite().all()) for each in inputs if each.grad is not None):
            raise HeadwiseError(
                f"Attention ({name}) gives no numbers for an empty sentence with torch {version('torch')} on {device}: "
                "a training would be lost at the end of its first epoch. Use another version of torch."
            )
    return found


def usage(run: RunContext, facts: Facts) -> Facts:
    """Tokens a second and the share of the chip's rate that they use, once the full model of the run is trained."""
    plan, pace = run.plan, facts["trainings"].get("train", {})
    if not (run.folder / "model").exists() or "update_seconds" not in pace:
        return dict(facts.get("use", {}))
    assert isinstance(plan.model, Architecture)
    pieces, text = AutoTokenizer.from_pretrained(run.folder / "model"), run.pairs("train")
    some = text.dataset[drawn(len(text), SAMPLE)]
    source, target = (
        np.array([min(len(ids), plan.model.max_length) for ids in pieces(some[side])["input_ids"]])
        for side in ("source", "target")
    )
    longest = np.maximum(source, target)
    updates = pace["updates"] / plan.training.epochs  # of an epoch
    read, written = (float(side.mean()) * len(text) / updates for side in (source, target))
    positions = plan.training.batch_tokens * plan.training.accumulate
    length = float((longest**2).sum() / longest.sum())
    useful = model_flops(plan.model, len(pieces), read, written, length)
    done = model_flops(plan.model, len(pieces), positions, positions, length)
    chip_rate, narrow = (
        facts["chip"]["matrix_tflops"][name] for name in ("large", "feed-forward in")
    )
    rate = useful / pace["update_seconds"] / 1e12
    whole = run.store.record("train")["result"]
    decoded = {
        s: run.store.record(f"translate/{s}/full").get("result", {}).get("tokens_per_second")
        for s in ("dev", "test")
    }
    return {
        "update_seconds": pace["update_seconds"],
        "target_tokens_per_update": written,
        "target_tokens_per_second": written / pace["update_seconds"],
        "target_tokens_per_second_with_checkpoints": written * whole["updates"] / whole["seconds"],
        "written_tokens_per_second": decoded,
        "flops_per_update": useful,
        "flops_per_update_with_padding": done,
        "tflops": rate,
        "utilisation": rate / chip_rate,
        "utilisation_with_padding": rate * done / useful / chip_rate,
        "utilisation_of_products_at_this_width": rate / narrow,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--matmul", type=int, help="size of the large matrix product (default: 8192, on a CPU 512)"
    )
    parser.add_argument(
        "--batch-tokens", type=int, help="positions of a batch (default: 40320, on a CPU 2520)"
    )
    options = parser.parse_args()
    gpu = options.device == "cuda"
    shape = Architecture(
        norm="pre",
        encoder_layers=6,
        decoder_layers=6,
        width=512,
        feedforward=2048,
        vocabulary=16000,
    )
    recipe = Training(batch_tokens=options.batch_tokens or (40320 if gpu else 2520))
    found = chip(shape, recipe, options.device, options.matmul or (8192 if gpu else 512))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
