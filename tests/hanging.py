"""Tests that hang on purpose; `test_limits.py` runs them, and nothing else collects them.

pytest -n 1 --dist loadfile tests/hanging.py -o timeout=5 -o faulthandler_timeout=10
"""

from __future__ import annotations

import ctypes
import threading


def wait_for_ever(library: ctypes.CDLL) -> None:
    """Lock a mutex twice: no signal ends the wait."""
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        library.pthread_mutex_lock(mutex)


def test_in_python():
    threading.Event().wait()


def test_in_native_code():
    wait_for_ever(ctypes.CDLL(None))


def test_between():
    pass


def test_in_native_code_that_holds_the_interpreter():
    wait_for_ever(ctypes.PyDLL(None))


def test_last():
    pass
