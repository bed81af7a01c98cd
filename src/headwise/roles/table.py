"""What every head of a model does: the tests of roles on annotated text, and the roles found in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headwise.attention import Discovery
from headwise.data.annotated import Annotated
from headwise.data.subwords import Coverage
from headwise.errors import HeadwiseError
from headwise.heads import COLUMNS, HeadMap
from headwise.roles.label import ENOUGH, Bar, absent, find, labels, patterns
from headwise.roles.ledger import together
from headwise.roles.passes import Ledgers, Progress, Reading, Subject, on_pairs, on_probes, on_treebank

FOREIGN = 0.1  # share of unknown pieces from which on a text is told to be in another language


@dataclass
class Roles:
    """What was found.

    table: a row a head and measure, columns COLUMNS. roles: its rows that are roles, with `role`, `text` and the
    corrected `p`. labels: one for every head of the kinds that were tested. patterns: which role in which layer.
    absent: expected roles that no head has, with the reason. seldom: measures that the text asks about too rarely.
    coverage: what became of the sentences, by text. warnings: what a reader of the numbers should know.
    """

    table: pd.DataFrame
    roles: pd.DataFrame
    labels: pd.DataFrame
    patterns: pd.DataFrame
    absent: list[str]
    seldom: list[str]
    coverage: dict[str, Coverage]
    warnings: list[str]


def roles(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, found: Discovery, treebank: Iterable[Annotated], *,
    confirm: Iterable[Annotated] | None = None, pairs: Iterable[tuple[str, str]] | None = None,
    frequencies: Mapping[int, int] | None = None, reading: Reading | None = None, bar: Bar | None = None,
    seed: int = 0, progress: Progress = lambda sentences: None,
) -> Roles:  # fmt: skip
    """Every test of roles on a treebank (which can be walked through twice), and the roles that hold on both halves.

    Of an encoder-decoder the encoder is run, on the treebank as its source; its decoder and cross attention are tested
    on sentence `pairs`, which takes eflomal. Language models are asked on repeated random tokens too. confirm: another
    treebank to confirm roles on, instead of half of the documents. frequencies: how often each token id occurs in the
    training text (`rare.frequencies`), without which no head is tested for rare tokens. reading: how text is read.
    bar: what makes a role. progress: called with the number of sentences of every batch.
    """
    bar = bar or Bar()
    subject = Subject(model, tokenizer, found, reading or Reading())
    passes = [on_treebank(subject, treebank, confirm, frequencies, progress)]
    if pairs is not None:
        if not model.config.is_encoder_decoder:
            raise HeadwiseError(f"Sentence pairs were given, but a {type(model).__name__} does not translate.")
        passes.append(on_pairs(subject, pairs, progress))
    if subject.kind == "decoder-self":
        passes.append(on_probes(subject, frequencies, seed))
    return conclude(found.heads, passes, bar, seed, subject.coverage)


def conclude(heads: HeadMap, passes: Sequence[Ledgers], bar: Bar, seed: int, coverage: dict[str, Coverage]) -> Roles:
    """Tables, roles and what is missing, from the ledgers of every pass."""
    whole: list[pd.DataFrame] = []
    halves: tuple[list[pd.DataFrame], list[pd.DataFrame]] = ([], [])
    for ledgers in passes:
        for kind in dict.fromkeys(kind for kind, _ in ledgers):
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
    heads = heads.only(dict.fromkeys(scores["kind"]))
    often = (scores["n"] >= ENOUGH[0]) & (scores["units"] >= ENOUGH[1])
    found = find(scores[often], pd.concat(halves[0]), pd.concat(halves[1]), bar)
    return Roles(
        scores.loc[often, list(COLUMNS)].reset_index(drop=True), found, labels(heads, found), patterns(heads, found),
        absent(scores, found, bar), sorted(set(scores.loc[~often, "measure"])), coverage, warnings(coverage),
    )  # fmt: skip


def warnings(coverage: Mapping[str, Coverage]) -> list[str]:
    """What was left out or looks wrong, in sentences."""
    told = []
    for name, text in coverage.items():
        if text.unknown_share > FOREIGN:
            told.append(f"{text.unknown_share:.0%} of the pieces of the {name} are unknown: is it in another language?")
        if text.too_long:
            told.append(f"{text.too_long} of {text.sentences} sentences of the {name} are too long and were left out.")
        if text.unalignable:
            told.append(f"{text.unalignable} of {text.sentences} sentences of the {name} lose words in the tokenizer.")
    return told
