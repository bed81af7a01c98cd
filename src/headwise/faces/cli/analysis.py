"""Commands that look at the heads of a model: `score`, `roles` and `align`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.core.errors import HeadwiseError
from headwise.core.folders import MODEL, Folder
from headwise.core.heads import Head
from headwise.core.options import SEED
from headwise.data.lines import one_sided
from headwise.faces.cli.arguments import (
    TEXT_OPTIONS,
    Device,
    DryRun,
    Dtype,
    Limit,
    ModelName,
    Quiet,
    ResultsOut,
    Seed,
    Texts,
    check_text,
    limited,
    read_text,
    study_in,
    text_spec,
    text_words,
)
from headwise.faces.cli.fields import field_options, given_options, takes_fields
from headwise.faces.cli.signals import resumable
from headwise.faces.cli.work import Work
from headwise.importance.measures import measure
from headwise.importance.options import Scoring, TimedScoring
from headwise.models.devices import usable
from headwise.models.model_files import refuse_other_models
from headwise.roles.options import Alignment, Trees

if TYPE_CHECKING:
    from headwise.core.progress import Progress
    from headwise.core.result import Result
    from headwise.data.text import ParallelText, Text
    from headwise.importance.scores import Scores
    from headwise.models.model import Model
    from headwise.roles.alignment import LinkedText
    from headwise.roles.alignment_heads import AlignmentHeads
    from headwise.study.run_context import RunContext

Links = Annotated[
    Path | None,
    typer.Option(
        "--links",
        help="reference links of the pairs, such as 0-0 1-2 1p3; else eflomal's, which has no seed: links.txt beside the "
        "results keeps them for another run",
        hidden=True,
    ),
]


def list_measures(asked: bool) -> None:
    """Print what `--measure` may name: a line for each measure."""
    if not asked:
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for name, entry in measure.items():
        table.add_row("*" if entry.usual else "", name, entry.caption)
    console = Console(highlight=False, markup=False)
    console.print(table)
    shorts = [f"{entry.short} is {name}" for name, entry in measure.items() if entry.short]
    console.print(
        f"* is measured where --measure is not given, if the model allows it. {', '.join(shorts)}, all is every one but "
        "the slowest."
    )
    raise typer.Exit


SCORE_OPTIONS = field_options(
    "scoring", {"Controls": TimedScoring}, first=["measures", "judge", "time"]
)


@takes_fields(SCORE_OPTIONS)
def score(
    context: typer.Context,
    model: ModelName,
    text: Texts = None,
    limit: Limit = None,
    listed: Annotated[
        bool,
        typer.Option(
            "--list",
            is_eager=True,
            expose_value=False,
            callback=list_measures,
            help="say what each measure is",
        ),
    ] = False,
    out: ResultsOut = None,
    dry_run: DryRun = False,
    device: Device = "auto",
    dtype: Dtype = None,
    seed: Seed = SEED,
    quiet: Quiet = False,
    **fields: Any,
) -> None:
    """How much does every head matter?

    Writes a table of all heads, heads.csv. A study has a text of its own, dev."""
    # A wrong name is refused before torch is loaded, which takes seconds.
    options = given_options(context, TimedScoring, SCORE_OPTIONS, fields)
    check_text(model, text)
    from accelerate import PartialState

    import headwise as hw
    from headwise.importance import interactions as pairs_of_heads
    from headwise.importance.interactions import Interactions
    from headwise.importance.scores import ScorePlan, Scores

    device = usable(device)
    main = PartialState(cpu=device == "cpu").is_main_process
    files = (*Scores.FILES, *Interactions.FILES)
    work = Work("score", [model], files, out, quiet, dry_run, main)
    loaded = hw.load(model, device, dtype=dtype)
    say_numbers(loaded, work)
    given = read_text(loaded, model, text, limit=limit, progress=work.progress, outline=dry_run)
    plan = ScorePlan(loaded, given, options, seed=seed, place=work.place)

    # The same score once more, for the next command to try; to judge needs ablation.zero among the measures.
    again = [] if limit is None else ["--limit", str(limit)]
    for name in dict.fromkeys([*options.measures, "ablation.zero"] if options.measures else []):
        again += ["--measure", name]

    def run() -> list[Result]:
        results: list[Result] = []
        with resumable(work.place):
            results.append(plan.run(work.progress))
            if options.interactions:
                how: Any = {"seed": seed, "progress": work.progress}
                pairs = pairs_of_heads.interactions(loaded, given, options.interactions, **how)
                results.append(pairs)
        return results

    results = work.do(
        run,
        plan.forecast,
        next_command=lambda scores: next_command(loaded, [model, *text_words(text)], again, scores),
    )
    # The tables are written, so nothing is left to go on with.
    if results and plan.finished:
        plan.finished.discard()


def next_command(
    loaded: Model, words: Sequence[str], again: Sequence[str], scores: Scores
) -> list[str]:
    """The command to try after a score: the same judged, or prune by what was measured; none where that cannot run.

    words: the model, and the options that name its text. again: those of the score.
    """
    # A task that has a loss, and a text without the targets that a loss needs.
    unlabelled = loaded.task.has_loss and scores.signature["objective"] == "none"
    if unlabelled or not loaded.task.measured:
        return []
    if loaded.task.has_loss and scores.faithfulness is None:
        return ["score", *words, *again, "--judge"]
    if "wrong answer" in scores.signature["objective"]:  # no text to prune by
        return ["lab", words[0]]
    # An example to change: nobody knows yet how many heads can go.
    return ["prune", *words, "--keep", "50%"]


ROLE_OPTIONS = [
    *field_options("roles", {"Trees": Trees}, first=["treebank"]),
    *field_options("scoring", {"Controls": Scoring}, {*Scoring.model_fields} - {"untrained"}),
]


@takes_fields(ROLE_OPTIONS)
def roles(
    context: typer.Context,
    model: ModelName,
    text: Annotated[
        list[str] | None,
        typer.Option(
            *TEXT_OPTIONS,
            metavar="FILE",
            help="sentence pairs for cross attention: --text SOURCE --text TARGET; or, as --audio, a table of recordings",
        ),
    ] = None,
    limit: Limit = None,
    training: Annotated[
        Path | None,
        typer.Option(
            "--training",
            help="source side of the training text, for rare-token heads",
            hidden=True,
        ),
    ] = None,
    links: Links = None,
    words: Annotated[
        list[str] | None,
        typer.Option(
            "--words",
            metavar="FILE",
            help="text, named like --text of score: the words that the model no longer says without each head",
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--sets",
            metavar="FILE",
            help="text, named like --text of score: what the heads of each role are worth together",
            hidden=True,
        ),
    ] = None,
    out: ResultsOut = None,
    dry_run: DryRun = False,
    device: Device = "auto",
    dtype: Dtype = None,
    seed: Seed = SEED,
    quiet: Quiet = False,
    **fields: Any,
) -> None:
    """What does every head do?

    Finds roles on one half of a treebank and confirms them on the other. Writes labels.csv, roles.csv and a table of
    all tests. Of a study, the trees that its plan names are read."""
    named = given_options(context, Trees, ROLE_OPTIONS, fields)
    untrained = given_options(context, Scoring, ROLE_OPTIONS, fields).untrained
    spec = text_spec(text)
    if links is not None and spec is None:
        raise HeadwiseError(
            f"--links {links} was given without sentence pairs: name them with --text SOURCE --text TARGET."
        )
    if limit is not None and not any((spec, named.treebank, sets, words, study_in(model))):
        raise HeadwiseError(
            f"--limit {limit} was given without a text: it shortens what --text and --treebank name, not the texts that "
            "are generated for a language model. Leave it out, or name a text."
        )
    # First what needs no model: files with mistakes are refused before torch is loaded and a folder is made.
    trees, confirm = trees_in(named.treebank), trees_in(named.confirm)
    # One file may be a table of recordings: only the model says.
    one_file = isinstance(spec, str)
    pairs = None if spec is None or one_file else pairs_of(model, spec, links)
    # A study is opened only where something of it is used.
    study = None if trees and training else study_in(model)

    # Then what the model says.
    import headwise as hw
    from headwise.roles.alignment import pairs_for
    from headwise.roles.lost_words import LostWords, check_words, lost_words
    from headwise.roles.role_forecast import role_forecast
    from headwise.roles.role_sets import RoleSets, check_sets, role_sets
    from headwise.roles.role_tests import Roles

    files = (*Roles.FILES, *RoleSets.FILES, *LostWords.FILES)
    work = Work("roles", [model], files, out, quiet, dry_run)
    loaded = hw.load(model, device, dtype=dtype)
    say_numbers(loaded, work)
    hears = loaded.task.reads_audio
    refuse_links(loaded, links)
    # A speech model is tested on recordings, which --audio names; all others on trees.
    if trees is None and hears and spec is not None:
        trees = loaded.task.read(spec)
    elif trees is None and study and study.role_texts:
        trees, confirm_of_study = study.role_texts
        confirm = confirm or confirm_of_study
    if one_file and not hears:
        pairs = pairs_of(model, spec, links)
    # Which words are rare is counted on the training text.
    training_text = training_text_of(training, None if hears else study)
    # All texts are checked now: the tests of roles before the last ones take long.
    set_text = checked_text(loaded, sets, limit, check_sets)
    word_text = checked_text(loaded, words, limit, check_words)
    with work.progress.bar("text"):
        if pairs is not None:
            pairs = pairs_for(loaded, limited(pairs, limit), work.progress, dry_run)
    trees = limited(trees, limit)
    options: dict[str, Any] = {
        "confirm": limited(confirm, limit),
        "pairs": pairs,
        "untrained": untrained,
    }
    how: dict[str, Any] = {"seed": seed, "progress": work.progress}

    def run() -> list[Result]:
        found = hw.roles(loaded, trees, training=training_text, **how, **options)
        results: list[Result] = [found]
        if set_text is not None:
            results.append(role_sets(loaded, found, set_text, **how))
        if word_text is not None:
            results.append(lost_words(loaded, word_text, **how))
        return results

    work.do(run, partial(role_forecast, loaded, trees, sets=set_text, words=word_text, **options))


def say_numbers(model: Model, work: Work) -> None:
    """Say that a pruned model's heads have other numbers than in the model that it was made of, where they have."""
    for site in model.heads.sites:
        for number, before in enumerate(model.heads_left.of(site)):
            if number != before:
                work.progress.say(
                    f"Heads have the numbers of this smaller model: {Head(*site, number)} was {Head(*site, before)} before "
                    "others were removed."
                )
                return


