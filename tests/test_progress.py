"""Progress of parts as progress of the whole."""

from __future__ import annotations

from headwise.progress import part, silent


def test_parts_of_parts() -> None:
    seen: list[tuple[float, str]] = []
    second = part(lambda share, what: seen.append((share, what)), 0.5, 1.0)
    part(second, 0.0, 0.5)(0.5, "half of the third quarter")
    silent(1.0, "nothing")
    assert seen == [(0.625, "half of the third quarter")]
