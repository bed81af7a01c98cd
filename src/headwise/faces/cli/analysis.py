"""Commands that look at the heads of a model: `score`, `roles` and `align`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwise.core.errors import HeadwiseError
from headwise.core.folders import MODEL, Folder
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
from headwise.faces.cli.signals import resumable
from headwise.faces.cli.work import Work
from headwise.importance.measures import measure, resolve_measures
from headwise.models.devices import usable
from headwise.models.model_files import refuse_other_models

if TYPE_CHECKING:
    from headwise.core.result import Result
    from headwise.data.text import ParallelText, Text
    from headwise.importance.scores import Scores
    from headwise.models.model import Model
    from headwise.roles.alignment import LinkedText

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


def score(
    model: ModelName,
    text: Texts = None,
    measures: Annotated[
        list[str] | None,
        typer.Option(
            "--measure",
            help="a measure of --list, or all; repeatable. By default confidence, gradient and ablation.zero, with lrp.ding "
            "for translation and attribution.zero for a language model; of a model without a loss confidence, entropy and "
            "dormancy",
        ),
    ] = None,
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
    limit: Limit = None,
    judged: Annotated[
        bool, typer.Option("--judge", help="say which measure to believe: compare with ablation")
    ] = False,
    untrained: Annotated[
        int,
        typer.Option(min=0, help="also score N untrained models, as a control", hidden=True),
    ] = 0,
    interactions: Annotated[
        int,
        typer.Option(min=0, help="also switch off N pairs of heads, both together", hidden=True),
    ] = 0,
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="TIME",
            help="what ablation may take, such as 10m: it reads sentences until the ranks of the heads settle. By default "
            "2m for a language or speech model without --measure, and the whole text for others",
        ),
    ] = None,
    out: ResultsOut = None,
    dry_run: DryRun = False,
    device: Device = "auto",
    dtype: Dtype = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """How much does every head matter?

    Writes a table of all heads, heads.csv. A study has a text of its own, dev."""
    # A wrong name is refused before torch is loaded, which takes seconds.
    names = resolve_measures(measures) if measures else None
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
    given = read_text(loaded, model, text, limit=limit, progress=work.progress, outline=dry_run)
    plan = ScorePlan(
        loaded,
        given,
        names,
        judge=judged,
        untrained=untrained,
        time=time,
        seed=seed,
        place=work.place,
    )

    again = [] if limit is None else ["--limit", str(limit)]
    for name in dict.fromkeys([*names, "ablation.zero"] if names else []):
        again += ["--measure", name]

    def run() -> list[Result]:
        results: list[Result] = []
        with resumable(work.place):
            results.append(plan.run(work.progress))
            if interactions:
                how: Any = {"seed": seed, "progress": work.progress}
                results.append(pairs_of_heads.interactions(loaded, given, interactions, **how))
        return results

    results = work.do(
        run,
        partial(plan.forecast, interactions),
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
    measured = list(scores.table["measure"].unique())
    unlabelled = loaded.task.has_loss and scores.signature["objective"] == "none"
    if unlabelled or not loaded.task.measured:
        return []
    if loaded.task.has_loss and scores.faithfulness is None:
        return ["score", *words, *again, "--judge"]
    if "wrong answer" in scores.signature["objective"]:  # no text to prune by
        return ["lab", words[0]]
    # An example to change: nobody knows yet how many heads can go.
    prune = ["prune", *words, "--keep", "50%"]
    if loaded.task.trains_gates_by_default:
        return prune
    preferred = (loaded.task.usual_score, "confidence", "ablation.zero", *measured)
    return [*prune, "--measure", next(name for name in preferred if name in measured)]


def roles(
    model: ModelName,
    treebank: Annotated[
        list[Path] | None, typer.Option("--treebank", help="CoNLL-U file with trees; repeatable")
    ] = None,
    confirm: Annotated[
        list[Path] | None,
        typer.Option(
            "--confirm", help="treebank to confirm roles on, instead of the other half", hidden=True
        ),
    ] = None,
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
    untrained: Annotated[
        int,
        typer.Option(
            min=0,
            help="also test N untrained models, random words and shuffled sentences, as controls",
            hidden=True,
        ),
    ] = 0,
    out: ResultsOut = None,
    dry_run: DryRun = False,
    device: Device = "auto",
    dtype: Dtype = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """What does every head do?

    Finds roles on one half of a treebank and confirms them on the other. Writes labels.csv, roles.csv and a table of
    all tests. Of a study, the trees that its plan names are read."""
    import headwise as hw

    spec = text_spec(text)
    if links is not None and spec is None:
        raise HeadwiseError(
            f"--links {links} was given without sentence pairs: name them with --text SOURCE --text TARGET."
        )
    # A study is opened only where something of it is used.
    study = None if treebank and training else study_in(model)
    # One file may be a table of recordings: only the model says.
    one_file = isinstance(spec, str)
    # Files with mistakes are refused before torch is loaded and a folder is made.
    role_text: Any = hw.Treebank.read(*treebank) if treebank else None
    confirm_text = hw.Treebank.read(*confirm) if confirm else None
    pairs = None if spec is None or one_file else pairs_of(model, spec, links)
    from headwise.roles.alignment import pairs_for
    from headwise.roles.lost_words import LostWords, check_words, lost_words
    from headwise.roles.role_forecast import role_forecast
    from headwise.roles.role_sets import RoleSets, check_sets, role_sets
    from headwise.roles.role_tests import Roles

    files = (*Roles.FILES, *RoleSets.FILES, *LostWords.FILES)
    work = Work("roles", [model], files, out, quiet, dry_run)
    loaded = hw.load(model, device, dtype=dtype)
    reads_audio = loaded.task.reads_audio
    refuse_links(loaded, links)
    study_texts = study.role_texts if study else None
    if role_text is None:
        # A speech model is tested on recordings, which --audio names.
        if reads_audio and spec is not None:
            role_text = loaded.task.read(spec)
        elif study_texts:
            role_text, study_confirm = study_texts
            confirm_text = confirm_text or study_confirm
    if spec is not None and one_file and not reads_audio:
        pairs = pairs_of(model, spec, links)
    role_text, confirm_text = limited(role_text, limit), limited(confirm_text, limit)
    # Which words are rare is counted on the training text.
    training_text: Any = None
    if training:
        training_text = hw.Text.read(training)
    elif study and not reads_audio:
        training_text = study.text("train")
    # Both texts are checked now: the tests of roles before them take long.
    set_text = None
    if sets:
        set_text = limited(loaded.task.read(text_spec(sets)), limit)
        check_sets(loaded, set_text)
    word_text = None
    if words:
        word_text = limited(loaded.task.read(text_spec(words)), limit)
        check_words(loaded, word_text)
    with work.progress.bar("text"):
        if pairs is not None:
            pairs = pairs_for(loaded, limited(pairs, limit), work.progress, dry_run)
    options: dict[str, Any] = {"confirm": confirm_text, "pairs": pairs, "untrained": untrained}
    settings: dict[str, Any] = {"seed": seed, "progress": work.progress}

    def run() -> list[Result]:
        found = hw.roles(loaded, role_text, training=training_text, **settings, **options)
        results: list[Result] = [found]
        if set_text is not None:
            results.append(role_sets(loaded, found, set_text, **settings))
        if word_text is not None:
            results.append(lost_words(loaded, word_text, **settings))
        return results

    work.do(
        run, partial(role_forecast, loaded, role_text, sets=set_text, words=word_text, **options)
    )


def align(
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
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            metavar="TEXT",
            help="how a language model is asked to translate, with {source} and {target}; \\n is a new line",
        ),
    ] = None,
    one_layer: Annotated[
        bool,
        typer.Option("--one-layer", help="only heads of one layer, for CTranslate2 and Marian"),
    ] = False,
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
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Which heads align the words of two languages?

    Ranks the cross heads of an encoder-decoder, or the heads of a language model that translates by --prompt, by their
    alignment error. One half of the text chooses a set; the other half confirms it, and compares it with the heads that
    the model names already: these stay in the saved model unless the chosen ones err less. A study has pairs of its
    own, dev."""
    spec = text_spec(text)
    # One file may be a table of recordings: only the model says.
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
    prompt = None if prompt is None else prompt.replace("\\n", "\n")
    how: dict[str, Any] = {"one_layer": one_layer, "seed": seed, "progress": work.progress}
    results = work.do(
        lambda: [alignment_heads.align(loaded, given, prompt=prompt, **how)],
        partial(align_forecast, loaded, given, prompt),
    )
    if not results:
        return
    (found,) = results
    if save is None:
        return
    # What was found is written all the same; only the model is not.
    if not found.confirmed:
        raise HeadwiseError(
            f"No model was written to {save}: on the other half of the text, the chosen heads align no better than a "
            "rule without attention. Give more text, or a model whose heads align."
        )
    if found.better_than_own:
        loaded.alignment_heads = found.heads
    else:
        work.progress.say("  The saved model keeps the alignment heads that it had.")
    loaded.save(save)
    work.progress.say(f"Wrote the model to {save}.")


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
