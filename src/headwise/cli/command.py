"""How a command shows its options: those of a first visit in `--help`, the hidden ones, too, in `--help-all`; one word for
each type of value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from headwise.errors import reason_in

VALUES = {int: "N", float: "X", Path: "FILE", bool: ""}


class ShortNames:
    """Values have short names in the help: N is a whole number, X any number, a flag has none."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if isinstance(parameter, TyperArgument):
                parameter.metavar = parameter.name.upper()
                vars(parameter)["display_type_rich"] = lambda ctx: ""
            elif parameter.metavar is None:
                parameter.metavar = value_name(parameter)
            # Ours says what is out of range, and this would say it in the help alone.
            parameter.min = parameter.max = None
        return parameters


class Command(ShortNames, TyperCommand):
    """A command, with --help-all where --help does not show all of its options."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        if not hidden_options(self):
            self.params = [parameter for parameter in self.params if parameter.name != "help_all"]


class Commands(ShortNames, TyperGroup):
    """Commands, whose options are refused in our words where the check is ours."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = reason_in(error.message)
            raise


def value_name(parameter: Any) -> str:
    """What the help calls a value of a parameter: by its type, or NAME."""
    annotation = parameter.type_descriptor.annotation
    (inner, *_) = get_args(annotation) or (annotation,)
    return VALUES.get(inner, "NAME")


def hidden_options(command: Any) -> list[Any]:
    """The options of a command that --help does not show."""
    return [option for option in command.params if option.hidden]


def show_all(context: typer.Context, asked: bool) -> None:
    """Print the help with every option."""
    if not asked:
        return
    hidden = hidden_options(context.command)
    for option in hidden:
        option.hidden = False
    typer.echo(context.get_help())
    for option in hidden:
        option.hidden = True
    raise typer.Exit


HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    default=False,
    annotation=Annotated[
        bool,
        typer.Option(
            "--help-all",
            is_eager=True,
            expose_value=False,
            callback=show_all,
            help="Show every option.",
        ),
    ],
)


def with_help_all(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the option --help-all, of which its function hears nothing."""

    @wraps(command)
    def run(*arguments: Any, help_all: bool = False, **options: Any) -> None:
        command(*arguments, **options)

    # typer needs the types themselves, and annotations are strings in our modules.
    signature = inspect.signature(command, eval_str=True)
    parameters = [*signature.parameters.values(), HELP_ALL]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run
