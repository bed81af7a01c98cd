"""Alignment heads: made by hand, against a slow version, and the aligner behind them."""

from __future__ import annotations

import importlib
import random
import shutil
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from tokenizers.pre_tokenizers import Metaspace
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from headwise.data.annotated import Annotated, split_into_words
from headwise.data.subwords import Aligned, Coverage
from headwise.roles.alignment import (
    PROGRAM,
    Links,
    WordLinks,
    aligned_pairs,
    alignment,
    check_links,
    copied_words,
    counted_words,
    decoder_sides,
    drawn_links,
    links_of,
    merged,
    monotonicity,
    read_later,
    read_links,
    reading,
)
from headwise.roles.passage import Passage, View
from headwise.roles.shape import sink
from refusals import refuses
from roles.handmade import END, baselines, first_subword, in_subwords, random_weights, values

SOURCES = "the old cat sleeps today .|a dog eats|today the bird sings in a tree ."
TARGETS = (
    "aujourd'hui le vieux chat dort .|un chien mange|l'oiseau chante dans un arbre aujourd'hui ."
)


@pytest.fixture
def sides() -> tuple[Passage, Passage]:
    """Targets, as the positions that write them, and sources."""
    target, source = (
        [split_into_words(text, str(n)) for n, text in enumerate(texts.split("|"))]
        for texts in (TARGETS, SOURCES)
    )
    _, written, _ = decoder_sides(in_subwords(target, 1), 2, 0, torch.device("cpu"))
    return written, Passage.of(in_subwords(source, 2), 0)


@pytest.fixture
def drawn(sides: tuple[Passage, Passage]) -> dict[str, Links]:
    """Links at random, some words with two, some with none."""
    draw, out = random.Random(0), {}
    for target, source in zip(sides[0].sentences, sides[1].sentences, strict=True):
        sizes = len(source.words), len(target.words)
        out[target.id] = frozenset(tuple(map(draw.randrange, sizes)) for _ in range(6))
    return out


def at_links(sides: tuple[Passage, Passage], drawn: dict[str, Links]) -> Tensor:
    target, source = sides
    weights = random_weights(target, 1, keys=source)
    for row, each in enumerate(target.sentences):
        for read, written in drawn[each.id]:
            pieces = target.word_of[row] == written
            weights[row, 0, pieces] = 0
            weights[row, 0, pieces, first_subword(source, row, read)] = 1
    return weights


def test_a_head_that_looks_at_aligned_words_scores_one(
    sides: tuple[Passage, Passage], drawn: dict[str, Links]
) -> None:
    question = alignment(*sides, links=drawn)
    assert values(question, at_links(sides, drawn), *sides)["alignment"] == 1


def test_against_a_slow_version(sides: tuple[Passage, Passage], drawn: dict[str, Links]) -> None:
    target, source = sides
    weights = random_weights(target, 2, keys=source)
    between = View(weights, target, source).between
    hits, further, offsets = [], [], []
    for row, each in enumerate(target.sentences):
        width, height = len(source.sentences[row].words), len(each.words)
        best = between[row, :, :height, :width].argmax(-1)
        for t in range(height):
            right = [s for s, written in drawn[each.id] if written == t]
            if right:
                hits.append([int(k) in right for k in best[:, t]])
                offsets.append([s - round(t * (width - 1) / (height - 1)) for s in right])
        further += (best[:, 1:] > best[:, :-1]).T.tolist()
    question = alignment(target, source, drawn)
    found = values(question, weights, target, source)
    found |= values(monotonicity(target, source), weights, target, source)
    for name, rows in {"alignment": hits, "monotonicity": further}.items():
        torch.testing.assert_close(found[name], torch.tensor(rows).float().mean(0))
    diagonal = max(sum(r in each for each in offsets) for r in range(-10, 11)) / len(offsets)
    assert baselines(question)["alignment"] == pytest.approx(diagonal)


