"""What ends a worker of pytest-xdist ends one test: the others run, and none runs twice.

A hang in native code takes its worker with it (`faulthandler_exit_on_timeout`), as a crash does. pytest-xdist 3.8 then
gives the test that ended the worker to the next worker, and again, until it gives up; and a worker that gets a single
test waits for a second one for ever (its issues 1323, 1327, 1378).
"""

from __future__ import annotations

from typing import Any

import pytest


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
