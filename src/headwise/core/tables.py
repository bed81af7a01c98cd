"""Every table that headwise writes and reads again: its file, its columns and what they hold, what tells its rows apart.

A table is written by `Table.csv` and read by `Table.read`, and by nothing else: a number that is none, a column that is
missing and two rows that contradict each other are refused here, for hw.Scores, a report and the lab alike. Texts are
kept as they are: `null`, `NA` and `nan` are words, and an empty cell is an empty text.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headwise.core.errors import HeadwiseError
from headwise.core.folders import read_json, write_text
from headwise.core.heads import KINDS, Head, HeadMap, describe

if TYPE_CHECKING:
    import pandas as pd

# What the cells of a column hold. A number may be missing or infinite; a count keeps its type, whole where all are.
Cells = Literal["text", "kind", "layer", "head", "whole", "number", "count", "flag"]
MOST = {
    "layer": 1000,
    "head": 10_000,
    "whole": 10**15,
}  # up to 2 ** 53 a float holds every whole number
LARGEST = 1e100  # a number that was measured is smaller; a chart of larger ones overflows
MOST_COLUMNS = 1_000  # pandas takes the square of their number
NO_NUMBER = ["", "nan"]


@dataclass(frozen=True)
class Table:
    """A table.

    file: where it is, in the folder of a result or a run; `*` stands for a name. result: the class that reads it, by
    its module. key: the columns that tell its rows apart. optional: columns that it may lack. signed: whether a JSON
    file of its name beside it says how it was made. digits: of its numbers.
    """

    file: str
    result: str
    columns: Mapping[str, Cells]
    key: tuple[str, ...]
    optional: tuple[str, ...] = ()
    signed: bool = False
    digits: int = 6

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that it always has."""
        return tuple(name for name in self.columns if name not in self.optional)

    @property
    def files(self) -> tuple[str, ...]:
        """The table, and its signature where it has one."""
        return (self.file, self.signature_file) if self.signed else (self.file,)

    @property
    def signature_file(self) -> str:
        return str(Path(self.file).with_suffix(".json"))

    def of(self, rows: Sequence[Any] = ()) -> pd.DataFrame:
        """A table of some rows; without any, of columns of the right types."""
        import pandas as pd  # not for --help: it takes its time

        table = pd.DataFrame(rows, columns=list(self.names))
        if len(table):
            return table
        texts = [name for name in self.names if self.columns[name] in ("text", "kind")]
        return table.astype(dict.fromkeys(self.names, float) | dict.fromkeys(texts, object))

    def csv(self, table: pd.DataFrame) -> str:
        """The text of its file. Raises HeadwiseError for a table of other columns."""
        missing = [name for name in self.names if name not in table]
        unknown = [str(name) for name in table.columns if name not in self.columns]
        if missing or unknown:
            lacks = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}, too"
            raise HeadwiseError(
                f"{self.file} cannot be written: its columns are {', '.join(self.columns)}, and the table {lacks}."
            )
        return str(table.to_csv(index=False, float_format=f"%.{self.digits}g"))

    def contents(self, table: pd.DataFrame, signature: Mapping[str, Any]) -> dict[str, str]:
        """The texts of its file and of its signature's, by name."""
        text = json.dumps(dict(signature), indent=1) + "\n"
        return {self.file: self.csv(table), self.signature_file: text}

    def save(self, table: pd.DataFrame, signature: Mapping[str, Any], folder: Path) -> None:
        """Write it, and its signature, into a folder."""
        for name, text in self.contents(table, signature).items():
            write_text(folder / name, text)

    def read(self, path: Path, most_rows: int | None = None) -> pd.DataFrame:
        """What `csv` wrote. Raises HeadwiseError for a file that is missing or damaged, that has more than `most_rows`
        rows, or two that say different things of one subject; a row that stands there twice counts once."""
        try:
            # One row too many shows that the table is too long, without reading it all.
            table = self._parsed(path, None if most_rows is None else most_rows + 1)
        except OSError as error:
            raise HeadwiseError(
                f"{path} cannot be read as a table: it cannot be opened ({error.strerror})."
            ) from None
        except (ValueError, csv.Error) as error:
            reason = " ".join(str(error).split())
            raise HeadwiseError(
                f"{path} cannot be read as a table ({type(error).__name__}: {reason}): make it again."
            ) from None
        if most_rows is not None and len(table) > most_rows:
            raise HeadwiseError(
                f"{path} has more than {most_rows:,} rows, the most that a report shows: score fewer measures."
            )
        if missing := [name for name in self.names if name not in table]:
            raise HeadwiseError(
                f"{path} has no column {', '.join(missing)}, so it is another table than {Path(self.file).name} should be: "
                "make it again, or give a folder that headwise wrote it into."
            )
        for name, cells in self.columns.items():
            if name in table:
                table[name] = _checked(path, table[name], cells)
        table = table.drop_duplicates(ignore_index=True)
        self._refuse_repeated_rows(path, table)
        return table

    def _parsed(self, path: Path, rows: int | None) -> pd.DataFrame:
        import pandas as pd

        with path.open(encoding="utf-8-sig", newline="") as file:
            header = next(csv.reader(file), [])
        if len(header) > MOST_COLUMNS:
            raise ValueError(f"its first line names more than {MOST_COLUMNS:,} columns")
        texts = [name for name in header if self.columns.get(name) in ("text", "kind")]
        # pandas takes `null`, `NA` and more for missing, unless it is told what is, column by column.
        missing = {name: NO_NUMBER for name in header if name not in texts}
        return pd.read_csv(
            path,
            encoding="utf-8",
            dtype=dict.fromkeys(texts, str),  # a setting may be called 007
            keep_default_na=False,
            na_values=missing,
            nrows=rows,
        )

    def _refuse_repeated_rows(self, path: Path, table: pd.DataFrame) -> None:
        """Raise HeadwiseError for a table that says two things about one subject."""
        key = list(self.key)
        twice = table[table.duplicated(key)] if key else table[:0]
        if len(twice):
            first = twice.iloc[0]
            named = ", ".join(f"{name} {first[name]}" for name in key if first[name] != "")
            raise HeadwiseError(f"{path} has two different rows for {named}: make it again.")

    def read_or_empty(self, path: Path, most_rows: int | None = None) -> pd.DataFrame:
        """The same; a table without rows where there is no such file."""
        return self.read(path, most_rows) if path.is_file() else self.of()

    def read_signed(self, path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
        """The table and the signature beside it. Raises HeadwiseError where one of both is missing or damaged."""
        return self.read(path), read_json(path.with_suffix(".json"), dict)


def _checked(path: Path, values: pd.Series[Any], cells: Cells) -> pd.Series[Any]:
    """The cells of a column in their type. Raises HeadwiseError for others."""
    import pandas as pd

    if cells == "text":
        return values
    if cells == "kind":
        right = values.isin(KINDS)
        should = f"kinds of heads ({', '.join(KINDS)})"
    elif cells == "flag":
        right = values.isin([True, False])
        should = "True or False"
    else:
        numbers = pd.to_numeric(values, errors="coerce")
        if cells in MOST:
            right = numbers.between(0, MOST[cells]) & numbers.mod(1).eq(0)
            should = f"whole numbers up to {MOST[cells]}"
        else:
            # `values`, not `numbers`: an empty cell may be, a word (NaN by now) may not.
            right = values.isna() | numbers.abs().lt(LARGEST) | numbers.abs().eq(math.inf)
            should = f"numbers below {LARGEST:g}"
    if not right.all():
        wrong = values[~right].iloc[0]
        shown = "an empty cell" if pd.isna(wrong) or wrong == "" else f"'{wrong}'"
        raise HeadwiseError(
            f"{path} should have {should} in {values.name}, but has {shown:.80}: make it again."
        )
    if cells == "kind":
        return values
    if cells == "flag":
        return values.astype(bool)
    if cells == "count":
        return numbers
    return numbers.astype(int if cells in MOST else float)


def of_text(*names: str) -> dict[str, Cells]:
    return dict.fromkeys(names, "text")


def of_numbers(*names: str) -> dict[str, Cells]:
    return dict.fromkeys(names, "number")


def of_counts(*names: str) -> dict[str, Cells]:
    return dict.fromkeys(names, "count")


KIND: dict[str, Cells] = {"kind": "kind"}
LAYER: dict[str, Cells] = {**KIND, "layer": "layer"}
HEAD: dict[str, Cells] = {**LAYER, "head": "head"}
OTHER_HEAD: dict[str, Cells] = {"other_kind": "kind", "other_layer": "layer", "other_head": "head"}
HEAD_COLUMNS = [*HEAD]  # those that say which head a row is about
INTERVAL = of_numbers("value", "low", "high")
CONFIRMED: dict[str, Cells] = {"confirmed": "flag"}
CHANGE = of_numbers("difference", "difference_low", "difference_high")
# A head, by one measure, tested: `value` with its interval, of `n` tokens, against a `baseline`.
TESTED = HEAD | of_text("measure") | INTERVAL | of_counts("n") | of_numbers("baseline", "units")
KEY = (*HEAD, "measure")
# A number of a model, or its change from the model `reference`.
MEASURED = of_text("split", "measure", "reference") | INTERVAL | of_numbers("p", "units")
MODEL: dict[str, Cells] = {
    **of_text("method", "kinds", "setting"),
    "penalty": "number",
    "seed": "count",
    "kept": "whole",
    "total": "whole",
}
OF_MODEL = ("setting", "split", "measure", "reference")

# What heads are worth
SCORES = Table(
    "heads.csv", "importance.scores.Scores", TESTED | of_numbers("p"), KEY, ("p",), signed=True
)
UNTRAINED_SCORES = Table(
    "untrained.csv",
    "importance.scores.Scores",
    {"seed": "count", **HEAD, **of_text("measure"), "value": "number", "n": "count"},
    ("seed", *KEY),
)
FAITHFULNESS = Table(
    "faithfulness.csv",
    "importance.scores.Scores",
    of_text("measure", "against", "kinds", "statistic") | INTERVAL | of_counts("n"),
    ("measure", "against", "kinds", "statistic"),
)
CURVES = Table(
    "curves.csv",
    "importance.scores.Scores",
    of_text("measure", "ranking")
    | of_counts("seed", "removed", "total")
    | of_numbers("loss", "low", "high"),
    ("measure", "ranking", "seed", "removed"),
)
LRP = Table(
    "lrp.csv",
    "importance.scores.Scores",
    of_text("measure", "mode", "what") | INTERVAL,
    ("measure", "mode", "what"),
    ("low", "high"),
)
INTERACTIONS = Table(
    "interactions.csv",
    "importance.interactions.Interactions",
    HEAD
    | OTHER_HEAD
    | of_numbers("screening_value", *INTERVAL, "p", "alone", "other_alone", "both")
    | of_counts("n"),
    (*HEAD, *OTHER_HEAD),
    signed=True,
)
EFFECTS = Table(
    "effects.csv",
    "importance.effects.Effects",
    HEAD | INTERVAL | of_numbers("p", "share", "share_low", "share_high") | of_counts("n"),
    (*HEAD,),
    signed=True,
)

# What heads do
TESTS = Table("table.csv", "roles.role_tests.Roles", TESTED, KEY)
ROLES = Table(
    "roles.csv",
    "roles.role_tests.Roles",
    TESTED | of_text("role", "text") | of_numbers("p", "effect", "on_words") | of_counts("draws"),
    KEY,
    ("effect", "on_words", "draws"),
)
LABELS = Table(
    "labels.csv",
    "roles.role_tests.Roles",
    HEAD | of_text("attention", "label"),
    (*HEAD,),
    ("attention",),
)
PATTERNS = Table(
    "patterns.csv",
    "roles.role_tests.Roles",
    LAYER | of_text("attention", "role") | of_counts("heads") | of_numbers("share"),
    (*LAYER, "role"),
    ("attention",),
)
CONTROLS = Table(
    "controls.csv",
    "roles.role_tests.Roles",
    of_text("control")
    | HEAD
    | of_text("measure")
    | of_numbers("value")
    | of_counts("n")
    | of_numbers("baseline")
    | of_counts("found"),
    ("control", *KEY),
)
CAUSAL = Table(
    "causal.csv",
    "roles.role_tests.Roles",
    HEAD
    | of_text("measure", "behaviour")
    | of_numbers("with_all", *INTERVAL, "others")
    | of_counts("heads")
    | of_numbers("direct", *CHANGE, "units", "p")
    | CONFIRMED,
    KEY,
)
WORDS = Table(
    "words.csv",
    "roles.lost_words.LostWords",
    HEAD
    | of_text("word")
    | INTERVAL
    | of_counts("lost", "units")
    | of_numbers("others", "p")
    | of_text("instead")
    | of_counts("times")
    | of_text("example"),
    (*HEAD, "word"),
    signed=True,
)
SETS = Table(
    "sets.csv",
    "roles.role_sets.RoleSets",
    KIND
    | of_text("role", "heads")
    | of_counts("number")
    | of_text("change")
    | INTERVAL
    | of_numbers("units", "random", "random_low", "random_high")
    | of_counts("random_sets")
    | of_numbers("p"),
    ("kind", "role", "heads", "change"),
    signed=True,
)
ALIGNMENT = Table("alignment.csv", "roles.alignment_heads.AlignmentHeads", TESTED, KEY)
ALIGNMENT_SETS = Table(
    "alignment-sets.csv",
    "roles.alignment_heads.AlignmentHeads",
    of_text("set", "heads", "measure")
    | INTERVAL
    | of_counts("n")
    | of_numbers("baseline", "units", *CHANGE),
    ("set", "measure"),
)

# What models are worth
QUALITY = Table(
    "quality.csv",
    "models.evaluation.quality.Quality",
    of_text("model", "measure", "reference")
    | INTERVAL
    | of_numbers("p", "units")
    | of_text("made"),
    ("model", "measure", "reference"),
    signed=True,
)
MODELS = Table("pruning.csv", "faces.opened_run.Run", MODEL | MEASURED, OF_MODEL, digits=8)
GRID = Table(
    "grid.csv",
    "faces.opened_run.Run",
    of_text("data") | MODEL | MEASURED,
    ("data", "seed", *OF_MODEL),
    digits=8,
)
ACROSS = Table(
    "across.csv",
    "faces.opened_run.Run",
    of_text("data", "method", "kinds", "setting")
    | of_numbers("penalty")
    | of_counts("seeds")
    | of_numbers("kept")
    | of_counts("kept_low", "kept_high", "total")
    | MEASURED,
    ("data", *OF_MODEL),
    digits=8,
)
GATES = Table(
    "gates/*.csv",
    "faces.opened_run.Run",
    {"step": "whole", **HEAD, "p_open": "number"},
    ("step", *HEAD),
)
TRAINING = Table(
    "train/log.csv",
    "faces.opened_run.Run",
    {"step": "whole", "epoch": "number", "measure": "text", "value": "number"},
    (),
)


def score_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A tidy table of scores, one row per head and measure, the columns of SCORES."""
    import pandas as pd

    numbers = [name for name, cells in SCORES.columns.items() if cells == "number"]
    return pd.DataFrame(rows, columns=[*SCORES.columns]).astype(dict.fromkeys(numbers, float))


def read_scores(path: Path, heads: HeadMap | None = None) -> tuple[pd.DataFrame, dict[str, Any]]:
    """heads.csv and its signature. heads: those of the model now.

    Raises HeadwiseError when the signature or a column is missing, or the scores are of other heads than `heads`.
    """
    table, signature = SCORES.read_signed(path)
    try:
        scored = HeadMap(signature["heads"]["query"], signature["heads"]["key_value"])
    except HeadwiseError as error:
        raise HeadwiseError(f"{path.with_suffix('.json')} cannot be used: {error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HeadwiseError(
            f"{path} cannot be read as a table of scores with its signature beside it: {path.with_suffix('.json')} is not "
            f"valid ({type(error).__name__}: {error}). Score the model again."
        ) from None
    now = scored if heads is None else heads
    addresses = table[HEAD_COLUMNS].itertuples(index=False, name=None)
    if scored != now or not all(Head(*address) in now for address in addresses):
        raise HeadwiseError(
            f"{path} has scores of other heads ({describe(scored)}) than the model has now ({describe(now)}): "
            "score the model again."
        )
    return table, signature
