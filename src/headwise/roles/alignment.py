"""Alignment heads: cross attention from a target word to the source word that it translates, where the target word is
written or where it is read.

Word alignments come from eflomal (Östling & Tiedemann 2016), an optional package that runs as a separate program. Its
sampler has no seed: of 200 sentence pairs two runs share about four of five links. So the links of a run are written
beside its results, and can be given to another as reference links (`WordLinks`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.core.progress import OnProgress
from headwise.data.annotated import Annotated, split_into_words
from headwise.data.lines import existing_file, read_lines
from headwise.data.subwords import Aligned, Coverage, align_subwords
from headwise.data.text import ParallelText, Text
from headwise.models.model import Model
from headwise.roles.passage import Passage, View, moved
from headwise.roles.probe import Arc, Probe, mean_over_queries, pointing

AlignedPair = tuple[Aligned, Aligned]
Links = frozenset[tuple[int, int]]  # (source word, target word)
Gold = tuple[Links, Links]  # sure links, and those that are possible (the sure ones among them)
PROGRAM = "eflomal-align"
COPIED = (
    4  # letters from which on a word that is written alike in two languages hardly means two things
)
FIELDS = re.compile(r"\{(source|target)\}")
LINKS = "links.txt"  # the file of the links of a run
APART = "# words and punctuation marks apart"  # first line of a file of such links
NEVER_FIRST = 10  # lines without a link of a first word, on either side
LINK = re.compile(r"([0-9]{1,6})([-p?])([0-9]{1,6})")


def alignment(target: Passage, source: Passage, links: Mapping[str, Links]) -> Probe:
    """How often the position that writes a target word attends most to a source word that is aligned with it.

    alignment = share of target words with a link where argmax_s A_h[t, s] is a linked source word. The queries of a
    target word are the decoder's positions that *write* its subwords, not those that read them. Baseline: the diagonal,
    shifted by the best fixed number of words. links: by the id of the sentence.
    """
    arcs = []
    for number, sentence in enumerate(target.sentences):
        for read, written in links[sentence.id]:
            arcs.append(Arc(number, written, read, "alignment"))
    return pointing(arcs, target, source, "offset")


def reading(target: Passage, source: Passage) -> Probe:
    """How often the position that *reads* a target word attends most to the source word that it translates.

    A decoder without self-attention has no other way to look back at the word that it wrote last. reading = share of
    copied words where argmax_s A_h[t, s] is the same word of the source. Copied words, such as names and numbers, are
    written alike on both sides, once on each: no word aligner is needed. Baseline: as for `alignment`.
    """
    read = read_later(target)
    arcs = []
    for number, sides in enumerate(zip(source.sentences, target.sentences, strict=True)):
        for key, query in sorted(copied_words(*sides)):
            arcs.append(Arc(number, query, key, "reading"))
    # `read`, not `target`: a word's queries are the positions behind those that wrote it.
    probe = pointing(arcs, read, source, "offset")

    # The view has the positions that write as its queries; here those that read are asked.
    def answer(view: View) -> Tensor:
        return probe.answer(View(view.weights, read, source))

    return replace(probe, answer=answer)


def copied_words(source: Annotated, target: Annotated) -> Links:
    """The words that stand once on each side, written alike: numbers, and words of at least COPIED letters."""
    sides = []
    for sentence in (source, target):
        forms = [word.form for word in sentence.words]
        sides.append({form: forms.index(form) for form in forms if forms.count(form) == 1})
    copied = set()
    for form in sides[0].keys() & sides[1].keys():
        # Short words that look alike may mean two things, such as English and German "die".
        if form.isdecimal() or (form.isalnum() and len(form) >= COPIED):
            copied.add((sides[0][form], sides[1][form]))
    return frozenset(copied)


def monotonicity(target: Passage, source: Passage) -> Probe:
    """How steadily a head moves through the source.

    monotonicity = share of neighbouring target words (t, t + 1) with argmax A_h[t + 1, ·] > argmax A_h[t, ·]. Baseline:
    random source words.
    """
    present = target.subwords > 0
    neighbours = present[:, 1:] & present[:, :-1]
    length = source.visible.gt(0).sum(1, keepdim=True).clamp_min(1)
    # With two random source words out of n, the second is further on with probability (n − 1) / 2n.
    chance = neighbours.sum(1, keepdim=True).float() * (length - 1) / (2 * length)

    def further(view: View) -> Tensor:
        # Word by word: does the next one look further on?
        later: Tensor = view.attended_words.diff(dim=-1) > 0
        return later

    return mean_over_queries("monotonicity", neighbours, chance, further)


@dataclass(frozen=True)
class PromptTemplate:
    """How a language model is asked to translate: the text before a source sentence, between it and its translation,
    and after both."""

    before: str
    between: str
    after: str

    @classmethod
    def parse(cls, template: str) -> PromptTemplate:
        """Read a template such as `Translate to German: {source}\n{target}`. Raises HeadwiseError for one without both
        fields in this order, once each: a translation reads its source before it is written."""
        parts = FIELDS.split(template)
        # The names stand at the odd places of a split with a group.
        if parts[1::2] != ["source", "target"]:
            raise HeadwiseError(
                f"The prompt {template!r} must have {{source}} once and {{target}} once after it, as in "
                "'Translate to German: {source} => {target}'."
            )
        return cls(*parts[::2])

    def written(self, source: str, target: str) -> tuple[str, int, int]:
        """A pair in this prompt: the text, and where in it the source and the target begin."""
        start = len(self.before)
        second = start + len(source) + len(self.between)
        return f"{self.before}{source}{self.between}{target}{self.after}", start, second


def aligned_pairs(
    text: Iterable[tuple[str, str]],
    tokenizer: Any,
    limit: int,
    sources: Coverage,
    targets: Coverage,
    words: Callable[[str, str], Annotated] = split_into_words,
    prompt: PromptTemplate | None = None,
) -> list[AlignedPair]:
    """Sentence pairs in subwords, in their order, with their number as id; pairs with a side that does not fit are left
    out and counted for that side. words: from a text and its id to its words. prompt: both sides are then in the
    subwords of a pair in this prompt."""
    source_sentences = []
    target_sentences = []
    source_places = []
    target_places = []
    for number, (source, target) in enumerate(text):
        source_side = words(source, str(number))
        target_side = words(target, str(number))
        source_sentences.append(source_side)
        target_sentences.append(target_side)
        if prompt is not None:
            whole, start, second = prompt.written(source_side.text, target_side.text)
            source_places.append((whole, start))
            target_places.append((whole, second))
    read = align_subwords(tokenizer, source_sentences, limit, sources, source_places or None)
    # Target words may have other pieces, and another language code, than source words.
    with target_mode(tokenizer):
        written = align_subwords(tokenizer, target_sentences, limit, targets, target_places or None)

    by_id = {aligned.sentence.id: aligned for aligned in written}
    pairs = []
    for aligned in read:
        if aligned.sentence.id in by_id:
            pairs.append((aligned, by_id[aligned.sentence.id]))
    return pairs


@contextmanager
def target_mode(tokenizer: Any) -> Iterator[None]:
    """A tokenizer of two languages in target mode, as with `text_target=`."""
    if not hasattr(tokenizer, "_switch_to_target_mode"):
        yield
        return
    # `align_subwords` calls the tokenizer, where nobody can pass `text_target=`.
    tokenizer._switch_to_target_mode()
    try:
        yield
    finally:
        tokenizer._switch_to_input_mode()


def aligner() -> str | None:
    """The path of eflomal; None where it is not installed."""
    # pip puts programs beside the interpreter, which PATH lacks unless the environment is active.
    beside = Path(sys.executable).with_name(PROGRAM)
    return str(beside) if beside.exists() else shutil.which(PROGRAM)


def need_eflomal() -> str:
    """The path of the aligner. Raises HeadwiseError when it is not installed."""
    program = aligner()
    if program is None:
        raise HeadwiseError(
            "Alignment heads need the word aligner eflomal, which is not installed: pip install "
            "'headwise[align]' (it is compiled on your machine, which needs a C compiler)."
        )
    return program


class WordLinks(Sequence[Gold]):
    """The sure and possible links of each sentence pair. apart: whether they count words and punctuation marks apart
    (`split_into_words`), as eflomal's do; else the words that blanks separate."""

    def __init__(self, pairs: Sequence[Gold], apart: bool) -> None:
        self.pairs = pairs
        self.apart = apart

    def __len__(self) -> int:
        return len(self.pairs)

    @overload
    def __getitem__(self, index: int) -> Gold: ...
    @overload
    def __getitem__(self, index: slice) -> WordLinks: ...
    def __getitem__(self, index: int | slice) -> Gold | WordLinks:
        if isinstance(index, slice):
            return WordLinks(self.pairs[index], self.apart)
        return self.pairs[index]

    def written(self) -> str:
        """The content of a file of links, as `read_links` reads it."""
        lines = [APART] if self.apart else []
        for sure, possible in self.pairs:
            named = [f"{s}{'-' if (s, t) in sure else 'p'}{t}" for s, t in sorted(possible)]
            lines.append(" ".join(named))
        return "".join(f"{line}\n" for line in lines)


