"""The command line: thin. Every command calls the function that Python users call, prints what it wrote and the next
command to try. Libraries are imported where they are used: `--help` and a mistyped option answer at once.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from headwise.core.errors import OUR_MISTAKE, HeadwiseError
from headwise.core.progress import write
from headwise.faces.cli.analysis import align, roles, score
from headwise.faces.cli.command import Command, Commands
from headwise.faces.cli.figures import figure
from headwise.faces.cli.resources import data_get, data_list, lab, translate
from headwise.faces.cli.signals import Stopped, stoppable, write_error
from headwise.faces.cli.smaller_models import check, evaluate, export, prune, push
from headwise.faces.cli.story import story
from headwise.faces.cli.studies import demo, report, run, train

app = typer.Typer(
    cls=Commands,
    help="Which attention heads does your Transformer need, what do they do, and what happens without them?",
    no_args_is_help=True,
    add_completion=False,
    # `guarded` says what went wrong.
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def show_version(asked: bool) -> None:
    if asked:
        typer.echo(metadata.version("headwise"))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    """Which attention heads does your Transformer need, what do they do, and what happens without them?"""


# The groups of `headwise --help` in the order of a first visit, with an example for each command.
GROUPS: dict[str, dict[Callable[..., None], str]] = {
    "First steps": {
        demo: "headwise demo",
        story: "headwise story my-model --text own.txt --treebank en_ewt-ud-dev.conllu",
        score: "headwise score my-model --text dev.en --text dev.de --judge",
        roles: "headwise roles my-model --treebank en_ewt-ud-dev.conllu",
        lab: "headwise lab my-model",
        prune: "headwise prune my-model --text train.en --text train.de --keep 50%",
        evaluate: "headwise evaluate my-model runs/prune/my-model/pruned/keep-0.5 --text test.en --text test.de",
        report: "headwise report runs/score/my-model runs/roles/my-model",
        figure: "headwise figure importance runs/score/my-model runs/roles/my-model --out fig1.pdf",
    },
    "Use a smaller model": {
        export: "headwise export my-model --to gguf",
        check: "headwise check runs/prune/my-model/pruned/keep-10 --original my-model",
        push: "headwise push my-model owner/name --dry-run",
        translate: "headwise translate my-model --text news.en",
    },
    "Studies": {
        run: "headwise run plan.toml --dry-run",
        train: "headwise train --text train.en --text train.de --dev dev.en --dev dev.de",
    },
    "More": {
        align: "headwise align my-model --text dev.en --text dev.de",
    },
}


def paragraphs(command: Callable[..., None]) -> str:
    """The docstring of a command with a line for each paragraph: the terminal wraps them."""
    text = inspect.getdoc(command) or ""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


for group, commands in GROUPS.items():
    for command, example in commands.items():
        app.command(
            cls=Command,
            help=paragraphs(command),
            rich_help_panel=group,
            epilog=f"Example: {example}",
        )(command)
data_app = typer.Typer(
    cls=Commands,
    help="Fetch public text, checked by its sums.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
data_app.command("list", cls=Command)(data_list)
data_app.command("get", cls=Command)(data_get)
app.add_typer(data_app, name="data", rich_help_panel="More")


def guarded(run: Callable[[], None]) -> int:
    """Run the command line; what the user can mend is one sentence on the error stream and an exit status of 1. What
    nobody foresaw keeps its traceback, and is called our mistake."""
    try:
        with stoppable():
            run()
    except HeadwiseError as error:
        return complain(str(error))
    except Stopped as stop:
        complain(str(stop))
        return stop.status
    except Exception as error:
        if unwritten := write_error(error):
            return complain(str(unwritten))
        traceback.print_exc()
        return complain(
            f"{OUR_MISTAKE}, with the lines above and headwise {metadata.version('headwise')}."
        )
    return 0


def complain(text: str) -> int:
    write(Console(stderr=True, highlight=False), f"headwise: {text}")
    return 1


@cache
def parser() -> Callable[..., Any]:
    """All commands with their options, made once in a process."""
    return typer.main.get_command(app)


def show_warning(
    message: Warning | str, category: type[Warning], filename: str, *others: Any, **more: Any
) -> None:
    """A warning of headwise as a sentence, without the line of code; others as Python shows them."""
    if category is UserWarning and Path(__file__).parents[2] in Path(filename).parents:
        complain(str(message))
    else:
        show_as_python(message, category, filename, *others, **more)


show_as_python = warnings.showwarning


def main() -> None:
    """The `headwise` command."""
    warnings.showwarning = show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # a terminal that lacks a sign shows a question mark
    quiet = {
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_VERBOSITY": "error",
        "USE_HUB_KERNELS": "NO",  # code that transformers would fetch for some models
    }
    for name, value in {
        **quiet,
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        # Unset, the library warns in every process that is forked off.
        "TOKENIZERS_PARALLELISM": "true",
    }.items():
        os.environ.setdefault(name, value)
    atexit.register(
        gc.freeze
    )  # to look for garbage among the libraries' million objects at the end takes a second
    sys.exit(guarded(lambda: parser()(prog_name="headwise")))
