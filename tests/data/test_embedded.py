"""The embedded corpus: the sample in the package is what its generator makes, and what docs/data.md promises."""

from __future__ import annotations

import hashlib
from collections import Counter
from importlib import resources
from itertools import islice
from pathlib import Path

import pytest

import make_embedded_corpus as maker
from corpus.examples import examples
from headwise.data import embedded
from headwise.data.embedded import PAIR_COUNTS, Split, pairs, write_parallel, write_treebank
from headwise.data.treebank import Treebank, TreebankSize

FILES = ("train.en", "train.fr", "dev.en", "dev.fr", "test.en", "test.fr", "dev.conllu")
FINGERPRINT = "b93fc6da6790c455fb602b633812de853f50a16750cfca40f6d9960fd7065ff8"


@pytest.fixture(scope="module")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Treebank:
    return Treebank.read(write_treebank(tmp_path_factory.mktemp("trees") / "dev.conllu"))


def test_the_sample_is_fixed_and_small() -> None:
    content = "".join(map(embedded._read_embedded, FILES))
    assert hashlib.sha256(content.encode()).hexdigest() == FINGERPRINT, (
        "the numbers of the demo belong to these sentences"
    )
    folder = resources.files("headwise.data").joinpath("embedded")
    files = [file for file in folder.iterdir() if file.is_file()]
    sizes = {file.name.removesuffix(".bz2"): len(file.read_bytes()) for file in files}
    assert sizes.keys() == set(FILES) and sum(sizes.values()) < 8e5
    assert {split: len(pairs(split)) for split in PAIR_COUNTS} == PAIR_COUNTS == maker.SIZES


@pytest.mark.parametrize("split", PAIR_COUNTS)
def test_the_generator_makes_the_sample(split: Split, tmp_path: Path) -> None:
    made = list(islice(examples(split, maker.SEED), 300))
    assert pairs(split, 300) == [(one.source, one.target) for one in made]
    if split == "dev":
        trees = "".join(one.conllu(number) for number, one in enumerate(made, start=1))
        assert write_treebank(tmp_path / "new" / "dev.conllu", 300).read_bytes() == trees.encode()


def test_splits_share_no_sentence_and_a_sentence_has_one_translation() -> None:
    sources = {split: {source for source, _ in pairs(split)} for split in PAIR_COUNTS}
    assert sum(map(len, sources.values())) == len(set.union(*sources.values()))
    everything = [pair for split in PAIR_COUNTS for pair in pairs(split)]
    assert len(dict(everything)) == len(set(everything))


def test_words_follow_zipf_with_a_long_tail() -> None:
    sources = [source for source, _ in pairs("train")]
    counts = Counter(word for source in sources for word in source.lower().strip(".?").split())
    ranked = sorted(counts.values(), reverse=True)
    assert len(counts) > 4000 and sum(count == 1 for count in ranked) > 0.25 * len(counts)
    assert 0.3 < sum(ranked[:20]) / counts.total() < 0.6
    lengths = [len(source.split()) for source in sources]
    assert 8 < sum(lengths) / len(lengths) < 14 and max(lengths) < 50


def test_trees_spell_the_text_and_chains_are_pronouns_behind_a_noun(treebank: Treebank) -> None:
    assert [sentence.text for sentence in treebank] == [source for source, _ in pairs("dev")]
    assert treebank.counts == TreebankSize(
        1000, 12562, documents=1000, mentions=984, entities=480, chains=480
    )
    for sentence in treebank:
        kinds: dict[str, list[str]] = {}
        for mention in sentence.mentions:
            kinds.setdefault(mention.entity, []).append(mention.kind)
        for antecedent, *others in kinds.values():
            assert antecedent != "pronoun" and set(others) == {"pronoun"}


def test_no_fixed_offset_finds_subjects_and_objects(treebank: Treebank) -> None:
    offsets: dict[str, Counter[int]] = {}
    for sentence in treebank:
        for index, word in enumerate(sentence.words):
            offsets.setdefault(word.relation, Counter())[word.governor - index] += 1
    best = {relation: max(found.values()) / found.total() for relation, found in offsets.items()}
    for relation, most in {"nsubj": 0.5, "obj": 0.5, "amod": 0.8, "advmod": 0.75}.items():
        assert best[relation] < most and offsets[relation].total() > 300


def test_files_are_the_first_pairs(tmp_path: Path) -> None:
    paths = write_parallel(tmp_path / "corpus", "dev", 25)
    assert [path.name for path in paths] == ["dev.en", "dev.fr"]
    sides = [path.read_text(encoding="utf-8").split("\n") for path in paths]
    assert [[*side, ""] for side in zip(*pairs("dev", 25), strict=True)] == sides
    assert len(list(paths[0].parent.iterdir())) == 2
