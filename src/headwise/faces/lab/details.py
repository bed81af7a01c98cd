"""The facts about heads in a run's folder: scores, roles, pruned models, and sentences to try."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from headwise.core.errors import HeadwiseError
from headwise.core.heads import head_of
from headwise.core.qualities import BLEU
from headwise.data.scripts import word_units
from headwise.data.treebank import Treebank
from headwise.faces.lab.sentence import FEWEST_PICKED_WORDS, MOST_PICKED_WORDS
from headwise.faces.report.every_head import effect_sentences
from headwise.faces.report.format import measure_name
from headwise.faces.report.gate_history import closing_steps
from headwise.faces.report.glossary import meaning_of_role
from headwise.faces.report.head_words import confirmed_words
from headwise.faces.report.models import measured
from headwise.faces.report.role_charts import confirmed_roles
from headwise.faces.report.run_folder import RunContents, read_run
from headwise.models.model_files import folder_of
from headwise.models.tasks import Task, held_out
from headwise.study.ownership import plan_of_folder, plan_of_study

RUN_EXAMPLES = 12  # sentences of the run's text
DEV_LINES = 1_000  # of the dev text, in which they are looked for


def run_of(spec: str) -> RunContents | None:
    """The finished study in a folder, or None for any other model."""
    folder = Path(spec)
    # A folder that is itself a model is opened as that, whatever lies beside it.
    if (folder / "run.json").is_file() and folder_of(folder) != folder:
        return read_run(folder)
    return None


def pruned_model(run: RunContents) -> Path | None:
    """The folder of the model that the run chose, where its weights were kept."""
    folder = run.chosen_folder
    return folder if folder and (folder / "config.json").is_file() else None


def given_model(run: RunContents) -> str | None:
    """The name of the model that was given to the run, or None where the run trained its own."""
    given = plan_of_folder(run.folder).get("model")
    return PurePath(given).name if isinstance(given, str) else None


def head_details(run: RunContents | None) -> dict[str, Any]:
    """The run's facts about heads, ready for JSON: `scores` by measure and head, `roles` by head,
    `pruned` models with the step of training from which each gate is shut.

    Each is empty where the run did not make it.
    """
    if run is None:
        return {"scores": [], "roles": {}, "pruned": []}
    return {
        "scores": scores_by_measure(run),
        "roles": roles_by_head(run),
        "pruned": pruned_models(run),
    }


def scores_by_measure(run: RunContents) -> list[dict[str, Any]]:
    """Every measure of heads.csv: its name, and for each head value, low and high."""
    measures: list[dict[str, Any]] = []
    for measure, rows in run.heads.groupby("measure", sort=False):
        heads = {}
        for row in rows.to_dict("records"):
            # A list, in the order value, low, high: the page holds one for every head and measure.
            heads[str(head_of(row))] = [*row_numbers(row).values()]
        name = measure_name(str(measure))
        measures.append({"measure": str(measure), "name": name, "heads": heads})
    return measures


def roles_by_head(run: RunContents) -> dict[str, list[dict[str, Any]]]:
    """The roles of each head: name, value, interval, number of words, and baseline; the `meaning`
    of its relation (None of a role without one); the `effect` of switching the head off, in words
    (None where that was not tested), and whether it is `confirmed`.

    Words that the model no longer says without a head come first, as roles of the head. Their value is the share of the
    sentences in which the word is lost, the baseline that of other words.
    """
    by_head: dict[str, list[dict[str, Any]]] = {}
    for row in confirmed_words(run.words).to_dict("records"):
        meaning = "lost without this head"
        if row["instead"]:
            meaning += f", most often for “{row['instead']}”"
        role = {
            "role": f"says “{row['word']}”",
            "measure": f"word.{row['word']}",
            **row_numbers(row, n="units", baseline="others"),
            "meaning": meaning,
            "effect": None,
            "confirmed": True,
        }
        by_head.setdefault(str(head_of(row)), []).append(role)

    sentences = effect_sentences(run.roles)
    confirmed = confirmed_roles(run.roles)
    for row in run.roles.roles.to_dict("records"):
        head = head_of(row)
        role = {
            "role": row["role"],
            "measure": row["measure"],
            **row_numbers(row, n="n", baseline="baseline"),
            "meaning": meaning_of_role(row["measure"]),
            "effect": sentences.get((head, row["measure"])),
            "confirmed": (*head, row["measure"]) in confirmed,
        }
        by_head.setdefault(str(head), []).append(role)
    return by_head


def pruned_models(run: RunContents) -> list[dict[str, Any]]:
    """The pruned models of the run, with the heads that each kept."""
    rows = {model["setting"]: model for model in run.pruned}
    closed = closing_steps(run)
    models = []
    for setting, mask in run.layouts.items():
        if setting not in rows:
            continue
        steps = {str(head): step for head, step in closed.get(setting, {}).items()}
        models.append(
            {
                "setting": setting,
                "label": str(rows[setting]["label"]),
                "chosen": bool(rows[setting]["chosen"]),
                "bleu": measured(rows[setting], BLEU.name, run.split).value,
                "kept": sorted(map(str, mask.kept)),
                "closed": steps,
            }
        )
    return models


def run_sentences(run: RunContents, task: type[Task]) -> list[str]:
    """A few short sentences of the run's dev text; of pairs the sources. task: the task of its models."""
    file = run.folder / "translations" / "dev" / "source.txt"
    lines = run.translations.get("source", [])
    if file.is_file():
        lines = file.read_text(encoding="utf-8").splitlines()
    if not lines:
        lines = dev_lines(run, task)
    picked = []
    for line in lines:
        if FEWEST_PICKED_WORDS <= len(word_units(line)) <= MOST_PICKED_WORDS:
            picked.append(line)
    return picked[:RUN_EXAMPLES]


