"""`hw.story`: what `headwise story` does, for Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headwise.core.errors import HeadwiseError, called_as, shown_value
from headwise.core.folders import as_path
from headwise.core.options import SEED, several
from headwise.core.progress import Progress
from headwise.faces.opened_run import Run
from headwise.faces.report import report
from headwise.models.devices import usable
from headwise.models.loading import load
from headwise.study.ownership import refuse_others
from headwise.study.plan_of_story import completed_story, plan_of_story
from headwise.study.study import run_study

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@called_as("hw.story('my-model', 'own.txt')")
def story(
    model: str | os.PathLike[str],
    text: Files,
    *,
    treebank: Files = (),
    dev: Files | int | None = None,
    test: Files | None = None,
    keep: Any = (),
    compare: Sequence[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    seed: int = SEED,
    device: str = "auto",
    quiet: bool = False,
) -> Run:
    """The story of a model's heads: which matter, what they do, what happens without them, how many can go and which stay;
    one page, `report.html` in the folder of the run, which is returned.

    model: a name or a folder. text: a file, for translation one side or both. treebank: trees, for what heads do. dev:
    text that is measured on, or how many sentences of `text`; by default half of it. test: text for the final numbers.
    keep: one or several sizes of smaller models, as of `hw.Greedy`, by default 75, 50 and 25 %; compare: other orders of
    removal, by default random heads where there are several sizes. out: by default runs/story/NAME; a killed story goes
    on there.

    Raises HeadwiseError for a model, texts and options that do not fit together.
    """
    if not isinstance(model, str | os.PathLike):
        raise HeadwiseError(
            f"A story is of a model's name or folder, not of {shown_value(model)}: save the model, and give its folder."
        )
    name = str(model)
    data: dict[str, Any] = {"train": spec(text), "test": spec(test) if test is not None else None}
    data["held_out" if isinstance(dev, int) else "dev"] = dev if isinstance(dev, int) else spec(dev)
    tables: dict[str, dict[str, Any]] = {
        "data": {split: files for split, files in data.items() if files is not None}
    }
    trees = spec(treebank)
    if trees:
        tables["roles"] = {"treebank": trees}
    pruning: dict[str, Any] = {"keep": several(keep)} if several(keep) else {}
    if compare is not None:
        pruning["compare"] = list(compare)
    if pruning:
        tables["pruning"] = pruning
    plan = plan_of_story(name, tables, seed=seed)
    place = as_path(out) if out is not None else Path("runs") / "story" / Path(name).name
    refuse_others(plan, place)
    given = load(name, usable(device))
    plan, lines = completed_story(plan, given)
    progress = Progress(quiet)
    for line in lines:
        progress.say(line)
    run_study(plan, place, progress, device=device, report=report, given=given)
    return Run(place)


def spec(files: Files | None) -> Any:
    """A text as a plan names it: one file, or several."""
    if files is None:
        return None
    if isinstance(files, str | os.PathLike):
        return str(files)
    return [str(file) for file in files]
