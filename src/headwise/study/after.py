"""After pruning: heads that are left, scored and tested for roles again. Functions may have moved to other heads."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from headwise.heads import HeadMask, Site, save_scores, score_table
from headwise.model import Model
from headwise.study import roles
from headwise.study.scoring import jobs, signed
from headwise.study.stage import MADE, Result
from headwise.study.stages import Study
from headwise.study.stream import Stream


def look_again(study: Study, setting: str) -> Result:
    """Scores and roles of a pruned model, in after/SETTING/; heads have the numbers of the whole model."""
    run, measures = study.run, study.plan.scoring.pruned
    place = f"after/{setting}"
    inputs: Result = {"model": study.made(setting), "measures": measures, "dev": study.dev_text.fingerprint}
    texts = roles.trees(study) if roles.wanted(study) else None
    if texts:
        inputs["roles"] = roles.facts_of(study, setting, *texts)

    def make(work: Path) -> Result:
        model, mask, folder = study.model(setting), study.mask(setting), work / MADE / place
        folder.mkdir(parents=True, exist_ok=True)
        if measures and len(mask):
            scored = scores(study, model, measures)
            scored.attrs["signature"]["heads"] = mask.heads.to_json()
            if run.main:
                save_scores(numbered(scored, mask), folder / "heads.csv")
        if run.main and texts and mask.count("encoder-self"):
            found = roles.found_by(study, model, *texts, study.plan.roles.pairs)
            told = roles.signature(model, *texts, study.plan.seed) | {"heads": mask.heads.to_json()}
            for name in ("table", "roles", "labels"):
                setattr(found, name, numbered(getattr(found, name), mask))
            roles.save_roles(found, [], told, folder / "roles")
        return {"heads": len(mask)}

    return run.stage(place, inputs, make, [place])


def scores(study: Study, model: Model, measures: list[str]) -> pd.DataFrame:
    """A table of scores on the dev text."""
    stream = Stream(model, study.dev_text, study.run.progress)
    rows = []
    for job in jobs(model, stream, measures, study.plan.seed):
        made = job.make()
        rows += [row for name, tally in made.tallies.items() for row in tally.gather().rows(name, study.plan.seed)]
        rows += made.rows
    return score_table(rows, signed(model, stream, measures, (row["measure"] for row in rows), study.plan.seed))


def numbered(table: pd.DataFrame, mask: HeadMask) -> pd.DataFrame:
    """The table with the heads of a pruned model under the numbers they had in the whole one."""
    out = table.copy()
    out["head"] = [
        mask.of(Site(kind, layer))[head]
        for kind, layer, head in zip(table["kind"], table["layer"], table["head"], strict=True)
    ]
    return out
