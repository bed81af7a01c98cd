"""Text without its words and without its order, and roles on both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from transformers import MarianMTModel, PreTrainedTokenizerFast

import headwise as hw
from headwise.data.annotated import Annotated
from headwise.data.treebank import Treebank
from headwise.roles.changed_text import SENTENCES, random_words, sample_sentences, shuffled
from headwise.roles.role import role_of
from headwise.roles.role_tests import CONTROL_COLUMNS, RoleTexts, find_roles
from headwise.statistics import cohen_h

Marian = Callable[..., MarianMTModel]


def arcs(sentence: Annotated) -> Counter[tuple[str, str, str]]:
    """Every word with its relation and its governor."""
    forms = [word.form for word in sentence.words]
    return Counter(
        (word.form, word.relation, "" if word.governor < 0 else forms[word.governor])
        for word in sentence.words
    )


def test_shuffled_sentences_keep_their_words_and_trees(treebank: Treebank) -> None:
    before = list(treebank)
    after = shuffled(before, 1)
    assert [arcs(sentence) for sentence in after] == [arcs(sentence) for sentence in before]
    moved = [a.words != b.words for a, b in zip(after, before, strict=True)]
    assert np.mean(moved) > 0.9
    assert all(
        sentence.mentions == () and len(sentence.spans) == len(sentence.words) for sentence in after
    )
    assert shuffled(before, 1) == after != shuffled(before, 2)
    pairs = [(w.governor - i) for s in before for i, w in enumerate(s.words) if w.relation == "det"]
    mixed = [(w.governor - i) for s in after for i, w in enumerate(s.words) if w.relation == "det"]
    assert (
        min(pairs) > 0 and 0.3 < np.mean(np.array(mixed) > 0) < 0.7
    )  # a determiner was before its noun


def test_random_words_keep_trees_and_mentions(treebank: Treebank) -> None:
    before = list(treebank)
    after = random_words(before, 1)
    for old, new in zip(before, after, strict=True):
        assert [(w.governor, w.relation) for w in old.words] == [
            (w.governor, w.relation) for w in new.words
        ]
        assert old.mentions == new.mentions and new.text == " ".join(
            word.form for word in new.words
        )
    counts, drawn = (Counter(w.form for s in text for w in s.words) for text in (before, after))
    assert set(drawn) <= set(counts)
    often = counts.most_common(1)[0]
    assert drawn[often[0]] == pytest.approx(often[1], rel=0.2)


def test_a_long_text_is_thinned_evenly() -> None:
    text = [Annotated.plain(str(number)) for number in range(2 * SENTENCES + 1)]
    few = sample_sentences(text, 1)
    assert len(few) <= SENTENCES and few[1].text == "3" and int(few[-1].text) > 2 * SENTENCES - 3
    assert sample_sentences(text, 4) == text  # neighbours are read together


def test_the_controls_are_the_tests_of_twins_and_of_changed_text(
    treebank: Treebank, tokenizer: PreTrainedTokenizerFast, tiny_marian: Marian
) -> None:
    """The slow way: `hw.roles` of every twin, and of the model on the changed text."""
    model = hw.Model(tiny_marian(vocab_size=len(tokenizer)), tokenizer, "tiny")
    found = hw.roles(model, treebank, seed=4, untrained=2).controls
    assert tuple(found.columns) == CONTROL_COLUMNS and found["measure"].map(role_of).notna().all()
    assert set(found["control"]) == {"untrained.5", "untrained.6", "random-words", "shuffled"}
    twins = {
        name: hw.untrained(model, int(name.partition(".")[2]))
        for name in ("untrained.5", "untrained.6")
    }
    text = list(treebank)
    slow = {name: hw.roles(twin, treebank, seed=4) for name, twin in twins.items()}
    slow["shuffled"] = find_roles(model, RoleTexts(shuffled(text, 4)), seed=4)
    slow["random-words"] = find_roles(model, RoleTexts(random_words(text, 4)), seed=4)
    for name, one in slow.items():
        table = one.table[one.table["measure"].map(role_of).notna()]
        rows = found[found["control"] == name]
        assert list(rows["measure"]) == list(table["measure"])
        assert np.array_equal(rows["value"], table["value"]) and rows["found"].sum() == len(
            one.roles
        )
    assert hw.roles(model, treebank, seed=4).controls.empty


def test_the_effect_size_of_shares() -> None:
    """Cohen 1988: from 0.5 to 0.65 is as far as from 0.05 to 0.13, about 0.3."""
    assert cohen_h(
        np.array([1.0, 0.5, 0.65, 0.13]), np.array([0.0, 0.5, 0.5, 0.05])
    ) == pytest.approx([np.pi, 0.0, 0.3047, 0.2867], abs=1e-3)
