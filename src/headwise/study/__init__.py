"""The whole story on one's own data: a plan, stages with a cache, and the runner."""

from headwise.study.plan import Plan, make_plan, read_plan
from headwise.study.progress import Progress
from headwise.study.study import run_study

__all__ = ["Plan", "make_plan", "read_plan", "run_study", "Progress"]
