"""`hw.Run`: a study as its user holds it, by its folder: the verdict, models, tables, report.

It says nothing of its own. `contents` is all files of the folder at once, as the report shows them
(`report/run_folder.py`); the tables that Python computes with, such as `scores`, are read when they are asked for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from html import escape
from pathlib import Path
from textwrap import fill

import pandas as pd

from headwise.core.errors import HeadwiseError, did_you_mean
from headwise.core.folders import as_path, below
from headwise.core.grid import HeadGrid
from headwise.core.layout import HeadMask
from headwise.core.measured import UNPRUNED
from headwise.core.result import WIDTH, plain_number, printed
from headwise.core.tables import INTERACTIONS, MODELS, SCORES, WORDS
from headwise.faces.report import report as write_report
from headwise.faces.report.models import model_rows, ordered
from headwise.faces.report.run_folder import read_run
from headwise.faces.report.summary import lead_sentences
from headwise.importance.interactions import Interactions
from headwise.importance.scores import Scores
from headwise.models.loading import load
from headwise.models.model import Model
from headwise.roles.lost_words import LostWords
from headwise.roles.role_tests import Roles

# What a study may have found, and the file that shows it is there.
TABLES = {
    "scores": SCORES.signature_file,
    "roles": "roles/facts.json",
    "interactions": INTERACTIONS.signature_file,
    "lost_words": WORDS.signature_file,
    "pruning": MODELS.file,  # pruning.csv: every number of every model
}


class Run:
    """A study in its folder: of `headwise run`, `demo` and `prune`, or the `work` of `hw.prune` with controls.

    Whatever takes a study's folder takes it, too: `hw.lab(run)`, `hw.report(run)`, `hw.report(run, other)`. What was not
    found (yet) raises HeadwiseError when it is asked for. Of a study that still runs, open it again: verdict,
    models and layouts are those of when it was opened.
    Raises HeadwiseError for a folder that is no study's, whose files are damaged, or that has several seeds or language
    pairs: each of them is a study of its own.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = as_path(folder)
        self.contents = read_run(self.folder)

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def name(self) -> str:
        """What its folder is called."""
        return self.contents.name

    @property
    def chosen(self) -> str | None:
        """The pruned model that was chosen; None where there is none, or the choice was not to prune."""
        chosen = self.contents.chosen
        return None if chosen is None else str(chosen["setting"])

    @cached_property
    def verdict(self) -> str:
        """In words: what was found of the chosen model, what that rests on and what follows; or why there is none."""
        return " ".join(lead_sentences(self.contents))

    @cached_property
    def models(self) -> pd.DataFrame:
        """A row a model, controls too: model (its name for `model`), heads (those left of the kinds that were pruned),
        what models are compared by on the reported text, under its name such as bleu, its change from the full model (of
        perplexity in %), and low and high, the change's 95 % interval by a paired bootstrap (docs/methods/bleu.md)."""
        quality = self.contents.quality.name
        rows = []
        for row in ordered(self.contents.model_table):
            change = self.contents.change_of(row, UNPRUNED)
            rows.append(
                {
                    "model": row["setting"],
                    "heads": row["kept"],
                    quality: self.contents.quality_of(row).value,
                    "change": change.value,
                    "low": change.low,
                    "high": change.high,
                }
            )
        columns = ["model", "heads", quality, "change", "low", "high"]
        # Numbers also where there is no row, or none was measured.
        return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[2:], float))

    @property
    def layouts(self) -> Mapping[str, HeadMask]:
        """Which heads each pruned model kept, by its name."""
        return self.contents.layouts

    def model(self, name: str | None = None, device: str = "cpu") -> Model:
        """One of its models: `full`, or another name of `models`; by default the chosen one. Raises HeadwiseError for
        another name, and for a model whose weights were not kept."""
        name = self.chosen if name is None else name
        names = [str(row["setting"]) for row in model_rows(self.contents.model_table)]
        if name is None:
            raise HeadwiseError(
                f"{self.folder} has no chosen model: name one, of {', '.join(names) or 'none yet'}."
            )
        if name == UNPRUNED:
            # The folder of a study loads as its full model.
            return load(self.folder, device)
        if name not in names:
            raise HeadwiseError(
                f"{self.folder} has no model '{name}'{did_you_mean(name, names)}; there is {', '.join(names) or 'none yet'}."
            )
        place = below(self.folder / "pruned", name)
        if not place.is_dir():
            raise HeadwiseError(
                f"The weights of {name} were not kept: set weights = 'all' in the plan and run the study again; "
                "run.layouts says which heads it kept."
            )
        return load(place, device)

    @cached_property
    def scores(self) -> Scores:
        """What each head of the full model is worth."""
        return Scores.read(self._folder_of("scores"))

    @cached_property
    def roles(self) -> Roles:
        """What each head of the full model does."""
        return Roles.read(self._folder_of("roles"))

    @cached_property
    def interactions(self) -> Interactions:
        """Pairs of heads that do the same work, or work together."""
        return Interactions.read(self._folder_of("interactions"))

    @cached_property
    def lost_words(self) -> LostWords:
        """The words that the full model no longer says without a head."""
        return LostWords.read(self._folder_of("lost_words"))

    @cached_property
    def pruning(self) -> pd.DataFrame:
        """Everything that was measured of every model, a row a number (docs/layout.md)."""
        return MODELS.read(self._folder_of("pruning") / MODELS.file)

    @property
    def tables(self) -> list[str]:
        """Which of scores, roles, interactions, lost_words and pruning it has."""
        return [name for name, file in TABLES.items() if (self.folder / file).is_file()]

    def _folder_of(self, name: str) -> Path:
        """The folder of a table. Raises HeadwiseError where the study has not found it."""
        if name not in self.tables:
            raise HeadwiseError(
                f"{self.folder} has no table {name}: its plan leaves it out, or the study has not come to it. Tables: "
                f"{', '.join(self.tables) or 'none yet'}."
            )
        return (self.folder / TABLES[name]).parent

    def report(self) -> Path:
        """Write its page again, `report.html`; returns its path (`hw.report`)."""
        return write_report(self)

    def plot(self) -> HeadGrid:
        """A picture of the heads that the chosen model kept. Raises HeadwiseError where none was chosen."""
        chosen = self.chosen
        if chosen is None:
            raise HeadwiseError(
                f"{self.folder} has no chosen model: show another one's layout, of run.layouts."
            )
        if chosen not in self.layouts:
            raise HeadwiseError(f"{self.folder} has no layout of its chosen model, {chosen}.")
        return self.layouts[chosen].grid(chosen)

    def __repr__(self) -> str:
        lines = [f"Run({str(self.folder)!r})", fill(self.verdict, WIDTH)]
        if len(self.models):
            lines.append(printed(self.models))
        lines.append(fill(f"Tables: {', '.join(self.tables) or 'none yet'}.", WIDTH))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        picture = self.plot().html() if self.chosen in self.layouts else ""
        rows = self.models.to_html(index=False, na_rep="", float_format=plain_number)
        return f"<p><b>{escape(self.name)}</b>: {escape(self.verdict)}</p>{picture}{rows}"
