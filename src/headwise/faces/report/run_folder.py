"""The folder of a run, read into memory: tables that are not there are empty.

RunContents is all files of one run. Its models are a table (`models.py`), because a grid has the models of many runs
in one; the questions of one run, such as `chosen` or `verdict_of`, are asked here. hw.Run is the user's handle of it.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from headwise.core.errors import HeadwiseError
from headwise.core.folders import below, checked_name, read_json
from headwise.core.heads import Kind
from headwise.core.layout import HeadMask
from headwise.core.measured import FINE_TUNED, ModelNumbers
from headwise.core.options import validated
from headwise.core.qualities import WORSE, Number, QualityMeasure
from headwise.core.tables import (
    CAUSAL,
    CONTROLS,
    CURVES,
    FAITHFULNESS,
    GATES,
    HEAD_COLUMNS,
    INTERACTIONS,
    LABELS,
    LRP,
    MODELS,
    ROLES,
    SCORES,
    TESTS,
    TRAINING,
    UNTRAINED_SCORES,
    WORDS,
    Table,
)
from headwise.faces.report import models
from headwise.faces.report.models import ModelRow
from headwise.pruning.verdict import Verdict, verdict_on
from headwise.roles.behaviour import NAMED
from headwise.study.records import refuse_damaged

FILES = {  # the tables of a run folder
    "training": TRAINING,
    "heads": SCORES,
    "faithfulness": FAITHFULNESS,
    "curves": CURVES,
    "lrp": LRP,
    "untrained": UNTRAINED_SCORES,
    "interactions": INTERACTIONS,
    "words": WORDS,
}
# The tables of a folder roles/, which must all be there; and those that are no file where they are empty.
ROLE_FILES = {"table": TESTS, "roles": ROLES, "labels": LABELS}
OPTIONAL_ROLE_FILES = {"controls": CONTROLS, "causal": CAUSAL}
# Facts of run.json that are tables: empty where it does not have them.
BY_NAME = (
    "doubts",
    "failed",
    "notes",
    "seconds",
    "sentences",
    "settings",
    "signature",
    "versions",
    "worse",
)
MOST_ROWS = 400_000  # of one table: 100 layers of 128 heads by 30 measures; a page of more would take all memory
MOST_SECONDS = 10**10  # of a step


class SettingFacts(BaseModel):
    """The facts of a setting in run.json whose types are checked.

    against: the settings that it is compared with, by reference."""

    model_config = ConfigDict(strict=True)
    against: dict[str, str] | None = None


class WorseText(BaseModel):
    """A text on which a model is worse than the full one, and what that one and this one make of it: their quality there,
    or, of embeddings, the nearest other text. begin, full, own: the first half of the text, and how the full model and
    this one continue it; empty of models that continue none."""

    model_config = ConfigDict(strict=True)
    number: int
    text: str
    before: float | str
    after: float | str
    begin: str = ""
    full: str = ""
    own: str = ""


class Facts(BaseModel):
    """The facts in run.json whose types are checked."""

    model_config = ConfigDict(strict=True)
    seconds: dict[str, Annotated[float, Field(ge=0, le=MOST_SECONDS)] | None] | None = None
    attention: dict[str, list[str]] = {}
    settings: dict[str, SettingFacts] | None = None
    failed: dict[str, Any] | None = None
    worse: dict[str, dict[str, list[WorseText]]] | None = None
    shared: list[str] | None = None


@dataclass(frozen=True)
class RolesFolder:
    """The folder roles/: scores of all roles, roles found, labels of heads, facts, examples,
    controls, and what roles do with their head off. False where no head was tested."""

    table: pd.DataFrame
    roles: pd.DataFrame
    labels: pd.DataFrame
    facts: Mapping[str, Any]
    examples: Sequence[Mapping[str, Any]]
    controls: pd.DataFrame
    causal: pd.DataFrame

    def __bool__(self) -> bool:
        return not self.labels.empty


@dataclass(frozen=True)
class Rescored:
    """A pruned model's own scores and roles. Its heads have the numbers of the full model."""

    heads: pd.DataFrame
    roles: RolesFolder


