"""The plan of a study that makes smaller models of one model, by one method: of `headwise prune` and of `hw.prune`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwise.core.heads import Kind
from headwise.core.options import Train, validated
from headwise.study.plan import GreedySweep, Plan, make_plan

if TYPE_CHECKING:
    from headwise.models.tasks import Task


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
        "scoring": {"measures": [], "pruned": []},
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


def completed(plan: Plan, task: type[Task], kinds: Sequence[Kind] | None) -> Plan:
    """The plan with what its options left to the model: the score of greedy removal, and the kinds of heads that may go,
    None where the plan's are usual."""
    (sweep,) = plan.pruning
    changes: dict[str, Any] = {}
    if isinstance(sweep, GreedySweep) and "measure" not in sweep.model_fields_set:
        changes["measure"] = [task.usual_score]
    if kinds is not None and "kinds" not in sweep.model_fields_set:
        changes["kinds"] = [*kinds]
    return plan.model_copy(update={"pruning": [sweep.model_copy(update=changes)]})
