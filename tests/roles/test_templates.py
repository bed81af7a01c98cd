"""Roles on texts made from templates: heads made by hand, slow versions, tokenizers that do not allow a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from string import ascii_letters, digits

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from headwise.core.heads import Site
from headwise.data.annotated import Annotated, split_into_words
from headwise.data.subwords import Coverage, align_subwords
from headwise.data.treebank import Treebank
from headwise.models.attention.kernel import AttentionCall
from headwise.models.model import Model
from headwise.roles.passage import Passage, View
from headwise.roles.probe import Probe
from headwise.roles.shape import delimiter
from headwise.roles.templates import (
    FIRST_NAMES,
    ORDERED_ITEMS,
    Generated,
    Readout,
    first_subwords,
    names_texts,
    retrieval_texts,
    successor_texts,
)
from models.attention.families import tiny
from refusals import refuses
from roles.handmade import baselines, first_subword, found_in, random_weights, values

SITE = Site("decoder-self", 0)
EVERY = [*FIRST_NAMES, *(word for words in ORDERED_ITEMS.values() for word in words.split())]


def cutting(
    known: Sequence[str] = (), alphabet: str = ascii_letters + digits
) -> PreTrainedTokenizerFast:
    """Known words are whole, others are spelled; a start token in front."""
    pieces = ["<s>", "<unk>", *",.?", *known, *alphabet, *(f"##{letter}" for letter in alphabet)]
    vocabulary = {piece: place for place, piece in enumerate(dict.fromkeys(pieces))}
    raw = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    parts = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]
    raw.pre_tokenizer = pre_tokenizers.Sequence(parts)
    raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", bos_token="<s>")


def readout(cut: PreTrainedTokenizerFast) -> Readout:
    """Two heads as wide as the vocabulary, whose outputs become logits in a random basis."""
    generator = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(len(cut), len(cut), generator=generator))[0]
    return Readout({SITE: torch.eye(len(cut)).repeat(2, 1, 1)}, basis)


def passage(task: Generated, cut: PreTrainedTokenizerFast, count: int = 30) -> Passage:
    return Passage.of(align_subwords(cut, task.texts[:count], 512, Coverage()), 0, causal=True)


def score(
    question: Probe, weights: Tensor, where: Passage, output: Tensor
) -> dict[str, list[float]]:
    """Σ answers / Σ counts by measure and head: weights B H Q K, output B Q H D."""
    none = torch.zeros(0)
    call = AttentionCall(SITE, none, none, none, None, weights, output)
    answers = question.answer(View(weights, where, where, call)).sum(0) / question.counts.sum(0)
    return {name: answers[:, column].tolist() for column, name in enumerate(question.measures)}


def looking(where: Passage, to: Callable[[int, int], int]) -> Tensor:
    """A head that gives nearly all weight of a token to the token `to(row, query)`: B Q K."""
    rows, width = where.ids.shape
    keys = torch.tensor([[to(row, query) for query in range(width)] for row in range(rows)])
    return torch.nn.functional.one_hot(keys, width) + 1e-4


def places(text: Annotated) -> dict[str, int]:
    return {mention.entity: mention.start for mention in text.mentions}


@pytest.mark.parametrize("known", [(), EVERY])
def test_name_movers_look_at_the_other_name_and_copy_it(known: Sequence[str]) -> None:
    """With names of one subword and of several. One head looks at the IO, the other at S2; each writes the IO or S."""
    cut = cutting(known)
    read = readout(cut)
    task = names_texts(cut, read, 0)
    where = passage(task, cut)
    assert len({text.text for text in task.texts}) > 150
    for text in task.texts:
        words, io = [word.form for word in text.words], text.id.split()[1]
        subject = words[places(text)["s"]]
        assert words.count(io) == 1 and words.count(subject) == 2
        assert words[-1] == "to" and words[places(text)["io"]] == io
    first = first_subwords(cut, FIRST_NAMES)

    def at_words(word_of: Callable[[Annotated], int]) -> Tensor:
        return looking(
            where, lambda row, _: first_subword(where, row, word_of(where.sentences[row]))
        )

    def saying(name_of: Callable[[Annotated], str]) -> Tensor:
        rows = [read.embeddings[first[name_of(one)]] for one in where.sentences]
        return torch.stack(rows)[:, None, None].expand(-1, where.ids.shape[1], 2, -1)

    mover, inhibitor = (at_words(lambda one, name=name: places(one)[name]) for name in ("io", "s"))
    weights, question = torch.stack([mover, inhibitor], 1), task.test(where)
    copies = saying(lambda one: one.id.split()[1])
    others = saying(lambda one: one.words[places(one)["s"]].form)
    cases = (
        (copies, [1, 0], [0, 0]),
        (others, [0, 0], [0, 0]),
        # written against: the one that looks at that name suppresses it
        (-copies, [0, 0], [1, 0]),
        (-others, [0, 0], [0, 1]),
    )
    for output, moves, suppresses in cases:
        found = score(question, weights, where, output)
        wanted = {"name-mover": moves, "copy-suppression": suppresses, "s-inhibition": [0, 1]}
        # of names that are not written for or against, one is the lowest by rounding
        for name, values_of_heads in wanted.items():
            assert found[name] == pytest.approx(values_of_heads, abs=0.1), name
    assert max(baselines(question).values()) < 0.5
    # A head that looks back by a fixed number of words is no better than the baseline.
    for offset in range(1, 9):
        fixed = at_words(lambda one, offset=offset: len(one.words) - 1 - offset)
        back = score(question, fixed[:, None].repeat(1, 2, 1, 1), where, copies)
        assert all(max(back[name]) <= baselines(question)[name] + 1e-6 for name in back)


def test_without_a_way_to_logits_only_attention_is_tested() -> None:
    cut = cutting()
    task = names_texts(cut, None, 0)
    where = passage(task, cut)
    question = task.test(where)
    assert question.measures == ["s-inhibition"]
    weights = random_weights(where, 2)
    found = values(question, weights, where)["s-inhibition"]
    hits = torch.zeros(2)
    for row, one in enumerate(where.sentences):
        end = (where.word_of[row] == len(one.words) - 1).nonzero()[:, 0]
        to = [
            weights[row][:, end][:, :, where.word_of[row] == word].sum(2).mean(1)
            if word < len(one.words) - 1
            else torch.full((2,), -1.0)
            for word in range(len(one.words))
        ]
        hits += torch.stack(to).argmax(0) == places(one)["s"]
    assert found.tolist() == pytest.approx((hits / len(where.sentences)).tolist())


@pytest.mark.parametrize("known", [(), EVERY])
def test_successors_follow_the_item_that_the_head_looks_at(known: Sequence[str]) -> None:
    """The item itself or the one before it; a head that copies the item is none."""
    cut = cutting(known)
    read = readout(cut)
    task = successor_texts(cut, read, 0)
    used = {text.id.split()[1] for text in task.texts}
    assert used == (set(ORDERED_ITEMS) if known else {"digits", "letters"})
    where = passage(task, cut)
    question = task.test(where)
    orders = {name: words.split() for name, words in ORDERED_ITEMS.items()}
    first = {name: first_subwords(cut, words) for name, words in orders.items()}
    for back in (0, 1):

        def to(row: int, query: int, back: int = back) -> int:
            word = int(where.word_of[row, query])
            return first_subword(where, row, max(word - back, 0)) if word >= 0 else 0

        output = torch.zeros(*where.ids.shape, 2, len(cut))
        for row, one in enumerate(where.sentences):
            name = one.id.split()[1]
            for query in range(where.ids.shape[1]):
                word = int(where.word_of[row, query])
                if word >= 0:
                    item = orders[name].index(one.words[max(word - back, 0)].form)
                    after = orders[name][(item + 1) % len(orders[name])]
                    output[row, query, 0] = read.embeddings[first[name][after]]
                    output[row, query, 1] = read.embeddings[first[name][orders[name][item]]]
        found = score(question, looking(where, to)[:, None].repeat(1, 2, 1, 1), where, output)
        assert found == {"successor": [1, 0]}
    noise = torch.randn(*where.ids.shape, 2, len(cut), generator=torch.Generator().manual_seed(1))
    by_luck = score(question, random_weights(where, 2), where, noise)["successor"]
    assert by_luck == pytest.approx([baselines(question)["successor"]] * 2, abs=0.08)


@pytest.mark.parametrize("known", [(), EVERY])
def test_retrieval_looks_at_the_next_token_of_the_needle(known: Sequence[str]) -> None:
    cut = cutting(known)
    task = retrieval_texts(cut, 2000, 0)
    where = passage(task, cut, 6)
    question = task.test(where)
    spans: list[dict[str, list[int]]] = []
    for words, one in zip(where.word_of.tolist(), where.sentences, strict=True):
        inside = {m.entity: range(m.start, m.end) for m in one.mentions}
        of_name = inside.items()
        spans.append(
            {name: [t for t, w in enumerate(words) if w in part] for name, part in of_name}
        )
    for span, ids in zip(spans, where.ids.tolist(), strict=True):
        needle, answer = ([ids[token] for token in span[name]] for name in ("needle", "answer"))
        assert needle == answer and len(answer) >= 6

    def following(row: int, query: int, shift: int = 1) -> int:
        span = spans[row]
        turn = span["answer"].index(query + 1) if query + 1 in span["answer"] else None
        return 0 if turn is None else span["needle"][turn] + shift - 1

    next_one, just_read = (
        values(question, looking(where, partial(following, shift=shift))[:, None], where)
        for shift in (1, 0)
    )
    assert next_one["retrieval"] == 1 and just_read["retrieval"] < 0.3
    weights = random_weights(where, 2)
    hits, even, fixed, count = torch.zeros(2), 0.0, Counter[int](), 0
    for row, span in enumerate(spans):
        words = where.words[row].nonzero()[:, 0].tolist()
        for token in span["answer"]:
            right = [key for key in span["needle"] if where.ids[row, key] == where.ids[row, token]]
            count += 1
            even += len(right) / sum(word < token for word in words)
            fixed.update(token - 1 - key for key in right)
            for head in range(2):
                best = max(words, key=lambda key: float(weights[row, head, token - 1, key]))
                hits[head] += best in right
    found, best = values(question, weights, where)["retrieval"], baselines(question)["retrieval"]
    assert found.tolist() == pytest.approx((hits / count).tolist())
    assert best == pytest.approx(max(even, *fixed.values()) / count, rel=1e-4) and best < 0.5


def test_needles_are_hidden_in_less_text_where_the_model_reads_little() -> None:
    cut = cutting(EVERY)
    long, short = (retrieval_texts(cut, longest, 0) for longest in (4000, 300))
    most, few = (max(len(cut(t.text)["input_ids"]) for t in task.texts) for task in (long, short))
    assert few <= 300 < most
    depths = {places(text)["needle"] for text in long.texts}
    assert min(depths) < 6 and max(depths) > 40
    refuses(lambda: retrieval_texts(cut, 40, 0), "the model reads 40")


def test_a_tokenizer_that_cannot_tell_words_apart_is_refused() -> None:
    cut = cutting(alphabet="abc")
    refuses(lambda: names_texts(cut, None, 0), "tells only 0 of 21 names apart")
    refuses(lambda: retrieval_texts(cut, 500, 0), "does not know the words")
    refuses(lambda: successor_texts(cut, readout(cut), 0), "does not tell the items")


def test_delimiters() -> None:
    """A head whose weight is on marks; one whose weight is even reaches the baseline."""
    marked = []
    for number, text in enumerate(["Yes, he came, but late.", "One two three"]):
        one = split_into_words(text, str(number))
        tags = ("PUNCT" if word.form in ",." else word.upos for word in one.words)
        words = (replace(word, upos=tag) for word, tag in zip(one.words, tags, strict=True))
        marked.append(replace(one, words=tuple(words)))
    where = Passage.of(align_subwords(cutting(), marked, 100, Coverage()), 0, causal=True)
    question = delimiter(where)
    comma = first_subword(where, 0, 1)
    counted = where.words[0] & ~torch.isin(where.ids[0], torch.tensor([2, 3]))
    assert question.counts.tolist() == [[int(counted[comma + 1 :].sum())], [0]]
    on_marks = looking(where, lambda row, query: comma if row == 0 else 0)
    even = torch.ones_like(on_marks).tril() * where.mask[:, None]
    for weights, expected in ((on_marks, 1.0), (even, baselines(question)["delimiter"])):
        normal = (weights / weights.sum(-1, keepdim=True))[:, None]
        found = values(question, normal, where)["delimiter"].item()
        assert found == pytest.approx(expected, abs=0.02)


def test_the_whole_way_of_a_language_model(treebank: Treebank) -> None:
    """A random model has none of the roles; all are measured, with a baseline and an interval."""
    cut = cutting(EVERY)
    model = Model(tiny("gpt2", vocab_size=len(cut), n_positions=512), cut, "tiny")
    out = found_in(model, list(treebank)[:80])
    tested = {
        "delimiter",
        "successor",
        "name-mover",
        "s-inhibition",
        "copy-suppression",
        "retrieval",
    }
    rows = out.table[out.table["measure"].isin(tested)]
    assert set(rows["measure"]) == tested and len(rows) == len(tested) * len(out.labels)
    assert (rows["low"] <= rows["value"]).all()
    assert (rows["baseline"] > 0).all() and (rows["n"] >= 60).all()
    assert not set(out.roles["measure"]) & tested
    assert any("no head for S-inhibition" in line for line in out.absent)
