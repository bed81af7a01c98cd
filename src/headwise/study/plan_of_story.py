"""The plan of a story: one model, one text, and all that a study can say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headwise.core.errors import HeadwiseError, few_names
from headwise.core.options import SEED, keep_name
from headwise.study.plan import GreedySweep, Plan
from headwise.study.plan_of_prune import (
    completed,
    plan_of,
    refuse_irremovable,
    too_short_for_repair,
)

if TYPE_CHECKING:
    from headwise.models.model import Model

SIZES = ["75%", "50%", "25%"]  # the shares of heads that are kept where nobody names any
# The targets of one-sided text are searched for like this: else the whole model would not agree with itself.
SEARCH = {"beam": 1, "batch": 50}
HEARD = 100  # recordings that the heads of a speech model are tested on, at most
FEWEST_RECORDINGS = 20  # of them: fewer have no halves to speak of
MEASURED_APART = {
    "judge": False,
    "untrained": 0,
    "interactions": 0,
}  # what only a plan does unasked


def plan_of_story(
    model: str,
    tables: Mapping[str, dict[str, Any]],
    method: str = "greedy",
    seed: int = SEED,
    settings: Sequence[str] = (),
    typed: Mapping[str, str] | None = None,
) -> Plan:
    """The plan that a story's options stand for, which its model completes (`completed_story`).

    tables: the options that were given, by the tables of a plan. settings, typed: as of `make_plan`. Raises HeadwiseError
    for options that do not fit together.
    """
    pruning = {"keep": SIZES, **tables.get("pruning", {})}
    if "penalty" in pruning and "keep" not in tables.get("pruning", {}):
        del pruning["keep"]
    if method == "greedy" and "compare" not in pruning:
        # One size is one model; a curve says little without that of random heads.
        several = isinstance(pruning["keep"], list) and len(pruning["keep"]) > 1
        pruning |= {"compare": ["random"] if several else [], "orders": 1}
    filled: dict[str, Any] = {
        **tables,
        "name": "story",
        "scoring": {**MEASURED_APART, **tables.get("scoring", {})},
        "pruning": pruning,
        # The smallest model is the choice, whatever it costs: the story is about its cost.
        "choice": {"max_drop": "any", **tables.get("choice", {})},
        "search": {**SEARCH, **tables.get("search", {})},
    }
    return plan_of(model, method, filled, seed, settings=settings, typed=typed)


def completed_story(plan: Plan, model: Model) -> tuple[Plan, list[str]]:
    """The plan with what its options left to the model; and what will be read and done, in sentences."""
    (asked,) = plan.pruning
    if not model.task.measured:
        model.task.check_quality()  # it says what to do instead
    plan, note = completed(plan, model)
    data = plan.data
    if data.dev is None and data.held_out is None:
        # Heads are scored there, too: a tenth would be little.
        half = max(1, len(model.task.read(data.train)) // 2)
        plan = plan.model_copy(update={"data": data.model_copy(update={"held_out": half})})
    (sweep,) = plan.pruning
    unasked = "measure" not in asked.model_fields_set and "repair" not in asked.model_fields_set
    if isinstance(sweep, GreedySweep) and sweep.repair and unasked:
        short = too_short_for_repair(plan, model)
        if short:
            usual = model.task.usual_score
            note = f"{short} Heads are chosen by {usual}, and nothing makes up for them."
            sweep = sweep.model_copy(update={"measure": [usual], "repair": False})
            plan = plan.model_copy(update={"pruning": [sweep]})
    try:
        refuse_irremovable(model, sweep)
    except HeadwiseError as error:
        # What heads matter and do is a story, too.
        plan, note = plan.model_copy(update={"pruning": []}), f"{error} So none is."
    roles = plan.roles
    if "translations" in model.task.provides and "words" not in roles.model_fields_set:
        plan = plan.model_copy(update={"roles": roles.model_copy(update={"words": True})})
    asked_for = roles.treebank or "recordings" in roles.model_fields_set
    if model.task.reads_audio and not asked_for:
        data = plan.data
        heard = data.held_out if data.dev is None else len(model.task.read(data.dev))
        tested = min(HEARD, heard or 0) if (heard or 0) >= FEWEST_RECORDINGS else 0
        plan = plan.model_copy(update={"roles": roles.model_copy(update={"recordings": tested})})
    return plan, [*story_lines(plan, model), *([note] if note else [])]


def story_lines(plan: Plan, model: Model) -> list[str]:
    """What a story reads and does."""
    data = plan.data
    reads = [f"reads {named(data.train)}"]
    if data.held_out is not None:
        reads.append(f"measures on {data.held_out} of its {model.task.quality.over}")
    else:
        reads.append(f"measures on {named(data.dev)}")
    if data.test is not None:
        reads.append(f"and at the end on {named(data.test)}")
    does = [f"scores {model.heads.total} heads"]
    trees, heard = plan.roles.treebank, plan.roles.recordings
    if trees or heard:
        does.append(f"finds what they do on {named(trees) if trees else f'{heard} recordings'}")
    elif model.task.reads_audio:
        does.append(f"looks for no roles (dev has fewer than {FEWEST_RECORDINGS} recordings)")
    else:
        does.append("looks for no roles (--treebank names trees)")
    for sweep in plan.pruning:
        sizes = ", ".join(keep_name(keep) for keep in sweep.keep) or "several sizes"
        how = " and repairs what is left" if isinstance(sweep, GreedySweep) and sweep.repair else ""
        does.append(f"removes {few_names(sweep.kinds)} heads (keeps {sizes}){how}")
    return [f"The story of {model.name}: {', '.join(reads)}; {'; '.join(does)}."]


def named(files: Any) -> str:
    """Files as a user named them."""
    return " and ".join(map(str, files)) if isinstance(files, list) else str(files)
