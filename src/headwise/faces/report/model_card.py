"""The model card of a pruned model, as `headwise push` sends it: what the run says of the model, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import zip_longest
from pathlib import PurePath
from typing import Any

from headwise.core.layout import HeadMask
from headwise.data.text import DATASETS
from headwise.faces.report import kept_heads
from headwise.faces.report.models import ModelRow
from headwise.faces.report.run_folder import RunContents
from headwise.faces.report.summary import Fact, choice, cost, saved

FactRows = Sequence[tuple[str, str]]
OF_A_SETTING = (  # its facts that say how a model was made
    "method",
    "kinds",
    "unit",
    "penalty",
    "keep",
    "score",
    "train",
    "repair",
)


def kept_table(mask: HeadMask) -> str:
    """How many heads of every layer are left, a row a layer and a column a kind of attention."""
    kinds = mask.heads.kinds
    lines = [["layer", *kinds], ["---"] * (1 + len(kinds))]
    # An encoder and a decoder may have unequal numbers of layers.
    layers = zip_longest(*(kept_heads.by_layer(mask, kind) for kind in kinds))
    for layer, counts in enumerate(layers):
        cells = ["" if pair is None else f"{pair[0]} of {pair[1]}" for pair in counts]
        lines.append([str(layer), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def card_sections(run: RunContents, model: ModelRow) -> list[tuple[str, str]]:
    """Title and text of every section about a model of a run."""
    full = run.full
    groups = list[tuple[str, FactRows]]()
    if full is not None:
        groups.append(("What was saved", fact_rows(saved(full, model))))
        groups.append(("What it cost (95 % intervals)", fact_rows(cost(run, full, model))))
        if model["chosen"]:
            groups.append(("How it was chosen", fact_rows(choice(run, full, model))))
    groups.append(("How it was made", origin_rows(run, model)))
    found = [(title, card_table(rows)) for title, rows in groups if rows]
    doubted = run.facts["doubts"].get(model["setting"]) or []
    if doubted:
        found.append(("Doubts", "\n".join(f"- {escape(line, quote=False)}" for line in doubted)))
    return found


def fact_rows(facts: Sequence[Fact]) -> FactRows:
    return [(label, f"{text} ({verdict})" if verdict else text) for label, text, verdict in facts]


def origin_rows(run: RunContents, model: ModelRow) -> FactRows:
    """The original model, method, texts by name, seed, signature and versions."""
    settings = run.facts["settings"].get(model["setting"]) or {}
    signature: Mapping[str, Any] = run.facts["signature"]
    versions: Mapping[str, Any] = run.facts["versions"]
    original = run.planned.get("model")
    known: dict[str, Any] = {}
    if isinstance(original, str):
        known["original model"] = PurePath(original).name
    known |= {name: settings.get(name) for name in OF_A_SETTING}
    known |= {f"{split} text": name for split, name in text_names(run).items()}
    known |= {f"signature: {name}": fact for name, fact in signature.items()}
    known |= {
        f"{name} (sacreBLEU)": run.facts.get(f"{name}_signature") for name in ("bleu", "chrf")
    }
    known["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    return [(name, as_text(fact)) for name, fact in known.items() if fact not in (None, False, [])]


def as_text(known: Any) -> str:
    if isinstance(known, Mapping):
        return ", ".join(f"{name} {number}" for name, number in known.items())
    return ", ".join(map(str, known)) if isinstance(known, list | tuple) else str(known)


def text_names(run: RunContents) -> dict[str, str]:
    """The text of each split by name: files without their folders, which may be private."""
    data = run.planned.get("data") or {}
    found = dict[str, str]()
    for split in ("train", "dev", "test"):
        spec = data.get(split) or ("embedded corpus of headwise" if data.get("embedded") else None)
        files = [spec] if isinstance(spec, str) else spec or []
        if files:
            found[split] = ", ".join(
                name if name.startswith(DATASETS) else PurePath(name).name for name in files
            )
    return found


def card_table(rows: FactRows) -> str:
    """Two columns without a heading."""
    # Markdown has no table without a heading, so it is empty.
    lines = ["| | |", "|---|---|"]
    for row in rows:
        # A line break or a bar in a cell would end it, and names of files may look like HTML.
        label, text = (
            escape(" ".join(cell.split()), quote=False).replace("|", "\\|") for cell in row
        )
        lines.append(f"| {label} | {text} |")
    return "\n".join(lines)
