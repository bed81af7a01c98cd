"""Half of the key/value groups of a small language model: removed, or merged.

    python benchmarks/merged_groups.py --data FOLDER --out runs/merged-groups

Trains a Llama (4 layers, 8 query heads in 4 key/value groups each, width 128) for each seed, and halves its groups:

    whole      not changed, trained on like the others
    removed    the groups whose query heads have the lowest gradient scores, with these heads
    pooled     neighbours are averaged (Ainslie et al. 2023, section 2.1); all query heads stay
    aligned    the same after each group's keys and values were rotated onto those of the most similar one, which changes
               nothing that the model computes (Jin et al. 2024): values by any rotation, keys by turns of the pairs of
               numbers that rotary positions turn, too

`merged-groups.csv` has the perplexity on packed rows of test text, right after the change and after a short training of
all weights, and the change against `whole`, paired over rows, with 95 % intervals. The folder holds `en-de/train.en.gz`
and `en-de/test.en.gz`; by default it is HEADWISE_DATA. Give the same command again to go on with what is left.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import headwise as hw
from headwise.core.statistics import bootstrap, means_with_intervals, over_seeds

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from small_language_model import learn_tokenizer

SEEDS = (1, 2, 3)
WORDS, ROW, BATCH = 2048, 256, 8
QUERY_HEADS, GROUPS = 8, 4
SCORED = 300  # sentences that the gradient reads
CALIBRATION = 32  # rows that alignments are found on
TEST_ROWS = 400
Pairs = tuple[tuple[int, int], ...]  # of groups of a layer


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("HEADWISE_DATA"))
    parser.add_argument("--out", type=Path, default=Path("runs/merged-groups"))
    parser.add_argument("--updates", type=int, default=1000, help="of the model")
    parser.add_argument("--after", type=int, default=100, help="updates after the change")
    options = parser.parse_args()
    if options.data is None:
        sys.exit("No text: give --data FOLDER, or set HEADWISE_DATA.")
    options.out.mkdir(parents=True, exist_ok=True)

    lines = read_lines(options.data / "en-de" / "train.en.gz")
    tokenizer = tokenizer_of(options.data / "en-de" / "train.en.gz", options.out)
    needed = (options.updates + options.after) * BATCH
    train = packed(lines, tokenizer, needed)
    test = packed(read_lines(options.data / "en-de" / "test.en.gz"), tokenizer, TEST_ROWS)
    scored = list(itertools.islice(read_lines(options.data / "en-de" / "dev.en.gz"), SCORED))
    first, later = train[: options.updates * BATCH], train[options.updates * BATCH :]

    losses = {}
    for seed in SEEDS:
        base = None
        for name, change in CHANGES.items():
            for updates in (0, options.after):
                place = options.out / f"{seed}-{name}-{updates}.npy"
                if not place.exists():
                    base = base or base_model(options.out / f"base-{seed}", first, tokenizer, seed)
                    torch.manual_seed(seed)
                    changed = change(copy.deepcopy(base), tokenizer, scored, later[:CALIBRATION])
                    fit(changed, later, updates, 5e-4, seed)
                    np.save(place, row_losses(changed, test))
                losses[seed, name, updates] = np.load(place)
    table = table_of(losses, options.after)
    table.to_csv(options.out / "merged-groups.csv", index=False, float_format="%.4g")
    print(table.to_string(index=False, float_format="{:.4g}".format))


def read_lines(file: Path) -> Iterator[str]:
    with gzip.open(file, "rt", encoding="utf-8", newline="\n") as text:
        yield from text


def tokenizer_of(text: Path, out: Path) -> PreTrainedTokenizerFast:
    place = out / "tokenizer"
    if not (place / "tokenizer.json").exists():
        learn_tokenizer([text], WORDS).save_pretrained(place)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(place)
    tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def packed(lines: Iterator[str], tokenizer: PreTrainedTokenizerFast, rows: int) -> Tensor:
    """Lines with an end after each, in rows of ROW tokens."""
    waiting: list[int] = []
    for line in lines:
        waiting += [*tokenizer(line.strip()).input_ids, tokenizer.eos_token_id]
        if len(waiting) >= rows * ROW:
            break
    count = min(rows, len(waiting) // ROW)
    return torch.tensor(waiting[: count * ROW]).reshape(count, ROW)


def base_model(
    place: Path, rows: Tensor, tokenizer: PreTrainedTokenizerFast, seed: int
) -> LlamaForCausalLM:
    if not (place / "config.json").exists():
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=QUERY_HEADS,
            num_key_value_heads=GROUPS,
            max_position_embeddings=ROW,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        model = LlamaForCausalLM(config)
        fit(model, rows, len(rows) // BATCH, 2e-3, seed)
        model.save_pretrained(place)
    return LlamaForCausalLM.from_pretrained(place)


def fit(model: nn.Module, rows: Tensor, updates: int, rate: float, seed: int) -> None:
    """Train all weights: AdamW, a warm-up of a twentieth, then a cosine to 0."""
    optimiser = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.95), weight_decay=0.1)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    model.train()
    for update in range(updates):
        warm = min(1.0, (update + 1) / (updates / 20))
        for group in optimiser.param_groups:
            group["lr"] = rate * warm * (1 + math.cos(math.pi * update / updates)) / 2
        batch = rows[order[update * BATCH : (update + 1) * BATCH]]
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
    model.eval()


@torch.no_grad()
def row_losses(model: nn.Module, rows: Tensor) -> np.ndarray:
    """The mean loss of each row, in nats a token."""
    losses = []
    for batch in rows.split(16):
        logits = model(input_ids=batch).logits[:, :-1]
        losses.append(
            nn.functional.cross_entropy(
                logits.transpose(1, 2), batch[:, 1:], reduction="none"
            ).mean(1)
        )
    return torch.cat(losses).double().numpy()


def without_low_groups(
    hf: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, text: list[str]
) -> nn.Module:
    """Half of all groups are removed: those whose query heads have the lowest sums of gradient scores."""
    model = hw.Model(hf, tokenizer, "small")
    values = hw.score(model, text, ["gradient"], progress=lambda *_: None).matrix(
        "decoder-self", "gradient"
    )
    worth = values.reshape(len(values), GROUPS, -1).sum(2)
    shared = QUERY_HEADS // GROUPS
    removed = []
    for unit in np.argsort(worth, axis=None)[: worth.size // 2]:
        layer, group = divmod(int(unit), GROUPS)
        heads = range(group * shared, (group + 1) * shared)
        removed += [hw.Head("decoder-self", layer, head) for head in heads]
    smaller: nn.Module = model.without(removed).hf
    return smaller


@torch.no_grad()
def pooled(hf: LlamaForCausalLM) -> LlamaForCausalLM:
    """The model with the mean key and value projections of every two neighbouring groups."""
    config = copy.deepcopy(hf.config)
    config.num_key_value_heads //= 2
    halved = {}
    for name, weight in hf.state_dict().items():
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            groups = weight.reshape(config.num_key_value_heads, 2, config.head_dim, -1)
            weight = groups.mean(1).flatten(0, 1)
        halved[name] = weight
    smaller = LlamaForCausalLM(config)
    smaller.load_state_dict(halved)
    return smaller.eval()


@torch.no_grad()
def aligned(hf: LlamaForCausalLM, rows: Tensor) -> LlamaForCausalLM:
    """The same function with its groups in another order, similar ones side by side, the second of two rotated onto the
    first."""
    hf = copy.deepcopy(hf)
    for layer, (keys, values) in zip(hf.model.layers, projected(hf, rows), strict=True):
        size = hf.config.head_dim
        attention = layer.self_attn
        weights = {}
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weight = getattr(attention, name).weight
            # the output projection has heads in columns
            by_head = weight.T if name == "o_proj" else weight
            weights[name] = by_head.double().reshape(len(keys), -1, size, weight.shape[1])
        order = []
        for one, other in most_similar(values):
            turn = best_turn(keys[other], keys[one])
            rotation = best_rotation(values[other], values[one])
            for name in ("q_proj", "k_proj"):
                weights[name][other] = turned(weights[name][other].mT, turn).mT
            for name in ("v_proj", "o_proj"):
                weights[name][other] = rotation.T @ weights[name][other]
            order += [one, other]
        for name, by_group in weights.items():
            flat = by_group[order].flatten(0, 2).float()
            getattr(attention, name).weight.copy_(flat.T if name == "o_proj" else flat)
    return hf


def projected(hf: LlamaForCausalLM, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    """By layer, the keys (before positions turn them) and the values of every group: each group, token, head size."""
    found: dict[nn.Module, Tensor] = {}
    hooks = []
    for layer in hf.model.layers:
        for module in (layer.self_attn.k_proj, layer.self_attn.v_proj):
            hooks.append(
                module.register_forward_hook(
                    lambda module, _, output: found.update({module: output})
                )
            )
    hf(input_ids=rows)
    for hook in hooks:
        hook.remove()

    def by_group(module: nn.Module) -> Tensor:
        output = found[module].double().flatten(0, 1)
        return output.reshape(len(output), -1, hf.config.head_dim).transpose(0, 1)

    return [
        (by_group(layer.self_attn.k_proj), by_group(layer.self_attn.v_proj))
        for layer in hf.model.layers
    ]


def most_similar(values: Tensor) -> Pairs:
    """The groups in pairs whose values differ least after the second's rotation. values: group, token, head size."""

    def distance(pair: tuple[int, int]) -> float:
        one, other = values[list(pair)]
        return float((other @ best_rotation(other, one) - one).square().sum())

    return min(pairings(range(len(values))), key=lambda pairs: sum(map(distance, pairs)))


