"""Coreference: brackets of GUM and CorefUD, heads and kinds of mentions, faults, GUM's own counts."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from conllu import parse
from hypothesis import given
from hypothesis import strategies as st

from headwise.core.errors import HeadwiseError
from headwise.data.annotated import Mention, Word, mention
from headwise.data.conll import entity_mentions
from headwise.data.lines import read_lines
from headwise.data.treebank import Treebank, TreebankSize
from refusals import refuses

GUM = """\
# newdoc id = made_up
# global.Entity = GRP-etype-infstat-salience-centering-minspan-link-identity
# sent_id = made_up-1
1	Anna	Anna	PROPN	_	_	2	nsubj	_	Entity=(1-person-new-sssss-cf1-1-coref-Anna_(name%29)
2	sold	sell	VERB	_	_	0	root	_	_
3	her	her	PRON	_	_	5	nmod:poss	_	Entity=(2-object-new-snnnn-cf2-3-coref(1-person-giv:act-sssss-cf1-1-ana)
4	old	old	ADJ	_	_	5	amod	_	_
5	bike	bike	NOUN	_	_	2	obj	_	Bridge=1<2|Entity=2)|SpaceAfter=No
6	;	;	PUNCT	_	_	2	punct	_	_

# sent_id = made_up-2
1	it	it	PRON	_	_	2	nsubj	_	Entity=(2-object-giv:act-snnnn-cf2*-1-ana)
2	squeaked	squeak	VERB	_	_	0	root	_	_

# newdoc id = another
# sent_id = another-1
1	Anna	Anna	PROPN	_	_	0	root	_	Entity=(1-person-new-sssss-cf1-1-sgl)
"""


def written(folder: Path, text: str, name: str = "made.conllu") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_gum(tmp_path: Path) -> None:
    """The example of GUM's own description: an inner mention on the row where the outer one begins."""
    treebank = Treebank.read(written(tmp_path, GUM.replace("(name%29", "%28name%29")))
    first, second, third = treebank
    assert first.mentions == (
        Mention("1", 0, 0, 1, 0, "proper"),
        Mention("2", 0, 2, 5, 4, "nominal"),
        Mention("1", 0, 2, 3, 2, "pronoun"),
    )
    assert second.mentions == (Mention("2", 1, 0, 1, 0, "pronoun"),)
    assert third.mentions == (Mention("1", 0, 0, 1, 0, "proper"),)
    assert [len(document) for document in treebank.documents()] == [2, 1]
    assert treebank.counts == TreebankSize(3, 9, documents=2, mentions=5, entities=3, chains=2)


OLD_GUM = """\
# newdoc id = a
# global.Entity = entity-GRP-identity
# sent_id = a-1
1	Ann	Ann	PROPN	_	_	2	nsubj	_	Entity=(person-1-Ann_B-C)
2	saw	see	VERB	_	_	0	root	_	_
3	Bob	Bob	PROPN	_	_	2	obj	_	Entity=(person-2(object-3)
4	bikes	bike	NOUN	_	_	3	flat	_	Entity=person-2)

# newdoc id = b
# global.Entity = entity-GRP-identity
# sent_id = b-1
1	She	she	PRON	_	_	2	nsubj	_	Entity=(person-1
2	slept	sleep	VERB	_	_	0	root	_	Entity=1)

# sent_id = b-2
1	She	she	PRON	_	_	0	root	_	Entity=(person-1)
"""


def test_the_file_says_which_field_is_the_entity(tmp_path: Path) -> None:
    """As GUM had them before 2022: the type comes first. `conllu` counts the brackets of each document."""
    treebank = Treebank.read(written(tmp_path, OLD_GUM))
    entities: Counter[tuple[str, str]] = Counter()
    document = ""
    for tree in parse(OLD_GUM):
        document = tree.metadata.get("newdoc id", document)
        for token in tree:
            brackets = (token["misc"] or {}).get("Entity", "")
            entities.update((document, one) for one in re.findall(r"\([a-z]+-(\d+)", brackets))
    counts = treebank.counts
    assert (counts.mentions, counts.entities) == (entities.total(), len(entities)) == (5, 4)
    assert counts.chains == sum(count > 1 for count in entities.values()) == 1
    first = next(iter(treebank)).mentions
    assert [(one.entity, one.start, one.end) for one in first] == [
        ("1", 0, 1),
        ("2", 2, 4),
        ("3", 2, 3),
    ]


@pytest.mark.parametrize(
    ("order", "brackets", "expected"),
    [
        (  # GUM in UD 2.8, by its README: what closes has all fields, a hyphen in a name is escaped
            "entity-GRP-identity",
            "(place-1-Tulsa) _ (time-189 (time-175)time-189) (person-9-A&#45;B _ person-9-A&#45;B)",
            [("1", 0, 1), ("189", 2, 4), ("175", 3, 4), ("9", 4, 7)],
        ),
        (  # UD 2.9: what closes has the entity alone
            "entity-GRP-infstat-MIN-coref_type-identity",
            "(time-188-new-1-sgl _ (time-189-new-1,2-sgl (time-175-giv:inact-1-coref)189)188)",
            [("188", 0, 4), ("189", 2, 4), ("175", 3, 4)],
        ),
        (  # as first proposed
            "entity-GRP",
            "(place-1) (place-1) (place-2 _ (place-3)2)",
            [("1", 0, 1), ("1", 1, 2), ("2", 2, 5), ("3", 4, 5)],
        ),
    ],
)
def test_each_order_that_gum_was_published_in(
    order: str, brackets: str, expected: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    rows = []
    for number, value in enumerate(brackets.split(), start=1):
        governor = "0\troot" if number == 1 else "1\tdep"
        misc = "_" if value == "_" else f"Discourse=joint:1->0|Entity={value}|SpaceAfter=No"
        rows.append(f"{number}\tw\tw\tX\t_\t_\t{governor}\t_\t{misc}\n")
    text = f"# newdoc id = a\n# global.Entity = {order}\n# sent_id = a-1\n{''.join(rows)}\n"
    (sentence,) = Treebank.read(written(tmp_path, text))
    assert [(one.entity, one.start, one.end) for one in sentence.mentions] == expected


def test_corefud_says_it_once_for_all_documents(tmp_path: Path) -> None:
    text = "# global.Entity = etype-eid-head\n" + OLD_GUM.replace(
        "# global.Entity = entity-GRP-identity\n", ""
    )
    assert Treebank.read(written(tmp_path, text)).counts.entities == 4


def test_an_order_that_is_not_said_is_not_guessed(tmp_path: Path) -> None:
    silent = OLD_GUM.replace("# global.Entity = entity-GRP-identity\n", "")
    path = written(tmp_path, silent)
    refuses(lambda: Treebank.read(path), "line 3 of … 'person' … # global.Entity = eid-etype")
    path = written(tmp_path, OLD_GUM.replace("entity-GRP-identity", "entity-identity", 1))
    refuses(lambda: Treebank.read(path), "Above line 8 of … no field 'eid' or 'GRP'")


def test_a_field_may_have_an_equals_sign(tmp_path: Path) -> None:
    """`conllu` itself drops what follows it, the closing bracket among it."""
    text = "# newdoc id = a\n1\tw\tw\tX\t_\t_\t0\troot\t_\tA=b=c|Entity=(e1-object-a=b)|SpaceAfter=No\n"
    (sentence,) = Treebank.read(written(tmp_path, text))
    assert [one.entity for one in sentence.mentions] == ["e1"]
    assert not sentence.words[0].space_after


FAULTS = {
    "not open": ("Entity=2)", "Entity=3)", "line 4 of … '3)' closes '3', which is not open"),
    "never closed": ("Entity=2)|", "", "line 4 of … entity '2' is opened but never closed"),
    "brackets": ("Entity=2)", "Entity=two", "line 4 of … 'two' is not a run of brackets"),
    "document": ("# newdoc id = made_up\n", "", "line 3 of … in no document: write '# newdoc id"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_name_the_line(tmp_path: Path, fault: str) -> None:
    old, new, words = FAULTS[fault]
    text = GUM.replace("(name%29", "%28name%29")
    assert old in text
    path = written(tmp_path, text.replace(old, new, 1))
    refuses(lambda: Treebank.read(path), words)


def test_mentions_without_words_and_in_parts_are_counted(tmp_path: Path) -> None:
    """CorefUD: a pronoun that is not written is an empty node; a mention may stand in two parts."""
    text = """\
# newdoc id = made_up
0.1	_	on	PRON	_	_	_	_	2:nsubj	Entity=(e1)
1	dnes	dnes	ADV	_	_	2	advmod	_	Entity=(e2[1/2])(e3
2	přišel	přijít	VERB	_	_	0	root	_	_
2.1	_	on	PRON	_	_	_	_	2:obj	Entity=e3)(e4
3	sám	sám	ADJ	_	_	2	xcomp	_	Entity=(e2[2/2])e4)
"""
    treebank = Treebank.read(written(tmp_path, text))
    (sentence,) = treebank
    spans = [(one.entity, one.start, one.end) for one in sentence.mentions]
    assert spans == [("e3", 0, 2), ("e4", 2, 3)]
    assert sentence.skipped_mentions == treebank.counts.skipped_mentions == 2


def word(tag: str, head: int) -> Word:
    return Word("w", "w", tag, head, "dep", "dep", True)


def test_head_is_the_word_whose_governor_is_outside_nearest_the_root() -> None:
    """In "saw [old Anna , a friend]" with a broken annotation two words hang outside; the higher one is the head."""
    heads = (-1, 2, 0, 2, 5, 1)
    tags = ("VERB", "ADJ", "PROPN", "PUNCT", "DET", "NOUN")
    words = [word(tag, head) for tag, head in zip(tags, heads, strict=True)]
    assert mention(words, "e", 0, 1, 6) == Mention("e", 0, 1, 6, 2, "proper")
    assert mention(words, "e", 0, 4, 6).head == 5
    assert mention(words, "e", 0, 3, 5).head == 3  # 2 steps from the root against 4
    assert [mention(words, "e", 0, n, n + 1).kind for n in (2, 5)] == ["proper", "nominal"]


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(1, 8), st.sampled_from("abc")), max_size=8)
)
def test_brackets_of_any_mentions_are_read_back(drawn: list[tuple[int, int, str]]) -> None:
    """Mentions of one entity must nest, as brackets can say no more; of different ones they may cross."""
    spans = {(start, end, entity) for start, end, entity in drawn if start < end}
    kept: set[tuple[int, int, str]] = set()
    for start, end, entity in sorted(spans):
        of_entity = [(a, b) for a, b, e in kept if e == entity]
        if not any(a < start < b < end or start < a < end < b for a, b in of_entity):
            kept.add((start, end, entity))
    rows = []
    for index in range(8):
        ends = [s for s in kept if s[1] - 1 == index and s[1] - s[0] > 1]
        closed = sorted(ends, key=lambda s: -s[0])
        opened = sorted((s for s in kept if s[0] == index), key=lambda s: -s[1])
        value = "".join(f"{entity})" for _, _, entity in closed)
        value += "".join(f"({entity}-x" + ")" * (end - start == 1) for start, end, entity in opened)
        if value:
            rows.append((index, True, value))
    words = [word("NOUN", index - 1) for index in range(8)]
    mentions, skipped = entity_mentions(rows, words, 0, "here")
    assert Counter((m.start, m.end, m.entity) for m in mentions) == Counter(kept) and skipped == 0


@pytest.mark.parametrize(
    "value", ["e" * 16_000, "(e" * 8_000, "(" * 16_000, "e)" * 8_000, "(e)" * 8_000]
)
def test_long_brackets_are_quick(tmp_path: Path, value: str) -> None:
    """16,000 characters took 5 seconds."""
    path = written(tmp_path, f"# newdoc id = a\n1\tw\tw\tX\t_\t_\t0\troot\t_\tEntity={value}\n")
    start = time.process_time()  # a loaded machine takes longer by the clock
    with contextlib.suppress(HeadwiseError):
        Treebank.read(path)
    assert time.process_time() - start < 1


def slow_chains(path: Path) -> tuple[int, int]:
    """Entities and chains by looking for openers only, one document's text at a time."""
    sizes = []
    for document in "\n".join(read_lines(path)).split("# newdoc")[1:]:
        rows = [line.split("\t") for line in document.split("\n")]
        column = "\n".join(row[9] for row in rows if len(row) == 10)
        sizes.append(Counter(re.findall(r"\((\d+)-", column)))
    return sum(map(len, sizes)), sum(count > 1 for size in sizes for count in size.values())


def test_real_gum_in_the_old_order_is_the_same(data_dir: Path, tmp_path: Path) -> None:
    path = data_dir / "ud_english_gum/en_gum-ud-dev.conllu.gz"
    swapped = []
    for line in read_lines(path):
        if line.startswith("# global.Entity = "):
            line = "# global.Entity = entity-GRP-infstat-identity"
        swapped.append(re.sub(r"\((\d+)-([a-z]+)-", r"(\2-\1-", line))
    old = Treebank.read(written(tmp_path, "\n".join(swapped) + "\n"))
    assert old.counts == Treebank.read(path).counts


# Sentences, words, documents, mentions and one-word pronoun mentions as its own description counts them.
GUM_COUNTS = {
    "dev": (1_575, 28_119, 30, 7_897, 2_104),
    "train": (10_224, 177_410, 177, 49_649, 12_542),
}


@pytest.mark.parametrize("part", GUM_COUNTS)
def test_gum_is_read_whole(data_dir: Path, part: str) -> None:
    treebank = Treebank.read(path := data_dir / f"ud_english_gum/en_gum-ud-{part}.conllu.gz")
    counts = treebank.counts
    found = (counts.sentences, counts.words, counts.documents, counts.mentions)
    assert found == GUM_COUNTS[part][:4] and counts.skipped_mentions == 0
    assert (counts.entities, counts.chains) == slow_chains(path)
    if part == "dev":  # the other one takes long to read once more
        mentions = [mention for sentence in treebank for mention in sentence.mentions]
        pronouns = [one for one in mentions if one.kind == "pronoun" and one.end - one.start == 1]
        assert (len(mentions), len(pronouns)) == GUM_COUNTS[part][3:]
