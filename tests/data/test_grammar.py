"""The embedded corpus: what its stream promises, on seeded samples and on seeds chosen by hypothesis."""

import re
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.data.corpus import choices
from headwise.data.corpus.french_forms import ASPIRATED
from headwise.data.grammar import Example, Split, Word, examples, write_parallel, write_treebank
from headwise.errors import HeadwiseError

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
GENDERS = {noun.english[n]: noun.gender for urn in choices.NOUNS.values() for noun in urn.things for n in (0, 1)}
GENDERS |= {noun.english[0]: noun.gender for noun in choices.NAMES.things}
TITLE_GENDERS = {title.english: title.gender for title in choices.ADDRESSED.things}
SEEDS = st.integers(0, 2**32)


@pytest.fixture(scope="module")
def sample() -> list[Example]:
    return list(islice(examples("train", seed=11), 4000))


def governors(words: tuple[Word, ...], first: int, last: int) -> list[int]:
    """The words of a span whose head lies outside."""
    return [n for n in range(first, last + 1) if not first <= words[n - 1].head <= last]


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.sampled_from(SPLITS))
def test_trees_are_trees_and_spell_the_sentence(seed: int, split: Split) -> None:
    for example in islice(examples(split, seed), 15):
        words = example.words
        text = "".join(word.form + " " * word.space_after for word in words)
        assert text.rstrip(" ") == example.source
        assert [word.deprel for word in words if word.head == 0] == ["root"]
        for number in range(1, len(words) + 1):
            steps = 0
            while number:
                number, steps = words[number - 1].head, steps + 1
                assert 0 <= number <= len(words)
                assert steps <= len(words), "a cycle"


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_chains_begin_with_a_noun_and_go_on_with_its_pronouns(seed: int) -> None:
    for example in islice(examples("train", seed), 15):
        for antecedent, *pronouns in example.chains:
            heads = governors(example.words, *antecedent)
            assert len(heads) == 1 and example.words[heads[0] - 1].upos in ("NOUN", "PROPN")
            assert pronouns
            for first, last in pronouns:
                assert first == last > antecedent[1]
                assert example.words[first - 1].upos == "PRON"


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_french_is_elided_and_contracted(seed: int) -> None:
    before_a_vowel = re.compile(r"\b(?:le|la|de|que|je|ne|ma|sa|ce) (h?[aeiouéèêâîôœ]\w*)", re.IGNORECASE)
    aspirated = {word.removesuffix("s") for word in ASPIRATED}
    for example in islice(examples("train", seed), 40):
        for following in before_a_vowel.findall(example.target):
            assert following.removesuffix("s") in aspirated, example.target
        assert not re.search(r"\b(de|à) les?\b", example.target), example.target


def test_subject_pronouns_agree_with_their_antecedent(sample: list[Example]) -> None:
    """Where "it" or "they" alone refers back, French has "elle" or "elles" if its antecedent is feminine."""
    seen: Counter[tuple[str, str]] = Counter()
    for example in sample:
        forms = [word.form for word in example.words]
        if len(example.chains) != 1 or len(example.chains[0]) != 2:
            continue
        (first, last), (place, _) = example.chains[0]
        pronoun = example.words[place - 1]
        if pronoun.form not in ("it", "they") or not pronoun.deprel.startswith("nsubj"):
            continue
        head = governors(example.words, first, last)[0]
        members = [head]
        for number, word in enumerate(example.words[:last], start=1):
            if word.head == head and word.deprel == "conj" and word.upos in ("NOUN", "PROPN"):
                members.append(number)
        titles = {word.head: TITLE_GENDERS[word.form] for word in example.words if word.deprel == "nmod:desc"}
        genders = {titles.get(n) or GENDERS[forms[n - 1]] for n in members}
        feminine = genders == {"f"}
        said = re.findall(r"\b(elles?|ils?)\b(?! y a)", example.target)
        expected = ("elle" if feminine else "il") + "s" * (pronoun.form == "they")
        assert said == [expected], example
        seen[pronoun.form, expected] += 1
    assert len(seen) == 4 and min(seen.values()) >= 10


def test_adjectives_agree_with_their_noun(sample: list[Example]) -> None:
    """Every attributive and predicative adjective has its agreeing form somewhere in the French."""
    forms = {a.english: a.french for kind in "patli" for a in choices.adjectives(kind).things}
    plurals = {noun.english[1] for urn in choices.NOUNS.values() for noun in urn.things if noun.counted}
    checked = 0
    for example in sample:
        for word in example.words:
            if word.upos != "ADJ" or word.deprel != "amod" or word.lemma == "many":
                continue
            noun = example.words[word.head - 1].form
            expected = forms[word.lemma][(GENDERS[noun] == "f") + 2 * (noun in plurals)]
            options = {expected, *(a.before_vowel for a in choices.adjectives("t").things if a.french[0] == expected)}
            if expected == forms[word.lemma][0]:
                options |= {"vieil", "bel", "nouvel"}
            assert any(re.search(rf"\b{option}\b", example.target) for option in options), (word.form, example)
            checked += 1
    assert checked > 1000


