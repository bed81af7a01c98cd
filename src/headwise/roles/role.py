"""What there is to know of a role test: its name, what it needs, and from which score on a head has the role.

Our own are in `role_table.py`; a row there is all that a function needs to be run, named, labelled, drawn and
documented. This module needs no torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from headwise.core.declarations import Declaration, Declarations
from headwise.core.errors import HeadwiseError
from headwise.core.heads import Kind
from headwise.core.theme import distinct

if TYPE_CHECKING:
    from headwise.data.annotated import Annotated

UNLISTED = 1000  # the place of tests that others declare: behind our own
NO_ROLE = "no known role"
# Controls: an untrained model, the model on random words and on shuffled sentences.
UNTRAINED = "untrained"
RANDOM_WORDS = "random-words"
SHUFFLED = "shuffled"
GOVERNORS = {
    "nsubj": "verb",
    "obj": "verb",
    "iobj": "verb",
    "advmod": "verb",
    "amod": "noun",
    "det": "noun",
}


@dataclass(frozen=True, kw_only=True)
class RoleTest(Declaration):
    """One test of what heads do. Its measure has its name, or begins with it (`variants`).

    data: what the function gets, one or several of

    * `sentence`: an annotated sentence of the treebank. It yields pairs of words (query, key), numbered from 0: the
      query should attend most to the key, or to one of its keys.
    * `treebank`: a batch of sentences (`Passage`); `pairs`: both sides of a batch of sentence pairs; `repeats`: a batch
      of random tokens that are repeated; `speech`: a recording. It returns a `Probe`.
    * `texts`: a tokenizer. It returns texts of its own with their probe (`Generated`).

    kinds: the kinds of attention that it tests. takes: further arguments by name, such as `top` of `RoleOptions`; needs:
    those of them without which the test is left out (`counts`: of the training text; `readout`: the direct
    path from heads to logits).

    of_weights: whether the score is a mean of weights. Any other counts where the largest weight is, however small, so a
    head that gives words next to nothing does not have that role. may_rest: it may, because the test asks few of the
    words, such as dependents and mentions, and attention may rest elsewhere for all others.

    threshold: the score from which on a head has the role; margin: the same, above the baseline. A test with neither is
    scored only. excluded: variants that are scored only. weaker_than: another test; a head that has its role does not
    have this one as well. expected: by kind of heads (or "language model"), the measures
    that `Roles.absent` speaks of where no head has them; None: the test's own wherever it is run.

    causal: what must be predicted worse with the head off, of `roles.behaviour.BEHAVIOURS`; empty for a role that no
    prediction shows. causal_needed: whether a head without that effect does not have the role. path: of a logit difference,
    "direct" where the head itself must add to it, "indirect" where most must come through later heads.

    baseline: what a score is compared with, in words. untrained: what a head with random weights scores. display: the
    name for readers; short: the same in a cell of a chart. caption: what is measured, in one line. source: the paper.
    order: the place among roles in charts and lists; example: the place among example sentences, None where a sentence
    cannot show it.
    """

    data: tuple[str, ...] = ("sentence",)
    kinds: tuple[Kind, ...] = ("encoder-self", "decoder-self")
    takes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    threshold: float | None = None
    margin: float | None = None
    variants: str = ""  # "offset", "relation", or none
    excluded: tuple[str, ...] = ()
    weaker_than: str = ""
    of_weights: bool = False
    may_rest: bool = False
    expected: Mapping[str, tuple[str, ...]] | None = None
    baseline: str = "best fixed offset"
    untrained: str = "less than the baseline"
    display: str = ""
    short: str = ""
    caption: str = ""
    source: str = ""
    causal: str = ""
    causal_needed: bool = False
    path: Literal["", "direct", "indirect"] = ""
    order: int = UNLISTED
    example: int | None = UNLISTED

    @property
    def is_role(self) -> bool:
        """Whether heads can have it as a role; otherwise it is scored only."""
        return self.threshold is not None or self.margin is not None

    def asks(self, speech: bool) -> bool:
        """Whether it is made on a model that hears, or on one that reads."""
        return "speech" in self.data if speech else self.data != ("speech",)

    @property
    def rests_on_weight(self) -> bool:
        """Whether a head that gives words no weight on the text of the test cannot have the role. Texts of templates and
        repeated tokens ask a head to look up where it rests elsewhere."""
        looks_up = self.may_rest or {"texts", "repeats"} & set(self.data)
        return not self.of_weights and not looks_up

    @property
    def category(self) -> str:
        """The name for readers."""
        return self.display or self.name.replace("-", " ")

    def needed(self, baseline: float) -> float:
        """The score from which on a head has the role."""
        if self.margin is not None:
            return baseline + self.margin
        assert self.threshold is not None
        return self.threshold

    def expected_of(self, kind: str) -> tuple[str, ...]:
        """The measures that some head should have as a role. kind: of heads, or "language model"."""
        if self.expected is not None:
            return self.expected.get(kind, ())
        tested = "decoder-self" if kind == "language model" else kind
        return (self.name,) if tested in self.kinds else ()

    def right_words(self, sentence: Annotated) -> Iterator[tuple[int, int]]:
        """The pairs of words (query, key) that a test on sentences names.

        Raises HeadwiseError for a word that the sentence does not have.
        """
        for query, key in self.function(sentence):
            if not (0 <= query < len(sentence.words) and 0 <= key < len(sentence.words)):
                raise HeadwiseError(
                    f"The role '{self.name}' names the words {query} and {key} of a sentence of "
                    f"{len(sentence.words)} words: they are numbered from 0."
                )
            yield int(query), int(key)

    @property
    def fingerprint(self) -> str:
        """A hash of the declaration and, where it can be read, the source of its function."""
        facts = [repr(getattr(self, each.name)) for each in fields(self)]
        with contextlib.suppress(OSError, TypeError):  # of a function typed into an interpreter
            facts.append(inspect.getsource(self.function))
        return hashlib.sha256("\n".join(facts).encode()).hexdigest()


role = Declarations("role", RoleTest, "headwise.roles", "headwise.roles", "role_table")


def declared_for(measure: str) -> RoleTest | None:
    """The test that a measure belongs to."""
    entries = role.entries
    first = measure.partition(".")[0]
    if measure in entries:
        return entries[measure]
    if first in entries and entries[first].variants:
        return entries[first]
    return None


def role_of(measure: str) -> RoleTest | None:
    """The test by which heads with a high score of this measure have a role; None where there is none."""
    declared = declared_for(measure)
    if declared is None or not declared.is_role:
        return None
    variant = measure.split(".")[1:2]
    return None if set(variant) & set(declared.excluded) else declared


def fingerprints(speech: bool = False) -> dict[str, str]:
    """By name, what the tests of scripts and other packages are; a study makes its roles again when one changes. speech:
    as of `expected_roles`."""
    role.entries  # noqa: B018 - reads those of installed packages, too
    return {name: test.fingerprint for name, test in role.added.items() if test.asks(speech)}


def ordered_roles() -> list[RoleTest]:
    """The tests that make roles, in the order of charts and lists."""
    declared = [test for test in role.values() if test.is_role]
    return sorted(declared, key=lambda test: test.order)


def role_categories() -> list[str]:
    """The categories of roles, in the order of charts and lists."""
    return list(dict.fromkeys(declared.category for declared in ordered_roles()))


def category_colour(name: str) -> str:
    """The colour of a category of roles, the same in every picture; of one that is not declared, one behind the others."""
    known = role_categories()
    return distinct(known.index(name) if name in known else len(known))


def category(measure: str) -> str:
    """The category of a measure's role: positional, syntactic, rare tokens, …"""
    declared = declared_for(measure)
    return measure.replace("-", " ") if declared is None else declared.category


