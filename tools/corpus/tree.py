"""A dependency tree in the making, word by word from left to right."""

from collections.abc import Iterable

from corpus.meaning import Phrase


class Tree:
    """A sentence in the making; words count from 1, and 0 is the root."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, str, str]] = []  # form, lemma, part of speech, relation
        self.heads: list[int] = []
        self.glued: set[int] = set()  # words without a space behind them
        self.spans: dict[
            int, tuple[int, int]
        ] = {}  # first and last word of each phrase, by its id()
        self.references: list[tuple[Phrase, int]] = []  # an antecedent, and the pronoun for it

    def add(self, form: str, lemma: str, upos: str, deprel: str, head: int = 0) -> int:
        """Append a word and give its number; without a head it waits for `attach`."""
        self.rows.append((form, lemma, upos, deprel))
        self.heads.append(head)
        return len(self.heads)

    def attach(self, dependents: Iterable[int], head: int) -> None:
        """Give these words their head."""
        for dependent in dependents:
            self.heads[dependent - 1] = head

    def mark(self, form: str, head: int = 0) -> int:
        """Append a punctuation mark, without a space before it."""
        self.glued.add(len(self.heads))
        return self.add(form, form, "PUNCT", "punct", head)

    def text(self) -> str:
        """The written sentence."""
        pieces: list[str] = []
        for number, row in enumerate(self.rows, start=1):
            pieces += (row[0], "" if number in self.glued else " ")
        return "".join(pieces).strip()

    def chains(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """The mentions of each phrase that a pronoun refers to, first the phrase itself, as inclusive word numbers."""
        found: dict[int, list[tuple[int, int]]] = {}
        for phrase, word in self.references:
            found.setdefault(id(phrase), [self.spans[id(phrase)]]).append((word, word))
        return tuple(sorted(tuple(sorted(spans)) for spans in found.values()))
