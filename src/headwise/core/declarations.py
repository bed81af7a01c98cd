"""Tables of what headwise can do: measures, role tests, controls, engines, sections of a report.

An entry is a row of facts, with the home of the function that makes it. The command line, the time left, the judge,
captions and the tables of the documentation read these facts without importing the function: `--help` and a mistyped
name must answer without torch. Our own rows are in one module of their package:

    measure.row("gradient", home="gradient:gradient_measures", caption="how the loss moves as …")

Others come from installed packages with an entry point of the table's group, and from a user's script, by the table as
a decorator:

    @measure("mine", caption="…")
    def mine(model, batches): ...
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module, metadata
from typing import Any, Generic, TypeVar

from headwise.core.errors import HeadwiseError, did_you_mean, shown_value

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """One entry. home: the module and the name of the function that makes it."""

    name: str
    home: tuple[str, str] = ("", "")

    @property
    def listed(self) -> str:
        """Its name in a list of what there is."""
        return self.name

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The declared function; imports its module."""
        module, name = self.home
        found: Callable[..., Any] = getattr(import_module(module), name)
        return found


Entry = TypeVar("Entry", bound=Declaration)


class Declarations(Mapping[str, Entry], Generic[Entry]):
    """A table of declarations by name, and the decorator that adds to it.

    word: what an entry is called, also the decorator's name. entry: the class of its facts. package: of our own
    functions, such as `headwise.importance`. group: the entry points of other packages, each a module that declares
    some when it is imported. table: the module of the package that has our own rows; without it, its modules decorate.
    """

    def __init__(
        self, word: str, entry: type[Entry], package: str, group: str, table: str = ""
    ) -> None:
        self.word = word
        self.entry = entry
        self.package = package
        self.group = group
        self.table = table
        self.rows: dict[str, Entry] = {}
        self.added: dict[str, Entry] = {}

    def row(self, name: str, *, home: str, **facts: Any) -> None:
        """Declare a function of our own. home: `module:function`, in the package."""
        module, _, function = home.partition(":")
        self.rows[name] = self.entry(
            name=name, home=(f"{self.package}.{module}", function), **facts
        )

    def __call__(self, name: str, **facts: Any) -> Callable[[Function], Function]:
        """Declare the decorated function under a name. Raises HeadwiseError for a name that another function has."""
        if not isinstance(name, str):
            raise HeadwiseError(f"The decorator @{self.word} needs a name: @{self.word}('mine').")

        def declare(function: Function) -> Function:
            declared = self.entry(
                name=name, home=(function.__module__, function.__qualname__), **facts
            )
            declared.__dict__["function"] = function  # a function of a script can't be imported
            self.add(declared)
            return function

        return declare

    def add(self, declared: Entry) -> None:
        """Add an entry. Raises HeadwiseError for a name that another function has."""
        # A package of ours without a table: its modules decorate.
        if declared.home[0].startswith(f"{self.package}."):
            self.rows[declared.name] = declared
            return
        before = self.own.get(declared.name) or self.added.get(declared.name)
        # A cell of a notebook that runs again declares the same function again.
        if before is not None and before.home != declared.home:
            raise HeadwiseError(
                f"The {self.word} '{declared.name}' is declared twice, in {before.home[0]} and in "
                f"{declared.home[0]}: choose another name."
            )
        self.added[declared.name] = declared

    @cached_property
    def own(self) -> dict[str, Entry]:
        """Our own entries, in the order of their rows."""
        modules = [self.table]
        if not self.table:
            path = import_module(self.package).__path__
            # Nothing says which of them decorate, so all are imported.
            modules = [module.name for module in pkgutil.iter_modules(path)]
        for module in modules:
            import_module(f"{self.package}.{module}")
        return self.rows

    @cached_property
    def installed(self) -> None:
        """Imports, once, the modules of other packages that declare entries."""
        for point in metadata.entry_points(group=self.group):
            try:
                point.load()
            except Exception as error:
                raise HeadwiseError(
                    f"The package '{point.value}' declares a {self.word} and cannot be imported "
                    f"({type(error).__name__}: {error}): mend or uninstall it."
                ) from error

    def __repr__(self) -> str:
        return f"<{self.word}: {', '.join(self)}>"

    @property
    def entries(self) -> dict[str, Entry]:
        """All entries: our own, then those of packages and scripts."""
        self.installed  # noqa: B018 - imported once
        return {**self.own, **self.added}

    def __getitem__(self, name: str) -> Entry:
        entries = self.entries
        if not isinstance(name, str) or name not in entries:
            raise HeadwiseError(self.unknown(name))
        return entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def unknown(self, name: str, *, others: tuple[str, ...] = ()) -> str:
        """A sentence about a name that the table lacks. others: further names that were possible."""
        if not isinstance(name, str):
            return f"{shown_value(name)} names no {self.word}: give a string, such as '{next(iter(self))}'."
        guess = did_you_mean(name, [*self.entries, *others])
        if "," in name:
            guess = ": name one at a time"
        listed = [*(entry.listed for entry in self.entries.values()), *others]
        return f"The {self.word} '{name[:100]}' is unknown{guess}; there is {', '.join(listed)}."
