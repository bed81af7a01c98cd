"""Files with a sentence a line: what they begin with must not be another format, whatever the file is called."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from os import PathLike

from headwise.core.errors import HeadwiseError
from headwise.data.lines import existing_file, is_table, read_lines

LOOKED_AT = 20  # lines at the beginning
_WRITE = "write its sentences into a file, one a line"
_TREES = "a treebank", "give the trees with --treebank"
_BRACKETS = "trees in brackets", f"{_WRITE}, or convert them to CoNLL-U"
_MARK_UP = "mark-up", _WRITE
_JSON = "JSON", f"name it .jsonl, with an object a line, or {_WRITE}"
_SIDES_APART = (
    "write each side into a file of its own, or pairs into a .tsv with a tab in place of |||"
)
_TABLE = (
    "a table",
    "name it .tsv or .csv, with the names of its columns in the first line, or give a file with sentences alone",
)
# A row of CoNLL-U, and the lines that it begins with.
_ROW = re.compile(r"[0-9]+(-[0-9]+)?(\t[^\t]*){9}")
_COMMENT = re.compile(r"# ?(sent_id|newdoc|newdoc id|newpar|text|global\.\w+)( ?=.*)?")
# A tag alone that has attributes, or a tag of a known format; others may be in a sentence.
_TAG = re.compile(r"<[A-Za-z][\w:.-]*(\s+[\w:.-]+\s*=\s*(\"[^\"]*\"|'[^']*'))+\s*/?>")
_KNOWN_TAG = re.compile(
    r"<(!--|\?xml\b|!doctype\b|(srcset|refset|tstset|mteval|tmx|xliff|html|doc|dataset|corpus|seg|url|talkid)\b[^>]*>)",
    re.IGNORECASE,
)
_BARS = " ||| "  # between fields, for fast_align, awesome-align and Moses
_YAML = re.compile(r"- (\"[^\"]*\"|'[^']*')")
_PROPERTY = re.compile(r"[\w-]+([.][\w-]+)*\s?=\s?\S.*")
_TIME = re.compile(r"([0-9]+:)?[0-9]{2}:[0-9]{2}[.,][0-9]{3} --> .*")
_BEGINNINGS = {
    "%PDF-": ("a PDF", _WRITE),
    "{\\rtf": ("RTF", _WRITE),
    "WEBVTT": ("subtitles", _WRITE),
    "[Script Info]": ("subtitles", _WRITE),
    "\\documentclass": ("LaTeX", _WRITE),
    "(ROOT": _BRACKETS,
    "( (S": _BRACKETS,
    "(S (": _BRACKETS,
    "(TOP": _BRACKETS,
    "__label__": ("labelled text of fastText", "write a table with the columns text and label"),
}
# What the columns of pairs are often called.
_SIDES = """
source target src tgt trg ref reference translation original input output
ar bg bn ca cs da de el en es et fa fi fr ga gl gu he hi hr hu hy id is it ja ka kk kn ko lt lv mk ml mn mr ms mt my nb
ne nl nn no pa pl pt ro ru si sk sl sq sr sv sw ta te th tl tr uk ur uz vi zh
arabic bulgarian chinese croatian czech danish dutch english estonian finnish french german greek hebrew hindi hungarian
indonesian italian japanese korean latvian lithuanian norwegian persian polish portuguese romanian russian serbian
slovak slovenian spanish swedish thai turkish ukrainian vietnamese
"""
_PAIRS = "source target clean corrupted answer wrong_answer sentence1 sentence2 score"
_COLUMNS = {*_PAIRS.split(" "), "text", "label", "sentence", "audio", "id"}


def sentence_lines(path: str | PathLike[str]) -> Iterator[str]:
    """The lines of a file with a sentence a line, as `read_lines` gives them. Raises HeadwiseError at once for a file
    that is in another format by its name (a table) or by what it begins with."""
    file = existing_file(path)
    if is_table(file):
        raise HeadwiseError(
            f"'{file}' is a table, and a sentence a line is needed here: give a file with sentences alone."
        )
    lines = read_lines(file)
    beginning = list(islice(lines, LOOKED_AT))
    refuse_other_formats(f"'{file}'", beginning)
    return chain(beginning, lines)


def refuse_other_formats(name: str, beginning: Sequence[str]) -> None:
    """Raise HeadwiseError where lines are not sentences: mark-up, JSON, a table, trees, subtitles. name: for messages;
    beginning: the first LOOKED_AT lines of a text."""
    found = _other_format([line for line in beginning if line])
    if found is not None:
        what, remedy = found
        raise HeadwiseError(f"{name} is {what}, and plain text is needed here: {remedy}.")


def _other_format(lines: Sequence[str]) -> tuple[str, str] | None:
    """What the lines that are not blank are, and what to do; None for sentences."""
    if not lines:
        return None
    first = lines[0]
    for start, found in _BEGINNINGS.items():
        if first.startswith(start):
            return found
    # Every other byte of Latin letters in UTF-16 is 0, and in UTF-8 that is a letter, too.
    if 3 * first.count("\0") > len(first):
        return "UTF-16", "save it as UTF-8"
    if _COMMENT.fullmatch(first) or any(map(_ROW.fullmatch, lines)):
        return _TREES
    if _TAG.fullmatch(first) or _KNOWN_TAG.match(first):
        return _MARK_UP
    if _is_json(first):
        return _JSON
    if any(map(_TIME.fullmatch, lines[:3])):
        return "subtitles", _WRITE
    if any(line.startswith('msgid "') for line in lines):
        return "a catalogue of gettext", _WRITE
    if all(_BARS in f" {line} " for line in lines):
        return "a table with ||| between its columns (fast_align)", _SIDES_APART
    if first == "---" or all(map(_YAML.fullmatch, lines)):
        return "YAML, or begins with it", _WRITE
    if all(map(_PROPERTY.fullmatch, lines)):
        return "a list of names and values (.properties)", _WRITE
    tabs = {line.count("\t") for line in lines}
    names = re.split(r"[\t,;]", first)
    if (len(lines) > 1 and len(tabs) == 1 and tabs != {0}) or (
        len(names) > 1 and {name.strip('"') for name in names} <= _COLUMNS
    ):
        return _TABLE
    return None


def are_names_of_sides(first: str, second: str) -> bool:
    """Whether two cells are what the columns of a table of pairs are often called, such as `en` and `de`."""
    return first != second and {first.lower(), second.lower()} <= {*_SIDES.split()}


def _is_json(line: str) -> bool:
    """Whether a first line begins JSON: an object, a list of objects, or a bracket alone. "[Applause]" is a sentence."""
    if line in ("{", "[", "[{"):
        return True
    if not line.startswith(("{", "[")):
        return False
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    first = found[0] if isinstance(found, list) and found else found
    return isinstance(first, dict)