def display_name(measure: str) -> str:
    """The name of a measure's role for readers: `positional −1`, `obj→verb`, `rare tokens`."""
    declared = declared_for(measure)
    if declared is None or not declared.variants:
        return category(measure)
    variant = measure.split(".")[1:]
    if declared.variants == "offset":
        offset = f"{int(variant[0]):+d}".replace("-", "−").replace("+0", "0")
        return f"{declared.category} {offset}"
    relation, direction = variant
    governor = GOVERNORS.get(relation, "governor")
    return f"{relation}→{governor}" if direction == "to-governor" else f"{governor}→{relation}"


def evidence(measure: str, value: float, baseline: float, more: str = "") -> str:
    """`positional −1 (0.97)`, `obj→verb (0.84 vs 0.46)`. more: what else is in the brackets."""
    declared = role_of(measure)
    with_baseline = declared is not None and declared.margin is not None
    compared = f" vs {baseline:.2f}" if with_baseline else ""
    return f"{display_name(measure)} ({value:.2f}{compared}{more})"


def is_of_speech(measure: str) -> bool:
    """Whether a measure is tested on speech only."""
    declared = declared_for(measure)
    return declared is not None and declared.data == ("speech",)


def expected_roles(kind: str, speech: bool = False) -> list[str]:
    """The measures that some head of a model should have as a role. kind: of heads, or "language model". speech: of a
    model that hears, not of one that reads."""
    declared = []
    for test in ordered_roles():
        if test.asks(speech):
            declared.append(test)
    if kind == "language model":  # the roles that only language models have come first
        declared.sort(key=lambda test: list(test.expected or {}) != [kind])
    measures: list[str] = []
    for test in declared:
        measures += test.expected_of(kind)
    return measures