def dev_lines(run: RunContents, task: type[Task]) -> list[str]:
    """The first lines of the dev text that the run's plan names, which only translations copy into
    the run's folder; none where that text is not there any more, or has changed."""
    data = plan_of_folder(run.folder).get("data", {})
    try:
        if "dev" in data:
            text = task.read(data["dev"])
        elif "train" in data:
            # The study had no dev text of its own: it held a part out, in this way.
            _, text = held_out(task.read(data["train"]), data.get("held_out"))
        else:
            return []
    except HeadwiseError:
        return []
    # Another text of the same name would show sentences that the run has not seen.
    if text.fingerprint != run.facts["signature"].get("dev"):
        return []
    return [row[0] for row in text.head(DEV_LINES).rows()]


def run_recordings(folder: Path) -> str:
    """The table of a run's recordings: of dev, or of train where the plan names no dev. Raises
    HeadwiseError where it is not there any more."""
    try:
        data = plan_of_study(folder).data
    except HeadwiseError as error:  # a plan names only files that are there
        reason = str(error).removesuffix(".")
        raise HeadwiseError(
            f"The recordings of this study cannot be read ({reason}): start where the study was run, "
            "or name a table with --audio FILE."
        ) from None
    return str(data.dev or data.train)


def run_treebank(folder: Path) -> Treebank | None:
    """The treebank of a run's plan, or that which the run wrote of the embedded corpus, where its
    files still exist."""
    names = plan_of_folder(folder).get("roles", {}).get("treebank", [])
    if isinstance(names, str):
        names = [names]
    files = [Path(name) for name in names] or [folder / "corpus" / "dev.conllu"]
    files = [file for file in files if file.is_file()]
    return Treebank.read(*files) if files else None


def row_numbers(row: Mapping[Any, Any], **columns: str) -> dict[str, float | None]:
    """The value of a row and its interval, and the numbers in other columns by the name they get; None for NaN, which
    JSON has not."""
    found: dict[str, float | None] = {}
    for name, column in {"value": "value", "low": "low", "high": "high", **columns}.items():
        number = row[column]
        found[name] = None if number is None or not math.isfinite(number) else float(number)
    return found
