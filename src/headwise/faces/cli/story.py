"""`headwise story`: all of it for one model and one text, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.core.errors import HeadwiseError
from headwise.core.folders import Folder
from headwise.core.options import SEED
from headwise.core.progress import Progress
from headwise.faces.cli.arguments import (
    Device,
    DevTexts,
    DryRun,
    Method,
    ModelName,
    Quiet,
    ResultsOut,
    Seed,
    Set,
    TestTexts,
    Texts,
    dev_spec,
    text_spec,
)
from headwise.faces.cli.fields import (
    field_options,
    given_fields,
    pruning_options,
    refuse_set_twice,
    takes_fields,
    typed_options,
)
from headwise.faces.cli.studies import run_plan
from headwise.faces.cli.work import default_folder
from headwise.importance.options import Scoring
from headwise.roles.options import Trees

if TYPE_CHECKING:
    from headwise.study.plan import Plan

STORY_OPTIONS = [
    *field_options("roles", {"Roles": Trees}, first=["treebank"]),
    *field_options("scoring", {"Scores": Scoring}),
    # Its --measure is what heads are scored by.
    *pruning_options(without=["measure"], first=["keep"]),
]


@takes_fields(STORY_OPTIONS)
def story(
    context: typer.Context,
    model: ModelName,
    text: Texts = None,
    dev: DevTexts = None,
    test: TestTexts = None,
    method: Annotated[
        Method,
        typer.Option("--method", help="how heads are removed; gates and top-k train"),
    ] = "greedy",
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--compare",
            metavar="ORDER",
            help="also remove as many heads in another order, such as random or gradient; repeatable",
        ),
    ] = None,
    out: ResultsOut = None,
    dry_run: DryRun = False,
    seed: Seed = SEED,
    device: Device = "auto",
    quiet: Quiet = False,
    set_: Set = None,
    **fields: Any,
) -> None:
    """Tell the story of a model's heads, on one page.

    Which heads matter, what they do, what happens without them, how many can go and which stay. One text is enough, one
    side of it too; --treebank adds what heads do. The same command goes on where it was stopped."""
    train = text_spec(text)
    if train is None:
        raise HeadwiseError(
            "No text was given: name it with --text FILE, about 300 sentences as your model reads them."
        )
    tables = given_fields(context, STORY_OPTIONS, fields)
    refuse_set_twice(STORY_OPTIONS, tables, set_ or [])
    if compare:
        tables.setdefault("pruning", {})["compare"] = compare
    texts = {"train": train, **dev_spec(dev), "test": text_spec(test, "--test")}
    tables["data"] = {split: spec for split, spec in texts.items() if spec is not None}
    tell(model, tables, out, quiet, device, dry_run, method, seed, set_ or [])


def tell(
    model: str,
    tables: dict[str, dict[str, Any]],
    out: Path | None,
    quiet: bool,
    device: str,
    dry_run: bool,
    method: str = "greedy",
    seed: int = SEED,
    settings: list[str] | None = None,
) -> Plan:
    """Run the plan of a story, or say what it would do; returns the plan."""
    from headwise.study.ownership import refuse_foreign_files
    from headwise.study.plan_of_story import completed_story, plan_of_story

    place = out or default_folder("story", model)
    typed = typed_options(STORY_OPTIONS, tables)
    plan = plan_of_story(model, tables, method, seed, settings or [], typed)
    refuse_foreign_files(place)
    if not dry_run:
        Folder(place).refuse_unwritable()
    from headwise.models.devices import usable
    from headwise.models.loading import load

    given = load(model, usable(device))
    plan, lines = completed_story(plan, given)
    for line in lines:
        Progress(quiet).say(line)
    run_plan(plan, place, quiet, device, dry_run, given=given)
    return plan
