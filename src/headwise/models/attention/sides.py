"""The two sides of a batch: which a head's queries and keys are from, and what stands where."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from headwise.core.heads import Site


@dataclass(frozen=True)
class Side:
    """Positions of one side of a batch, each B N: words, the first token, ends of sentence, and the tokens
    that count as queries: each once in windows of a long document, the frames of a recording, no prompt."""

    words: Tensor
    first: Tensor
    end: Tensor
    counted: Tensor


def sides_of_site(site: Site) -> tuple[str, str]:
    """The sides of the batch of a site's queries and keys; the text of a language model is a target."""
    # a model of one stack has the same text on both sides
    if site.kind == "encoder-self":
        return "source", "source"
    return "target", "source" if site.kind == "cross" else "target"
