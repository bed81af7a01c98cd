"""Options of a command that are fields of options classes: names, types, ranges, defaults and help are the fields'.

`@takes_fields(OPTIONS)` gives them to a command; `given_fields` says which of them the user gave.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import typer

from headwise.core.errors import HeadwiseError, did_you_mean
from headwise.core.heads import KINDS
from headwise.core.options import (
    FULL_LENGTH,
    METHODS,
    Checked,
    Choice,
    Options,
    Search,
    Training,
    validated,
)

Decorated = TypeVar("Decorated", bound=Callable[..., None])
OPTION_TYPES = {"integer": int, "number": float, "string": str, "boolean": bool}
LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
}
EVERY_METHOD = "Every method"


@dataclass(frozen=True)
class FieldOption:
    """An option that is a field of an options class.

    table: where a plan has the field; schema: the field's JSON schema; heading: what the help has the option under,
    nothing where `--help` has it too, not only `--help-all`.
    """

    table: str
    name: str
    schema: Mapping[str, Any]
    heading: str | None

    @property
    def flag(self) -> str:
        return str(self.schema.get("flag", "--" + self.name.replace("_", "-")))

    @property
    def alternatives(self) -> list[Mapping[str, Any]]:
        """The schemas of what a value may be."""
        several = self.schema.get("anyOf", [self.schema])
        return [schema for schema in several if schema.get("type") != "null"]

    @property
    def kinds(self) -> list[str]:
        """The types of what a value may be, as JSON has them; a reference to another class is none."""
        return [schema.get("type", "") for schema in self.alternatives]

    @property
    def words(self) -> list[str]:
        """The words that a value may be, where they are named."""
        words: list[str] = []
        for schema in self.alternatives:
            words += [schema["const"]] if "const" in schema else schema.get("enum", [])
        return words

    @property
    def repeatable(self) -> bool:
        """Whether each of several values has the option before it; a list of named words is one value, with commas."""
        lists = [schema for schema in self.alternatives if schema.get("type") == "array"]
        return any("enum" not in schema["items"] for schema in lists)

    @property
    def parsed_type(self) -> Any:
        """What typer makes of one word of the command line; `read` makes the rest."""
        if "object" in self.kinds or self.kinds == ["array"]:
            return str
        if self.words:
            return str if "number" in self.kinds else Literal[tuple(self.words)]
        return OPTION_TYPES[self.kinds[0]]

    @property
    def value_name(self) -> str | None:
        """What the help calls the value; None where its type says it."""
        if "value" in self.schema:
            return str(self.schema["value"])
        if "object" in self.kinds:
            return "N"
        return "X" if self.parsed_type is str and "number" in self.kinds else None

    @property
    def help_text(self) -> str:
        """The field's description, and what it says by its type."""
        notes = []
        for key, words in LIMITS.items():
            limit = self.alternatives[0].get(key)
            if limit is not None:
                notes.append(f"{words} {limit:g}")
        if "object" in self.kinds:
            notes = ["KIND=N for each"]
        if "array" in self.kinds:
            notes.append("repeatable" if self.repeatable else "with commas")
        description = self.schema["description"]
        return f"{description} ({'; '.join(notes)})" if notes else description

    @property
    def parameter(self) -> inspect.Parameter:
        """The option as a parameter of a function, as typer reads it."""
        parsed, default = self.parsed_type, self.schema["default"]
        if parsed is str and default is not None:
            default = str(default)
        if self.repeatable:
            parsed = list[parsed]  # type: ignore[valid-type]
        option = typer.Option(
            self.flag,
            metavar=self.value_name,
            help=self.help_text,
            rich_help_panel=self.heading,
            hidden=self.heading is not None,
        )
        return inspect.Parameter(
            self.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=default,
            annotation=Annotated[parsed | None if default is None else parsed, option],
        )

    def read(self, given: Any) -> Any:
        """What was given, as the options class takes it."""
        if "object" in self.kinds:
            return parse_target_counts(self.flag, given)
        if self.kinds == ["array"] and not self.repeatable:
            return list(dict.fromkeys(word.strip() for word in given.split(",")))
        if self.parsed_type is str and "number" in self.kinds:
            try:
                return float(given)
            except ValueError:
                return given  # a word, such as `any`, or one that the options class refuses
        return given


def field_options(
    table: str,
    classes: Mapping[str, type[Options]],
    without: Iterable[str] = (),
    first: Collection[str] = (),
) -> list[FieldOption]:
    """An option for each field of options classes, those of `without` left out.

    table: where a plan has them. classes: by what the help calls them; a heading names the classes that have a field,
    or says that every one has. first: those that `--help` shows.
    """
    schemas = {title: kind.model_json_schema()["properties"] for title, kind in classes.items()}
    headings: dict[str, list[str]] = {}
    for title, fields in schemas.items():
        for name in fields:
            headings.setdefault(name, []).append(title)

    options = []
    for name, titles in headings.items():
        if name in without:
            continue
        heading = EVERY_METHOD if len(titles) == len(METHODS) else " and ".join(titles)
        shown_in = None if name in first else heading
        options.append(FieldOption(table, name, schemas[titles[0]][name], shown_in))
    # The help has a heading where its first option is: what all classes have comes first.
    return sorted(options, key=lambda option: -len(headings[option.name]))


