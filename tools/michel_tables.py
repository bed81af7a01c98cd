"""The tables of Michel et al. (2019) for a translation model, in BLEU, and which score predicts what sets of heads cost.

    python tools/michel_tables.py firefox/en-pt flores.en flores.pt docs/results/firefox/en-pt

The first 300 sentences are dev: heads are scored and chosen on them. BLEU is of the others, greedy search, to the whole
model, with a 95 % interval and p of the paired bootstrap, and p corrected for all rows of its table (Benjamini and
Hochberg). Writes `michel.csv`: a row for each head off (table 1), the best head of each layer left alone in it (table 2),
and greedy removal of heads of all kinds by the gradient or a random order, without training (figure 3); and
`michel-sets.csv`: rank correlations between what random sets of encoder heads cost on 300 sentences behind dev, in nats, and
the sum of a score over their heads; to_gradient is what a score's correlation has more than the gradient's.

    python tools/michel_tables.py firefox/en-pt flores.en flores.pt docs/results/firefox/en-pt sets      the sets alone
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

import headwise as hw
from headwise.core.heads import Head
from headwise.core.layout import HeadMask
from headwise.core.statistics import corrected
from headwise.models.decoding.bleu import translation_answers
from headwise.models.evaluation.losses import measure_losses

DEV = 300
ORDERS = 3  # random ones
SETS = 80  # of each size
SIZES = (4, 8, 16)  # of encoder heads that are off together
SCORES = ("gradient", "lrp.ding.pooled", "confidence", "ablation.zero")
ALONE = "ablation.all-but-one"
RESAMPLES = 2000
SEED = 0


def experiments(
    model: hw.Model, scores: hw.Scores, seed: int
) -> Iterator[tuple[str, str, list[Head]]]:
    """Table, name, and the heads that are off."""
    every = list(model.heads)
    for head in every:
        yield "one head off", str(head), [head]
    alone = scores.of(ALONE)
    for site in model.heads.sites:
        heads = [head for head in every if (head.kind, head.layer) == (site.kind, site.layer)]
        best = min(heads, key=lambda head: alone[head])
        yield "one head left", str(best), [head for head in heads if head != best]
    gradient = scores.of("gradient")
    orders = {"gradient": sorted(every, key=lambda head: gradient[head])}
    draw = random.Random(seed)
    for number in range(ORDERS):
        orders[f"random {number + 1}"] = draw.sample(every, len(every))
    for tenth in range(1, 10):
        count = round(len(every) * tenth / 10)
        for name, order in orders.items():
            yield f"{count} off", name, order[:count]


def table_of_bleu(
    model: hw.Model, scores: hw.Scores, sources: Sequence[str], references: Sequence[str], seed: int
) -> pd.DataFrame:
    found = list(experiments(model, scores, seed))
    lines = [model.translate(sources, beam=1)]
    for table, name, off in found:
        with hw.masked(model, off):
            lines.append(model.translate(sources, beam=1))
        print(table, name, flush=True)
    answers = translation_answers(lines, references)
    rows = []
    for place, (table, name, off) in enumerate(found, start=1):
        change = answers.change(place)
        rows.append(
            {
                "table": table,
                "name": name,
                "off": len(off),
                "bleu": answers.value(place),
                "change": change.value,
                "low": change.low,
                "high": change.high,
                "p": change.p,
            }
        )
    result = pd.DataFrame(rows)
    result["p_corrected"] = result.groupby("table").p.transform(
        lambda values: corrected(values.to_numpy())
    )
    return result


def table_of_sets(
    model: hw.Model, scores: hw.Scores, text: hw.ParallelText, seed: int
) -> pd.DataFrame:
    """text: other sentences than those of the scores. Intervals: both the sets and the sentences are drawn with
    replacement."""
    heads = [head for head in model.heads if head.kind == "encoder-self"]
    draw, generator = random.Random(seed), np.random.default_rng(seed)
    whole = HeadMask.full(model.heads)
    rows = []
    for size in SIZES:
        sets = [draw.sample(heads, size) for _ in range(SETS)]
        masks = [whole.without(off) for off in sets]
        answers = measure_losses(model.task, model.task.batches(text), masks)
        losses, tokens = answers.stats[:, :, 0], answers.weights
        costs = []
        for drawn in range(RESAMPLES + 1):
            some = generator.integers(len(tokens), size=len(tokens))
            read = some if drawn else np.arange(len(tokens))
            values = losses[read].sum(0) / tokens[read].sum()
            costs.append(values[1:] - values[0])
        drawn_sets = [np.arange(SETS), *generator.integers(SETS, size=(RESAMPLES, SETS))]
        found = {}
        for name in SCORES:
            values_of = scores.of(name)
            predicted = np.array([sum(values_of[head] for head in off) for off in sets])
            found[name] = np.array(
                [
                    spearmanr(predicted[some], cost[some]).statistic
                    for some, cost in zip(drawn_sets, costs, strict=True)
                ]
            )
        for name, values in found.items():
            row = {"heads_off": size, "sets": SETS, "measure": name}
            ahead = values - found["gradient"]
            for column, numbers, of in (
                ("spearman", values, ""),
                ("to_gradient", ahead, "to_gradient_"),
            ):
                low, high = np.nanquantile(numbers[1:], [0.025, 0.975])
                row |= {column: numbers[0], f"{of}low": low, f"{of}high": high}
            rows.append(row | {"mean_cost": costs[0].mean()})
    return pd.DataFrame(rows)


def main(name: str, source: str, target: str, out: str, only: str = "") -> None:
    model = hw.load(name)
    text = hw.ParallelText.read(source, target)
    pairs = list(zip(text.sources, text.targets, strict=True))
    dev, test = hw.ParallelText.from_pairs(pairs[:DEV]), pairs[DEV:]
    scores = hw.score(model, dev, [*SCORES, ALONE])
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    behind = hw.ParallelText.from_pairs(test[:DEV])
    table_of_sets(model, scores, behind, SEED).to_csv(
        folder / "michel-sets.csv", index=False, float_format="%.4g"
    )
    if only == "sets":
        return
    sources, references = zip(*test, strict=True)
    table_of_bleu(model, scores, sources, references, SEED).to_csv(
        folder / "michel.csv", index=False, float_format="%.4g"
    )


if __name__ == "__main__":
    main(*sys.argv[1:6])
