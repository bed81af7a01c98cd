"""Options that several commands share, and what they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headwise.data.lines import existing_file
from headwise.devices import usable
from headwise.errors import HeadwiseError
from headwise.model_files import folder_of

if TYPE_CHECKING:
    from headwise.study.run import Run, Split
    from headwise.tasks import AnyText

Names = TypeVar("Names", str, list[str])
NO_TEXT = (
    "No text was given: name pairs with --source FILE --target FILE, one-sided text for a language model with "
    "--text FILE, labelled text for a classifier with --labelled FILE, or the folder of a study as the model."
)


def known(models: Names) -> Names:
    """Names of models as they were given, refused at once where they can be none."""
    for name in [models] if isinstance(models, str) else models:
        folder_of(name)
    return models


ModelName = Annotated[
    str,
    typer.Argument(callback=known, help="a folder, a hub id, or the folder of a finished study"),
]
Out = Annotated[Path, typer.Option("--out", help="folder to write to")]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        help="cpu, cuda, cuda:1, mps, or auto: the best of these that is there",
        callback=usable,
    ),
]
Dtype = Annotated[
    str | None,
    typer.Option(
        "--dtype", help="of the weights: float32, bfloat16 or float16; by default as saved"
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="seed of everything that draws")]
Quiet = Annotated[bool, typer.Option("--quiet", help="print nothing but the result")]
Beam = Annotated[int, typer.Option("--beam", min=1, help="hypotheses that are followed at once")]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine", help="what translates: transformers, or ct2 (CTranslate2, on the CPU)"
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="change the plan: key=value, such as training.epochs=3; repeatable"),
]
Source = Annotated[
    str | None,
    typer.Option("--source", help="source side of parallel text; or one .tsv/.jsonl file"),
]
Target = Annotated[str | None, typer.Option("--target", help="target side of parallel text")]
DevSource = Annotated[
    str | None,
    typer.Option("--dev-source", help="source side of the text that choices are made on"),
]
DevTarget = Annotated[str | None, typer.Option("--dev-target", help="target side of the dev text")]
OneSided = Annotated[str | None, typer.Option("--text", help="one-sided text, for language models")]

LabelledFile = Annotated[
    str | None,
    typer.Option(
        "--labelled",
        help="texts with labels, for classifiers: .tsv, .csv or .jsonl, columns text and label",
    ),
]


def text_spec(
    source: str | None, target: str | None, text: str | None = None, which: str = ""
) -> Any:
    """Text as a plan names it, from the options: two files, one file, or None. which: `dev-` or `test-`."""
    if text is not None and (source or target):
        raise HeadwiseError(
            f"--{which}text was given and --{which}source or --{which}target as well: give one of them."
        )
    if text is not None:
        return text if text.startswith("datasets:") else str(existing_file(text))
    if target and not source:
        raise HeadwiseError(
            f"--{which}target was given without --{which}source: name both sides of the text."
        )
    whole = source is None or source.startswith("datasets:")
    if (
        not whole
        and not target
        and not str(source).lower().removesuffix(".gz").endswith((".tsv", ".jsonl"))
    ):
        raise HeadwiseError(
            f"--{which}source {source} was given without --{which}target: name both sides of the text, "
            "or one .tsv or .jsonl file with both."
        )
    for name in (source, target):
        if name and not name.startswith("datasets:"):
            existing_file(name)
    return source if target is None else [source, target]


def refuse_twice(options: dict[str, Any], settings: list[str]) -> None:
    """What an option says and `--set` says again."""
    for setting in settings:
        name = setting.partition("=")[0].strip()
        if options.get(name) not in (None, []):
            option = name.rpartition(".")[2].replace("_", "-")
            raise HeadwiseError(f"--{option} and --set {setting} were given: say it once.")


def study_in(model: str) -> Run | None:
    """The finished study whose folder stands for its model: it has texts of its own. None for any other model."""
    place = Path(model)
    if not (place / "plan.toml").is_file() or not (place / "model").is_dir():
        return None
    from headwise.progress import Progress
    from headwise.study import read_plan
    from headwise.study.run import Run

    return Run(read_plan(place / "plan.toml"), place, Progress(quiet=True))


def read_text(
    source: str | None,
    target: str | None,
    text: str | None,
    model: str,
    split: Split = "dev",
    labelled: str | None = None,
) -> AnyText:
    """Text from the options: pairs for translation models, labelled for classifiers, one-sided for all others. Without
    any, that of the study whose folder the model is given by: `split`, or dev where it has no test text."""
    import headwise as hw

    spec = text_spec(source, target, text)
    if labelled is not None:
        if spec is not None:
            raise HeadwiseError(
                "--labelled was given and --text or --source as well: give one of them."
            )
        return hw.LabelledText.open(labelled)
    if spec is not None:
        return hw.Text.read(spec) if text is not None else hw.ParallelText.open(spec)
    study = study_in(model)
    if study is None:
        raise HeadwiseError(NO_TEXT)
    return study.text("dev" if split == "test" and not study.plan.data.has_test else split)


def folder(out: Path) -> Path:
    """The folder to write to, made before the work begins: a place that cannot be written shows at once."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HeadwiseError(
            f"{out} was to be written to, but that is not possible ({error.strerror})."
        ) from None
    return out
