"""Captions of figures in words, as a paper has them: what is drawn, of which model and text, how intervals were made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwise.core.qualities import QualityMeasure
from headwise.core.tables import ACROSS, MODELS, SCORES
from headwise.faces.report.charts import Figure
from headwise.faces.report.format import capital, count, listed
from headwise.faces.report.head_rows import heads_in, model_order
from headwise.faces.report.run_folder import RunContents, heads_of, model_of
from headwise.roles.label import DRAWS

FEW = 3  # texts and models that a caption of several runs names
ROLES = "roles/"  # what a figure is made from, beside the tables


def making(run: RunContents, files: Sequence[str]) -> str:
    """Of which model and text the numbers of some files are, and how their intervals were made, in sentences. files: as of
    a section."""
    sentences = [model_text(run)]
    if SCORES.file in files:
        sentences += [scores_text(run, signature) for signature in run.scored]
    if ROLES in files and run.roles:
        sentences.append(roles_text(run))
    # Of a figure that is made from other files, too, the table of models is not what it shows.
    if [*files] == [MODELS.file] and run.full is not None:
        sentences.append(quality_text(run))
    return " ".join(sentence for sentence in sentences if sentence)


def making_of_runs(runs: Sequence[RunContents], files: Sequence[str], seeds: bool) -> str:
    """`making` of several runs, whose figures show all of them: what they say alike is said once, and what more than a few
    say differently is left out. seeds: whether a table of means over seeds goes in."""
    models = [*dict.fromkeys(filter(None, map(model_text, runs)))]
    measured = []
    if MODELS.file in files:
        measured = [*dict.fromkeys(quality_text(run) for run in runs if run.full is not None)]
    said = [one for one in (models, measured) if len(one) <= FEW]
    if seeds and ACROSS.file in files:
        said.append(["Of several seeds: means, and intervals over seeds and sentences."])
    return " ".join(sentence for sentences in said for sentence in sentences)


def model_text(run: RunContents) -> str:
    """`Model: firefox/en-pt, 48 encoder-self heads.`; empty where the name is not known."""
    name = model_of(run)
    if not name:
        return ""
    # Of a folder its last name: the rest is where somebody keeps it.
    name = Path(name).name if Path(name).is_absolute() else name
    counts = {kind: sum(layers) for kind, layers in heads_of(run).items()}
    if not counts:
        heads = {*heads_in(run.heads), *heads_in(run.roles.labels)}
        counts = Counter(head.kind for head in sorted(heads, key=model_order))
    parts = [f"{number} {kind}" for kind, number in counts.items()]
    noun = "head" if sum(counts.values()) == 1 else "heads"
    return f"Model: {name}, {listed(parts)} {noun}." if parts else f"Model: {name}."


def scores_text(run: RunContents, signature: Mapping[str, Any]) -> str:
    """On how many sentences heads were scored."""
    read = signature.get("sentences")
    if not isinstance(read, int):
        return ""
    own = signature.get("text_name")
    named = f"of {own}" if isinstance(own, str) and own else text_name(run, "dev")
    said = " ".join(["Scores: means over", count(read, "sentence"), named]).rstrip()
    return f"{said}; 95 % intervals by bootstrap over sentences."


def roles_text(run: RunContents) -> str:
    """On which text functions were found, and what they had to show."""
    facts = run.roles.facts
    signature = facts.get("signature") or {}
    used = [text.get("used") for text in (facts.get("coverage") or {}).values()]
    treebank = signature.get("treebank")
    named = [treebank] if isinstance(treebank, str) and treebank else []
    counted = [count(used[0], "sentence")] if used and isinstance(used[0], int) else []
    where = f" on {' of '.join([*counted, *named])}" if counted or named else ""
    return (
        f"Functions: found{where} in one half, confirmed in the other, above their baselines (Benjamini-Hochberg at 5 %), "
        f"in most of {DRAWS} random halves."
    )


def quality_text(run: RunContents) -> str:
    """On how much text the models were measured, and how the intervals of their differences were made."""
    split = run.split
    number = run.facts["sentences"].get(split)
    text = text_name(run, split) or f"of {split}"
    texts = (
        f"{number} {run.quality.over} {text}" if number is not None else text.removeprefix("of ")
    )
    made = interval_of(run.quality)
    return f"{capital(run.quality.title)} on {texts}; 95 % intervals of differences by {made}."


def interval_of(quality: QualityMeasure) -> str:
    """How the interval and the p of a change of quality are made (`Answers.change`)."""
    if quality.is_share:
        return "the score interval and the exact test of paired shares"
    return "paired bootstrap"


def text_name(run: RunContents, split: str) -> str:
    """`of dev.txt`, the file of a text of a run as its plan names it, or `held out of train.txt`; empty where that is not
    known."""
    data = run.planned.get("data")
    if not isinstance(data, dict):
        return ""
    # Only dev text is held out of the training text.
    spec = data.get(split, data.get("train") if split == "dev" else None)
    names = [spec] if isinstance(spec, str) else spec
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return ""
    files = listed([Path(name).name for name in names])
    return f"of {files}" if split in data else f"held out of {files}"


def with_making(content: Any, made: str) -> Any:
    """The content of a section, whose figures say how they were made."""
    if isinstance(content, Figure):
        return replace(content, made=made)
    if isinstance(content, dict):
        return {name: with_making(part, made) for name, part in content.items()}
    if type(content) in (list, tuple):
        return type(content)(with_making(part, made) for part in content)
    return content
