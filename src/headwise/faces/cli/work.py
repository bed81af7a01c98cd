"""How every command that writes tables works: it checks its folder, says what it will take, works while nobody else does
in that folder, writes, and says what it found."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.console import Console

from headwise.core.errors import HeadwiseError
from headwise.core.folders import Folder, digest, is_name, read_json
from headwise.core.progress import Progress, write
from headwise.models.devices import memory_line

if TYPE_CHECKING:
    from headwise.core.result import Result
    from headwise.models.forecast import Forecast

Found = TypeVar("Found", bound="Result")


def default_folder(command: str, *names: str) -> Path:
    """The folder for the results of a command: `runs/score/my-model`, so that each model has one of its own. names: the
    models, as they were given."""
    words = []
    for name in names:
        parts = [part for part in Path(name).parts if part not in (".", "..", "/")]
        words.append("-".join(parts) or "model")
    label = "+".join(words)
    return Path("runs") / command / (label if is_name(label) else digest(names))


@dataclass
class Work:
    """One command at work in a folder.

    name: of the command. models: as they were given. files: all that it may write, the main one first. out: the folder,
    where one was named. main: whether this process writes. Raises HeadwiseError, before any work, for a folder with
    files that headwise did not write there, and for one that cannot be written.
    """

    name: str
    models: Sequence[str]
    files: Sequence[str]
    out: Path | None
    quiet: bool
    dry_run: bool = False
    main: bool = True

    def __post_init__(self) -> None:
        self.place = self.out or default_folder(self.name, *self.models)
        self.progress = Progress(self.quiet or not self.main)
        # `a/b` and `a-b` have one usual name: the second model's results go elsewhere.
        if self.out is None and (others := self.of_other_models()):
            taken = self.place
            self.place = taken.with_name(
                f"{taken.name}-{digest([str(Path(name)) for name in self.models])[:6]}"
            )
            self.progress.say(
                f"{taken} has the results of {others}, so those of {', '.join(self.models)} go to {self.place}."
            )
        # Before hours of work, not after them.
        folder = Folder(self.place)
        folder.refuse_others(self.files)
        if not self.dry_run:
            folder.refuse_unwritable()

    def of_other_models(self) -> str:
        """The models that the results in the folder are of, where they are others than those of this command."""
        found = self.earlier()
        named = listed_value(found.get("model", found.get("models")))
        alike = [*map(Path, named)] == [*map(Path, self.models)]
        return "" if alike else ", ".join(named)

    def earlier(self) -> dict[str, Any]:
        """The facts beside the results that are in the folder; empty without results, or where nothing says them."""
        if not (self.place / self.files[0]).is_file():
            return {}
        for name in self.files:
            file = self.place / name
            if not (name.endswith(".json") and file.is_file()):
                continue
            try:
                facts = read_json(file, dict)
            except HeadwiseError:
                continue
            facts = facts.get("signature", facts)
            if isinstance(facts, dict) and ("model" in facts or "models" in facts):
                return facts
        return {}

    def replaced(self) -> str:
        """What the results in the folder are of, in words: another measure takes the place of the one before. Empty
        without results."""
        found = self.earlier()
        words = [
            each for key in ("model", "models", "measures") for each in listed_value(found.get(key))
        ]
        there = (self.place / self.files[0]).is_file()
        return ", ".join(words) or "an earlier command" * there

    def do(
        self,
        run: Callable[[], Sequence[Found]],
        forecast: Callable[[], Forecast] | None = None,
        *,
        show: Callable[[Console, Any], None] | None = None,
        next_command: Callable[[Any], Sequence[str]] | None = None,
    ) -> Sequence[Found]:
        """Print the forecast; unless this is a dry run, also run, write and print the results. Returns them. show: prints
        a result; by default its lines and pictures. next_command: the words to try next, from the first result."""
        if self.dry_run:
            if forecast is not None:
                write(Console(highlight=False), "\n".join(forecast().lines()))
            return ()
        if forecast is not None:
            self.progress.expect(forecast)
        folder = Folder(self.place)
        if self.main and (replaced := self.replaced()):
            self.progress.say(
                f"Replaces the results in {self.place}, of {replaced}: --out names another folder."
            )
        with folder.lock(self.main):
            with self.progress.bar(self.name):
                results = run()
            if not self.main:
                return results
            contents: dict[str, str] = {}
            for result in results:
                contents |= result.files()
            folder.write(contents, self.files)
        for result in results:
            (show or show_result)(self.progress.console, result)
        first, *others = [name for name in self.files if name in contents]
        self.progress.say(f"Wrote {', '.join([str(self.place / first), *others])}.")
        self.progress.say(memory_line())
        if next_command is not None and (words := next_command(results[0])):
            command = shlex.join(["headwise", *words])
            self.progress.recommend("Next:", command)
        # The one line on standard output, for scripts; all else goes to the error stream.
        typer.echo(str(self.place / first))
        return results


def listed_value(value: Any) -> list[str]:
    """A value of a signature, or the values of its list."""
    several = value if isinstance(value, list) else [] if value is None else [value]
    return [*map(str, several)]


def show_result(console: Console, result: Result) -> None:
    """Print the lines of a result, the pictures of its heads, and the notes."""
    from headwise.faces.cli.terminal import show_heads

    for line in result.lines():
        write(console, line)
    show_heads(console, result.grids(), result.CAPTION)
    for note in result.notes():
        write(console, f"  {note}")