@dataclass(frozen=True)
class RunContents:
    """All files of a run that the report shows. model_table: as models.py has it. scored: how `heads` were made, a
    signature of each folder they are from."""

    page: ClassVar[str] = "run"
    folder: Path
    facts: Mapping[str, Any]
    model_table: pd.DataFrame
    plan: str | None
    training: pd.DataFrame
    heads: pd.DataFrame
    faithfulness: pd.DataFrame
    curves: pd.DataFrame
    lrp: pd.DataFrame
    untrained: pd.DataFrame
    interactions: pd.DataFrame
    words: pd.DataFrame
    roles: RolesFolder
    layouts: Mapping[str, HeadMask]
    gates: Mapping[str, pd.DataFrame]
    translations: Mapping[str, list[str]]
    dev_translations: Mapping[str, list[str]]
    rescored: Mapping[str, Rescored]
    scored: Sequence[Mapping[str, Any]] = ()

    @property
    def name(self) -> str:
        """What its folder is called."""
        return self.folder.resolve().name

    @cached_property
    def full(self) -> ModelRow | None:
        """The model before pruning."""
        return models.unpruned_model(self.model_table)

    @cached_property
    def pruned(self) -> list[dict[str, Any]]:
        """Every pruned model, from many heads to few."""
        return models.model_rows(models.pruned(self.model_table))

    @cached_property
    def candidates(self) -> list[dict[str, Any]]:
        """The pruned models that could be chosen; not random orders, nor others that serve only for comparison."""
        return [model for model in self.pruned if model["candidate"]]

    @cached_property
    def chosen(self) -> ModelRow | None:
        """The pruned model that was chosen; None when there is none, or the choice was not to prune."""
        return next((model for model in self.pruned if model["chosen"]), None)

    @cached_property
    def split(self) -> str:
        """The text that is reported: test, or dev."""
        return models.reported_split(self.model_table)

    @cached_property
    def quality(self) -> QualityMeasure:
        """What its models are compared by."""
        return models.quality(self.model_table)

    def quality_on(self, split: str) -> QualityMeasure:
        """What its models are compared by on one of its texts."""
        return models.quality_on(self.model_table, split)

    @cached_property
    def planned(self) -> dict[str, Any]:
        """What its plan says; nothing where it is none."""
        try:
            return tomllib.loads(self.plan or "")
        except tomllib.TOMLDecodeError:
            return {}

    @property
    def chosen_folder(self) -> Path | None:
        """Where the weights of the chosen model are, if they were kept."""
        chosen = self.chosen
        return None if chosen is None else below(self.folder / "pruned", chosen["setting"])

    @property
    def limit(self) -> float | None:
        """What the chosen model may lose on dev."""
        limit = self.facts.get("max_drop")
        return float(limit) if isinstance(limit, int | float) else None

    def quality_of(self, model: ModelRow | None, split: str = "", reference: str = "") -> Number:
        """The quality of a model, or its change from another one, on a text, by default the one that is reported."""
        split = split or self.split
        return models.measured(model, self.quality_on(split).name, split, reference)

    def worse_texts(self, model: ModelRow) -> list[WorseText]:
        """Some texts on which a model is worse than the full one, of those that are reported."""
        rows = self.facts["worse"].get(model["setting"], {}).get(self.split, [])
        return [WorseText(**row) for row in rows]

    def only_tried(self, model: ModelRow) -> bool:
        """Whether a model was measured on dev, and the reported text was not read for it."""
        on_dev = self.quality_of(model, "dev").value is not None
        return on_dev and self.quality_of(model).value is None

    def change_of(self, model: ModelRow | None, reference: str) -> Number:
        """The change of quality of a model from another one on the reported text."""
        return self.quality_of(model, "", reference)

    def leading_change(self, model: ModelRow) -> tuple[str, Number]:
        """The main comparison on the reported text: its reference and the change."""
        numbers: ModelNumbers = model["numbers"]
        return numbers.leading_change(self.quality.name, self.split)

    def lost(self, model: ModelRow, split: str = "dev") -> float | None:
        """What a model loses on a text, in the unit of the limit: BLEU, or % of perplexity. None if that text
        has another measure than dev: the limit is in the unit of dev."""
        if self.quality_on(split) != self.quality_on("dev"):
            return None
        before = self.quality_of(self.full, split).value
        after = self.quality_of(model, split).value
        if before is None or after is None:
            return None
        return -self.quality.better * self.quality.change(before, after)

    def doubts_of(self, model: ModelRow) -> list[str]:
        """What speaks against a pruned model, or the control that it is compared with."""
        settings = (model["setting"], models.against(model, FINE_TUNED))
        own = [doubt for name in settings for doubt in self.facts["doubts"].get(name, [])]
        if not own and models.measured(model, "settled").value == 0:
            own = ["Its gates had not settled when they were decided: train longer."]
        if self.random_heads_do_better(model):
            own.append(
                f"As many random heads do better, by {self.quality.title}: the order says too little here."
            )
        return own

    def random_heads_do_better(self, model: ModelRow) -> bool:
        """Whether a model is surely worse than one that lost as many heads in a random order."""
        orders = [name for name in models.orders_against(model) if models.names_random(name)]
        return any(self.change_of(model, name).finding(self.quality) == WORSE for name in orders)

    def verdict_of(self, model: ModelRow) -> Verdict:
        """What one of its models is worth on the reported text."""
        return verdict_on(
            None if self.full is None else self.full["numbers"],
            model["numbers"],
            quality=self.quality,
            quality_on_dev=self.quality_on("dev"),
            split=self.split,
            limit=self.limit,
            counts=self.facts["sentences"],
            doubts=self.doubts_of(model),
        )

    def heads_left(self, model: ModelRow) -> int:
        """The heads that the whole model has left, which is what choices compare; without a layout, of its own kinds."""
        mask = self.layouts.get(model["setting"])
        return int(model["kept"]) if mask is None else len(mask)

    def attention(self, kind: str) -> list[str]:
        """By layer `full` or `sliding 512`, of a model that has both; else empty."""
        names: list[str] = self.facts.get("attention", {}).get(kind, [])
        return names

    def pruned_kinds(self, model: ModelRow) -> list[Kind]:
        """The kinds of heads that a model with a layout could lose."""
        all_kinds = self.layouts[model["setting"]].heads.kinds
        return [kind for kind in all_kinds if kind in model["kinds"]] or list(all_kinds)


