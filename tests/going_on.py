"""What ends a worker of pytest-xdist ends one test: the others run, and none runs twice.

A hang in native code takes its worker with it (`faulthandler_exit_on_timeout`), as a crash does. pytest-xdist 3.8 then
gives the test that ended the worker to the next worker, and again, until it gives up; and a worker that gets a single
test waits for a second one for ever (its issues 1323, 1327, 1378).
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from accelerate.utils import memory

# They begin first, so that no worker is left alone with one of them at the end. Measured, the longest first.
LONGEST = (
    "study/test_study.py",
    "test_docs.py",
    "study/test_several_runs.py",
    "faces/lab/test_lab_browser.py",
    "test_cli.py",
    "faces/report/test_browser.py",
    "faces/report/test_page.py",
    "test_global_state.py",
    "pruning/test_prune.py",
    "pruning/test_language_gates.py",
    "faces/report/test_picking.py",
    "models/training/test_trainer.py",
    "faces/lab/test_notebook.py",
    "models/tasks/test_classifiers.py",
    "test_demo.py",
    "faces/hub/test_hub.py",
    "study/test_language_plans.py",
    "study/test_task_plans.py",
    "pruning/test_gate_training.py",
    "models/attention/test_reloaded.py",
    "test_cli_signals.py",
    "models/engines/test_ct2.py",
    "models/engines/test_check.py",
    "models/marian/test_graphs.py",
    "study/test_ray.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of the longest files come first."""
    tests = Path(__file__).parent
    places = {tests / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(LONGEST)))


# No search for garbage goes through the libraries' million objects, neither while they are imported nor later: training
# asks for one before each run, and a fourth of the suite's time went there.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    memory.clear_device_cache = lambda garbage_collection=False: None
    gc.set_threshold(10_000)  # a search every 700 objects, which is usual, takes 2 % of the time
    gc.enable()


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there is no such hook
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class GoingOn(LoadFileScheduling):
        def remove_node(self, node: Any) -> str | None:
            """Forget what the worker had finished, and the test that ended it, which is returned."""
            units = self.assigned_work[node]
            left = {
                unit: [test for test, done in tests.items() if not done]
                for unit, tests in units.items()
            }
            ended_it = next((tests.pop(0) for tests in left.values() if tests), None)
            self.assigned_work[node] = {
                unit: dict.fromkeys(tests, False) for unit, tests in left.items() if tests
            }
            super().remove_node(node)
            return ended_it

        def schedule(self) -> None:
            super().schedule()
            super().schedule()  # a second unit, or the word that there is none: only then the last test runs

    return GoingOn(config, log) if config.getvalue("dist") == "loadfile" else None
