"""How a command shows its options: those of a first visit in `--help`, the hidden ones, too, in `--help-all`; one word for
each type of value."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from headwise.core.errors import reason_in

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

    help_all: Any = None

    def get_params(self, ctx: Any) -> list[Any]:
        *parameters, help_option = super().get_params(ctx)
        if self.help_all is None:
            self.help_all = copy(help_option)
            self.help_all.name, self.help_all.opts = "help_all", ["--help-all"]
            self.help_all.help, self.help_all.callback = "Show every option.", show_all
        if not any(parameter.hidden for parameter in parameters):
            return [*parameters, help_option]
        return [*parameters, self.help_all, help_option]


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


def show_all(context: Any, option: Any, asked: bool) -> None:
    """Print the help with every option."""
    if not asked:
        return
    hidden = [parameter for parameter in context.command.params if parameter.hidden]
    for parameter in hidden:
        parameter.hidden = False
    typer.echo(context.get_help())
    for parameter in hidden:
        parameter.hidden = True
    raise typer.Exit
