"""Tables of what headwise can do: measures, role tests, controls, engines, sections of a report.

Each entry is declared once, by a decorator on the function that makes it:

    @measure("gradient", larger="more important", cost={"forwards": 2.5}, source="Michel et al. 2019")
    def gradients(...): ...

The command line, the time left, the judge, captions and the tables of the documentation all read the declaration.
Entries come from three places: headwise's own modules, installed packages with an entry point of the table's group, and
a user's script that applies the decorator.

Our own declarations are read from the source text, not by importing it: `--help` and a mistyped name must answer
without torch, which the modules need. So their arguments are literals.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

from headwise.errors import HeadwiseError, did_you_mean

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

    word: what an entry is called, also the decorator's name. entry: the class of its facts. package: the folder of our
    own modules that declare some, such as `headwise.importance`. group: the entry points of other packages, each a
    module that declares some when it is imported. first_files: modules of the package, without `.py`, whose
    entries come first, in this order.
    """

    def __init__(
        self,
        word: str,
        entry: type[Entry],
        package: str,
        group: str,
        first_files: Sequence[str] = (),
    ) -> None:
        self.word = word
        self.entry = entry
        self.package = package
        self.group = group
        self.first_files = first_files
        self.added: dict[str, Entry] = {}

    def __call__(self, name: str, **facts: Any) -> Callable[[Function], Function]:
        """Declare the decorated function under a name. Raises HeadwiseError for a name that another function has."""
        if not isinstance(name, str):
            raise HeadwiseError(
                f"The decorator @hw.{self.word} needs a name: @hw.{self.word}('mine')."
            )

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
        before = self.own.get(declared.name) or self.added.get(declared.name)
        if before is not None and before.home != declared.home:
            raise HeadwiseError(
                f"The {self.word} '{declared.name}' is declared twice, in {before.home[0]} and in "
                f"{declared.home[0]}: choose another name."
            )
        if declared.name not in self.own:
            self.added[declared.name] = declared

    @cached_property
    def own(self) -> dict[str, Entry]:
        """Our own entries, read from the source of the package, file by file: `first_files`, then by their names."""
        folder = Path(__file__).parent.joinpath(*self.package.split(".")[1:])
        found: dict[str, Entry] = {}

        first = {name: number for number, name in enumerate(self.first_files)}

        def order(file: Path) -> tuple[int, Path]:
            return first.get(file.stem, len(first)), file

        for file in sorted(folder.rglob("*.py"), key=order):
            text = file.read_text(encoding="utf-8")
            if f"@{self.word}(" not in text:
                continue
            inside = file.relative_to(folder).with_suffix("").parts
            module = ".".join([self.package, *inside])
            for declared in self.read(text, module):
                found[declared.name] = declared
        return found

    def read(self, text: str, module: str) -> Iterator[Entry]:
        """The entries that a module's source declares, in its order."""
        for node in ast.parse(text).body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            for decorator in node.decorator_list:
                called = decorator.func if isinstance(decorator, ast.Call) else None
                if isinstance(called, ast.Name) and called.id == self.word:
                    assert isinstance(decorator, ast.Call)
                    name = ast.literal_eval(decorator.args[0])
                    facts = {
                        str(key.arg): ast.literal_eval(key.value) for key in decorator.keywords
                    }
                    yield self.entry(name=name, home=(module, node.name), **facts)

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
        return f"<hw.{self.word}: {', '.join(self)}>"

    @property
    def entries(self) -> dict[str, Entry]:
        """All entries: our own, then those of packages and scripts."""
        self.installed  # noqa: B018 - imported once
        return {**self.own, **self.added}

    def __getitem__(self, name: str) -> Entry:
        entries = self.entries
        if name not in entries:
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
        guess = did_you_mean(name, [*self.entries, *others])
        listed = [*(entry.listed for entry in self.entries.values()), *others]
        return f"The {self.word} '{name[:100]}' is unknown{guess}; there is {', '.join(listed)}."