def pairings(groups: range | tuple[int, ...]) -> Iterator[Pairs]:
    """All ways to put groups into pairs."""
    if not groups:
        yield ()
        return
    one, *others = groups
    for other in others:
        left = tuple(group for group in others if group != other)
        for pairs in pairings(left):
            yield ((one, other), *pairs)


def best_rotation(moving: Tensor, fixed: Tensor) -> Tensor:
    """The orthogonal matrix Q with the smallest ‖moving Q − fixed‖ (Procrustes). Both token, head size."""
    left, _, right = torch.linalg.svd(moving.T @ fixed)
    rotation: Tensor = left @ right
    return rotation


def best_turn(moving: Tensor, fixed: Tensor) -> Tensor:
    """The angles by which `turned` brings keys nearest to others, one for each pair of numbers that rotary positions
    turn. Both token, head size."""
    return (as_complex(moving).conj() * as_complex(fixed)).sum(0).angle()


def turned(numbers: Tensor, angles: Tensor) -> Tensor:
    """Numbers (…, head size) with each pair turned by its angle."""
    product = as_complex(numbers) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((product.real, product.imag), -1)


def as_complex(numbers: Tensor) -> Tensor:
    """A pair of numbers is one of each half, as Llama has them."""
    first, second = numbers.chunk(2, -1)
    return torch.complex(first.contiguous(), second.contiguous())