def takes_fields(options: Sequence[FieldOption]) -> Callable[[Decorated], Decorated]:
    """A decorator: the command, which has `**fields`, shows and takes these options, before --out and what follows it."""

    def decorate(command: Decorated) -> Decorated:
        # typer needs the types themselves, and annotations are strings in our modules.
        signature = inspect.signature(command, eval_str=True)
        own = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        place = [parameter.name for parameter in own].index("out")
        parameters = [*own[:place], *(option.parameter for option in options), *own[place:]]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def given_fields(
    context: typer.Context, options: Sequence[FieldOption], fields: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """The fields that the user gave, by the tables of a plan: what is left to a default is not among them."""
    tables: dict[str, dict[str, Any]] = {}
    for option in options:
        # By its source: a value that equals the default was given, too.
        source = context.get_parameter_source(option.name)
        if source is not None and source.name == "COMMANDLINE":
            tables.setdefault(option.table, {})[option.name] = option.read(fields[option.name])
    return tables


def given_options(
    context: typer.Context,
    kind: type[Checked],
    options: Sequence[FieldOption],
    fields: Mapping[str, Any],
) -> Checked:
    """The options of a class as the user gave them; raises HeadwiseError for what does not fit. options: those of the
    command, of which only the class's own count."""
    own = [option for option in options if option.name in kind.model_fields]
    given: dict[str, Any] = {}
    for table in given_fields(context, own, fields).values():
        given |= table
    return validated(kind, given, str(context.info_name), {each.name: each.flag for each in own})


def typed_options(
    options: Sequence[FieldOption], tables: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """The options that were given, by the keys of a plan: `--kinds` for pruning.kinds."""
    return {
        f"{option.table}.{option.name}": option.flag
        for option in options
        if option.name in tables.get(option.table, {})
    }


SEARCH_OPTIONS = field_options("search", {"Search for translations": Search})


def pruning_options(without: Iterable[str] = (), first: Collection[str] = ()) -> list[FieldOption]:
    """The options of a command that prunes: how heads go, which model is chosen, how gates learn, how text is translated.
    without, first: as of `field_options`."""
    # The model is chosen by [choice] alone; the length of training is an option of each method, --dtype that of numbers.
    elsewhere = ["max_drop", "search", *without]
    return [
        *field_options("pruning", METHODS, elsewhere, first),
        *field_options("choice", {EVERY_METHOD: Choice}, first=first),
        *field_options("training", {"Training with gates": Training}, [*FULL_LENGTH, "dtype"]),
        *SEARCH_OPTIONS,
    ]


def given_search(context: typer.Context, fields: Mapping[str, Any]) -> Search | None:
    """The search that the options of a command ask for; None where none was given."""
    if not given_fields(context, SEARCH_OPTIONS, fields):
        return None
    return given_options(context, Search, SEARCH_OPTIONS, fields)


def refuse_set_twice(
    options: Sequence[FieldOption], tables: Mapping[str, Mapping[str, Any]], settings: list[str]
) -> None:
    """Raise HeadwiseError where `--set` says again what an option says."""
    typed = typed_options(options, tables)
    for setting in settings:
        key = setting.partition("=")[0].strip()
        if key in typed:
            raise HeadwiseError(f"{typed[key]} and --set {setting} were given: say it once.")


PERCENT = re.compile(r"[0-9]{1,3}(\.[0-9]{1,6})?%")


def parse_target_counts(flag: str, given: list[str]) -> list[int | str | dict[str, int]]:
    """Target counts: `10` or `50%`, each a model of its own; or one model with a number for every kind named."""
    counts: list[tuple[str, int | str]] = []
    for word in given:
        if PERCENT.fullmatch(word):
            counts.append(("", word))
            continue
        kind, equals, number = word.rpartition("=")
        kind, number = kind.strip(), number.strip()
        if kind and kind not in KINDS:
            raise HeadwiseError(
                f"{flag} {word[:100]} was given, and '{kind[:50]}' is no kind of heads"
                f"{did_you_mean(kind, KINDS)}: choose {', '.join(KINDS)}."
            )
        # Six digits are more than any model has heads; int() refuses thousands of them with an error of its own.
        if not number.isdecimal() or (equals and not kind) or len(number) > 6:
            raise HeadwiseError(
                f"{flag} {word[:100]} was given: write a number of heads, a share such as 50%, or KIND=NUMBER."
            )
        counts.append((kind, int(number)))

    kinds = [kind for kind, _ in counts if kind]
    if not kinds:
        return [number for _, number in counts]
    if len(kinds) < len(counts) or len(set(kinds)) < len(kinds):
        raise HeadwiseError(
            f"{flag} {f' {flag} '.join(given)} was given: give each kind one number, or all heads one."
        )
    return [{kind: int(number) for kind, number in counts}]
