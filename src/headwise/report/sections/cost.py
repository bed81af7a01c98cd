"""What fewer heads cost: BLEU against heads kept, greedy removal, and tables of all models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headwise.heads import KINDS
from headwise.report import models
from headwise.report.models import DIFFERENCE, Model, P, value
from headwise.report.parts import Row, Section, Table
from headwise.report.run import Run
from headwise.report.sections.cost_charts import greedy_figures, quality_figures
from headwise.report.sections.opening import P_TUNED, TUNED
from headwise.report.words import NONE, percent, probability, quantity, size

SHORT = {"encoder-self": "enc", "decoder-self": "dec", "cross": "cross"}
TO_PRUNED, P_PRUNED = "bleu_difference_to_pruned", "p_value_to_pruned"


def build(run: Run) -> dict[str, Any] | None:
    """Curves and tables; the section is left out where nothing was pruned."""
    if run.models.empty:
        return None
    by_kind = run.models["keep"].map(lambda keep: isinstance(keep, Mapping)).any()
    return {
        "quality": quality_figures(run.models, run.facts),
        "greedy": greedy_figures(run.models),
        "compared": compared_tables(run),
        "scratched": bool(run.models["control"].eq("from-scratch").any()),
        "by_kind": bool(by_kind),
        "all_models": models_table(run),
        "text": "dev" if run.part else "test",
    }


def compared_tables(run: Run) -> list[Table]:
    """Table 2 of Voita et al. (2019) for every set of kinds that has several kinds, or models trained from scratch."""
    scratch = models.controls(run.models)
    by_reference = {m["reference"]: m for m in models.rows(scratch) if m["control"] == "from-scratch"}
    found = []
    for kinds in models.groups(run.models):
        pruned = models.rows(models.of_kinds(models.pruned(run.models), kinds))
        shown = [m for m in pruned if m["learned"] or m["setting"] in by_reference] or pruned
        compared = any(m["setting"] in by_reference for m in shown)
        if shown and (len(kinds) > 1 or compared):
            found.append(_compared(run, kinds, shown, by_reference if compared else {}))
    return found


def _compared(run: Run, kinds: tuple[str, ...], shown: list[dict[str, Any]], scratch: Mapping[Any, Model]) -> Table:
    """The full model, then each model: its heads kind by kind, its BLEU, and that of its layout from scratch."""
    named, part = [kind for kind in KINDS if kind in kinds], run.part
    columns = ["model", *(["/".join(SHORT[kind] for kind in named)] if len(named) > 1 else [])]
    columns += [f"heads of {shown[0]['total']}", "BLEU from trained" if scratch else "BLEU"]
    columns += ["from scratch", "difference"] if scratch else []
    columns += ["to equal further training", "to the full model"]
    rows = []
    for model in ([run.full] if run.full else []) + shown:
        mask = run.layouts.get(model["setting"])
        whole = next(iter(run.layouts.values()), None)
        counts = [mask.count(kind) for kind in named] if mask else []
        total = model["kept"]
        if model["method"] == "none":
            counts = [sum(whole.heads.query.get(kind, ())) for kind in named] if whole else []
            total = shown[0]["total"]
        cells = [model["label"], *(["/".join(map(str, counts)) or NONE] if len(named) > 1 else []), str(total)]
        cells.append(_number(value(model, f"{part}bleu")))
        other = scratch.get(model["setting"])
        cells += [_number(value(other, f"{part}bleu")), _moved(part, other, TO_PRUNED, P_PRUNED)] if scratch else []
        cells += [
            _moved(part, model, TUNED, P_TUNED),
            NONE if model["method"] == "none" else _moved(part, model, DIFFERENCE, P),
        ]
        rows.append(Row(cells, badge="chosen" if model["chosen"] else ""))
    what = "Trained and pruned, or trained from scratch" if scratch else "Heads left of each kind"
    return Table(f"{what}: {models.group_name(kinds)}", columns, rows).without_empty(NONE)


def _moved(part: str, model: Model | None, measure: str, p: str) -> str:
    return models.difference(model, part + measure, part + p) or NONE


def _number(found: float | None, write: Callable[[float], str] = "{:.2f}".format) -> str:
    return NONE if found is None else write(found)


def models_table(run: Run) -> Table:
    """Every model, without columns in which no model has a number. Without test text, BLEU is that of dev. The loss is
    shown where some models have no BLEU.
    """
    part, rows = run.part, []
    columns = [
        "model", "heads kept", "BLEU", "to equal further training", "to the full model", "p", "chrF", "dev BLEU",
        "dev perplexity", "its change in % [95 %]", "dev loss", "parameters", "size", "tokens/s",
    ]  # fmt: skip
    lossy = any(value(model, "dev_bleu") is None for model in models.rows(run.models))
    for model in models.ordered(run.models):
        is_full = model["method"] == "none"
        rows.append(
            Row(
                [
                    model["label"],
                    f"{model['kept']} ({percent(model['kept'] / model['total'])})",
                    _number(value(model, f"{part}bleu")),
                    _moved(part, model, TUNED, ""),
                    NONE if is_full else _moved(part, model, DIFFERENCE, ""),
                    _number(value(model, f"{part}{P}"), probability),
                    _number(value(model, f"{part}chrf")),
                    NONE if part else _number(value(model, "dev_bleu")),
                    _number(value(model, "dev_perplexity")),
                    NONE if is_full else _moved("", model, "dev_perplexity_change", ""),
                    _number(value(model, "dev_loss"), "{:.4f}".format) if lossy else NONE,
                    _number(value(model, "parameters"), quantity),
                    _number(value(model, "bytes"), size),
                    _number(value(model, "tokens_per_second"), quantity),
                ],
                badge="chosen" if model["chosen"] else "",
                code=model["setting"],
            )
        )
    columns = [f"dev {name}" if part and name in ("BLEU", "chrF") else name for name in columns]
    return Table("All models", columns, rows).without_empty(NONE)


SECTION = Section("cost", "BLEU", "What fewer heads cost", build)
