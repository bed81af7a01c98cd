"""How a refusal is tested: one sentence with the words that tell a reader what was found and what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwise.core.errors import HeadwiseError


def refuses(call: Callable[[], object], words: str) -> str:
    """The call is refused in one line that ends as a sentence and has these words, in this order; "…" parts them."""
    with pytest.raises(HeadwiseError) as error:
        call()
    text = str(error.value)
    assert "\n" not in text and text.endswith("."), text
    place = 0
    for part in words.split(" … "):
        place = text.find(part, place)
        assert place >= 0, f"{part!r} is not in {text!r}"
        place += len(part)
    return text
