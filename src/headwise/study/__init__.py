"""The whole story on one's own data: a plan, its tasks with a store, and the runner.

Each name loads its module on first use, so that a plan is read without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwise.study.plan import Plan, make_plan, read_plan
    from headwise.study.progress import Progress
    from headwise.study.study import run_study
else:
    HOME = {
        "plan": ("Plan", "make_plan", "read_plan"),
        "progress": ("Progress",),
        "study": ("run_study",),
    }

    def __getattr__(name):
        for module, names in HOME.items():
            if name in names:
                return getattr(import_module(f"headwise.study.{module}"), name)
        raise AttributeError(f"module 'headwise.study' has no attribute '{name}'")


__all__ = ["Plan", "make_plan", "read_plan", "run_study", "Progress"]