def trees_in(files: list[str] | None) -> Any:
    """The trees of some files; None where none is named."""
    import headwise as hw

    return hw.Treebank.read(*files) if files else None


def training_text_of(file: Path | None, study: RunContext | None) -> Any:
    """The text that a model was trained on, of a file or of its study; None where neither is known."""
    import headwise as hw

    if file:
        return hw.Text.read(file)
    return study.text("train") if study else None


def checked_text(
    model: Model, names: list[str] | None, limit: int | None, check: Callable[[Any, Any], object]
) -> Any:
    """A text that options name, as the model's task reads it; None where none is named. check: raises HeadwiseError for a
    model and a text that do not fit."""
    if not names:
        return None
    text = limited(model.task.read(text_spec(names)), limit)
    check(model, text)
    return text


ALIGN_OPTIONS = field_options("align", {"": Alignment}, first=[*Alignment.model_fields])


@takes_fields(ALIGN_OPTIONS)
def align(
    context: typer.Context,
    model: ModelName,
    text: Annotated[
        list[str] | None,
        typer.Option(
            *TEXT_OPTIONS,
            metavar="FILE",
            help="sentence pairs: --text SOURCE --text TARGET, or one .tsv or .jsonl file; or the source, whose targets a "
            "translation model writes itself; for Whisper a table of audio, word, start, end",
        ),
    ] = None,
    limit: Limit = None,
    links: Links = None,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FOLDER",
            help="where to write a copy of the model that names its alignment heads",
        ),
    ] = None,
    out: ResultsOut = None,
    dry_run: DryRun = False,
    device: Device = "auto",
    dtype: Dtype = None,
    seed: Seed = SEED,
    quiet: Quiet = False,
    **fields: Any,
) -> None:
    """Which heads align the words of two languages?

    Ranks the cross heads of an encoder-decoder, or the heads of a language model that translates by --prompt, by their
    alignment error. One half of the text chooses a set; the other half confirms it, and compares it with the heads that
    the model names already: these stay in the saved model unless the chosen ones err less. A study has pairs of its
    own, dev."""
    options = given_options(context, Alignment, ALIGN_OPTIONS, fields)
    spec = text_spec(text)
    # One file may be a table of recordings: only the model says. Without --text the pairs are those of the study.
    given: Any = None if isinstance(spec, str) else pairs_of(model, spec, links)
    import headwise as hw
    from headwise.roles import alignment_heads
    from headwise.roles.alignment import need_eflomal, pairs_for
    from headwise.roles.alignment_heads import AlignmentHeads, align_forecast

    if save is not None:
        refuse_other_models(Folder(save, MODEL))  # before the work begins
    work = Work("align", [model], AlignmentHeads.FILES, out, quiet, dry_run)
    loaded = hw.load(model, device, dtype=dtype)
    refuse_links(loaded, links)
    if loaded.task.reads_audio and spec is not None:
        given = limited(loaded.task.read(spec), limit)
    else:
        if given is None:
            given = pairs_of(model, spec, links)
        if isinstance(given, hw.Text) and not isinstance(given, loaded.task.text_class):
            need_eflomal()  # before a model writes translations
        with work.progress.bar("text"):
            given = pairs_for(loaded, limited(given, limit), work.progress, dry_run)
    # A shell passes \n on as two characters.
    prompt = None if options.prompt is None else options.prompt.replace("\\n", "\n")
    how: dict[str, Any] = {
        "one_layer": options.one_layer,
        "seed": seed,
        "progress": work.progress,
    }
    results = work.do(
        lambda: [alignment_heads.align(loaded, given, prompt=prompt, **how)],
        partial(align_forecast, loaded, given, prompt),
    )
    # A dry run has no results.
    if results and save is not None:
        save_aligned(loaded, results[0], save, work.progress)