def refuse_grid(folder: Path) -> None:
    """Raise HeadwiseError for the folder of several studies, which lie in it."""
    if (folder / "grid.json").is_file():
        inner = [*sorted(folder.glob("**/run.json")), folder / "seed-1" / "run.json"]
        raise HeadwiseError(
            f"{folder} holds several studies: name one of them, such as {inner[0].parent}."
        )


def read_run(folder: Path) -> RunContents:
    """Read a run folder. Raises HeadwiseError when it is none, or when one of its files is not what it should be."""
    refuse_grid(folder)
    if not (folder / "run.json").is_file():
        found = "a folder without run.json" if folder.is_dir() else "no folder"
        raise HeadwiseError(
            f"{folder} is {found}, but this needs the --out folder of a finished study: give that."
        )
    refuse_damaged(folder)
    facts, model_table = read_models(folder)
    names = list(model_table.index[model_table["method"] != "none"])
    layouts = {}
    gates = {}
    rescored = {}
    for name in names:
        # The name comes from a table: `below` refuses one that leads out of the folder.
        layout = below(folder / "layouts", f"{name}.json")
        if layout.is_file():
            layouts[name] = HeadMask.read(layout)

        log = table_or_empty(below(folder, GATES.file.replace("*", name)), GATES)
        if len(log):
            gates[name] = log

        rescored_folder = below(folder / "rescored", name)
        if rescored_folder.is_dir():
            heads = table_or_empty(rescored_folder / SCORES.file, SCORES)
            rescored[name] = Rescored(heads, _read_roles(rescored_folder / "roles"))

    tables = {}
    for name, table in FILES.items():
        tables[name] = table_or_empty(below(folder, table.file), table)
    run = RunContents(
        folder=folder,
        facts=facts,
        model_table=model_table,
        plan=_read_text(folder / "plan.toml"),
        roles=_read_roles(folder / "roles"),
        layouts=layouts,
        gates=gates,
        translations=_translations(folder / "translations" / "test", names),
        dev_translations=_translations(folder / "translations" / "dev", names),
        rescored=rescored,
        scored=signature_in(folder),
        **tables,
    )
    refuse_absent_heads(run)
    return run


def signature_in(folder: Path) -> list[Mapping[str, Any]]:
    """How the scores of heads in a folder were made; empty where it has none."""
    place = below(folder, SCORES.signature_file)
    return [read_json(place, dict)] if place.is_file() else []


