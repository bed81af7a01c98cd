"""How often is each score, and each test of roles, right?

    python -m benchmarks.truth --page docs/methods/truth.md
    python -m benchmarks.truth --published whisper-base --text words.csv

Builds models whose heads are known, and writes truth-scores.csv, truth-heads.csv (the share of heads on the right side
of each planted one), truth-roles.csv and truth-palindromes.csv (what ablations say of four heads, in nats an answer).
With --published MODEL it compares a checkpoint of others with their numbers, and writes published.csv and
published-agreement.csv. Run it in the root of the repository.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

import headwise as hw
from headwise.core.progress import Progress
from headwise.data.store import AnyText

from .published import PUBLISHED, compare_published
from .suite import (
    SEEDS,
    areas,
    auroc_table,
    check_page,
    fill_tables,
    hits,
    page_tables,
    palindrome_means,
    right_side_shares,
    role_table,
    run_suite,
)


def write_truth(arguments: argparse.Namespace) -> None:
    """Run the suite and write its tables; with --page, into the page, too."""
    if arguments.page is not None:
        check_page(arguments.page)
    progress = Progress()
    with progress.bar("truth"):
        result = run_suite(range(arguments.seeds), arguments.measure or ["all"], progress=progress)
    tables = {
        "scores": areas(result.heads),
        "heads": right_side_shares(result.heads),
        "roles": hits(result.roles),
        "palindromes": palindrome_means(result.palindromes),
    }
    named = {f"truth-{name}": table for name, table in tables.items()}
    write_tables(arguments.out, named, "%.3f")
    if arguments.page is not None:
        fill_tables(arguments.page, page_tables(*tables.values()))
    for shown in (auroc_table(tables["scores"]), role_table(tables["roles"])):
        print(shown.to_string(index=False))


def write_published(arguments: argparse.Namespace) -> None:
    """Compare a checkpoint with what others published of its heads."""
    text: hw.Treebank | AnyText
    if arguments.treebank is not None:
        text = hw.Treebank.read(arguments.treebank)
    elif len(arguments.text) == 2:
        text = hw.ParallelText.read(*arguments.text)
    else:
        from headwise_speech import Speech  # a package of its own

        text = Speech.read(*arguments.text)
    model = hw.load(arguments.published)
    progress = Progress()
    with progress.bar("published heads"):
        result = compare_published(model, text, progress=progress)
    tables = {"published": result.table, "published-agreement": result.agreement}
    write_tables(arguments.out, tables, "%.4g")
    print(result.table.drop(columns="source").to_string(index=False, float_format="%.3f"))
    print(result.agreement.to_string(index=False, float_format="%.3f"))


def write_tables(out: Path, tables: Mapping[str, pd.DataFrame], form: str) -> None:
    """A CSV file for every table. form: of numbers."""
    out.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_csv(out / f"{name}.csv", index=False, float_format=form)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", action="append", help="a name, or lrp, ablation, all")
    parser.add_argument("--page", type=Path, help="Markdown file with marks around its tables")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="builds of each model")
    parser.add_argument("--published", metavar="MODEL", help=", ".join(PUBLISHED))
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--treebank", help="with --published: CoNLL-U file")
    text.add_argument(
        "--text",
        action="append",
        help="with --published: source and target (twice); for Whisper a table of audio, word, start, end",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/truth"))
    arguments = parser.parse_args()
    if arguments.published is None:
        write_truth(arguments)
    elif arguments.treebank is None and arguments.text is None:
        parser.error("--published needs what heads are measured on: --treebank, or --text")
    else:
        write_published(arguments)


if __name__ == "__main__":
    main()
