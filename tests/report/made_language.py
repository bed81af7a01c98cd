"""The made-up study as that of a language model: heads of the decoder, perplexity instead of BLEU, no translations."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pandas as pd

from report.conftest import make_run


def make_language(folder: Path) -> Path:
    """A whole run folder, whose perplexity on test is that of the full model, and more for every BLEU point lost."""
    make_run(folder)
    shutil.rmtree(folder / "translations")
    for file in [*folder.rglob("*.csv"), *folder.rglob("*.json")]:
        file.write_text(
            file.read_text(encoding="utf-8").replace("encoder-self", "decoder-self"),
            encoding="utf-8",
        )
    place = folder / "pruning.csv"
    table = pd.read_csv(place)
    other = table[~table["measure"].str.contains("bleu|chrf|p_value|loss|tokens_per_second")]
    parts = [other]
    for start in ("", "dev_"):
        rows = table[table["measure"] == f"{start}bleu"]
        full = float(rows.loc[rows["setting"] == "full", "value"].item())
        change = 10 * (full - rows["value"])
        perplexity = 12 * (1 + change / 100)
        parts.append(rows.assign(measure=f"{start}perplexity", value=perplexity))
        parts.append(
            rows.assign(measure=f"{start}loss", value=[math.log(value) for value in perplexity])
        )
        moved = rows.assign(
            measure=f"{start}perplexity_change", value=change, low=change - 1, high=change + 1
        )
        parts.append(moved[moved["setting"] != "full"])
    pd.concat(parts).to_csv(place, index=False)
    facts = json.loads((folder / "run.json").read_text())
    del facts["bleu_signature"]
    (folder / "run.json").write_text(json.dumps({**facts, "max_drop": 10.0}, indent=1))
    return folder
