"""The roles of all heads of a model: every test on annotated text, and the roles that they find."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headwise.attention import Discovery
from headwise.data.annotated import Annotated
from headwise.data.subwords import Coverage
from headwise.errors import HeadwiseError
from headwise.heads import COLUMNS, HeadMap
from headwise.roles.alignment import Gold
from headwise.roles.answers import together
from headwise.roles.label import ENOUGH, absent, find, labels, patterns
from headwise.roles.passes import (
    ByHalf,
    Progress,
    Reading,
    Subject,
    on_pairs,
    on_probes,
    on_templates,
    on_treebank,
)

FOREIGN = 0.1  # above this share of unknown subwords the text may be in another language


@dataclass
class Roles:
    """The result.

    table: a row per head and measure, columns COLUMNS. roles: its rows that are roles, with `role`, `text`, the
    corrected `p`, and `effect`, Cohen's h of value and baseline. labels: one for every head of the tested kinds.
    patterns: roles by layer. absent: expected roles that no head has, with the reason. seldom: measures with too few
    tokens in the text. coverage: counts of used and unused sentences, by text. warnings: sentences for readers of the
    numbers. controls: see `roles.controls`; empty where none were asked for.
    """

    table: pd.DataFrame
    roles: pd.DataFrame
    labels: pd.DataFrame
    patterns: pd.DataFrame
    absent: list[str]
    seldom: list[str]
    coverage: dict[str, Coverage]
    warnings: list[str]
    controls: pd.DataFrame = field(default_factory=pd.DataFrame)

    def _repr_html_(self) -> str:
        """The roles that were found, the clearest first, and what no head does."""
        found = self.roles.assign(above=self.roles["value"] - self.roles["baseline"]).sort_values(
            "above"
        )[::-1]
        names = found["kind"] + "/" + found["layer"].astype(str) + "/" + found["head"].astype(str)
        shown = found[["role", "value", "low", "high", "baseline"]].set_axis(names.rename("head"))
        notes = "".join(f"<p>{html.escape(text)}</p>" for text in (*self.warnings, *self.absent))
        return f"{shown.to_html(float_format='{:.2f}'.format)}{notes}"


def roles(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    found: Discovery,
    treebank: Iterable[Annotated],
    *,
    confirm: Iterable[Annotated] | None = None,
    pairs: Iterable[tuple[str, str]] | None = None,
    frequencies: Mapping[int, int] | None = None,
    reading: Reading | None = None,
    seed: int = 0,
    progress: Progress = lambda sentences: None,
    links: Sequence[Gold] | None = None,
    intervals: bool = True,
) -> Roles:
    """All tests of roles on a treebank (which is iterated twice), and the roles that are confirmed on its second half.

    In an encoder-decoder the encoder is tested on the treebank, decoder and cross attention on sentence `pairs`, with
    reference `links` or those of eflomal. Language models are also tested on repeated random tokens and on texts made
    from templates. confirm: another treebank to confirm roles on, instead of half of the documents. frequencies: how
    often each token id occurs in the training text (`rare.frequencies`); without them no head is tested for rare
    tokens. reading: options of the tests. progress: called with the number of sentences of
    every batch. intervals: whether the table has them.
    """
    subject = Subject(model, tokenizer, found, reading or Reading())
    passes = [on_treebank(subject, treebank, confirm, frequencies, progress)]
    if pairs is not None:
        if not model.config.is_encoder_decoder:
            raise HeadwiseError(
                f"Sentence pairs were given, but a {type(model).__name__} does not translate."
            )
        passes.append(on_pairs(subject, list(pairs), progress, links))
    if subject.kind == "decoder-self":
        passes += [on_probes(subject, frequencies, seed), *on_templates(subject, seed)]
    result = conclude(found.heads, passes, seed if intervals else None, subject.coverage)
    result.warnings.extend(subject.refused)
    return result


def conclude(
    heads: HeadMap,
    passes: Sequence[ByHalf],
    seed: int | None,
    coverage: dict[str, Coverage],
) -> Roles:
    """The result, from the answers of every pass; with intervals where there is a seed to draw them by."""
    whole: list[pd.DataFrame] = []
    halves: tuple[list[pd.DataFrame], list[pd.DataFrame]] = ([], [])
    for answers in passes:
        for kind in dict.fromkeys(kind for kind, _ in answers):
            if not all((kind, half) in answers for half in (0, 1)):
                raise HeadwiseError(
                    "The text has no second half to confirm roles on (it is a single document): "
                    "give another text to confirm them."
                )
            both = [answers[kind, half] for half in (0, 1)]
            whole.append(together(both).table(seed))
            for half, of_half in zip(halves, both, strict=True):
                half.append(of_half.table())
    scores = pd.concat(whole, ignore_index=True)
    heads = heads.only(dict.fromkeys(scores["kind"]))
    often = (scores["n"] >= ENOUGH[0]) & (scores["units"] >= ENOUGH[1])
    found = find(scores[often], pd.concat(halves[0]), pd.concat(halves[1]))
    return Roles(
        scores.loc[often, list(COLUMNS)].reset_index(drop=True),
        found,
        labels(heads, found),
        patterns(heads, found),
        absent(scores, found),
        sorted(set(scores.loc[~often, "measure"])),
        coverage,
        warnings(coverage),
    )


def warnings(coverage: Mapping[str, Coverage]) -> list[str]:
    """Sentences on text that was left out or looks wrong."""
    found = []
    for name, text in coverage.items():
        if text.unknown_share > FOREIGN:
            found.append(
                f"{text.unknown_share:.0%} of the subwords of the {name} are unknown: another language?"
            )
        if text.too_long:
            found.append(
                f"{text.too_long} of {text.sentences} sentences of the {name} are too long and were left out."
            )
        if text.unalignable:
            found.append(
                f"{text.unalignable} of {text.sentences} sentences of the {name} lose words in the tokenizer."
            )
    return found
