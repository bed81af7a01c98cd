"""Sentences of CoNLL-2012 files (OntoNotes): coreference in the last column, phrases in the sixth.

Pradhan et al. 2012, "CoNLL-2012 shared task", section 4. The files have phrases and no dependencies, so governors come
from head rules for phrases like those of Collins 1999 (appendix A), with content words as heads as in Universal
Dependencies; relations stay empty. A blank follows every word, as the files do not say where the original has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from headwise.data.annotated import Annotated, Word, entity_mentions
from headwise.data.conllu_file import LONGEST
from headwise.data.lines import read_lines
from headwise.errors import HeadwiseError

BEGIN = "#begin document"
_COLUMNS = 12  # and more: one for every predicate of the sentence
_DOCUMENT = re.compile(r"#begin document \((.*)\)(?:; part (\d+))?")
_SIGN = re.compile(r"\(([^()*]+)|(\*)|\)")  # a phrase begins, the word, a phrase ends
_ESCAPED = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
_ESCAPED |= {"/.": ".", "/?": "?", "/-": "-"}

_UPOS = {
    "CC": "CCONJ",
    "CD": "NUM",
    "DT": "DET",
    "EX": "PRON",
    "FW": "X",
    "IN": "ADP",
    "JJ": "ADJ",
    "JJR": "ADJ",
    "JJS": "ADJ",
    "MD": "AUX",
    "NN": "NOUN",
    "NNS": "NOUN",
    "NNP": "PROPN",
    "NNPS": "PROPN",
    "PDT": "DET",
    "POS": "PART",
    "PRP": "PRON",
    "PRP$": "PRON",
    "RB": "ADV",
    "RBR": "ADV",
    "RBS": "ADV",
    "RP": "ADP",
    "TO": "PART",
    "UH": "INTJ",
    "VB": "VERB",
    "VBD": "VERB",
    "VBG": "VERB",
    "VBN": "VERB",
    "VBP": "VERB",
    "VBZ": "VERB",
    "WDT": "PRON",
    "WP": "PRON",
    "WP$": "PRON",
    "WRB": "ADV",
    "$": "SYM",
    "#": "SYM",
    "SYM": "SYM",
    "HYPH": "PUNCT",
    "NFP": "PUNCT",
}
_NOUNS = {"NN", "NNS", "NNP", "NNPS", "NML", "NX", "PRP", "WP"}
_VERBS = {"VB", "VBD", "VBG", "VBN", "VBP", "VBZ"}

# How to find the head of a phrase, step by step: the first (1) or last (-1) child with one of these labels.
Steps = Sequence[tuple[int, set[str]]]
_NOMINAL: Steps = [
    (-1, _NOUNS),
    (1, {"NP", "WHNP"}),
    (-1, {"CD", "QP", "$"}),
    (-1, {"JJ", "JJS", "ADJP"}),
]
_CLAUSE: Steps = [
    (1, {"VP"}),
    (1, {"S", "SQ", "SINV", "SBAR", "SBARQ"}),
    (1, _VERBS),
    (1, {"NP", "ADJP", "PP"}),
]
_STEPS: dict[str, Steps] = {
    **dict.fromkeys(("NP", "NML", "NX", "NAC", "WHNP"), _NOMINAL),
    **dict.fromkeys(("TOP", "S", "SQ", "SINV", "SBAR", "SBARQ"), _CLAUSE),
    "VP": [(1, {"VP"}), (1, _VERBS), (1, {"MD", "ADJP", "NP"})],
    "PP": [(1, {"NP"}), (1, {"IN", "TO"})],
}


def read_conll2012(file: Path) -> Iterator[Annotated]:
    """The sentences of a file that exists, one by one; a document is one part of a CoNLL-2012 document.

    Raises HeadwiseError, naming the line, for a row with too few columns, brackets that do not match, a sentence
    outside a document or without phrases.
    """
    document, index, begun = "", 0, 0
    rows: list[list[str]] = []
    number = 0
    for number, line in enumerate(read_lines(file), start=1):
        if line and not line.startswith("#"):
            begun = begun if rows else number
            rows.append(line.split())
            if len(rows) > LONGEST:
                raise HeadwiseError(
                    f"The sentence at line {begun} of '{file}' has more than {LONGEST:,} lines: "
                    "a blank line ends a sentence."
                )
            if (count := len(rows[-1])) < _COLUMNS:
                raise HeadwiseError(
                    f"Line {number} of '{file}' has {count} columns: a row of CoNLL-2012 has {_COLUMNS} or more."
                )
            continue
        if rows:
            yield _sentence(rows, document, index, f"The sentence at line {begun} of '{file}'")
            rows, index = [], index + 1
        if found := _DOCUMENT.match(line):
            document, index = f"{found[1]}/{found[2] or '000'}", 0
        elif line.startswith("#end"):
            document = ""
    if rows or document:
        raise HeadwiseError(
            f"'{file}' ends at line {number} without '#end document': get the whole file."
        )


def _sentence(rows: list[list[str]], document: str, index: int, where: str) -> Annotated:
    if not document:
        raise HeadwiseError(
            f"{where} is in no document: write '{BEGIN} (NAME); part 000' before it."
        )
    tags = [row[4] for row in rows]
    words: list[Word] = []
    for row, governor in zip(rows, _governors([row[5] for row in rows], tags, where), strict=True):
        form, tag = _ESCAPED.get(row[3], row[3]), row[4]
        lemma = form if row[6] == "-" else row[6]
        upos = _UPOS.get(tag, "X" if tag.isalpha() else "PUNCT")
        words.append(Word(form, lemma, upos, governor, "", "", True))
    brackets = [
        (n, True, row[-1].replace("|", "")) for n, row in enumerate(rows) if row[-1] not in "-_"
    ]
    mentions, skipped = entity_mentions(brackets, words, index, where)
    return Annotated(
        tuple(words), f"{document}/{index + 1}", document, mentions, skipped_mentions=skipped
    )


def _governors(phrases: Sequence[str], tags: Sequence[str], where: str) -> list[int]:
    """The governor of every word, -1 for one: each child of a phrase depends on the head of the phrase."""
    governors = [-1] * len(tags)
    opened: list[tuple[str, list[tuple[str, int]]]] = [
        ("", []),
        ("TOP", []),
    ]  # label; children: label and head word
    for word, signs in enumerate([*phrases, ")"]):
        for sign in _SIGN.finditer(signs):
            if sign[1]:
                opened.append((sign[1], []))
            elif sign[2]:
                opened[-1][1].append((tags[word], word))
            else:
                label, children = opened.pop()
                if not opened or not children:
                    raise HeadwiseError(
                        f"{where} has, in its sixth column, phrases with brackets that do not match."
                    )
                head = _head(label, children)
                for _, child in children:
                    governors[child] = head if child != head else -1
                opened[-1][1].append((label, head))
    if len(opened) != 1 or governors.count(-1) != 1:
        raise HeadwiseError(
            f"{where} has, in its sixth column, no phrases, or brackets that do not match."
        )
    return governors


def _head(label: str, children: Sequence[tuple[str, int]]) -> int:
    """The head word of a phrase; the last child's where no step finds one."""
    for direction, wanted in _STEPS.get(label, ()):
        for child, word in children[::direction]:
            if child in wanted:
                return word
    return children[-1][1]
