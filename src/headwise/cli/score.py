"""`score`: how much does every head matter?"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwise.cli.arguments import (
    Device,
    Dtype,
    ModelName,
    Out,
    Quiet,
    Seed,
    Texts,
    check_text,
    folder,
    read_text,
    text_words,
)
from headwise.devices import memory_line, usable

if TYPE_CHECKING:
    import pandas as pd

    from headwise.importance.interactions import Interactions
    from headwise.importance.scores import Scores
    from headwise.model import Model


def score(
    model: ModelName,
    text: Texts = None,
    measures: Annotated[
        list[str] | None,
        typer.Option("--measure", help="a name, or lrp, ablation, all; repeatable"),
    ] = None,
    judged: Annotated[
        bool, typer.Option("--judge", help="compare the scores with exact ablation")
    ] = False,
    untrained: Annotated[
        int, typer.Option(min=0, help="so many randomly initialised models as a control")
    ] = 0,
    pairs: Annotated[
        int, typer.Option(min=0, help="how many pairs of heads are switched off together")
    ] = 0,
    out: Out = Path("runs/score"),
    device: Device = "auto",
    dtype: Dtype = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """How much does every head matter?

    Writes heads.csv, and with --judge which score to believe, with --untrained what
    models without training score, with --pairs which heads do the same work. MODEL may be the folder of a study:
    without a text, its dev text is taken."""
    from headwise.importance.measures import resolve_measures

    names = resolve_measures(measures) if measures else None
    check_text(model, text)
    from accelerate import PartialState

    import headwise as hw
    from headwise.cli.tables import SCORED, score_grids, show_heads
    from headwise.progress import Progress

    device = usable(device)
    main = PartialState(cpu=device == "cpu").is_main_process
    progress = Progress(quiet or not main)
    place = folder(out) / "heads.csv"
    with progress.bar("score"):
        loaded = hw.load(model, device, dtype=dtype)
        given = read_text(loaded, model, text)
        scores = hw.score(
            loaded, given, names, judge=judged, untrained=untrained, seed=seed, progress=progress
        )
        table = scores.table
    for end in ("csv", "json"):
        place.with_name(f"interactions.{end}").unlink(missing_ok=True)
    if pairs:
        with progress.bar("pairs of heads"):
            together = hw.interactions(loaded, given, pairs, seed=seed, progress=progress)
    if main:
        for line in [
            *save_tables(scores, place),
            *extremes(table),
            *(save_pairs(together, place) if pairs else ()),
        ]:
            progress.say(line)
        show_heads(progress.console, score_grids(loaded.heads, table), SCORED)
        progress.say(memory_line())
        progress.say(
            f"Next: {shlex.join(['headwise', *next_command(loaded, model, text, scores)])}"
        )
        typer.echo(str(place))


def next_command(loaded: Model, name: str, text: list[str] | None, scores: Scores) -> list[str]:
    """The command to try after a score: the same judged, or prune by what was measured."""
    measured = list(scores.table["measure"].unique())
    words = [name, *text_words(text)]
    if loaded.task.has_loss and scores.faithfulness is None:
        for measure in dict.fromkeys([*measured, "ablation.zero"]):
            words += ["--measure", measure]
        return ["score", *words, "--judge"]
    if loaded.task.trains_gates_by_default:
        return ["prune", *words, "--penalty", "0.01"]
    preferred = ("gradient", "confidence", "ablation.zero", *measured)
    measure = next(name for name in preferred if name in measured)
    half = max(1, loaded.heads.total // 2)
    return ["prune", *words, "--keep", str(half), "--measure", measure]


def extremes(table: pd.DataFrame) -> list[str]:
    """A line for each measure: the heads with the highest and the lowest values."""
    lines = ["  Heads with the highest and the lowest values:"]
    for measure, rows in table.groupby("measure", sort=False):
        ranked = rows.sort_values("value", ascending=False, kind="stable")
        best, worst = (
            ", ".join(
                f"{row.kind}/{row.layer}/{row.head} {row.value:.3g}" for row in some.itertuples()
            )
            for some in (ranked.head(3), ranked.tail(3).iloc[::-1])
        )
        lines.append(f"    {measure}: {best} … {worst}")
    return lines


def save_pairs(pairs: Interactions, place: Path) -> list[str]:
    """Write interactions.csv beside a table of scores. Returns lines about the strongest pairs."""
    pairs.save(place.parent)
    lines = [
        "  Pairs of heads, what both cost together beyond what they cost alone (nats a token):"
    ]
    for row in pairs.measured.head(5).itertuples():
        heads = f"{row.kind}/{row.layer}/{row.head} and {row.other_kind}/{row.other_layer}/{row.other_head}"
        lines.append(f"    {heads}: {row.value:+.4f} [{row.low:+.4f}, {row.high:+.4f}]")
    return [*lines, f"Wrote {place.with_name('interactions.csv')}, interactions.json."]


def save_tables(scores: Scores, place: Path) -> list[str]:
    """Write scores into the folder of `place`, instead of those of an earlier command. Returns lines about what was
    found, left out and written."""
    from headwise.importance.scores import relevance_line

    paths = scores.save(place.parent)
    signature = scores.signature
    lines = [relevance_line(name, shares) for name, shares in scores.relevance.items()]
    if scores.faithfulness is not None:
        judged = scores.faithfulness
        ranks = judged[(judged.statistic == "spearman") & (judged.against == "ablation.zero")]
        ranks = ranks[ranks.groupby("measure").n.transform("max") == ranks.n]
        lines += ["  Rank correlation with exact ablation, over all heads:"]
        lines += [
            f"    {row.measure}: {row.value:.2f} [{row.low:.2f}, {row.high:.2f}]"
            for row in ranks.itertuples()
        ]
    if dropped := signature["dropped"]:
        why = f"too short to ask for a token, or longer than {signature['longest']}"
        lines.append(
            f"  {dropped} of {dropped + signature['sentences']} sentences were left out: {why}"
        )
    lines += [f"  {reason}" for reason in signature["absent"]]
    return [*lines, f"Wrote {place}, {', '.join(path.name for path in paths[1:])}."]
