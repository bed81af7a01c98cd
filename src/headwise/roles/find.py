"""What every head does: the tests of roles on a treebank, for a model, and their files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import pandas as pd

from headwise.data.text import ParallelText
from headwise.data.treebank import Treebank
from headwise.environment import environment_info
from headwise.heads import write_text
from headwise.importance.untrained import twin_seeds
from headwise.importance.untrained import untrained as untrained_twin
from headwise.model import Model
from headwise.roles.alignment import read_links
from headwise.roles.controls import CHANGES, SENTENCES, control_rows, on_changed_text, some
from headwise.roles.examples import examples
from headwise.roles.passes import Reading, Subject
from headwise.roles.rare import frequencies
from headwise.roles.role import UNTRAINED
from headwise.roles.table import Roles
from headwise.roles.table import roles as test_roles
from headwise.tasks import AnyText

TABLES = ("table", "roles", "labels", "patterns", "controls")
COUNTED = 1_000_000  # sentences of the training text that frequencies are counted on, at most


def roles(
    model: Model,
    treebank: Treebank,
    confirm: Treebank | None = None,
    pairs: ParallelText | None = None,
    training: AnyText | Mapping[int, int] | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    reading: Reading | None = None,
    links: str | PathLike[str] | None = None,
    untrained: int = 0,
) -> Roles:
    """What each head does: positional, syntactic, rare-token, coreference and alignment heads, and those of language
    models, each with a baseline and an interval; `.labels` has one line a head (docs/methods/roles.md).

    treebank: roles are found on one half of its documents and confirmed on the other, or on `confirm`. pairs: sentence
    pairs for cross attention. links: a file of their reference links (`0-0 1-2`, possible ones `1p3`); without it those
    of eflomal. training: the text the model was trained on (or how often each token id occurs in it), which rare-token
    heads are tested by. reading: how text is read, such as the longest sentence. progress: gets the number of sentences
    of every batch. untrained: how many untrained twins (`hw.untrained`) are tested as a control; then `.controls` also
    has the model on random words and on shuffled sentences (docs/methods/controls.md).
    """
    counts, forward = token_counts(model, training), progress or (lambda sentences: None)
    model.task.check_tokenizer()
    reading = reading or Reading(max_length=model.task.longest)
    gold = None if links is None else read_links(links)
    twins = twin_seeds(untrained, seed)
    found = test_roles(
        model.hf,
        model.tokenizer,
        model.found,
        treebank,
        confirm=confirm,
        pairs=pairs,
        frequencies=counts,
        reading=reading,
        seed=seed,
        progress=forward,
        links=gold,
    )
    if not twins:
        return found
    subject = Subject(model.hf, model.tokenizer, model.found, reading)
    parts = [on_changed_text(subject, treebank, confirm, counts, seed, forward)]
    few = [None if text is None else some(text, reading.context) for text in (treebank, confirm)]
    for own in twins:
        twin = untrained_twin(model, own)
        of_twin = test_roles(
            twin.hf,
            twin.tokenizer,
            twin.found,
            few[0] or (),
            confirm=few[1],
            pairs=pairs,
            frequencies=counts,
            reading=reading,
            seed=seed,
            progress=forward,
            links=gold,
            intervals=False,
        )
        parts.append(control_rows(f"{UNTRAINED}.{own}", of_twin))
    found.controls = pd.concat(parts, ignore_index=True)
    return found


def sentences_read(treebank: Treebank, confirm: Treebank | None, untrained: int) -> int:
    """How many sentences `progress` hears of, but for pairs."""
    texts = [len(text) for text in (treebank, confirm) if text is not None]
    again = (len(CHANGES) + untrained) if untrained else 0
    return sum(texts) + again * sum(min(size, SENTENCES) for size in texts)


def token_counts(
    model: Model, training: AnyText | Mapping[int, int] | None
) -> Mapping[int, int] | None:
    """How often each token id occurs in the source side of a text, or what is counted already."""
    if training is None or isinstance(training, Mapping):
        return training
    lines: Iterable[str] = (
        training.sources if isinstance(training, ParallelText) else training.lines
    )
    return frequencies(islice(lines, COUNTED), model.tokenizer)


def role_examples(
    model: Model, treebank: Treebank, found: Roles, counts: Mapping[int, int] | None
) -> list[dict[str, Any]]:
    """Example sentences for the best head of each category of roles."""
    reading = Reading(max_length=model.task.longest)
    return examples(
        model.hf,
        model.tokenizer,
        model.found,
        treebank,
        found.roles,
        frequencies=counts,
        reading=reading,
    )


def save_roles(
    found: Roles, shown: list[dict[str, Any]], signature: Mapping[str, Any], folder: Path
) -> None:
    """Write table.csv, roles.csv, labels.csv, patterns.csv, controls.csv (where there are any), examples.json and
    facts.json."""
    for name in TABLES:
        table: pd.DataFrame = getattr(found, name)
        (folder / f"{name}.csv").unlink(missing_ok=True)
        if name != "controls" or len(table):
            write_text(folder / f"{name}.csv", table.to_csv(index=False, float_format="%.6g"))
    coverage = {
        name: {**asdict(text), "unknown_share": text.unknown_share}
        for name, text in found.coverage.items()
    }
    facts = {
        "absent": found.absent,
        "seldom": found.seldom,
        "warnings": found.warnings,
        "coverage": coverage,
        "signature": dict(signature),
    }
    write_text(folder / "facts.json", json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    write_text(folder / "examples.json", json.dumps(shown, ensure_ascii=False) + "\n")


def roles_signature(
    model: Model, treebank: Treebank, confirm: Treebank | None, seed: int
) -> dict[str, Any]:
    """How roles were found."""
    return {
        "model": model.name,
        "heads": model.heads.to_json(),
        "treebank": treebank.name,
        "fingerprint": treebank.fingerprint,
        "confirmed_on": confirm.name if confirm else "the other half",
        "seed": seed,
        **environment_info(),
    }