def counted_words(gold: Sequence[Gold] | None) -> Callable[[str, str], Annotated]:
    """How links count words: from a text and its name to its words."""
    between_blanks = gold is not None and not (isinstance(gold, WordLinks) and gold.apart)
    return Annotated.plain if between_blanks else split_into_words


def drawn_links(text: Sequence[tuple[str, str]]) -> WordLinks:
    """Which words translate each other: the links that eflomal finds in both directions.

    Raises HeadwiseError when eflomal is not installed or fails.
    """
    program = need_eflomal()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_words([source for source, _ in text], folder / "source")
        write_words([target for _, target in text], folder / "target")
        options = ["-s", "source", "-t", "target", "-f", "forward", "-r", "backward"]
        done = subprocess.run(
            [program, *options], cwd=folder, capture_output=True, text=True, check=False
        )
        outputs = [folder / "forward", folder / "backward"]
        if done.returncode or not all(file.exists() for file in outputs):
            raise HeadwiseError(
                f"{PROGRAM} failed on {len(text)} sentence pairs: {done.stderr.strip()[-300:]}"
            )
        forward, backward = map(read_links, outputs)

    in_both = []
    for (there, _), (back, _) in zip(forward, backward, strict=True):
        in_both.append((there & back, there & back))
    return WordLinks(in_both, apart=True)


