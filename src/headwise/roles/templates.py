"""Roles that show only where a text asks for them: a choice between names, a needle in a long text, a sequence.

The texts are English and made from templates. Even texts belong to the first half, odd ones to the second. A word may
have several subwords: attention to it is summed over them, and it is predicted by its first one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Site
from headwise.data.annotated import Annotated, Mention, split_into_words
from headwise.data.subwords import Coverage, align_subwords
from headwise.models.attention.kernel import AttentionCall
from headwise.roles.passage import Passage, View, at_keys
from headwise.roles.probe import Arc, Probe, mean_over_queries, pointing


@dataclass(frozen=True)
class Generated:
    """Texts with a test. Even texts belong to the first half, odd ones to the second."""

    name: str
    texts: Sequence[Annotated]
    test: Callable[[Passage], Probe]


@dataclass(frozen=True)
class Readout:
    """The direct path from a head's output to logits, except what norms divide by at a token.

    outputs: the output projection by layer, H D M; embeddings: the output embedding, V M.
    """

    outputs: Mapping[Site, Tensor]
    embeddings: Tensor

    def logits(self, call: AttentionCall, states: Tensor, tokens: Tensor) -> Tensor:
        """The logits of n tokens from the outputs of heads … H D: … H n, up to a constant."""
        if not states.shape[-2]:
            return states.new_zeros(*states.shape[:-1], len(tokens))  # a layer without heads
        # W_O^h W_U of these tokens alone: the whole vocabulary is not needed.
        to_tokens = self.outputs[call.site] @ self.embeddings[tokens].T  # H D n
        return torch.einsum("...hd,hdn->...hn", states, to_tokens)


def first_subwords(tokenizer: Any, words: Sequence[str]) -> dict[str, int]:
    """The first subword of each word inside a text, for the words whose first subword no other one has."""
    first: dict[str, int] = {}
    # Behind another word, as in the texts: a word that begins a text may have other subwords.
    for aligned in align_subwords(tokenizer, [f"and {word}" for word in words], 512, Coverage()):
        if len(aligned.sentence.words) == 2:
            # The word behind `and`.
            word = aligned.sentence.words[1].form
            first[word] = aligned.ids[aligned.word_of.index(1)]
    shared = Counter(first.values())
    usable = {}
    for word, token in first.items():
        if shared[token] == 1 and token != tokenizer.unk_token_id:
            usable[word] = token
    return usable


def with_mentions(sentence: Annotated, spans: Iterable[tuple[str, int, int]]) -> Annotated:
    """The sentence with mentions: a name and the words [start, end) of each."""
    mentions = tuple(Mention(name, 0, start, end, start, "proper") for name, start, end in spans)
    return replace(sentence, mentions=mentions)


def last_tokens(passage: Passage) -> Tensor:
    """The last token of every word, 0 where there is no such word: B W."""
    positions = torch.arange(passage.ids.shape[1], device=passage.ids.device)
    last: Tensor = (passage.membership * positions[:, None]).amax(1).long()
    return last


# Name movers and S-inhibition (Wang et al. 2023, "Interpretability in the wild"), copy suppression (McDougall et al. 2023,
# "Copy suppression: comprehensively understanding an attention head").
#
# "When Mary and John went to the store, John gave a drink to": the next word is Mary, the indirect object (IO). John is
# the subject (S), S2 its second place, END the last word.

NAME_TEXTS = 200
FIRST_NAMES = (
    "Anna",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Frank",
    "Grace",
    "Henry",
    "Ivan",
    "John",
    "Kate",
    "Laura",
    "Mary",
    "Nina",
    "Oscar",
    "Paul",
    "Rosa",
    "Sam",
    "Tom",
    "Victor",
    "William",
)
FEWEST_NAMES = 6  # names that the tokenizer must tell apart
PLACES = ("store", "park", "school", "office", "station", "garden")
GIFTS = ("drink", "book", "ring", "letter", "ball", "picture")
TEMPLATES = (
    "When {one} and {other} went to the {place}, {subject} gave a {thing} to",
    "After {one} and {other} had a long talk at the {place}, {subject} said to",
    "Then {one} and {other} found a {thing} at the {place}, and {subject} decided to give it to",
    "While {one} and {other} were working at the {place}, {subject} wanted to show the old {thing} to",
    "Yesterday {one} and {other} got a {thing}. In the {place}, {subject} handed it over to",
    "As {one} and {other} left the {place}, {subject} brought a very small {thing} with flowers to",
)


def names_texts(tokenizer: Any, readout: Readout | None, seed: int) -> Generated:
    """Sentences that end before the name of the indirect object. Raises HeadwiseError where the tokenizer cannot tell
    names apart by their first subwords."""
    first = first_subwords(tokenizer, FIRST_NAMES)
    if len(first) < FEWEST_NAMES:
        raise HeadwiseError(
            f"Name movers and S-inhibition were not tested: the tokenizer tells only {len(first)} of {len(FIRST_NAMES)} "
            "names apart by their first subword."
        )
    draw = random.Random(seed)
    texts = [draw_name_sentence(draw, [*first], number) for number in range(NAME_TEXTS)]
    return Generated("names", texts, partial(names, readout=readout, first=first))


def draw_name_sentence(draw: random.Random, usable: list[str], number: int) -> Annotated:
    """A sentence with its indirect object ("io"), the second place of its subject ("s") and the first marked."""
    # Subject and receiver change places at random, so no fixed distance finds the receiver.
    first, second = draw.sample(usable, 2)
    subject = draw.choice((first, second))
    receiver = second if subject == first else first
    text = draw.choice(TEMPLATES).format(
        one=first,
        other=second,
        subject=subject,
        place=draw.choice(PLACES),
        thing=draw.choice(GIFTS),
    )
    plain = split_into_words(text, f"{number} {receiver}")
    last = {word.form: index for index, word in enumerate(plain.words)}  # the last of equal words
    # It stands once in the sentence: its last place is its only one.
    io = last[receiver]
    s = last[subject]
    first_s = [word.form for word in plain.words].index(subject)
    places = {"io": io, "s": s, "first s": first_s}
    return with_mentions(plain, [(name, place, place + 1) for name, place in places.items()])


def names(passage: Passage, readout: Readout | None, first: Mapping[str, int]) -> Probe:
    """Where END looks, and whether the name there is copied.

    s-inhibition = share of sentences where argmax_k A_h[END, k] over the words k is S2.
    name-mover = share where it is the IO *and*, of all names of the task, the head's output at END raises the logit of
    the IO most, on the direct path. copy-suppression = share where it is either name, at any place, and the output
    lowers the logit of that name most. Both are left out without a readout. Baseline: the best rule of `pointing`; names
    are in both orders and at many distances. first: the first subword of each name.
    """
    measures: dict[str, tuple[str, ...]] = {"s-inhibition": ("s",)}
    if readout:
        measures |= {"name-mover": ("io",), "copy-suppression": ("io", "s", "first s")}
    ends = [len(text.words) - 1 for text in passage.sentences]
    arcs = []
    for measure, entities in measures.items():
        for row, text in enumerate(passage.sentences):
            words = {mention.entity: mention.head for mention in text.mentions}
            arcs += [Arc(row, ends[row], words[entity], measure) for entity in entities]
    # Looking at the name: half of the measures `name-mover` and `copy-suppression`.
    attends = pointing(arcs, passage, passage, "offset")
    if readout is None:
        return attends

    device = passage.ids.device
    rows = torch.arange(len(ends), device=device)
    end = last_tokens(passage)[rows, torch.tensor(ends, device=device)]
    usable = list(first)
    tokens = torch.tensor(list(first.values()), device=device)
    receivers = [usable.index(text.id.partition(" ")[2]) for text in passage.sentences]
    io = torch.tensor(receivers, device=device)
    name_of = torch.full(passage.subwords.shape, -1)  # the number of the name that each word is
    for row, text in enumerate(passage.sentences):
        for mention in text.mentions:
            name_of[row, mention.head] = usable.index(text.words[mention.head].form)
    name_of = name_of.to(device)
    last = torch.tensor(ends, device=device)
    mover = attends.measures.index("name-mover")
    suppression = attends.measures.index("copy-suppression")

    def answer(view: View) -> Tensor:
        assert view.call is not None
        # The other half: what the head's own output at END does to the logits of all names.
        raised = readout.logits(view.call, view.call.output[rows, end], tokens)  # B H n
        # Attention and logits must both hold.
        hits = attends.answer(view)
        # True or False times 1 or 0: both must hold.
        hits[..., mover] *= raised.argmax(-1) == io[:, None]
        attended = name_of.gather(1, view.attended_words[rows, :, last])
        hits[..., suppression] *= raised.argmin(-1) == attended
        return hits

    return replace(attends, answer=answer)


# Retrieval heads copy an answer from far back in the text (Wu et al. 2024, "Retrieval head mechanistically explains
# long-context factuality").

NEEDLE_TEXTS = 60
HAY = (3, 12)  # sentences around the needle
UNKNOWN = 0.1  # share of subwords
COLOUR_WORDS = ("red", "green", "blue", "white", "black", "yellow", "brown", "grey")
THINGS = (
    "apple",
    "box",
    "cup",
    "door",
    "fish",
    "hat",
    "key",
    "lamp",
    "map",
    "shoe",
    "stone",
    "tree",
)
FILLING = (
    "The weather was fine that day.",
    "Nobody knew what to say.",
    "There was a lot of work to do.",
    "The train came late again.",
    "Some people like music very much.",
    "It rained during the night.",
    "The water in the river was cold.",
    "Many children play outside in summer.",
    "The shop opens early in the morning.",
    "We had bread and soup for dinner.",
    "The road goes up to the hills.",
    "A small dog slept near the fire.",
)


def retrieval_texts(tokenizer: Any, longest: int, seed: int) -> Generated:
    """A needle in sentences that have nothing to do with it, a question, and the answer. longest: the most subwords.
    Raises HeadwiseError where not even a short text fits, and where the tokenizer does not know the words."""
    # Less hay where the model reads little.
    for share in (1.0, 0.5, 0.25):
        draw = random.Random(seed)
        texts = [hidden_needle(draw, number, share) for number in range(NEEDLE_TEXTS)]
        tokens = [tokenizer(text.text, verbose=False)["input_ids"] for text in texts]
        total = sum(map(len, tokens))
        unknown = sum(ids.count(tokenizer.unk_token_id) for ids in tokens)
        if unknown > UNKNOWN * total:
            raise HeadwiseError(
                "Retrieval heads were not tested: the tokenizer does not know the words of the texts."
            )
        size = max(map(len, tokens))
        if size <= longest:
            return Generated("needle", texts, retrieval)
    raise HeadwiseError(
        f"Retrieval heads were not tested: a question and its answer take {size} subwords, the model reads {longest}."
    )


def hidden_needle(draw: random.Random, number: int, share: float) -> Annotated:
    """A text with the answer marked in the needle ("needle") and at the end ("answer"). share: of the hay."""
    hay = draw.sample(FILLING, round(share * draw.randint(*HAY)))
    # The needle lies anywhere, so neither the beginning nor a fixed distance finds it.
    depth = draw.randint(0, len(hay))
    owner = draw.choice(FIRST_NAMES)
    colour = draw.choice(COLOUR_WORDS)
    thing = draw.choice(THINGS)
    room = draw.choice(PLACES)
    fact = f"The secret of {owner} is"
    answer = f"a {colour} {thing} in the {room}"
    before = [*hay[:depth], fact]
    needle = [answer + ".", *hay[depth:], f"What is the secret of {owner}?", fact]

    length = len(split_into_words(answer, "").words)
    spans = []
    for name, text_before in (("needle", before), ("answer", before + needle)):
        # Counted in the text itself, where signs are words, too.
        start = len(split_into_words(" ".join(text_before), "").words)
        spans.append((name, start, start + length))
    plain = split_into_words(" ".join([*before, *needle, answer]), str(number))
    return with_mentions(plain, spans)


def retrieval(passage: Passage) -> Probe:
    """How often a head looks at the token of the needle that comes next.

    retrieval = share of the answer's tokens t where j = argmax_k A_h[t − 1, k] is in the needle and token j is token t.
    Wu et al. let the model write and count the tokens that it copies; here the answer is given, so that a model which
    does not answer also has a score. Baseline: a random visible token. Induction heads score high: the needle's first
    words are in the question.
    """
    ids = passage.ids
    words = passage.words
    needle = spanned(passage, "needle")
    written = spanned(passage, "answer")[:, 1:]
    same = (ids[:, 1:, None] == ids[:, None]) & needle[:, None] & words[:, None]  # B t−1 k
    # Position t − 1 predicts token t, and the last position none.
    queries = torch.nn.functional.pad(written & words[:, :-1] & same.any(2), (0, 1))
    right = torch.nn.functional.pad(same, (0, 0, 0, 1))
    chance = (queries * right.sum(2) / words.cumsum(1).clamp_min(1)).sum(1)
    hits = right & queries[..., None]
    # Each is a rule: always so many tokens back.
    offsets = [hits.diagonal(-back, 1, 2).sum(1) for back in range(1, ids.shape[1])]
    rules = torch.stack([chance, *offsets], 1)

    def attended(view: View) -> Tensor:
        of_heads = right[:, None].expand(-1, view.weights.shape[1], -1, -1).float()
        return of_heads.gather(3, view.attended[..., None])[..., 0]

    return mean_over_queries("retrieval", queries, rules, attended)


def spanned(passage: Passage, name: str) -> Tensor:
    """Which tokens are in the mention of a name: B S."""
    inside = torch.zeros_like(passage.words)
    for row, text in enumerate(passage.sentences):
        span = next(mention for mention in text.mentions if mention.entity == name)
        inside[row] = (passage.word_of[row] >= span.start) & (passage.word_of[row] < span.end)
    return inside


# Successor heads: from Monday to Tuesday, from three to four (Gould et al. 2023, "Successor heads").

SEQUENCE_TEXTS = 80
MOST_ITEMS = 12  # items of a text
ORDERED_ITEMS = {  # each goes round, except that the last number, ordinal and letter are in no text
    "days": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "months": "January February March April May June July August September October November December",
    "numbers": "one two three four five six seven eight nine ten eleven twelve",
    "ordinals": "first second third fourth fifth sixth seventh eighth ninth tenth",
    "digits": "1 2 3 4 5 6 7 8 9",
    "letters": "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
}
ROUND = ("days", "months")


def successor_texts(tokenizer: Any, readout: Readout, seed: int) -> Generated:
    """Items of one sequence in random order. Raises HeadwiseError where the tokenizer tells the items of no sequence
    apart by their first subwords."""
    usable: dict[str, dict[str, int]] = {}
    for name, words in ORDERED_ITEMS.items():
        first = first_subwords(tokenizer, words.split())
        if len(first) == len(words.split()):
            usable[name] = first
    if not usable:
        raise HeadwiseError(
            f"Successor heads were not tested: the tokenizer does not tell the items of {', '.join(ORDERED_ITEMS)} apart "
            "by their first subword."
        )
    draw = random.Random(seed)
    texts = []
    for number in range(SEQUENCE_TEXTS):
        # Pairs of texts, so that each half has texts of every sequence.
        name = list(usable)[number // 2 % len(usable)]
        drawn = list(usable[name])
        # The last item has no successor.
        if name not in ROUND:
            drawn = drawn[:-1]
        text = " ".join(draw.sample(drawn, min(MOST_ITEMS, len(drawn))))
        texts.append(split_into_words(text, f"{number} {name}"))
    items = []
    for name, first in usable.items():
        in_order = list(first)
        for word, following in zip(in_order, [*in_order[1:], in_order[0]], strict=True):
            items.append(SequenceItem(name, word, first[word], following))
    return Generated("sequences", texts, partial(successor, readout=readout, items=items))


class SequenceItem(NamedTuple):
    """An item of a sequence, its first subword, and the item that follows it."""

    sequence: str
    word: str
    token: int
    successor: str


def successor(passage: Passage, readout: Readout, items: Sequence[SequenceItem]) -> Probe:
    """How often a head's output raises the successor of the item that it looks at.

    successor = share of the items q (at their last subword) where, of all items of the sequence, the output of the head
    raises the logit of the successor of argmax_k A_h[q, k] most, on the direct path; q itself is among the keys k. The
    order of the text is random, so that no place tells. Baseline: a random item of the sequence. items: of all
    sequences, each in its order.
    """
    device = passage.ids.device
    names = [text.id.partition(" ")[2] for text in passage.sentences]
    numbers = {(item.sequence, item.word): number for number, item in enumerate(items)}
    following = torch.full(passage.subwords.shape, -1)  # the number of each word's successor
    for row, text in enumerate(passage.sentences):
        for column, word in enumerate(text.words[: following.shape[1]]):
            number = numbers.get((names[row], word.form))
            if number is not None:
                item = items[number]
                following[row, column] = numbers[item.sequence, item.successor]
    following = following.to(device)
    in_sequence = []
    for name in names:
        in_sequence.append([name == item.sequence for item in items])
    inside = torch.tensor(in_sequence, device=device)  # B n
    tokens = torch.tensor([item.token for item in items], device=device)
    last = last_tokens(passage)
    queries = (passage.subwords > 0) & (following >= 0)
    rows = torch.arange(len(names), device=device)[:, None]
    chance = queries.sum(1) / inside.sum(1)

    def hits(view: View) -> Tensor:
        assert view.call is not None
        raised = readout.logits(view.call, view.call.output[rows, last], tokens)  # B W H n
        raised = raised.masked_fill(~inside[:, None, None], -torch.inf)
        best = raised.argmax(-1).transpose(1, 2)  # B H W
        right = at_keys(following, view.between.argmax(-1))
        return best == right

    return mean_over_queries("successor", queries, chance[:, None], hits)