CHANGES: dict[str, Callable[..., nn.Module]] = {
    "whole": lambda hf, *_: hf,
    "removed": lambda hf, tokenizer, text, _: without_low_groups(hf, tokenizer, text),
    "pooled": lambda hf, *_: pooled(hf),
    "aligned": lambda hf, tokenizer, text, rows: pooled(aligned(hf, rows)),
}


def table_of(losses: dict[tuple[int, str, int], np.ndarray], after: int) -> pd.DataFrame:
    """A row for each change, number of updates and seed, and for the mean over seeds."""
    rows = []
    for updates in (0, after):
        for name in CHANGES:
            of_seeds = []
            for seed in SEEDS:
                of_rows = losses[seed, name, updates]
                change = of_rows - losses[seed, "whole", updates]
                both = np.stack([of_rows, change], 1)
                values, low, high, _ = means_with_intervals(both, np.ones(len(both)), 0)
                of_seeds.append((of_rows, change))
                rows.append(row_of(updates, name, str(seed), values, low, high))
            rows.append(mean_row(updates, name, np.array(of_seeds)))
    return pd.DataFrame(rows)


def mean_row(updates: int, name: str, of_seeds: np.ndarray) -> dict[str, object]:
    """The mean over seeds. of_seeds: seed, loss or change, row."""
    count = of_seeds.shape[2]
    bounds = []
    for each in of_seeds.transpose(1, 0, 2):
        drawn = bootstrap(each.T, np.ones(count), 0).T
        bounds.append(over_seeds(each.mean(1), drawn, count))
    low, high = np.array(bounds).T
    return row_of(updates, name, "mean", of_seeds.mean((0, 2)), low, high)


def row_of(
    updates: int, name: str, seed: str, values: np.ndarray, low: np.ndarray, high: np.ndarray
) -> dict[str, object]:
    """A row of the table. values, low, high: the loss, and its change, in nats a token."""
    row: dict[str, object] = {"change": name, "updates": updates, "seed": seed}
    for column, bound in (("", values), ("_low", low), ("_high", high)):
        row[f"perplexity{column}"] = np.exp(bound[0])
        row[f"percent{column}"] = 100 * np.expm1(bound[1])
    return row


if __name__ == "__main__":
    main()
