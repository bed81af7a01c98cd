"""How a command shows its options: those of a first visit in `--help`, the hidden ones, too, in `--help-all`; one word for
each type of value."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from headwise.core.errors import reason_in

# What people type first for an option that has another name; told where the command has that one.
OTHER_NAMES = {
    "--text": ("--file", "--data", "--input", "--corpus", "--texts"),
    "--keep": ("--heads", "--num-heads", "--keep-heads"),
    "--measure": ("--measures", "--method", "--metric", "--score", "-m"),
    "--to": ("--format", "--target", "--engine", "-f"),
    "--device": ("--gpu", "--cuda", "--cpu"),
    "--out": ("--output", "--out-dir", "--output-dir"),
    "--batch-tokens": ("--batch-size", "--bs"),
}
OTHER_COMMANDS = {
    "study": "headwise run PLAN runs a plan",
    "help": "headwise COMMAND --help shows the options of a command",
    "version": "headwise --version prints it",
    "plot": "headwise figure draws figures of a run",
}
UsageError: Any = typer.BadParameter.__base__

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

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Options that people try are answered with ours."""
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            if hint := self.instead(ctx, getattr(error, "option_name", ""), error.message):
                error.message = f"{error.message.rstrip('.')}: {hint}"
                error.possibilities = ()
            raise

    def instead(self, ctx: Any, option: str, message: str) -> str:
        """What to write for an option, or a word too many, that the command does not have."""
        parameters = self.get_params(ctx)
        options = {name for parameter in parameters for name in parameter.opts}
        for name, others in OTHER_NAMES.items():
            if option in others and name in options:
                return f"write {name}."
        models = [each.name for each in parameters if each.name in ("model", "models")]
        if option in ("--model", "--models") and models:
            return f"the model has no option, write {ctx.command_path} {models[0].upper()}."
        if "extra argument" in message:
            for name, value in (("--to", "ENGINE"), ("--text", "FILE")):
                if name in options:
                    return f"write {name} {value}."
        return ""


class Commands(ShortNames, TyperGroup):
    """Commands, whose options are refused in our words where the check is ours."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            if args[0] in OTHER_COMMANDS:
                error.message = f"No such command '{args[0]}': {OTHER_COMMANDS[args[0]]}."
            raise

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
