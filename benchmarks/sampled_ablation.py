"""How many forwards a sample of a text takes for ablations as exact, with and without first orders and heads that rest.

    python examples/small_language_model.py train.en --out runs/lm-12 --layers 12 --width 128 --block 128 --epochs 0.3
    python benchmarks/sampled_ablation.py --measure runs/lm-12/model --name lm-12 --text test.en --seconds 120
    python benchmarks/sampled_ablation.py --out docs/methods/sampled-ablation.csv

The first form measures `ablation.zero` of every head and its first order, sentence by sentence, for so many seconds, and
keeps them in a file of `--pools`. The second draws 200 texts from each file, with replacement, so that the true value of
every head is that of the file, and samples each as `headwise score --time` does. A row of the table is a model and a way
to sample (`plain`; `gradients`: first orders of more sentences; `both`: heads rest, too):

    heads, pool       heads of the model; sentences that were measured
    correlation       of a head's change with its first order over sentences; with the quarters of heads
    narrower          how many times as many sentences plain ablation needs for a head's interval to be as narrow, after
                      32 sentences; with the quarters of heads
    equal             the same in forwards, which gradients take, too
    forwards          until ranks settle, for each text, with the quarters of texts; less: plain forwards of the same text
                      divided by these
    spearman          rank correlation with the true values, then
    missed            % of intervals that leave out the true value, then; error: its standard error over texts
    false             % of texts in which p, corrected over heads, is below 0.05 for any head, with the true values taken
                      away, so that no head has an effect
    first_order       forwards that a first order took, as it was timed

Firefox's students were measured on FLORES dev, with references, Gemma 3 on captions of Multi30k of 4 to 6 words; `lm-4`
and `lm-12` before `false` was counted.

A forward of a head is 0.75 (from its layer on, with the output layer), as `headwise score --dry-run` counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import headwise as hw
from headwise.core.folders import write_text
from headwise.core.heads import HeadMap, Site
from headwise.core.progress import silent
from headwise.importance.ablation import adding, empty_sums, one_by_one, to_first_order
from headwise.importance.control_variate import controlled, variation
from headwise.importance.ranks import agreement_of, halves, spearman
from headwise.importance.sample import (
    FEWEST_SAMPLED,
    FIRST_ORDER,
    SAMPLE_POSITIONS,
    SETTLED,
    resting_heads,
    times_ahead,
    tokens_of_heads,
)
from headwise.importance.work import Workload
from headwise.models.attention.discover import evaluating
from headwise.models.evaluation.sums import SentenceSums
from headwise.models.evaluation.without_heads import recordings, unrecorded
from headwise.models.tasks.batches import Shuffled

SITE = Site("encoder-self", 0)
MEASURE = "ablation.zero"
BATCH = 8  # sentences that are drawn together at least; later a tenth of those so far
MOST = 1000  # sentences of a sample
TEXT = 20_000  # sentences of a text
WAYS = {"plain": (False, False), "gradients": (True, False), "both": (True, True)}


def measure(name: str, source: str, texts: list[Path], seconds: float, pools: Path) -> None:
    """Write the sums of so many seconds of sentences; again after each batch."""
    model = hw.load(source)
    text = hw.ParallelText.read(*texts) if len(texts) == 2 else hw.Text.read(texts[0])
    batches = model.task.batches(text)
    sums, known = (empty_sums([MEASURE], model.discovery) for _ in range(2))
    with evaluating(model.hf), torch.no_grad():
        one, other = (Shuffled(batches, 0, SAMPLE_POSITIONS, silent) for _ in range(2))
        ablations = adding(sums, recordings(model.hf, model.discovery, one), {}, one_by_one)
        unread = map(partial(unrecorded, model.hf, model.discovery), other)
        slopes = adding(known, unread, {}, to_first_order)
        spent = [0.0, 0.0]
        while sum(spent) < seconds:
            start = time.process_time()
            if next(ablations, "ended") == "ended":
                break
            spent[0] += time.process_time() - start
            start = time.process_time()
            next(slopes)
            spent[1] += time.process_time() - start
            arrays: dict[str, np.ndarray] = {"spent": np.array(spent)}
            for what, each in (("lost", sums), ("known", known)):
                of_layers = [lost for _, lost, _ in each[MEASURE].layers(MEASURE)]
                arrays[what] = np.concatenate(of_layers, axis=1)
                arrays["counts"] = next(each[MEASURE].layers(MEASURE))[2]
            pools.mkdir(parents=True, exist_ok=True)
            np.savez(pools / f"{name}.npz", **arrays)  # type: ignore[arg-type]
            print(name, len(arrays["counts"]), [round(part) for part in spent], flush=True)


def taken(sums: np.ndarray, counts: np.ndarray) -> SentenceSums:
    collected = SentenceSums(HeadMap({"encoder-self": (sums.shape[1],)}))
    collected.take(SITE, sums, counts)
    return collected


def sampled(
    pool: dict[str, np.ndarray], order: np.ndarray, way: tuple[bool, bool], seed: int
) -> dict[str, Any]:
    """A text, sentences of the pool in some order, read until ranks settle: forwards, and what is said of the heads."""
    gradients, resting = way
    heads = pool["lost"].shape[1]
    work = Workload(HeadMap({"encoder-self": (heads,)}), 1).of_measures([MEASURE])
    ahead = times_ahead(work) if gradients else 0
    tried = np.zeros((0, heads))
    awake = np.ones(heads, bool)
    read = 0
    while True:
        size = max(BATCH, len(tried) // 10)
        tried = np.concatenate([tried, np.repeat(awake[None], size, 0)])
        now = len(tried)
        read = max(read, now, round(ahead * tried.mean() * now)) if ahead else 0
        if now < FEWEST_SAMPLED:
            continue
        lost, counts = pool["lost"][order[:now]], pool["counts"][order[:now]]
        ahead_of = order[:read]
        known = taken(pool["known"][ahead_of], pool["counts"][ahead_of])
        tokens = taken(tried * counts[:, None], counts)
        measured = taken(lost * tried, counts)
        made, _ = controlled(measured, tokens, known)
        one, other = halves(made, made.heads, seed)
        plain, _ = controlled(measured, tokens, SentenceSums(made.heads))
        gain = variation(*plain.whole(SITE)) / variation(*made.whole(SITE))
        if now == FEWEST_SAMPLED:
            first = gain
        if np.median(gain) < 1 + ahead * FIRST_ORDER / work:
            ahead = 0
        if agreement_of(one, other) >= SETTLED or now >= MOST:
            break
        if resting:
            awake = ~resting_heads(one, other, tokens_of_heads(tokens))
    forwards = now + (work - 1) / heads * tried.sum() + FIRST_ORDER * read
    return {"forwards": forwards, "sums": made, "gain": first, "sentences": now}


def rows_of(
    name: str, pool: dict[str, np.ndarray], texts: int, ways: Iterable[str]
) -> list[dict[str, Any]]:
    lost, known, counts = pool["lost"], pool["known"], pool["counts"]
    truth = lost.sum(0) / counts.sum()
    one = lost - truth * counts[:, None]
    other = known - known.sum(0) / counts.sum() * counts[:, None]
    r = (one * other).sum(0) / np.sqrt((one**2).sum(0) * (other**2).sum(0))
    work = Workload(HeadMap({"encoder-self": (len(truth),)}), 1).of_measures([MEASURE])
    rows = []
    plain = np.zeros(texts)
    for way in ways:
        gradients = times_ahead(work) * FIRST_ORDER if WAYS[way][0] else 0
        found: dict[str, list[float]] = {
            key: [] for key in ("forwards", "spearman", "missed", "false", "sentences")
        }
        gains = []
        for text in range(texts):
            order = np.random.default_rng(text).integers(len(counts), size=TEXT)
            made = sampled(pool, order, WAYS[way], text)
            rows_of_heads = made["sums"].rows(MEASURE, text)
            values, low, high = (
                np.array([each[key] for each in rows_of_heads]) for key in ("value", "low", "high")
            )
            null = made["sums"].changed(less(truth))
            found["forwards"].append(made["forwards"])
            found["sentences"].append(made["sentences"])
            found["spearman"].append(float(spearman(values[None], truth[None])[0]))
            found["missed"].append(100 * float(((low > truth) | (high < truth)).mean()))
            found["false"].append(100.0 * bool((null.p_of_heads(MEASURE, text) < 0.05).any()))
            gains.append(made["gain"])
        forwards = np.array(found["forwards"])
        if way == "plain":
            plain = forwards
        rows.append(
            {
                "model": name,
                "way": way,
                "heads": len(truth),
                "pool": len(counts),
                "correlation": quarters(r, 2),
                "narrower": quarters(np.median(gains, 0), 1),
                "equal": quarters(np.median(gains, 0) * work / (work + gradients), 1),
                "sentences": int(np.median(found["sentences"])),
                "forwards": quarters(forwards, 0),
                "less": quarters(plain / forwards, 2) if plain.any() else "",
                "spearman": round(float(np.median(found["spearman"])), 3),
                "missed": round(float(np.mean(found["missed"])), 1),
                "error": round(float(np.std(found["missed"]) / texts**0.5), 1),
                "false": round(float(np.mean(found["false"])), 1),
                "first_order": round(float(pool["spent"][1] / pool["spent"][0] * work), 1),
                "texts": texts,
            }
        )
        print(rows[-1], flush=True)
    return rows


def less(truth: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """From units, counts last, to the same whose values are less by the truth."""

    def change(units: np.ndarray) -> np.ndarray:
        moved: np.ndarray = units - units[:, -1:] * np.append(truth, 0)
        return moved

    return change


def quarters(values: np.ndarray, digits: int) -> str:
    """The median and the quarters."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", metavar="MODEL")
    parser.add_argument("--name")
    parser.add_argument("--text", type=Path, action="append", default=[])
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--pools", type=Path, default=Path("runs/sampled-ablation"))
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--way", choices=WAYS, action="append", help="all where none is named")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.measure:
        measure(given.name, given.measure, given.text, given.seconds, given.pools)
        return
    rows: list[dict[str, Any]] = []
    for path in sorted(given.pools.glob("*.npz")):
        if given.name in (None, path.stem):
            rows += rows_of(path.stem, dict(np.load(path)), given.texts, given.way or WAYS)
    table = pd.DataFrame(rows)
    if given.out:
        write_text(given.out, table.to_csv(index=False))


if __name__ == "__main__":
    main()