def test_a_head_that_looks_back_at_the_word_it_has_just_written() -> None:
    """Right is the position that reads a copied word, one behind the one that writes it."""
    texts = "Berlin saw 1989 and Gorbatschow", "1989 sah Gorbatschow nach Berlin"
    source_words, target_words = (split_into_words(text, "0") for text in texts)
    copied = {(0, 4), (2, 0), (4, 2)}
    assert copied_words(source_words, target_words) == copied
    source = Passage.of(in_subwords([source_words], 2), 0)
    written = decoder_sides(in_subwords([target_words], 1), 2, 0, torch.device("cpu"))[1]
    weights = random_weights(written, 2, keys=source)
    for head, side in enumerate((read_later(written), written)):
        for key, query in copied:
            pieces = side.word_of[0] == query
            weights[0, head, pieces] = 0
            weights[0, head, pieces, first_subword(source, 0, key)] = 1
    probe = reading(written, source)
    assert probe.counts.tolist() == [[3]]
    assert values(probe, weights, written, source)["reading"][0] == 1
    found = values(alignment(written, source, {"0": frozenset(copied)}), weights, written, source)
    assert found["alignment"][1] == 1


@pytest.mark.parametrize(
    "pair",
    [("The cat can", "le chat can"), ("Paris and Paris", "Paris et Rome"), ("-- ...", "-- ...")],
)
def test_short_words_repeated_words_and_marks_are_not_copied(pair: tuple[str, str]) -> None:
    assert copied_words(*(split_into_words(text, "0") for text in pair)) == frozenset()


def test_rest_at_the_end_of_the_source(sides: tuple[Passage, Passage]) -> None:
    target, source = sides
    weights = torch.zeros(3, 2, target.ids.shape[1], source.ids.shape[1])
    weights[:, 0] = (source.ids == END).float()[:, None]
    weights[:, 1] = source.mask.float()[:, None] / source.mask.sum(1)[:, None, None]
    probe = sink(target, source)
    rest, even = values(probe, weights, target, source)["sink"].tolist()
    assert rest == 1 and even == pytest.approx(baselines(probe)["sink"])


def test_a_word_is_written_where_its_pieces_are_predicted_and_read_one_place_later() -> None:
    texts = [split_into_words("un chien mange", "0"), split_into_words("oui", "1")]
    aligned = in_subwords(texts, 3)
    ids, written, read = decoder_sides(aligned, start=2, pad=0, device=torch.device("cpu"))
    size = len(aligned[0].ids)
    assert ids[0].tolist() == [2, *aligned[0].ids[:-1]] and ids[1, 0] == 2
    assert written.word_of[0].tolist() == aligned[0].word_of and not written.causal
    assert read.word_of[0].tolist() == [-1, *aligned[0].word_of[:-1]] and read.causal
    assert read.mask.equal(written.mask) and size > 3
    assert (read.word_of[1, len(aligned[1].ids) :] == -1).all()


def test_pairs_keep_their_places_when_one_is_left_out(tokenizer: PreTrainedTokenizerFast) -> None:
    long = " ".join(["the"] * 30)
    coverage = Coverage(), Coverage()
    given = [("the .", "a ."), (long, "a"), ("a", long), ("a", "the")]
    pairs = aligned_pairs(given, tokenizer, 10, *coverage)
    kept = [(one.sentence.id, one.sentence.text, two.sentence.text) for one, two in pairs]
    assert kept == [("0", "the .", "a ."), ("3", "a", "the")]
    assert [each.too_long for each in coverage] == [1, 1]


def test_words_and_punctuation_marks() -> None:
    found = split_into_words("L'oiseau, dit-elle.", "7")
    assert [word.form for word in found.words] == ["L", "'", "oiseau", ",", "dit", "-", "elle", "."]
    assert found.text == "L'oiseau, dit-elle." and found.spans[2] == (2, 8) and found.id == "7"


