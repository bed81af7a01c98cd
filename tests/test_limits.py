"""What hangs is named and ended: a test, whatever it hangs in, and the whole run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def test_a_test_that_hangs_is_named_and_ended_and_the_others_run() -> None:
    words = ["-m", "pytest", "-n", "1", "--dist", "loadfile", "--noconftest", "-p", "going_on"]
    limits = ["-o", "timeout=1", "-o", "faulthandler_timeout=2"]
    done = subprocess.run(
        [sys.executable, *words, *limits, "-v", "hanging.py"],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    said = done.stdout + done.stderr
    assert "3 failed, 2 passed in" in done.stdout.splitlines()[-1], said
    for name in ("test_between", "test_last"):
        assert re.search(rf"PASSED \S*hanging.py::{name} ", said), said
    assert "FAILED hanging.py::test_in_python - Failed: Timeout" in said, said
    _, *stacks = said.split("Timeout (0:00:02)!")
    names = ("test_in_native_code", "test_in_native_code_that_holds_the_interpreter")
    for name, stack in zip(names, stacks, strict=True):
        assert re.search(rf"crashed while running '\S*hanging.py::{name}'", said), said
        assert "in wait_for_ever\n" in stack and f"in {name}\n" in stack, said


@pytest.mark.skipif(sys.platform != "linux", reason="continuous integration runs on Linux")
def test_continuous_integration_ends_with_the_stacks_of_what_hangs(tmp_path: Path) -> None:
    """`make test` is a script here, whose child hears neither SIGTERM nor SIGINT, and would hold the output."""
    stuck = tmp_path / "stuck.py"
    stuck.write_text(
        "import faulthandler, os, signal, time\nfaulthandler.enable()\n"
        "for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
        "    signal.signal(each, signal.SIG_IGN)\n"
        "if os.fork():\n    signal.signal(signal.SIGABRT, signal.SIG_IGN)\n"
        "def hangs():\n    time.sleep(1000)\nhangs()\n"
    )
    made = f'#!/bin/sh\necho "$2 begins"\n[ "$2" = check ] || {sys.executable} {stuck} 2>&1\n'
    for name, script in {"make": made, "chromium": "#!/bin/sh\n"}.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    began = time.monotonic()
    done = subprocess.run(
        [TESTS.parent / ".ci" / "run"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "LIMIT": "2"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1 and time.monotonic() - began < 60
    assert (
        "in hangs\n" in done.stdout and "make --no-print-directory test did not end" in done.stdout
    )
