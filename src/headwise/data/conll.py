"""Sentences of CoNLL-U files, checked: every error names the file and the line.

CoNLL-U (https://universaldependencies.org/format.html): ten columns, words numbered 1, 2, 3, one root, no cycle. The
`conllu` library reads the rows; it also accepts what is not a tree, so the checks are here.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from conllu.exceptions import ParseException
from conllu.parser import DEFAULT_FIELDS, parse_id_value, parse_int_value, parse_line

from headwise.core.errors import HeadwiseError
from headwise.data.annotated import Annotated, Cycle, Mention, Span, Word, depths, lay_out, mention
from headwise.data.lines import whole_lines

# A file without blank lines would be read into memory as one sentence.
MOST_SENTENCE_LINES = 10_000
# `conllu` would begin a new column there.
_TWO_BLANKS = re.compile(" {2,}")
# The other columns stay as they are.
_PARSERS = {
    "id": lambda cells, i: parse_id_value(cells[i]),
    "head": lambda cells, i: parse_int_value(cells[i]),
    # Not `parse_dict_value`, which drops what follows a second "=".
    "misc": lambda cells, i: dict(item.partition("=")[::2] for item in cells[i].split("|")),
}
UNSPECIFIED = "_"  # of a column without a value
# The line that says in which order the fields of `Entity` stand, and what the field of the entity is called there.
_ORDER = "global.Entity"
_ENTITY_FIELDS = ("eid", "GRP")

_DIGIT = re.compile(r"[0-9]")
_BRACKET = re.compile(r"\(([^()]+)(\)?)|([^()]+)\)")
# With `++` and `*+` it never goes back, so its time is linear.
_BRACKETS = re.compile(r"(?:\([^()]++\)?|[^()]++\))*+")
# "e1[1/2]": the first of two pieces of a mention.
_PIECE = re.compile(r"\[(\d+)/\d+\]$")


def entity_field(order: str, where: str) -> int:
    """Which field of a mention is its entity, by the value of `# global.Entity`: "GRP-etype-…" of GUM, "eid-etype-…" of
    CorefUD, "entity-GRP-…" of GUM before 2022, where the first field is the type. Raises HeadwiseError for another."""
    fields = order.split("-")
    for name in _ENTITY_FIELDS:
        if name in fields:
            return fields.index(name)
    raise HeadwiseError(
        f"{where}: '# {_ORDER} = {order}' has no field 'eid' or 'GRP', so it does not say which entity a mention is of: "
        "give the fields in the order of the brackets, such as 'eid-etype'."
    )


def entity_mentions(
    rows: Sequence[tuple[int, bool, str]],
    words: Sequence[Word],
    sentence: int,
    where: str,
    field: int | None = 0,
) -> tuple[tuple[Mention, ...], int]:
    """The mentions of one sentence, from brackets as in GUM and CorefUD, and the number of skipped ones.

    "(1-person-new" opens a mention of entity 1 at this word, "1)" closes it, "(1-person-new)" is a mention of one word;
    the other fields are not used. rows: (index of the word, True, brackets), or for an empty node (index of
    the next word, False, brackets). Mentions of empty nodes only (pronouns that are not written) and mentions in
    several pieces are skipped. where: the sentence, for errors. field: the number of the field that is the entity
    (`entity_field`); None: the file does not say it, so it is the first, which of several must have a digit. Raises
    HeadwiseError for brackets that do not match, and for an entity without a digit where the file does not say the order.
    """
    # A stack for each entity: its mentions may lie in one another.
    opened: dict[str, list[int]] = defaultdict(list)
    spans: list[tuple[int, int, str]] = []
    for index, is_word, value in rows:
        if not _BRACKETS.fullmatch(value):
            raise HeadwiseError(
                f"{where}: the coreference '{value}' is not a run of brackets such as '(e1' and 'e1)'."
            )
        for opener, closed_at_once, closer in _BRACKET.findall(value):
            entity = _entity(opener or closer, field or 0)
            # one field alone can only be the entity
            if field is None and "-" in opener and not _DIGIT.search(entity):
                raise HeadwiseError(
                    f"{where}: the coreference '{value}' may be of the entity '{entity}', or of a type of entities: write "
                    f"the order of the fields above the first sentence, such as '# {_ORDER} = eid-etype'."
                )
            if opener:
                opened[entity].append(index)
            if closer and not opened[entity]:
                raise HeadwiseError(
                    f"{where}: the coreference '{value}' closes '{entity}', which is not open."
                )
            # An empty node stands before the word of its index, so a mention that it closes ends there.
            if closer or closed_at_once:
                spans.append((opened[entity].pop(), index + is_word, entity))
    for entity, starts in opened.items():
        if starts:
            raise HeadwiseError(
                f"{where}: the mention of entity '{entity}' is opened but never closed."
            )

    # The longer one of two mentions that start together comes first.
    spans.sort(key=lambda span: (span[0], -span[1]))
    steps = depths(words)
    mentions = []
    skipped = 0
    for start, end, entity in spans:
        # start == end: the mention is of empty nodes alone, and has no word.
        piece = _PIECE.search(entity)
        if start < end and piece is None:
            mentions.append(mention(words, entity, sentence, start, end, steps))
        elif piece is None or piece[1] == "1":
            # A mention in several pieces counts once, by its first one.
            skipped += 1
    return tuple(mentions), skipped


def _entity(bracket: str, field: int) -> str:
    """The entity of an opening or closing bracket; a closing one may have this field alone ("1)" for "(person-1")."""
    fields = bracket.split("-")
    return fields[field] if field < len(fields) else fields[-1]


@dataclass
class _Block:
    """The rows of one sentence: comments, words, multi-word tokens, entities (index, whether it is a word, brackets).

    tokens: by the index of their first word, (end, form, whether a blank follows). first, last: the numbers of its lines.
    """

    file: Path
    first: int = 0
    last: int = 0
    comments: dict[str, str] = field(default_factory=dict)
    words: list[Word] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)  # of each word
    tokens: dict[int, tuple[int, str, bool]] = field(default_factory=dict)
    entities: list[tuple[int, bool, str]] = field(default_factory=list)

    @property
    def where(self) -> str:
        return f"The sentence at line {self.lines[0]} of '{self.file}'"

    @property
    def remedy(self) -> str:
        return f"correct it, or leave the sentence out (lines {self.first} to {self.last})"


def read_conllu(file: Path) -> Iterator[Annotated]:
    """The sentences of a file that exists, one by one; gzip, a byte order mark and Windows line ends are understood.

    A sentence before any `# newdoc` is a document of its own. Raises HeadwiseError where the file is not CoNLL-U.
    """
    name = file.name.removesuffix(".gz").removesuffix(".conllu")
    document = ""
    documents = 0
    index = 0  # of the sentence in its document
    field: int | None = None  # the one of `Entity` that is the entity; None: not said
    for number, block in enumerate(_blocks(file), start=1):
        if "newdoc" in block.comments or "newdoc id" in block.comments:
            documents += 1
            index = 0
            document = block.comments.get("newdoc id") or f"{name}-document-{documents}"
        if _ORDER in block.comments:
            place = f"Above line {block.last + 1} of '{file}'"
            field = entity_field(block.comments[_ORDER], place)
        if not block.words:
            continue
        _check_words(block)
        _check_tree(block)
        id = block.comments.get("sent_id") or f"{name}-{number}"
        if block.entities and not document:
            raise HeadwiseError(
                f"{block.where} has coreference but is in no document: write '# newdoc id = NAME' where one begins."
            )
        mentions, skipped = entity_mentions(block.entities, block.words, index, block.where, field)
        sentence = Annotated(
            tuple(block.words), id, document or id, mentions, _written(block), skipped
        )
        text = block.comments.get("text")
        # Two blanks for one are no other words.
        differs = text is not None and text.split() != sentence.text.split()
        yield replace(sentence, other_text=differs)
        index += 1


def _blocks(file: Path) -> Iterator[_Block]:
    """Comments and rows up to each blank line."""
    block = _Block(file)
    begun = 0  # the number of the block's first line
    for number, line in enumerate(chain(whole_lines(file), [""]), start=1):
        line = line.rstrip("\r\n")
        # Blanks are seen by nobody.
        if line.strip():
            begun = begun or number
            block.first, block.last = begun, number
            _add(block, line, number)
            if number - begun == MOST_SENTENCE_LINES:
                raise HeadwiseError(
                    f"The sentence at line {begun} of '{file}' has more than {MOST_SENTENCE_LINES:,} lines: "
                    "a blank line ends a sentence."
                )
        elif begun:
            yield block
            block = _Block(file)
            begun = 0


def _add(block: _Block, line: str, number: int) -> None:
    """One line into the block: a comment, a word, a multi-word token (id 3-4) or an empty node (id 3.1)."""
    if line.startswith("#"):
        key, _, value = line[1:].partition("=")
        # A comment without `=` is a name without a value, such as `# newdoc`.
        block.comments[key.strip()] = value.strip()
        return
    where = f"Line {number} of '{block.file}'"
    columns = line.count("\t") + 1
    if columns != len(DEFAULT_FIELDS):
        raise HeadwiseError(
            f"{where} has {columns} columns: a row of CoNLL-U has 10, separated by tabs."
        )
    try:
        row = parse_line(_TWO_BLANKS.sub(" ", line), DEFAULT_FIELDS, _PARSERS)
    except (ParseException, ValueError) as error:  # ValueError: a number of more than 4,300 digits
        reason = str(error).rstrip(".")
        raise HeadwiseError(f"{where} is not CoNLL-U: {reason}.") from error

    id = row["id"]
    form = row["form"]
    misc = row["misc"]
    space_after = misc.get("SpaceAfter") != "No"
    count = len(block.words)
    match id:
        case int() if id == count + 1:
            head = row["head"]
            if head is None or head < 0:
                raise HeadwiseError(
                    f"{where} has no head: every word of a tree has one, 0 for the root."
                )
            relation = _specified(row["deprel"])
            base = relation.partition(":")[0]
            lemma = _specified(row["lemma"], form)
            upos = _specified(row["upos"])
            block.words.append(Word(form, lemma, upos, head - 1, base, relation, space_after))
            block.lines.append(number)
        case (int(first), "-", int(last)) if first == count + 1 < last and not _inside_token(block):
            block.tokens[count] = (last, form, space_after)
        # An empty node: a word that is not written, such as an elided verb.
        case (int(before), ".", int()) if before == count:
            pass
        case _:
            shown = line.partition("\t")[0]
            raise HeadwiseError(
                f"{where} has the id '{shown}' in place of {count + 1}: words count 1, 2, 3."
            )
    is_word = isinstance(id, int)
    if "Entity" in misc and (is_word or id[1] == "."):
        block.entities.append((count, is_word, misc["Entity"] or ""))


def _specified(value: str, otherwise: str = "") -> str:
    """The value of a column, where it has one."""
    return otherwise if value == UNSPECIFIED else value


def _inside_token(block: _Block) -> bool:
    """Whether the next word belongs to a multi-word token already: the last one, as they follow each other."""
    return bool(block.tokens) and next(reversed(block.tokens.values()))[0] > len(block.words)


def _check_words(block: _Block) -> None:
    """Raises HeadwiseError where the sentence, or a multi-word token, has '_' in place of its words.

    Some treebanks are published without their text. A single '_' may be a word.
    """
    without = len(block.words) > 1 and all(word.form == UNSPECIFIED for word in block.words)
    tokens = any(form == UNSPECIFIED for _, form, _ in block.tokens.values())
    if without or tokens:
        what = "words" if without else "form of its multi-word token"
        raise HeadwiseError(
            f"{block.where} has no {what}, only '_': put the text in with the program that comes with the treebank, or "
            f"leave the sentence out (lines {block.first} to {block.last})."
        )


def _check_tree(block: _Block) -> None:
    """Raises HeadwiseError, naming the line, unless the words form one tree."""
    words = block.words
    file = block.file
    for end, form, _ in block.tokens.values():
        if end > len(words):
            raise HeadwiseError(
                f"{block.where} ends before its multi-word token '{form}' does: {block.remedy}."
            )
    for word, line in zip(words, block.lines, strict=True):
        if word.governor >= len(words):
            raise HeadwiseError(
                f"Line {line} of '{file}' gives '{word.form}' the head {word.governor + 1}, "
                f"but the sentence has {len(words)} words: {block.remedy}."
            )

    roots = [
        f"'{word.form}' at line {line}"
        for word, line in zip(words, block.lines, strict=True)
        if word.governor < 0
    ]
    if len(roots) != 1:
        named = ", " + " and ".join(roots) if roots else ""
        raise HeadwiseError(
            f"{block.where} has {len(roots) or 'no'} roots{named}, and a tree has one: {block.remedy}."
        )
    try:
        depths(words)
    except Cycle as error:
        cycle: list[int] = error.args[0]
        forms = " → ".join(f"'{words[index].form}'" for index in [*cycle, cycle[0]])
        raise HeadwiseError(
            f"Line {block.lines[cycle[0]]} of '{file}' is in a cycle of heads, {forms}: "
            f"{block.remedy}."
        ) from None


def _written(block: _Block) -> tuple[str, tuple[Span, ...]] | None:
    """The text and the span of each word, where multi-word tokens make it differ from the words' own forms.

    "don't" is do + n't letter by letter, so each has its own span; "du" is de + le, which have the same span.
    """
    if not block.tokens:
        return None
    forms_of: list[list[str]] = []  # the forms of the words of each token
    tokens: list[tuple[str, bool]] = []  # its own form, and whether a blank follows
    index = 0
    while index < len(block.words):
        word = block.words[index]
        # A word outside of multi-word tokens is a token of its own.
        end, form, space = block.tokens.get(index, (index + 1, word.form, word.space_after))
        forms_of.append([word.form for word in block.words[index:end]])
        tokens.append((form, space))
        index = end

    text, token_spans = lay_out(tokens)
    spans: list[Span] = []
    for forms, (start, stop) in zip(forms_of, token_spans, strict=True):
        # Not spelt by its words, as "du": all of them have the whole token.
        if "".join(forms) != text[start:stop]:
            spans += [(start, stop)] * len(forms)
            continue
        for form in forms:
            spans.append((start, start + len(form)))
            start += len(form)
    return text, tuple(spans)
