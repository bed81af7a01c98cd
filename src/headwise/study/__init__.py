"""The whole story on one's own data: a plan, its steps, a store of what they made, and who does them.

Each name loads its module on first use, so that a plan is read without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwise.study.plan import Plan, make_plan, read_plan
    from headwise.study.plan_of_prune import completed, plan_of
    from headwise.study.study import run_study
else:
    HOMES = {
        "Plan": "plan",
        "make_plan": "plan",
        "read_plan": "plan",
        "completed": "plan_of_prune",
        "plan_of": "plan_of_prune",
        "run_study": "study",
    }

    def __getattr__(name):
        if name not in HOMES:
            raise AttributeError(f"module 'headwise.study' has no attribute '{name}'")
        return getattr(import_module(f"headwise.study.{HOMES[name]}"), name)


__all__ = ["Plan", "completed", "make_plan", "plan_of", "read_plan", "run_study"]