def test_the_translation_is_a_function_of_the_source() -> None:
    targets: dict[str, str] = {}
    for seed in range(4):
        for example in islice(examples("train", seed), 3000):
            assert targets.setdefault(example.source, example.target) == example.target


def test_splits_share_no_sentence_whatever_the_seed() -> None:
    sources = {split: {e.source for seed in (1, 2) for e in islice(examples(split, seed), 700)} for split in SPLITS}
    assert sum(map(len, sources.values())) == len(set.union(*sources.values()))


def test_a_seed_gives_one_stream() -> None:
    once, again, other = (list(islice(examples("dev", seed), 30)) for seed in (5, 5, 6))
    assert once == again != other


def test_the_vocabulary_is_zipfian_with_a_long_tail(sample: list[Example]) -> None:
    counts = Counter(word.form.lower() for example in sample for word in example.words)
    total = counts.total()
    ranked = sorted(counts.values(), reverse=True)
    assert sum(count == 1 for count in counts.values()) > 0.3 * len(counts)
    assert len(counts) > 2000
    assert 0.3 < sum(ranked[:20]) / total < 0.6
    names = Counter(w.form for e in sample for w in e.words if w.upos == "PROPN")
    assert sum(count == 1 for count in names.values()) > 0.3 * len(names)


def test_no_fixed_offset_finds_subjects_and_objects(sample: list[Example]) -> None:
    offsets: dict[str, Counter[int]] = {}
    for example in sample:
        for number, word in enumerate(example.words, start=1):
            offsets.setdefault(word.deprel, Counter())[word.head - number] += 1
    best = {relation: max(found.values()) / found.total() for relation, found in offsets.items()}
    assert best["nsubj"] < 0.5 and best["obj"] < 0.5
    assert best["amod"] < 0.8 and best["advmod"] < 0.75
    assert all(offsets[relation].total() > 1000 for relation in ("nsubj", "obj", "amod", "advmod"))


def test_length_stays_trainable(sample: list[Example]) -> None:
    lengths = [len(example.source.split()) for example in sample]
    assert 8 < sum(lengths) / len(lengths) < 14
    assert max(lengths) < 50


def test_parallel_files(tmp_path: Path) -> None:
    paths = write_parallel(tmp_path / "corpus", "dev", 25, seed=3)
    assert [path.name for path in paths] == ["dev.en", "dev.fr"]
    lines = [path.read_text(encoding="utf-8").splitlines() for path in paths]
    expected = list(islice(examples("dev", 3), 25))
    assert lines == [[e.source for e in expected], [e.target for e in expected]]
    assert len(list(paths[0].parent.iterdir())) == 2


def test_the_treebank_gives_back_trees_and_chains(tmp_path: Path) -> None:
    expected = list(islice(examples("dev", 4), 200))
    path = tmp_path / "dev.conllu"
    write_treebank(path, expected)
    blocks = path.read_text(encoding="utf-8").rstrip("\n").split("\n\n")
    assert len(blocks) == len(expected)
    for block, example in zip(blocks, expected, strict=True):
        assert f"# text = {example.source}" in block and f"# text_fr = {example.target}" in block
        rows = [line.split("\t") for line in block.splitlines() if not line.startswith("#")]
        assert all(len(row) == 10 for row in rows) and [row[0] for row in rows] == [
            str(n + 1) for n in range(len(rows))
        ]
        words = tuple(Word(r[1], r[2], r[3], int(r[6]), r[7], "SpaceAfter=No" not in r[9].split("|")) for r in rows)
        assert words == example.words
        assert read_chains(rows) == example.chains


def read_chains(rows: list[list[str]]) -> tuple[tuple[tuple[int, int], ...], ...]:
    """The chains in the `Entity=` brackets, read the obvious way."""
    found: dict[str, list[tuple[int, int]]] = {}
    opened: dict[str, list[int]] = {}
    for number, row in enumerate(rows, start=1):
        entities = "".join(part.removeprefix("Entity=") for part in row[9].split("|") if part.startswith("Entity="))
        for opening, entity, closing in re.findall(r"(\(?)(e\d+)(\)?)", entities):
            if opening:
                opened.setdefault(entity, []).append(number)
            if closing:
                found.setdefault(entity, []).append((opened[entity].pop(), number))
    return tuple(tuple(sorted(found[entity])) for entity in sorted(found, key=lambda name: int(name[1:])))


def test_refusals_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(HeadwiseError, match="train, dev and test"):
        next(examples("validation"))  # type: ignore[arg-type]
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(HeadwiseError, match="choose another place"):
        write_treebank(blocker / "dev.conllu", [])
    assert list(tmp_path.iterdir()) == [blocker]
