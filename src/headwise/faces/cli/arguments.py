"""Arguments and options that several commands share, and what they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from headwise.core.errors import HeadwiseError
from headwise.data.lines import existing_file, side_files
from headwise.models.devices import usable
from headwise.models.model_files import folder_of

if TYPE_CHECKING:
    from headwise.core.progress import Progress
    from headwise.data.embedded import Split
    from headwise.models.model import Model
    from headwise.study.run_context import RunContext

Names = TypeVar("Names", str, list[str])
Method = Literal["gates", "top-k", "greedy"]
NO_TEXT = (
    "No text was given: name it with --text FILE, with --text SOURCE --text TARGET for a translation model, with "
    "--audio FILE for a speech model, or give the folder of a study as the model."
)
TEXT_OPTIONS = ("--text", "--audio")  # two names of one option: the model says how it reads a file
TEXT_HELP = (
    "a file; for translation one of each side (--text A --text B); or datasets:NAME, or a name of "
    "`headwise data list`"
)


def known(models: Names) -> Names:
    """Names of models as they were given, refused at once where they can be none."""
    for name in [models] if isinstance(models, str) else models:
        folder_of(name)
    return models


def chosen_device(device: str) -> str:
    """A device that is named, checked at once; `auto` waits until torch is loaded."""
    return device if device == "auto" else usable(device)


ModelName = Annotated[
    str,
    typer.Argument(callback=known, help="a folder, a hub id, or a study's folder"),
]
Texts = Annotated[list[str] | None, typer.Option(*TEXT_OPTIONS, metavar="FILE", help=TEXT_HELP)]
DevTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--dev",
        metavar="FILE",
        help="text to choose on, or how many sentences of --text; else a part of it",
    ),
]
TestTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--test",
        metavar="FILE",
        help="text for the final numbers, read once",
    ),
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help="read only the first N sentences of the text")
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="where to write")]
ResultsOut = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FOLDER", help="by default runs/COMMAND/MODEL"),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        help="cpu, cuda, cuda:1, mps, or auto: the best of these that is there",
        callback=chosen_device,
        hidden=True,
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="of the weights: float32, bfloat16 or float16; by default as saved",
        hidden=True,
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, help="seed of everything that draws", hidden=True)
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="print nothing but the result", hidden=True)
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="only say what would be done, and how long")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="change the plan, such as training.epochs=3; repeatable",
        hidden=True,
    ),
]


def text_spec(names: list[str] | None, option: str = "--text") -> str | list[str] | None:
    """A text as a plan names it: one name, two, or None. Refuses files that don't exist before anything is loaded."""
    if not names:
        return None
    if len(names) > 2:
        raise HeadwiseError(
            f"{option} was given {len(names)} times: a text is one file, or two with both sides."
        )
    for name in names:
        # --dev takes a number of sentences, so it is tried with --test, too.
        if name.isdecimal() and option != "--text" and not Path(name).exists():
            raise HeadwiseError(
                f"{option} {name}: {option} takes files, not a number of sentences: give a file."
            )
        # Names of the hub are looked up when the text is read.
        if not name.startswith("datasets:"):
            for side in side_files(name):
                existing_file(side)
    return names[0] if len(names) == 1 else names


def dev_spec(names: list[str] | None) -> dict[str, Any]:
    """The dev text as a plan names it: files, or how many sentences of the training text are held out."""
    # A file may be called 200.
    if names and len(names) == 1 and names[0].isdecimal() and not Path(names[0]).exists():
        if not int(names[0]):
            raise HeadwiseError(
                "--dev 0: nothing can be chosen without dev text: hold out 6 or more."
            )
        return {"held_out": int(names[0])}
    return {"dev": text_spec(names, "--dev")}


def read_text(
    model: Model,
    name: str,
    text: list[str] | None,
    split: Split = "dev",
    *,
    progress: Progress,
    limit: int | None = None,
    outline: bool = False,
) -> Any:
    """The text that the options name, as the model's task works on it. Without any, that of the study whose folder is the
    model's name: `split`, or dev where it has no test text. limit: sentences, the first ones. outline: for an estimate."""
    spec = text_spec(text)
    if spec is not None:
        with progress.bar("text"):
            given = limited(model.task.read(spec), limit)
            return model.task.completed(given, progress, outline)
    study = study_in(name)
    if study is None:
        raise HeadwiseError(NO_TEXT)
    of_study = study.text("dev" if split == "test" and not study.plan.data.has_test else split)
    return limited(of_study, limit)


def limited(text: Any, limit: int | None) -> Any:
    """The first sentences of a text, as many as --limit says; all of it, or None, where nothing says so."""
    return text if text is None or limit is None else text.head(limit)


def check_text(name: str, names: list[str] | None) -> None:
    """Refuse a missing text, or none, before a model is loaded."""
    if text_spec(names) is None and study_in(name) is None:
        raise HeadwiseError(NO_TEXT)


def text_words(text: list[str] | None) -> list[str]:
    """The options that name a text, for the next command to try."""
    words = []
    for name in text or []:
        words += ["--text", name]
    return words


def chosen_in(model: str) -> str | None:
    """The folder of the model that a finished study chose, by the study's folder; None for any other model."""
    if study_in(model) is None or not (Path(model) / "run.json").is_file():
        return None
    from headwise.faces.report.run_folder import read_run

    chosen = read_run(Path(model)).chosen_folder
    return None if chosen is None else str(chosen)


def study_in(model: str) -> RunContext | None:
    """The finished study whose folder names its model: it has texts of its own. None for any other model."""
    place = Path(model)
    # Without model/ the study has not trained yet, and its folder stands for no model.
    if not (place / "plan.toml").is_file() or not (place / "model").is_dir():
        return None
    from headwise.core.progress import Progress
    from headwise.study.ownership import plan_of_study
    from headwise.study.run_context import RunContext

    return RunContext(plan_of_study(place), place, Progress(quiet=True))
