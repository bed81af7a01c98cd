"""Sentences of a CoNLL-U file, checked: ten columns, words numbered 1, 2, 3, one root, no circle.

https://universaldependencies.org/format.html. The `conllu` library reads the rows; it accepts what is no tree, so the
checks are here, and each names the file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conllu.exceptions import ParseException
from conllu.parser import DEFAULT_FIELDS, parse_dict_value, parse_id_value, parse_int_value, parse_line

from headwise.data.annotated import Annotated, Span, Word, laid_out
from headwise.data.coreference import entity_mentions
from headwise.data.lines import whole_lines
from headwise.errors import HeadwiseError

_TWO_BLANKS = re.compile(" {2,}")  # `conllu` would begin a new column there
_PARSERS = {  # the other columns stay as they are
    "id": lambda cells, i: parse_id_value(cells[i]),
    "head": lambda cells, i: parse_int_value(cells[i]),
    "misc": lambda cells, i: parse_dict_value(cells[i]) or {},
}


@dataclass
class _Block:
    """The rows of one sentence: words, multi-word tokens (first word, end, form, blank after), entities, comments."""

    file: Path
    comments: dict[str, str]
    words: list[Word] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)  # of each word
    tokens: list[tuple[int, int, str, bool]] = field(default_factory=list)
    entities: list[tuple[int, bool, str]] = field(default_factory=list)

    @property
    def where(self) -> str:
        return f"The sentence at line {self.lines[0]} of '{self.file}'"


def read_conllu(file: Path) -> Iterator[Annotated]:
    """The sentences of a file that exists, one by one; gzip, a byte order mark and Windows line ends are understood.

    A sentence before any `# newdoc` is a document of its own. Raises HeadwiseError where the file is not CoNLL-U.
    """
    name = file.name.removesuffix(".gz").removesuffix(".conllu")
    document, documents, place = "", 0, 0
    for number, block in enumerate(_blocks(file), start=1):
        if "newdoc" in block.comments or "newdoc id" in block.comments:
            documents, place = documents + 1, 0
            document = block.comments.get("newdoc id") or f"{name}-document-{documents}"
        if not block.words:
            continue
        _check_tree(block)
        id = block.comments.get("sent_id") or f"{name}-{number}"
        if block.entities and not document:
            raise HeadwiseError(
                f"{block.where} has coreference but is in no document: write '# newdoc id = NAME' where one begins."
            )
        mentions, skipped = entity_mentions(block.entities, block.words, place, block.where)
        yield Annotated(tuple(block.words), id, document or id, mentions, _written(block), skipped)
        place += 1


def _blocks(file: Path) -> Iterator[_Block]:
    """Comments and rows up to each blank line."""
    rows: list[tuple[int, str]] = []
    for number, line in enumerate(whole_lines(file), start=1):
        if line := line.rstrip("\r\n"):
            rows.append((number, line))
        elif rows:
            yield _block(file, rows)
            rows = []
    if rows:
        yield _block(file, rows)


def _block(file: Path, rows: Iterable[tuple[int, str]]) -> _Block:
    block = _Block(file, {})
    for number, line in rows:
        if line.startswith("#"):
            key, _, value = line[1:].partition("=")
            block.comments[key.strip()] = value.strip()
        else:
            _add_row(block, line, f"Line {number} of '{file}'", number)
    if block.words and block.tokens and block.tokens[-1][1] > len(block.words):
        raise HeadwiseError(f"{block.where} ends before its multi-word token '{block.tokens[-1][2]}' does.")
    return block


def _add_row(block: _Block, line: str, where: str, number: int) -> None:
    """One row into the block: a word, a multi-word token (id 3-4) or an empty node (id 3.1)."""
    if (columns := line.count("\t") + 1) != len(DEFAULT_FIELDS):
        raise HeadwiseError(f"{where} has {columns} columns: a row of CoNLL-U has 10, parted by tabs.")
    try:
        row = parse_line(_TWO_BLANKS.sub(" ", line), DEFAULT_FIELDS, _PARSERS)
    except ParseException as error:
        raise HeadwiseError(f"{where} is not CoNLL-U: {error}") from error
    id, form, misc, count = row["id"], row["form"], row["misc"], len(block.words)
    space_after = misc.get("SpaceAfter") != "No"
    match id:
        case int() if id == count + 1:
            relation = row["deprel"]
            lemma = form if row["lemma"] == "_" else row["lemma"]
            governor = _governor(row["head"], where)
            block.words.append(
                Word(form, lemma, row["upos"], governor, relation.partition(":")[0], relation, space_after)
            )
            block.lines.append(number)
        case (int(first), "-", int(last)) if first == count + 1 < last and _is_free(block.tokens, count):
            block.tokens.append((count, last, form, space_after))
        case (int(before), ".", int()) if before == count:
            pass
        case _:
            shown = line.partition("\t")[0]
            raise HeadwiseError(f"{where} has the id '{shown}' where {count + 1} was to come: words count 1, 2, 3.")
    if "Entity" in misc and (isinstance(id, int) or id[1] == "."):
        is_word = isinstance(id, int)
        block.entities.append((count, is_word, misc["Entity"] or ""))


def _is_free(tokens: Sequence[tuple[int, int, str, bool]], count: int) -> bool:
    """Whether the next word belongs to no multi-word token yet."""
    return not tokens or tokens[-1][1] <= count


def _governor(head: int | None, where: str) -> int:
    if head is None or head < 0:
        raise HeadwiseError(f"{where} has no head: every word of a tree has one, 0 for the root.")
    return head - 1


def _check_tree(block: _Block) -> None:
    """Raises HeadwiseError, naming the line, unless the words hang together under one root."""
    words, file = block.words, block.file
    for word, line in zip(words, block.lines, strict=True):
        if word.governor >= len(words):
            raise HeadwiseError(
                f"Line {line} of '{file}' gives '{word.form}' the head {word.governor + 1}, "
                f"but the sentence has {len(words)} words."
            )
    roots = [index for index, word in enumerate(words) if word.governor < 0]
    if len(roots) != 1:
        found = " and ".join(f"'{words[index].form}' at line {block.lines[index]}" for index in roots)
        raise HeadwiseError(f"{block.where} has {len(roots) or 'no'} roots{found and ', ' + found}: a tree has one.")
    safe = set(roots)
    for start in range(len(words)):
        path: list[int] = []
        index = start
        while index not in safe:
            if index in path:
                circle = " → ".join(f"'{words[i].form}'" for i in [*path[path.index(index) :], index])
                raise HeadwiseError(f"Line {block.lines[index]} of '{file}' is in a cycle of heads: {circle}.")
            path.append(index)
            index = words[index].governor
        safe.update(path)


def _written(block: _Block) -> tuple[str, tuple[Span, ...]] | None:
    """The text and each word's place in it, where multi-word tokens make it differ from the words' own forms.

    "don't" is do + n't letter by letter, so each has a place of its own; "du" is de + le, which share theirs.
    """
    if not block.tokens:
        return None
    starts = {first: (end, form, space) for first, end, form, space in block.tokens}
    tokens: list[tuple[str, bool]] = []
    ranges: list[Span] = []
    index = 0
    while index < len(block.words):
        word = block.words[index]
        end, form, space = starts.get(index, (index + 1, word.form, word.space_after))
        tokens.append((form, space))
        ranges.append((index, end))
        index = end
    text, places = laid_out(tokens)
    spans: list[Span] = []
    for (first, end), (start, stop) in zip(ranges, places, strict=True):
        forms = [word.form for word in block.words[first:end]]
        if "".join(forms) == text[start:stop]:
            spans += [(start + a, start + b) for a, b in laid_out([(form, False) for form in forms])[1]]
        else:
            spans += [(start, stop)] * len(forms)
    return text, tuple(spans)