def write_words(texts: Iterable[str], file: Path) -> None:
    """Write the words and punctuation marks of sentences as eflomal reads them: a line each, with blanks between them, so
    that it counts as many as `split_into_words` does."""
    lines = []
    for text in texts:
        forms = []
        for word in split_into_words(text, "").words:
            # Case tells the aligner little, and makes words rarer. Some control characters part words in Python.
            form = "".join(word.form.lower().split())
            forms.append(form or "_")
        lines.append(" ".join(forms) + "\n")
    file.write_text("".join(lines), encoding="utf-8")


def decoder_sides(
    aligned: Sequence[Aligned], start: int, pad: int, device: torch.device
) -> tuple[Tensor, Passage, Passage]:
    """The decoder's input B T for target sentences, and its positions by the tokens they write and those they read.

    Writing: the subwords of a word are where they are predicted. Reading: one position later, after the start token.
    """
    writing = Passage.of(aligned, pad, device)
    ids = moved(writing.ids, 1, start)
    later = read_later(writing)
    read = Passage(ids, writing.mask, later.word_of, writing.sentences, causal=True)
    return ids, writing, read


def read_later(writing: Passage) -> Passage:
    """Target sentences by the decoder's positions that read their tokens: each is one behind that which writes it."""
    word_of = moved(writing.word_of, 1, -1)
    return replace(writing, word_of=torch.where(writing.mask, word_of, -1))


def read_links(path: str | PathLike[str]) -> WordLinks:
    """Reference links, a line for each sentence pair: `0-0 1-2 1p3`, source and target word counted from 0.

    `-` is a sure link, `p` or `?` a possible one. Words are what blanks separate; behind a first line APART also
    punctuation marks are words of their own.
    """
    file: Path = existing_file(path)
    pairs: list[Gold] = []
    apart = False
    for number, line in enumerate(read_lines(file), start=1):
        if number == 1 and line == APART:
            apart = True
            continue
        sure = set()
        possible = set()
        for link in line.split():
            match = LINK.fullmatch(link)
            if match is None:
                raise HeadwiseError(
                    f"Line {number} of {file} has a link that is none: write source-target, counted from 0, such as "
                    "0-0 1-2, with p in place of - where it is only possible."
                )
            words = int(match[1]), int(match[3])
            possible.add(words)
            if match[2] == "-":
                sure.add(words)
        pairs.append((frozenset(sure), frozenset(possible)))
    numbers = [{*chain(*possible)} for _, possible in pairs if possible]
    # the first words of a sentence are hardly ever linked to nothing in all of so many
    if len(numbers) >= NEVER_FIRST and not any(0 in each for each in numbers):
        raise HeadwiseError(
            f"None of the {len(numbers):,} lines of {file} links a word 0: its words seem to be counted from 1. Count from "
            "0, as eflomal and fast_align do."
        )
    return WordLinks(pairs, apart)


