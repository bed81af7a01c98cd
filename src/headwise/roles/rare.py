"""Rare-token heads attend to the least frequent token of a sentence (Voita et al. 2019, section 5.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from headwise.data.subwords import SPECIAL_WORD, Aligned
from headwise.roles.passage import Passage, View, at_keys
from headwise.roles.probe import Probe, sum_over_queries

FREQUENT_TOKENS = 500
# Share of a sentence's tokens that are its rarest, all alike, from which on rarity means nothing: then a head that looks
# anywhere finds them. With 300 training lines it is 0.29, with 2,000 0.11, with 100,000 0.05.
ALIKE = 0.2
ENOUGH_TOKENS = 100  # of a sample that says so
RARE_MEASURES = ["rare.rarest", "rare.two-rarest", "rare.rarest.own", "rare.rarest.vote"]


def count_tokens(lines: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> Counter[int]:
    """How often every token id occurs in a text (of the training corpus), without special tokens."""
    counts: Counter[int] = Counter()
    stream = iter(lines)
    while some := list(islice(stream, 1000)):
        for ids in tokenizer(some, add_special_tokens=False)["input_ids"]:
            counts.update(ids)
    return counts


def histogram(counts: Mapping[int, int]) -> Tensor:
    """Counts by id as one tensor, 0 for ids that never occur."""
    out = torch.zeros(max(counts, default=0) + 1)
    out[torch.tensor(list(counts), dtype=torch.long)] = torch.tensor(
        list(counts.values()), dtype=torch.float
    )
    return out


def rare(passage: Passage, counts: Tensor, top: int = FREQUENT_TOKENS) -> Probe:
    """How often tokens attend most to the rarest token of their sentence, or to one of the two rarest.

    Only sentences count whose rarest token is not among the `top` most frequent ones of the training corpus. counts: V,
    its frequencies by id. rare.rarest, rare.two-rarest = share of query tokens q with argmax_k A_h[q, k] among the
    rarest (any of equally rare ones); these tokens themselves are no queries, but for rare.rarest.own they are.
    rare.rarest.vote = share of sentences in which the token that most queries point at is a rarest one. Baseline:
    another random token of the sentence.
    """
    words = passage.words
    frequency = torch.full(passage.ids.shape, torch.inf, device=passage.ids.device)
    listed = passage.ids < len(counts)
    frequency[listed] = counts.to(frequency)[passage.ids[listed]]
    # The list ends at the largest id that occurs.
    frequency[~listed] = 0
    # Special tokens are never the rarest.
    frequency[~words] = torch.inf
    least = frequency.sort(1).values[:, :2]
    rarest = words & (frequency <= least[:, [0]])
    two_rarest = words & (frequency <= least[:, [-1]])

    # The sentences that count, and their queries: for each measure other ones.
    limit = counts.sort(descending=True).values[top - 1] if len(counts) >= top else 0
    counted = (words.sum(1, keepdim=True) > 1) & (least[:, :1] < limit)
    with_rarest = words & counted
    without_rarest = with_rarest & ~rarest
    without_two = with_rarest & ~two_rarest
    voters = without_rarest.any(1)[:, None].float()  # whether a sentence has any
    numbers = [without_rarest.sum(1), without_two.sum(1), with_rarest.sum(1), voters[:, 0]]

    others = (words.sum(1) - 1).clamp_min(1)
    a_random_token = rarest.sum(1) / (others + 1)
    chance = [rarest.sum(1) / others, two_rarest.sum(1) / others, a_random_token, a_random_token]
    count = torch.stack(numbers, -1).float()
    baseline = (count * torch.stack(chance, -1))[:, None]

    def answer(view: View) -> Tensor:
        at_rarest = at_keys(rarest, view.attended)
        at_two_rarest = at_keys(two_rarest, view.attended)
        elected = at_keys(rarest, votes(view.attended, without_rarest)[..., None])[..., 0]
        sums = [
            sum_over_queries(without_rarest, at_rarest),
            sum_over_queries(without_two, at_two_rarest),
            sum_over_queries(with_rarest, at_rarest),
            elected * voters,
        ]
        return torch.stack(sums, -1)

    return Probe(RARE_MEASURES, count, baseline, answer)


def votes(attended: Tensor, queries: Tensor) -> Tensor:
    """The key that most queries point at: attended B H Q, queries B Q; B H."""
    ballots = queries[:, None].expand_as(attended).float()
    return ballots.new_zeros(attended.shape).scatter_add(2, attended, ballots).argmax(-1)


def why_untested(counts: Mapping[int, int], sample: Iterable[Aligned]) -> str:
    """Why frequencies say nothing of the tokens of a text, of which this is a sample; empty where they do. Many tokens of a
    sentence are equally rare where the training text is short, or the list is of another tokenizer or language."""
    shares = []
    tokens = 0
    for sentence in sample:
        in_words = zip(sentence.ids, sentence.word_of, strict=True)
        found = [counts.get(id, 0) for id, word in in_words if word != SPECIAL_WORD]
        tokens += len(found)
        shares.append(found.count(min(found)) / len(found))
    alike = sum(shares) / max(1, len(shares))
    if alike <= ALIKE or tokens < ENOUGH_TOKENS:
        return ""
    return (
        f"Rare-token heads were not tested: {alike:.0%} of the tokens of a sentence are its rarest, since the training text "
        "hardly has them. Give more of the text that the model was trained on, counted with its own tokenizer."
    )
