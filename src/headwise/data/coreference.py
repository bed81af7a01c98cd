"""Coreference in brackets, as GUM and CorefUD write it in CoNLL-U (`Entity` of the last column), and CoNLL-2012.

"(1-person-new" opens a mention of entity 1 at this word, "1)" closes it, "(1-person-new)" is a mention of one word; the
fields behind the entity are not used. Entities hold inside one document.
"""

import re
from collections import defaultdict
from collections.abc import Sequence

from headwise.data.annotated import Mention, Word, mention
from headwise.errors import HeadwiseError

_BRACKET = re.compile(r"\(([^()]+)(\)?)|([^()]+)\)")
_PART = re.compile(r"\[(\d+)/\d+\]$")  # "e1[1/2]": the first of two parts of a mention


def entity_mentions(
    rows: Sequence[tuple[int, bool, str]], words: Sequence[Word], sentence: int, where: str
) -> tuple[tuple[Mention, ...], int]:
    """The mentions in the brackets of one sentence, and how many had to be left out.

    rows: (index of the word, True, brackets), or for an empty node (index of the next word, False, brackets). Left out
    are mentions of empty nodes only (pronouns that are not written) and those in several parts. where: the sentence,
    for errors. Raises HeadwiseError for brackets that do not match.
    """
    opened: dict[str, list[int]] = defaultdict(list)
    spans: list[tuple[int, int, str]] = []
    for index, is_word, value in rows:
        if _BRACKET.sub("", value):
            raise HeadwiseError(f"{where}: the coreference '{value}' is not a run of brackets such as '(e1' and 'e1)'.")
        for opener, closed_at_once, closer in _BRACKET.findall(value):
            entity = (opener or closer).split("-")[0]
            if opener:
                opened[entity].append(index)
            if closer and not opened[entity]:
                raise HeadwiseError(f"{where}: the coreference '{value}' closes '{entity}', which is not open.")
            if closer or closed_at_once:
                spans.append((opened[entity].pop(), index + is_word, entity))
    if left := [entity for entity, starts in opened.items() if starts]:
        raise HeadwiseError(f"{where}: the mention of entity '{left[0]}' is opened but never closed.")
    parts = [_PART.search(entity) for _, _, entity in spans]
    usable = [span for span, part in zip(spans, parts, strict=True) if span[0] < span[1] and not part]
    continued = sum(part is not None and part[1] != "1" for part in parts)
    mentions = (mention(words, entity, sentence, start, end) for start, end, entity in in_order(usable))
    return tuple(mentions), len(spans) - len(usable) - continued


def in_order(spans: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Spans (start, end, entity) as they begin, of several that begin together the longest first."""
    return sorted(spans, key=lambda span: (span[0], -span[1]))