def read_folders(folders: Sequence[Path]) -> RunContents:
    """What folders of one model hold together: runs, scores, roles. A measure, and roles, come from one of them alone.

    Raises HeadwiseError for a folder that holds none of these, for folders of different heads, for two runs with pruned
    models, and where two folders have the same measure, or both roles.
    """
    if not folders:
        raise HeadwiseError(
            "No folder was named: give those that score, roles, prune or a study wrote."
        )
    parts = [read_part(folder) for folder in folders]
    whole, *others = sorted(parts, key=lambda part: part.model_table.empty)
    for other in others:
        whole = joined(whole, other)
    return whole


def read_part(folder: Path) -> RunContents:
    """A run, or scores or roles alone, as a run that has nothing else."""
    tables = {name: table.of() for name, table in FILES.items()}
    roles = RolesFolder(
        **{name: table.of() for name, table in (ROLE_FILES | OPTIONAL_ROLE_FILES).items()},
        facts={},
        examples=[],
    )
    facts: dict[str, Any] = {name: {} for name in BY_NAME}
    scored: Sequence[Mapping[str, Any]] = ()
    if (folder / "run.json").is_file() or (folder / "grid.json").is_file():
        return read_run(folder)
    if (below(folder, SCORES.signature_file)).is_file():
        for name, table in FILES.items():
            if name not in ("training", "words"):
                tables[name] = table_or_empty(below(folder, table.file), table)
        (signature,) = scored = signature_in(folder)
    elif (folder / "facts.json").is_file():
        roles = _read_roles(folder)
        signature = dict(roles.facts).get("signature", {})
    else:
        found = "a folder without a study, scores or roles" if folder.is_dir() else "no folder"
        raise HeadwiseError(
            f"{folder} is {found}: give the --out folder of headwise score, roles, story, prune or run."
        )
    facts |= {"signature": signature, "versions": signature.get("versions") or {}}
    facts["model"] = signature.get("model")
    return RunContents(
        folder=folder,
        facts=facts,
        model_table=models.table_of_models(MODELS.of(), facts),
        plan=None,
        roles=roles,
        layouts={},
        gates={},
        translations={},
        dev_translations={},
        rescored={},
        scored=scored,
        **tables,
    )


def joined(run: RunContents, other: RunContents) -> RunContents:
    """A run with what another folder of the same model has. Raises HeadwiseError where both have the same."""
    if not other.model_table.empty:
        raise HeadwiseError(
            f"{run.folder} and {other.folder} both have pruned models: give one of them, or both alone to compare them."
        )
    counted = [heads_of(part) for part in (run, other)]
    for kind in counted[0].keys() & counted[1].keys():
        before, after = (count[kind] for count in counted)
        if before != after:
            raise HeadwiseError(
                f"{run.folder} and {other.folder} are of different models: {sum(before)} and {sum(after)} {kind} heads."
            )
    one, two = model_of(run), model_of(other)
    same = {one, *(str(run.folder), run.folder.name), ""}
    if one and two not in same and one not in (str(other.folder), other.folder.name):
        raise HeadwiseError(
            f"{run.folder} and {other.folder} are of different models, {one} and {two}: give folders of one model."
        )
    twice = sorted({*run.heads["measure"]} & {*other.heads["measure"]})
    if twice:
        raise HeadwiseError(
            f"{run.folder} and {other.folder} both have {', '.join(twice)} of the heads: give one of them."
        )
    if run.roles and other.roles:
        raise HeadwiseError(f"{run.folder} and {other.folder} both have roles: give one of them.")
    changes: dict[str, Any] = {"scored": [*run.scored, *other.scored]}
    for name in ("heads", "lrp", "untrained", "curves"):
        both = [table for table in (getattr(run, name), getattr(other, name)) if len(table)]
        changes[name] = pd.concat(both, ignore_index=True) if both else getattr(run, name)
    for name in ("faithfulness", "interactions", "words"):
        if getattr(run, name).empty:
            changes[name] = getattr(other, name)
    if other.roles:
        changes["roles"] = other.roles
    return replace(run, **changes)


def model_of(run: RunContents) -> str:
    """The model that a run, scores or roles are of, as its user named it; empty where it is not known."""
    named = run.planned.get("model", run.facts.get("model"))
    return named.rstrip("/") if isinstance(named, str) else ""