def save_aligned(model: Model, found: AlignmentHeads, save: Path, progress: Progress) -> None:
    """Write a copy of a model that names its alignment heads: those that were found, unless its own err less. Raises
    HeadwiseError where what was found was not confirmed; its tables are written all the same."""
    if not found.confirmed:
        raise HeadwiseError(
            f"No model was written to {save}: on the other half of the text, the chosen heads align no better than a "
            "rule without attention. Give more text, or a model whose heads align."
        )
    if found.better_than_own:
        model.alignment_heads = found.heads
    else:
        progress.say("  The saved model keeps the alignment heads that it had.")
    model.save(save)
    progress.say(f"Wrote the model to {save}.")


def refuse_links(model: Model, links: Path | None) -> None:
    """Raise HeadwiseError for links where the model hears recordings."""
    if links is not None and model.task.reads_audio:
        raise HeadwiseError(
            f"--links {links} was given, which connects words of sentence pairs, but {model.name} is {model.task.noun}: "
            "leave it out."
        )


def pairs_of(
    model: str, spec: str | list[str] | None, links: Path | None
) -> ParallelText | Text | LinkedText:
    """The sentence pairs, or the one side of them, that --text names, with their reference links; or the dev pairs of the
    study whose folder is the model."""
    import headwise as hw

    pairs: Any
    if spec and one_sided(spec):
        if links is not None:
            raise HeadwiseError(
                f"--links {links} was given with one side of a text: name both sides, because links connect their words."
            )
        return hw.Text.open(spec)
    if spec:
        pairs = hw.ParallelText.open(spec)
    else:
        study = study_in(model)
        pairs = None if study is None else study.text("dev")
    if not isinstance(pairs, hw.ParallelText):
        raise HeadwiseError(
            "No sentence pairs were given: name two files with --text FILE --text FILE, or for Whisper recordings with "
            "--audio FILE."
        )
    if links is None:
        return pairs
    from headwise.roles.alignment import LinkedText

    return LinkedText.read(pairs, links)
