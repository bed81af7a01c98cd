"""The plan of a study that makes smaller models of one model, by one method: of `headwise prune` and of `hw.prune`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwise.core.errors import HeadwiseError
from headwise.core.options import REPAIR, Pruning, Train, validated
from headwise.core.removal_units import removal_units
from headwise.study.plan import GreedySweep, Plan, make_plan

if TYPE_CHECKING:
    from headwise.models.model import Model

LONG = 1000  # sentences, from which on a text is not counted before work


def plan_of(
    model: str,
    method: str,
    tables: Mapping[str, dict[str, Any]],
    seed: int,
    *,
    settings: Sequence[str] = (),
    typed: Mapping[str, str] | None = None,
    in_memory: bool = False,
) -> Plan:
    """The plan that options stand for, which the model may complete (`completed`).

    tables: the options that were given, by the tables of a plan. settings, typed: as of `make_plan`. in_memory: whether
    texts are names of no files. Raises HeadwiseError for options that do not fit together.
    """
    sweep = {"method": method, **tables.get("pruning", {})}
    greedy = method == "greedy"
    usual = usual_controls(method, sweep.get("train")) if greedy else []
    if usual:
        sweep.setdefault("controls", usual)
    # How many models these options ask for: one a goal, and of an order one for each measure.
    goals = [sweep.get(name, []) for name in ("keep", "measure" if greedy else "penalty")]
    counts = [len(goal) if isinstance(goal, list) else 1 for goal in goals]
    # Greedy removal goes by one measure where none is given.
    one_model = counts in ([1, 0], [1, 1]) if greedy else sum(counts) == 1
    values = {
        "name": "prune",
        "seed": seed,
        "model": model,
        **tables,
        "pruning": sweep,
        # One model was asked for: then it is the choice, whatever it costs.
        "choice": tables.get("choice") or ({"max_drop": "any"} if one_model else {}),
        # `headwise score` does that; here it would only delay the pruned model.
        "scoring": tables.get("scoring") or {"measures": [], "pruned": []},
    }
    if in_memory:
        return validated(Plan, values, "prune", {})
    return make_plan(values, settings, "prune", typed)


def usual_controls(method: str, train: Train | None) -> list[str]:
    """What a trained model is compared with where nobody names anything else: all heads and as many random ones, both
    trained as long. Without the first, what pruning costs and what more training brings would be one number."""
    if method == "greedy" and train is None:
        return []
    # With distillation the whole model would learn from itself.
    return ["random"] if train == "distil" else ["fine-tuned", "random"]


def completed(plan: Plan, model: Model) -> tuple[Plan, str | None]:
    """The plan with what its options left to the model: the kinds of heads that may go, and how greedy removal chooses
    them; and a sentence where the model cannot be repaired, though nobody asked for less."""
    (sweep,) = plan.pruning
    changes: dict[str, Any] = {}
    note = None
    if "kinds" not in sweep.model_fields_set:
        changes["kinds"] = [*model.task.usual_kinds]
    if isinstance(sweep, GreedySweep) and "measure" not in sweep.model_fields_set:
        how, note = usual_choice(model, sweep.repair)
        changes |= how
        if how["repair"] and "compare" not in sweep.model_fields_set:
            # Each other order is one more repair.
            changes |= {"compare": ["random"], "orders": 1}
    sweep = sweep.model_copy(update=changes)
    if isinstance(sweep, GreedySweep) and sweep.train:
        sweep = sweep.with_train(sweep.train)  # the rate follows the start
    return plan.model_copy(update={"pruning": [sweep]}), note


def refuse_irremovable(model: Model, options: Pruning) -> None:
    """Raise HeadwiseError for heads that cannot be removed, before anything is scored: some are removed to see."""
    first = removal_units(model.heads.only(options.kinds or model.heads.kinds), options.unit)[0]
    with warnings.catch_warnings(action="ignore"):
        model.without(first, grow=True)


def too_short_for_repair(plan: Plan, model: Model) -> str:
    """Why the training text does not suffice to fit what is left; empty where it does."""
    from headwise.models.attention.stages import sublayers
    from headwise.models.evaluation.last_states import refuse_few_tokens
    from headwise.models.tasks import held_out
    from headwise.pruning.repair import TOKENS, inputs_of_text

    if plan.data.train is None:
        return ""  # the embedded corpus, of which a plan says how much
    text = model.task.unread(model.task.read(plan.data.train))
    if len(text) > LONG:
        return ""
    if plan.data.dev is None:
        text, _ = held_out(text, plan.data.held_out)
    try:
        refuse_few_tokens(
            model, sublayers(model.hf, model.discovery), inputs_of_text(model, text, TOKENS)
        )
    except HeadwiseError as error:
        return str(error)
    return ""


def usual_choice(model: Model, repair: bool | None) -> tuple[dict[str, Any], str | None]:
    """How heads are chosen where no measure is named, as options of greedy removal: by what repair cannot restore, and
    repaired. Where that cannot be, a sentence that says so."""
    from headwise.pruning.repair import refuse_unrepairable

    try:
        refuse_unrepairable(model)
    except HeadwiseError as error:
        if repair:
            raise
        usual = model.task.usual_score
        note = f"{error} Heads are chosen by {usual}, and nothing makes up for them."
        return {"measure": [usual], "repair": False}, note
    return {"measure": [REPAIR], "repair": True if repair is None else repair}, None
