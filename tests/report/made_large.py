"""The made-up study for a model of 144 heads of three kinds, with 40 examples of attention."""

from __future__ import annotations

import json
import random
from pathlib import Path

from headwise.heads import KINDS, Head, HeadMap, HeadMask
from report.conftest import KEPT, gate_log, make_run, scores
from report.made_roles import write_roles

LARGE = HeadMap({kind: (8,) * 6 for kind in KINDS})
EXAMPLES = 40


def make_large(folder: Path) -> Path:
    """A whole run folder, in which all kinds were pruned together."""
    make_run(folder)
    draw = random.Random(1)
    scores(draw, LARGE).to_csv(folder / "heads.csv", index=False)
    write_roles(folder / "roles", LARGE)
    file = folder / "roles" / "examples.json"
    examples = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(examples * (EXAMPLES // len(examples))), encoding="utf-8")
    for setting, kept in KEPT.items():
        kept = kept * 2
        left = {head for head in LARGE if head.head in kept[head.layer]}
        HeadMask(LARGE, frozenset[Head](left)).save(folder / "layouts" / f"{setting}.json")
        gate_log(folder / "gates" / f"{setting}.csv", kept, draw, LARGE)
    table, facts = folder / "pruning.csv", folder / "run.json"
    table.write_text(
        table.read_text(encoding="utf-8").replace(",encoder-self,", f",{'+'.join(KINDS)},"),
        encoding="utf-8",
    )
    facts.write_text(
        facts.read_text(encoding="utf-8").replace(
            '"encoder-self"', ", ".join(f'"{k}"' for k in KINDS)
        ),
        encoding="utf-8",
    )
    return folder