def test_eflomal_finds_translations() -> None:
    if not (shutil.which(PROGRAM) or Path(sys.executable).with_name(PROGRAM).exists()):
        pytest.skip("eflomal is not installed")
    draw, words = random.Random(0), [f"w{n}" for n in range(30)]
    pairs = []
    for _ in range(300):
        chosen = draw.sample(words, 6)
        order = sorted(range(6), key=lambda i: i // 2 * 2 - i)
        sides = " ".join(chosen), " ".join(chosen[i].upper() + "x" for i in order)
        pairs.append(sides)
    found = drawn_links(pairs)
    right = total = 0
    for (one, two), (both, _) in zip(pairs, found, strict=True):
        for s, t in both:
            total += 1
            right += two.split()[t] == one.split()[s].upper() + "x"
    assert total > 1500 and right / total > 0.95


# Links the words of a pair in their order, counted as eflomal counts: what blanks part in Python.
IN_ORDER = """\
import sys
source, target = (open(name, encoding="utf-8").read().split("\\n")[:-1] for name in ("source", "target"))
for name in ("forward", "backward"):
    with open(name, "w") as out:
        for sides in zip(source, target, strict=True):
            count = min(len(side.split()) for side in sides)
            out.write(" ".join(f"{n}-{n}" for n in range(count)) + "\\n")
"""


def test_every_link_is_right_where_pieces_span_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text against itself: each link connects a word with itself, also behind the piece "▁from▁the", a blank that is no
    blank to all, and two for one. What the run writes gives the same links to another."""
    lines = [
        "a bird from the north sleeps .",
        "from the north",
        "no, not  from the bird",
        "one\x1cbird from\u00a0the north",
        "the \x1c north from the",
    ]
    program = tmp_path / "in-order"
    program.write_text(f"#!{sys.executable}\n{IN_ORDER}")
    program.chmod(0o755)
    links_module = importlib.import_module("headwise.roles.alignment")
    monkeypatch.setattr(links_module, "need_eflomal", lambda: str(program))
    pieces = ["<unk>", "▁from▁the", *"▁abdefhilmnoprstvwy.,\x1c", "▁from", "▁the"]
    core = Tokenizer(Unigram([(piece, -1.0) for piece in pieces], 0, False))
    core.pre_tokenizer = Metaspace(split=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>")
    text = [(line, line) for line in lines]
    gold = drawn_links(text)
    counts = Coverage(), Coverage()
    pairs = aligned_pairs(text, tokenizer, 99, *counts, counted_words(gold))
    assert counts[0].merged_words >= 4 and len(pairs) == len(text)
    found = links_of(pairs, text, gold)
    for source, target in pairs:
        words = len(source.sentence.words)
        assert found[source.sentence.id][0] == {(word, word) for word in range(words)}
        assert len(target.sentence.words) == words
    (tmp_path / "links.txt").write_text(gold.written())
    again = read_links(tmp_path / "links.txt")
    assert again.apart and list(again) == list(gold)
    check_links(text, again)
    assert links_of(pairs, text, again) == found


def test_links_are_read_as_they_were_written(tmp_path: Path) -> None:
    sure, possible = frozenset({(0, 1)}), frozenset({(0, 1), (2, 0)})
    for apart in (False, True):
        gold = WordLinks([(sure, possible), (frozenset(), frozenset())], apart)
        (tmp_path / "links.txt").write_text(gold.written())
        again = read_links(tmp_path / "links.txt")
        assert list(again) == list(gold) and again.apart == apart == again[:1].apart


def test_links_counted_from_one_are_refused(tmp_path: Path) -> None:
    """As those of NAACL 2003 and of some gold sets: each would be of the word behind the one that is meant."""
    (tmp_path / "one").write_text("1-1 2-3\n\n" * 10)
    refuses(lambda: read_links(tmp_path / "one"), "of the 10 lines … counted from 1")
    for few in ("1-1 2-3\n" * 9, "1-1\n" * 10 + "2-0\n"):
        (tmp_path / "few").write_text(few)
        assert len(read_links(tmp_path / "few")) == few.count("\n")


def test_links_of_words_that_became_one() -> None:
    """The first two of three words share a subword."""
    source = Annotated.plain("a b c", "0").merged({1})
    target = Annotated.plain("x y", "0")
    sure, possible = frozenset({(1, 0)}), frozenset({(0, 0), (1, 0), (2, 1)})
    pair = Aligned([], [], source), Aligned([], [], target)
    found = merged(pair, [("a b c", "x y")], [(sure, possible)])
    assert found == (frozenset({(0, 0)}), frozenset({(0, 0), (1, 1)}))
