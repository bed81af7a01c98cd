"""The errors of headwise: bad input, attention heads that it cannot see, files that cannot be written."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")

LONGEST_MESSAGE = 1000  # characters of a message
LONGEST_VALUE = 60  # characters of a value that a message shows
LONGEST_GUESSED_NAME = 100  # characters of a name that similar ones are looked for
NOT_FINITE = (
    "16-bit numbers may overflow: load the model in float32 (--dtype float32, in Python dtype='float32'). If it is, the "
    "model itself is damaged"
)
OUR_MISTAKE = "This is a mistake in headwise, not in what you gave: please report it"


class HeadwiseError(Exception):
    """Bad input. The message says what was asked, what was found, and what to do; the command line prints it.

    Messages quote input of any kind, so the middle of a long one is left out and control characters are escaped.
    """

    def __init__(self, message: str) -> None:
        # Shortened before, as escaping a book takes long, and after, as escapes are longer than what they stand for.
        escaped = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shorten_text(message))
        super().__init__(shorten_text(escaped))


def reason_in(message: str) -> str:
    """What pydantic says about a value, without what it puts before the sentences of our own checks."""
    return message.removeprefix("Value error, ")


def shorten_text(text: str) -> str:
    return (
        text
        if len(text) <= LONGEST_MESSAGE
        else f"{text[: LONGEST_MESSAGE // 2]} … {text[-LONGEST_MESSAGE // 3 :]}"
    )


def few_names(names: Sequence[str]) -> str:
    """A few names, and dots where there are more."""
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


def shown_value(value: object) -> str:
    """A value that somebody gave, for a sentence: as Python writes it where that is short, else its type."""
    text = repr(value)
    if len(text) <= LONGEST_VALUE and "\n" not in text:
        return text
    return f"A value of the type {type(value).__name__}"


class HeadsMissing(HeadwiseError):
    """A model declares attention heads that the probe did not see: results would be partial."""


class WriteError(HeadwiseError):
    """A file could not be written, for lack of space or permission: what was done is kept."""


def did_you_mean(name: str, names: Iterable[str], before: str = "", alike: float = 0.6) -> str:
    """A guess at what a misspelled name means, to follow it in a sentence; nothing where no name is like it, or it is right.

    before: what stands before each name, such as a folder. alike: from 0 to 1, the share of letters in common.
    """
    names = list(names)
    name = str(name)  # whatever was given in place of one
    if name in names:
        return ""
    by_small_letters = {other.lower(): other for other in names}
    # difflib takes time by the square of the length.
    asked = name[:LONGEST_GUESSED_NAME].lower()
    near = difflib.get_close_matches(asked, by_small_letters, n=1, cutoff=alike)
    return f" (did you mean '{before}{by_small_letters[near[0]]}'?)" if near else ""


class NoSuchName(HeadwiseError, AttributeError):
    """An attribute that is not there: `hasattr` and `getattr` know it as Python's own."""


def called_as(
    example: str, instead: Mapping[str, str] = {}
) -> Callable[[Callable[Inputs, Output]], Callable[Inputs, Output]]:
    """Makes a call that does not fit a function one sentence, in place of Python's TypeError.

    example: a call that fits. instead: what to write, by the names of arguments that people try. The function is called
    from one frame more, which `stacklevel` of its warnings counts.
    """

    def decorate(function: Callable[Inputs, Output]) -> Callable[Inputs, Output]:
        @wraps(function)
        def call(*given: Inputs.args, **named: Inputs.kwargs) -> Output:
            try:
                return function(*given, **named)
            # Only a call that failed is looked at; an error from inside the function is raised as it is.
            except TypeError:
                refuse_call(function, given, named, example, instead)
                raise

        return call

    return decorate


Made = TypeVar("Made", bound=type)


def made_as(example: str) -> Callable[[Made], Made]:
    """`called_as` for what makes an object of a class of rows or fields."""

    def decorate(made: Made) -> Made:
        name = "__new__" if issubclass(made, tuple) else "__init__"
        setattr(made, name, called_as(example)(getattr(made, name)))
        return made

    return decorate


def refuse_call(
    function: Callable[..., Any],
    given: Sequence[Any],
    named: Mapping[str, Any],
    example: str,
    instead: Mapping[str, str],
) -> None:
    """Raise HeadwiseError for arguments that a function does not take, or lacks."""
    from inspect import Parameter, signature  # not for --help

    takes = dict(signature(function).parameters)
    owner = function.__name__
    if next(iter(takes), "") in ("self", "_cls"):
        kind = given[0].__name__ if isinstance(given[0], type) else type(given[0]).__name__
        owner = kind if owner in ("__init__", "__new__") else f"{kind}.{owner}"
        given = given[1:]  # without self
        takes.pop(next(iter(takes)))
    by_place = [name for name, one in takes.items() if one.kind is not Parameter.KEYWORD_ONLY]
    needed = [name for name, one in takes.items() if one.default is Parameter.empty]
    missing = [name for name in needed if name not in named and name not in by_place[: len(given)]]
    # Wrong names first: where one is misspelled, the right one is missing, too.
    for name in named:
        if name not in takes:
            what = instead.get(name, f"{example} is such a call; {owner} takes {', '.join(takes)}")
            refuse(f"{owner} takes no {name}{did_you_mean(name, takes)}: {what}.")
    if len(given) > len(by_place):
        refuse(
            f"{owner} takes {', '.join(by_place) or 'nothing'} without a name, and {len(given)} were given: write "
            f"{example}."
        )
    if missing:
        refuse(f"{owner} needs {' and '.join(missing)}: write {example}.")


def refuse(sentence: str) -> NoReturn:
    raise HeadwiseError(sentence) from None