def heads_of(run: RunContents) -> Mapping[str, Sequence[int]]:
    """Of each kind that is known, the number of heads in each layer of the whole model."""
    for mask in run.layouts.values():
        return {str(kind): counts for kind, counts in mask.heads.query.items()}
    signature = run.facts.get("signature") or {}
    heads = signature.get("heads")
    if isinstance(heads, dict) and isinstance(heads.get("query"), dict):
        return {kind: tuple(counts) for kind, counts in heads["query"].items()}
    return {}


def refuse_absent_heads(run: RunContents) -> None:
    """Raise HeadwiseError where a table names a head that the models of the run, by their layouts, do not have."""
    if not run.layouts:
        return
    heads = {tuple(head) for mask in run.layouts.values() for head in mask.heads}
    kinds = {kind for kind, _, _ in heads}
    found = run.roles
    of_roles = [found.table, found.roles, found.labels, found.causal]
    for table in (run.heads, run.untrained, run.words, *run.gates.values(), *of_roles):
        named = {*table[HEAD_COLUMNS].itertuples(index=False, name=None)}
        # The heads of a kind that no layout has are not known.
        absent = sorted(head for head in named - heads if head[0] in kinds)
        if absent:
            raise HeadwiseError(
                f"A table in {run.folder} names the head {'/'.join(map(str, absent[0]))}, which the models of the run do "
                "not have: the table is another run's."
            )


def read_models(folder: Path) -> tuple[Mapping[str, Any], pd.DataFrame]:
    """run.json, and the models of pruning.csv; none without that file."""
    facts: dict[str, Any] = read_json(folder / "run.json", dict)
    validated(Facts, {**facts}, f"{folder}/run.json is damaged, run the study again")
    for name in BY_NAME:
        facts[name] = facts.get(name) or {}
    table = table_or_empty(below(folder, MODELS.file), MODELS)
    for setting in table["setting"].unique():
        checked_name(setting, folder / "pruning.csv")
    if facts.get("chosen") is not None:
        checked_name(facts["chosen"], folder / "run.json")
    return facts, models.table_of_models(table, facts)


def _read_roles(folder: Path) -> RolesFolder:
    """The files of a folder roles/, which must all be there where the folder is."""
    needed = [*(table.file for table in ROLE_FILES.values()), "facts.json", "examples.json"]
    missing = [name for name in needed if not below(folder, name).is_file()]
    if missing and folder.is_dir():
        raise HeadwiseError(f"{folder} has no {', '.join(missing)}: run the roles again.")
    found = {}
    for name, table in (ROLE_FILES | OPTIONAL_ROLE_FILES).items():
        found[name] = table_or_empty(below(folder, table.file), table)
    refuse_other_behaviours(below(folder, CAUSAL.file), found["causal"])
    return RolesFolder(
        **found,
        facts={} if missing else read_json(folder / "facts.json", dict),
        examples=[] if missing else read_json(folder / "examples.json", list),
    )


def refuse_other_behaviours(path: Path, causal: pd.DataFrame) -> None:
    """Raise HeadwiseError for a table of something that this version does not test."""
    other = causal.loc[~causal["behaviour"].isin(list(NAMED)), "behaviour"]
    if len(other):
        raise HeadwiseError(
            f"{path} should be about {', '.join(NAMED)}, but has {str(other.iloc[0])[:60]!r}: run the roles again."
        )


def table_or_empty(path: Path, table: Table) -> pd.DataFrame:
    """A table as a report shows it; without rows where there is no such file."""
    # A chart cannot show a loss that is no number.
    return table.read_or_empty(path, MOST_ROWS).replace([math.inf, -math.inf], math.nan)


def _read_text(path: Path) -> str | None:
    """A text file, or None when there is no such file."""
    if not path.is_file():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise HeadwiseError(
            f"{path} cannot be read as text ({error}): run its step again."
        ) from None


def _translations(folder: Path, names: list[str]) -> dict[str, list[str]]:
    """The lines of every translation file that is there; all have as many."""
    lines = {}
    for name in ("source", "reference", "full", *names):
        text = _read_text(below(folder, f"{name}.txt"))
        if text is not None:
            # splitlines would also break a sentence at U+2028 or a form feed within it.
            lines[name] = text.removesuffix("\n").split("\n")

    counts = {name: len(rows) for name, rows in lines.items()}
    if len(set(counts.values())) > 1:
        found = ", ".join(f"{name}.txt {count}" for name, count in counts.items())
        raise HeadwiseError(
            f"The files in {folder} should have equally many lines, but have: {found}. Evaluate again."
        )
    return lines
