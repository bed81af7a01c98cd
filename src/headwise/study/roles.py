"""What every head does: the tests of roles on a treebank, for a model or as a stage of a study, and their files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.data.embedded import fingerprint, write_treebank
from headwise.data.text import ParallelText, Text
from headwise.data.treebank import Treebank
from headwise.errors import HeadwiseError
from headwise.heads import write_text
from headwise.model import Model
from headwise.roles.examples import examples
from headwise.roles.passes import Reading
from headwise.roles.rare import frequencies
from headwise.roles.table import Roles
from headwise.roles.table import roles as find_roles
from headwise.study.stage import MADE, Result, surroundings
from headwise.study.stream import longest

if TYPE_CHECKING:
    from headwise.study.stages import Study

TABLES = ("table", "roles", "labels", "patterns")
COUNTED = 1_000_000  # sentences of the training text that frequencies are counted on, at most


def roles(
    model: Model, treebank: Treebank, confirm: Treebank | None = None, pairs: ParallelText | None = None,
    training: ParallelText | Text | Mapping[int, int] | None = None, seed: int = 0,
    progress: Callable[[int], None] = lambda sentences: None, **reading: Any,
) -> Roles:  # fmt: skip
    """What each head does: positional, syntactic, rare-token, coreference and alignment heads, and those of language
    models, each with a baseline and an interval; `.labels` has one line a head (docs/methods/roles.md).

    treebank: roles are found on one half of its documents and confirmed on the other, or on `confirm`. pairs: sentence
    pairs for cross attention (takes eflomal). training: the text the model was trained on (or how often each token id
    occurs in it), which rare-token heads are tested by. reading: options of `roles.passes.Reading` by name. progress:
    told the number of sentences of every batch.
    """
    if model.tokenizer is None:
        raise HeadwiseError(f"{model.name} has no tokenizer beside its weights: save one there.")
    return find_roles(
        model.hf, model.tokenizer, model.found, treebank, confirm=confirm, pairs=pairs,
        frequencies=counted(model, training), reading=Reading(**{"max_length": longest(model), **reading}),
        seed=seed, progress=progress,
    )  # fmt: skip


def counted(model: Model, training: ParallelText | Text | Mapping[int, int] | None) -> Mapping[int, int] | None:
    """How often each token id occurs in the source side of a text, or what is counted already."""
    if training is None or isinstance(training, Mapping):
        return training
    lines: Iterable[str] = training.sources if isinstance(training, ParallelText) else training.lines
    return frequencies(islice(lines, COUNTED), model.tokenizer)


def save_roles(found: Roles, shown: list[dict[str, Any]], signature: Mapping[str, Any], folder: Path) -> None:
    """Write what was found: table.csv, roles.csv, labels.csv, patterns.csv, examples.json and facts.json."""
    for name in TABLES:
        write_text(folder / f"{name}.csv", getattr(found, name).to_csv(index=False, float_format="%.6g"))
    coverage = {name: {**asdict(text), "unknown_share": text.unknown_share} for name, text in found.coverage.items()}
    facts = {
        "absent": found.absent, "seldom": found.seldom, "warnings": found.warnings, "coverage": coverage,
        "signature": dict(signature),
    }  # fmt: skip
    write_text(folder / "facts.json", json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    write_text(folder / "examples.json", json.dumps(shown, ensure_ascii=False) + "\n")


def shown(model: Model, treebank: Treebank, found: Roles, counts: Mapping[int, int] | None) -> list[dict[str, Any]]:
    """Example sentences for the best head of each sort of role."""
    return examples(
        model.hf, model.tokenizer, model.found, treebank, found.roles, frequencies=counts,
        reading=Reading(max_length=longest(model)),
    )  # fmt: skip


def signature(model: Model, treebank: Treebank, confirm: Treebank | None, seed: int) -> dict[str, Any]:
    """How roles were found."""
    return {
        "model": model.name, "heads": model.heads.to_json(), "treebank": treebank.name,
        "fingerprint": treebank.fingerprint, "confirmed_on": confirm.name if confirm else "the other half",
        "seed": seed, **surroundings(),
    }  # fmt: skip


def wanted(study: Study) -> bool:
    """Whether the plan names a treebank, or the embedded corpus brings one."""
    return bool(study.plan.roles.treebank) or study.plan.data.embedded is not None


def trees(study: Study) -> tuple[Treebank, Treebank | None]:
    """The treebank of a study, and the one to confirm roles on, if there is one."""
    plan = study.plan
    treebank = Treebank.read(*(plan.roles.treebank or [str(drawn(study))]))
    return treebank, Treebank.read(*plan.roles.confirm) if plan.roles.confirm else None


def facts_of(study: Study, setting: str, treebank: Treebank, confirm: Treebank | None) -> Result:
    """What roles are made from."""
    return {
        "model": study.made(setting), "roles": study.plan.roles.model_dump(), "dev": study.dev_text.fingerprint,
        "train": study.train_text.fingerprint, "treebank": treebank.fingerprint,
        "confirm": confirm.fingerprint if confirm else "the other half",
    }  # fmt: skip


def found_by(study: Study, model: Model, treebank: Treebank, confirm: Treebank | None, pairs: int) -> Roles:
    """The roles of a model of the study, cross attention tested on so many dev pairs."""
    done = 0

    def progress(sentences: int) -> None:
        nonlocal done
        done += sentences
        study.run.progress(min(1.0, done / (len(treebank) + len(confirm or ()))), "")

    some = study.dev_text.head(pairs) if pairs else None
    return roles(model, treebank, confirm, some, study.piece_counts, study.plan.seed, progress)


def stage(study: Study) -> Result:
    """Roles of the study's model, where the plan names a treebank or the corpus is the embedded one."""
    plan, run = study.plan, study.run
    if not wanted(study):
        return {}
    treebank, confirm = trees(study)

    def make(work: Path) -> Result:
        model = study.full
        found = found_by(study, model, treebank, confirm, plan.roles.pairs)
        if run.main:
            told = signature(model, treebank, confirm, plan.seed)
            save_roles(found, shown(model, treebank, found, study.piece_counts), told, work / MADE / "roles")
        for warning in found.warnings:
            run.progress.say(f"  {warning}")
        return {"roles": len(found.roles)}

    return run.stage("roles", facts_of(study, "full", treebank, confirm), make, ["roles"])


def drawn(study: Study) -> Path:
    """A treebank of the embedded corpus: its dev sentences with their trees."""
    embedded = study.plan.data.embedded
    count = embedded.dev if embedded else 0

    def make(work: Path) -> Result:
        if study.run.main:
            write_treebank(work / MADE / "corpus" / "dev.conllu", count)
        return {}

    study.run.stage("corpus/treebank", {"count": count, "corpus": fingerprint()}, make, ["corpus/dev.conllu"])
    return study.run.folder / "corpus" / "dev.conllu"
