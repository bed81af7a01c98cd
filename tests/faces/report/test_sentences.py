"""The report still says what was read and committed in sentences.txt."""

from __future__ import annotations

import difflib

from faces.report.sentences import FILE, sentences


def test_the_report_says_what_was_read() -> None:
    before, now = FILE.read_text(encoding="utf-8"), sentences()
    changes = list(difflib.unified_diff(before.split("\n"), now.split("\n"), lineterm="", n=0))
    assert not changes, "\n".join(["Run `make sentences` and read the difference:", *changes])
