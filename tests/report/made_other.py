"""A second made-up study beside that of conftest: the same model, other scores, other heads kept, other roles."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pandas as pd

from headwise.heads import Head, HeadMask
from report.conftest import HEADS, make_run, scores

KEPT = [
    [0, 3, 5],
    [2, 5],
    [0, 1, 4, 7],
]  # of lambda-0.05: 7 of its 9 heads are those of the first study
GONE, GAINED = ("rare.two-rarest", 0, 6), ("syntactic.nsubj.to-governor", 1, 0)


def make_other(folder: Path) -> Path:
    """A whole run folder."""
    make_run(folder)
    plan = folder / "plan.toml"
    plan.write_text(
        plan.read_text().replace("max_drop = 1.0", "max_drop = 0.5")
        + '\n[extra]\nnote = "<b>only here</b>"\n'
    )
    scores(random.Random(7)).to_csv(folder / "heads.csv", index=False)
    mask = HeadMask(
        HEADS, frozenset(Head("encoder-self", i, h) for i, row in enumerate(KEPT) for h in row)
    )
    mask.save(folder / "layouts" / "lambda-0.05.json")
    roles = folder / "roles" / "roles.csv"
    table = pd.read_csv(roles)
    measure, layer, head = GONE
    gone = (table["measure"] == measure) & (table["layer"] == layer) & (table["head"] == head)
    assert gone.sum() == 1
    moved = table[table["measure"] == GAINED[0]].iloc[:1].assign(layer=GAINED[1], head=GAINED[2])
    pd.concat([table[~gone], moved]).to_csv(roles, index=False)
    return folder


def another_model(folder: Path) -> Path:
    """The run as that of a model that was trained apart."""
    path = folder / "run.json"
    facts = json.loads(path.read_text())
    facts["signature"] |= {"model": "another", "seed": 2}
    path.write_text(json.dumps(facts, indent=1))
    return folder
