"""What every head of a model does: the tests of roles on annotated text, and the roles found in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headwise.attention import Discovery
from headwise.data.annotated import Annotated
from headwise.data.pieces import Coverage
from headwise.errors import HeadwiseError
from headwise.heads import COLUMNS, HeadMap, Kind
from headwise.roles.label import ENOUGH, Bar, absent, find, labels, patterns
from headwise.roles.ledger import Ledger, together
from headwise.roles.observe import Batch, Half, Tests, aligned_batches, half_of, observe
from headwise.roles.passage import Passage
from headwise.roles.positional import positional
from headwise.roles.syntactic import attachment, syntactic

MAX_LENGTH = 512  # pieces of a sentence, where the model sets no lower limit

Ledgers = dict[tuple[Kind, Half], Ledger]


@dataclass
class Roles:
    """What was found.

    table: a row a head and measure, columns COLUMNS. roles: its rows that are roles, with `role`, `text` and the
    corrected `p`. labels: one for every head of the kinds that were tested. patterns: which role in which layer.
    absent: expected roles that no head has, with the reason. seldom: measures that the text asks about too rarely.
    coverage: what became of the sentences.
    """

    table: pd.DataFrame
    roles: pd.DataFrame
    labels: pd.DataFrame
    patterns: pd.DataFrame
    absent: list[str]
    seldom: list[str]
    coverage: Coverage


def roles(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, found: Discovery, treebank: Iterable[Annotated], *,
    confirm: Iterable[Annotated] | None = None, max_length: int = MAX_LENGTH, first_piece: bool = False,
    edges: bool = False, bar: Bar | None = None, seed: int = 0,
    progress: Callable[[int], None] = lambda sentences: None,
) -> Roles:  # fmt: skip
    """Every test of roles on a treebank, in one pass, and the roles that its second half confirms.

    Of an encoder-decoder the encoder is run, on the treebank as its source. confirm: another treebank to confirm
    roles on, instead of half of the documents. max_length: longer sentences (in pieces) are left out and counted, and
    those the model has no positions for. first_piece: a word is its first piece. edges: see `positional`.
    """
    kind: Kind = "encoder-self" if "encoder-self" in found.heads.kinds else "decoder-self"
    coverage = Coverage()
    limit = min(max_length, longest(model, tokenizer))
    parts: list[tuple[Iterable[Annotated], Callable[[Annotated], Half]]] = [(treebank, half_of)]
    if confirm is not None:
        parts = [(treebank, lambda sentence: 0), (confirm, lambda sentence: 1)]

    def batches() -> Iterator[Batch]:
        for sentences, half in parts:
            for which, aligned in aligned_batches(sentences, tokenizer, limit, coverage, half):
                passage = Passage.of(
                    aligned, tokenizer.pad_token_id or 0, model.device, kind == "decoder-self", first_piece
                )
                yield Batch(which, inputs_of(passage), {kind: (passage,)})

    tests: Tests = {kind: [partial(positional, edges=edges), syntactic, attachment]}
    ledgers = observe(model, found, batches(), tests, progress)
    refuse_nothing(coverage, limit)
    return conclude(found.heads, [ledgers], bar or Bar(), seed, coverage)


def inputs_of(passage: Passage) -> dict[str, Tensor]:
    return {"input_ids": passage.ids, "attention_mask": passage.there.long()}


def longest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """The most tokens a text may have, as the model and its tokenizer tell."""
    positions = getattr(model.config, "max_position_embeddings", None) or MAX_LENGTH
    return min(int(positions), int(tokenizer.model_max_length))


def refuse_nothing(coverage: Coverage, limit: int) -> None:
    """A text of which no sentence is left is an error."""
    if not coverage.used:
        raise HeadwiseError(
            f"None of the {coverage.sentences} sentences can be used: {coverage.too_long} have more than "
            f"{limit} pieces, {coverage.unalignable} have words that the tokenizer drops. "
            "Give other text, or raise max_length."
        )


def conclude(heads: HeadMap, passes: Sequence[Ledgers], bar: Bar, seed: int, coverage: Coverage) -> Roles:
    """Tables, roles and what is missing, from the ledgers of every pass."""
    whole: list[pd.DataFrame] = []
    halves: tuple[list[pd.DataFrame], list[pd.DataFrame]] = ([], [])
    for ledgers in passes:
        for kind in {kind: None for kind, _ in ledgers}:
            if not all((kind, half) in ledgers for half in (0, 1)):
                raise HeadwiseError(
                    "The text has no second half to confirm roles on (all of it is one document): "
                    "give another text to confirm them."
                )
            both = [ledgers[kind, half] for half in (0, 1)]
            whole.append(together(both).table(seed))
            for half, ledger in zip(halves, both, strict=True):
                half.append(ledger.table())
    scores = pd.concat(whole, ignore_index=True)
    often = (scores["n"] >= ENOUGH[0]) & (scores["units"] >= ENOUGH[1])
    heads = heads.only(dict.fromkeys(scores["kind"]))
    found = find(scores[often], pd.concat(halves[0]), pd.concat(halves[1]), bar)
    return Roles(
        scores.loc[often, list(COLUMNS)].reset_index(drop=True), found, labels(heads, found), patterns(heads, found),
        absent(scores, found, bar), sorted(set(scores.loc[~often, "measure"])), coverage,
    )  # fmt: skip