def links_of(
    pairs: Sequence[AlignedPair], text: Sequence[tuple[str, str]], gold: Sequence[Gold]
) -> dict[str, Gold]:
    """The links of some pairs of a text by the id of the sentence."""
    return {pair[0].sentence.id: merged(pair, text, gold) for pair in pairs}


def pairs_for(
    model: Model,
    text: ParallelText | Text | LinkedText,
    progress: OnProgress | None = None,
    outline: bool = False,
) -> ParallelText | LinkedText:
    """Sentence pairs as they were given; of one-sided text with what a translation model writes (`Task.completed`). Raises
    HeadwiseError for one-sided text of other models."""
    if not isinstance(text, Text):
        return text
    pairs = model.task.completed(text, progress, outline)
    if not isinstance(pairs, ParallelText):
        raise HeadwiseError(
            f"{model.name} is {model.task.noun}, and {text.name} has one side, but alignment is tested on sentence pairs: "
            "leave it out, or give two files to a translation model. --treebank and --words test other functions."
        )
    return pairs


@dataclass(frozen=True)
class LinkedText:
    """Sentence pairs with their reference links, sure and possible ones for each pair."""

    text: ParallelText
    gold: Sequence[Gold]
    file: str

    @classmethod
    def read(cls, text: ParallelText, links: str | PathLike[str]) -> LinkedText:
        """Pairs with a file of their links: a line for each, such as `0-0 1-2 1p3` (see `read_links`)."""
        return cls(text, read_links(links), str(links))

    made = ""

    @property
    def name(self) -> str:
        return self.text.name

    def head(self, count: int) -> LinkedText:
        """The first pairs, with their links."""
        return LinkedText(self.text.head(count), self.gold[:count], self.file)

    def __repr__(self) -> str:
        return f"LinkedText({self.name!r}, rows={len(self.text):,}, links={self.file!r})"

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.text)

    def __len__(self) -> int:
        return len(self.text)


def check_links(text: Sequence[tuple[str, str]], gold: Sequence[Gold]) -> None:
    """Raise HeadwiseError for links that are not those of the text."""
    if len(text) != len(gold):
        raise HeadwiseError(
            f"There are links for {len(gold)} sentence pairs, but {len(text)} pairs: give a line each."
        )
    words = counted_words(gold)
    pairs = zip(text, gold, strict=True)
    for number, ((source, target), (_, possible)) in enumerate(pairs, start=1):
        source_words = len(words(source, "").words)
        target_words = len(words(target, "").words)
        for read, written in sorted(possible):
            if read >= source_words or written >= target_words:
                raise HeadwiseError(
                    f"Line {number} has the link {read}-{written}, but the pair has {source_words} "
                    f"and {target_words} words: links count words between blanks, from 0, or, behind a first line "
                    f"'{APART}', those too."
                )


def merged(pair: AlignedPair, text: Sequence[tuple[str, str]], gold: Sequence[Gold]) -> Gold:
    """The links of a pair, in the words that are left where subwords cover several words."""
    number = int(pair[0].sentence.id)
    words = counted_words(gold)
    indices = []  # by side, the new index of each word
    for side, line in zip(pair, text[number], strict=True):
        starts = [start for start, _ in side.sentence.spans]
        # The word in which the first letter of a word that links count is.
        indices.append([bisect_right(starts, start) - 1 for start, _ in words(line, "").spans])
    source_index, target_index = indices

    sure, possible = gold[number]
    return (
        frozenset((source_index[s], target_index[t]) for s, t in sure),
        frozenset((source_index[s], target_index[t]) for s, t in possible),
    )
