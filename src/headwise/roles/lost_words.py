"""The words that a model no longer says without a head.

The loss says how much a head matters, a role where it looks; this says which words need it. On a text with its targets
(of one-sided text, the model's own translations) each head is silent in turn. A word is lost in a sentence where the
whole model predicts it, after the right words before it, and the model without the head predicts another: at its first
place in the sentence, so that a frequent word has one chance, too. Greedy search would write that other word there.

One half of the sentences finds, for each head, the words that it loses more often than others; the other half confirms
them. Words are letters and digits between blanks and signs: a script without blanks has long ones, hardly ever found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import binom, hypergeom, nchypergeom_fisher

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, HeadMap, head_of
from headwise.core.options import SEED
from headwise.core.progress import OnProgress, part, shown, silent
from headwise.core.result import TableResult
from headwise.core.statistics import corrected, proportion_interval
from headwise.core.tables import WORDS
from headwise.data.annotated import WORD
from headwise.importance.work import WITHOUT_HEADS
from headwise.models.attention.discover import evaluating
from headwise.models.attention.offload import device_of
from headwise.models.environment import signature_of
from headwise.models.evaluation.recorded_batch import RecordedBatch
from headwise.models.evaluation.sums import SentenceSums, add_all
from headwise.models.evaluation.without_heads import recordings, silent_heads
from headwise.models.generators import check_seed
from headwise.models.loading import AnyModel, as_model
from headwise.models.model import Model
from headwise.models.processes import failing_together, gather_batches
from headwise.models.tasks import AnyText, Given
from headwise.models.tasks.batches import share_within
from headwise.models.tasks.objective import vocabulary_of
from headwise.models.tasks.task import sample_text
from headwise.roles.behaviour import FALSE_WORDS

READING = 0.9  # share of the progress that is followed by the tests of each head
SENTENCES = 300  # of the text, or windows of its documents, that heads are switched off on, at most
FEWEST = 20  # sentences: of fewer, one half finds nothing that the other could confirm
LEAST = 3  # sentences of the first half in which a word must be lost
OF_A_HEAD = 3  # words that the first half may find for a head
SHOWN = 12  # words that the terminal says


@dataclass(frozen=True, repr=False)
class LostWords(TableResult):
    """The words that a model no longer says without a head.

    table: a row for each word that one half of the sentences found for a head, columns WORDS, the surest first. All
    numbers are of the other half: in how many of the `units` sentences with the word it is `lost`; value: their share,
    with its exact 95 % interval; others: the share of all other words that are lost; p: of the word being lost no more
    often than the head's other words (Fisher's exact test), or no more often than with other heads, given how much more
    of other words this head loses than they (Fisher's noncentral hypergeometric distribution): the larger of the two,
    one-sided, corrected over all rows by Benjamini and Hochberg 1995. instead: the piece of a word that is predicted
    there most often, and how many times; example: a sentence up to the word. signature: how it was made.
    """

    TABLE = WORDS
    TOP = ("head", "word", "value", "low", "high")

    @property
    def summary(self) -> str:
        return f"{len(self.confirmed)} of {len(self.table)} words confirmed"

    @property
    def confirmed(self) -> pd.DataFrame:
        """The rows that the other half confirms."""
        return self.table[self.table["p"] < FALSE_WORDS]

    def lines(self) -> list[str]:
        """A line for each confirmed word, the surest first."""
        made = f" ({self.signature['made']})" if self.signature["made"] else ""
        if not self.signature["words"]:
            return [
                "  The model itself predicts none of these words, so it loses none without a head."
            ]
        rows = self.confirmed
        if rows.empty:
            return [f"  No word is lost with a head more often than others{made}."]
        heads = len(rows.drop_duplicates(["kind", "layer", "head"]))
        lines = [f"  Words that are lost without a head: {len(rows)}, of {heads} heads{made}:"]
        for row in rows.head(SHOWN).to_dict("records"):
            lines.append(
                f"    {head_of(row)}: {row['word']} in {row['lost']} of {row['units']} sentences (other words: "
                f"{row['others']:.0%}), most often for {row['instead']}"
            )
        return lines


@dataclass(frozen=True)
class Said:
    """What one sentence loses, of the words that the whole model says in it, each at its first place.

    source: what the model read, and pieces: what it is to predict; lost: by word, the heads without which it is lost, H
    booleans; instead: by head and word, the piece that is predicted in its place; ends: by word, the place behind it in
    `pieces`.
    """

    source: tuple[int, ...]
    pieces: list[int]
    lost: dict[str, np.ndarray]
    instead: dict[tuple[int, str], int]
    ends: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        without: dict[str, dict[int, int]] = {word: {} for word in self.lost}
        for (head, word), piece in self.instead.items():
            without[word][head] = piece
        return {
            "source": list(self.source),
            "pieces": self.pieces,
            "words": {word: [self.ends[word], heads] for word, heads in without.items()},
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any], heads: int) -> Said:
        """What `to_json` wrote, of a model of so many heads."""
        said = cls(tuple(written["source"]), written["pieces"], {}, {}, {})
        for word, (end, without) in written["words"].items():
            said.ends[word] = end
            said.lost[word] = np.zeros(heads, dtype=bool)
            for head, piece in without.items():
                said.lost[word][int(head)] = True
                said.instead[int(head), word] = piece
        return said


def work_of_words(heads: HeadMap, sentences: int) -> float:
    """How many sentences, read forward, `lost_words` takes as long as on a text of so many."""
    return min(SENTENCES, sentences) * heads.total * WITHOUT_HEADS


def lost_words(
    model: AnyModel, text: AnyText | Given, *, seed: int = SEED, progress: OnProgress | None = None
) -> LostWords:
    """The words that a model no longer says without a head (module docstring), on at most SENTENCES sentences of a text.

    progress: gets the share that is done; by default a bar. Raises HeadwiseError for a model that predicts no words, and
    for fewer than FEWEST sentences.
    """
    check_seed(seed)
    model = as_model(model)
    text = model.task.text_of(text)
    check_words(model, text)
    few = model.task.completed(sample_text(text, SENTENCES), progress)
    with shown("lost words", progress) as on_progress:
        reading, testing = part(on_progress, 0.0, READING), part(on_progress, READING, 1.0)
        batches = model.task.batches(few, lambda share, _: reading(share, "lost words"))
        sentences, _ = said_words(model, batches)
        return words_lost(model, few, sentences, batches.documents, seed, testing)


def words_lost(
    model: Model,
    text: AnyText,
    sentences: list[Said],
    documents: np.ndarray | None,
    seed: int,
    progress: OnProgress = silent,
) -> LostWords:
    """`lost_words` from what each sentence of a text loses. documents: by sentence, the number of its document."""
    if documents is None:
        documents = np.arange(len(sentences))
    # a line that stands twice in a text would be in both halves
    first = {
        # Backwards, so that of equal sentences the first one stays.
        (said.source, *said.pieces): number
        for number, said in reversed([*enumerate(sentences)])
    }
    kept = sorted(first.values())
    if len(kept) < FEWEST:
        raise HeadwiseError(
            f"The words that heads decide need {FEWEST} different sentences at least, and {text.name} has {len(kept)}: "
            "give more text."
        )
    sentences = [sentences[number] for number in kept]
    signature = signature_of(
        model,
        text=text.fingerprint,
        made=getattr(text, "made", ""),
        sentences=len(sentences),
        words=sum(len(said.lost) for said in sentences),
        seed=seed,
    )
    table = table_of(list(model.heads), sentences, documents[kept], model.tokenizer, seed, progress)
    return LostWords(table, signature)


def check_words(model: Model, text: AnyText) -> None:
    """Raise HeadwiseError for a model that predicts no words, and text that it does not read."""
    if not vocabulary_of(model.hf) or model.tokenizer is None:
        raise HeadwiseError(
            f"{model.name}, a {type(model.hf).__name__}, predicts no words, so it loses none without a head."
        )
    model.task.completed(text, outline=True)


def said_words(model: Model, batches: Any) -> tuple[list[Said], SentenceSums]:
    """What each sentence loses with each head, in the order of the heads of the model: of the first SENTENCES; and, of the
    same forwards, the sums of `ablation.zero`."""
    # One head off in each trial, and all trials on every batch.
    trials = [silent_heads([head], device_of(model.hf)) for head in model.heads]
    sites = model.heads.sites
    sizes = [model.heads.count(site) for site in sites]
    found: list[list[Said]] = []
    sums = SentenceSums(model.heads)
    within = share_within(batches)
    with failing_together(), evaluating(model.hf), torch.no_grad():
        for batch in recordings(model.hf, model.discovery, batches):
            losses, words = batch.losses_and_words_in(trials, within)
            changes = (losses[1:] - losses[0]).T.split(sizes, 1)
            add_all((sums, *each, batch.asked) for each in zip(sites, changes, strict=True))
            of_one = words.cpu().numpy()
            found.append(of_batch(model.tokenizer, batch, of_one[0], of_one[1:]))
            if sum(map(len, found)) >= SENTENCES:  # windows of long documents are many
                break
        found = gather_batches(found)
    return [said for of_one in found for said in of_one], sums


def of_batch(
    tokenizer: Any, batch: RecordedBatch, whole: np.ndarray, others: np.ndarray
) -> list[Said]:
    """The sentences of a batch. whole N, others H N: the pieces that are predicted, without each head."""
    labels = batch.tensors["labels"].cpu().numpy()
    sentences, positions = (place.cpu().numpy() for place in batch.places)
    found = []
    for sentence in np.unique(sentences):
        (places,) = np.nonzero(sentences == sentence)
        here = positions[places]
        gold = labels[sentence, here]
        # Only what the whole model says can be lost.
        right = whole[places] == gold
        # H × pieces: where the model without each head says something else.
        wrong = others[:, places] != gold
        row, predicted = gold, np.arange(len(gold))
        if "decoder_input_ids" not in batch.tensors and hides(batch):
            # a masked model predicts a few pieces of a sentence, so its words are those of all
            row = batch.tensors["input_ids"][sentence].cpu().numpy().copy()
            row[here] = gold
            predicted = np.full(len(row), -1)
            predicted[here] = np.arange(len(gold))
        source: tuple[int, ...] = ()
        if "input_ids" in batch.tensors:
            there = batch.there["source"][sentence]
            source = tuple(batch.tensors["input_ids"][sentence][there].tolist())
        said = Said(source, row.tolist(), {}, {}, {})
        for word, pieces in words_of_pieces(tokenizer, said.pieces):
            own = predicted[pieces]
            # Once in a sentence, so that a frequent word has one chance, too.
            # A word of several pieces is said where all its pieces are.
            if word in said.lost or (own < 0).any() or not right[own].all():
                continue
            # One wrong piece loses the word.
            said.lost[word] = wrong[:, own].any(1)
            said.ends[word] = pieces[-1] + 1
            for head in np.nonzero(said.lost[word])[0].tolist():
                # The first wrong piece: what follows it would be said after another word.
                first = own[int(wrong[head, own].argmax())]
                said.instead[head, word] = int(others[head, places[first]])
        found.append(said)
    return found


def hides(batch: RecordedBatch) -> bool:
    """Whether labels stand where hidden pieces are, as of masked models, and not one place before."""
    labels, ids = batch.tensors["labels"], batch.tensors["input_ids"]
    sentences, positions = batch.places
    last = ids.shape[1] - 1
    after = ids[sentences, (positions + 1).clamp(max=last)]
    return not bool((after == labels[batch.places])[positions < last].all())


def words_of_pieces(tokenizer: Any, pieces: Sequence[int]) -> list[tuple[str, list[int]]]:
    """The words of a sentence in small letters, each with the places of all pieces that have a letter of it. A special
    token is a word of its own; blanks belong to none, and a piece without a whole letter to where the letter is."""
    special = set(tokenizer.all_special_ids)
    found: list[tuple[str, list[int]]] = []
    run: list[int] = []
    for place, piece in enumerate([*pieces, None]):
        if piece is not None and piece not in special:
            run.append(place)
            continue
        found += words_of_run(tokenizer, [pieces[one] for one in run], run)
        run = []
        if piece is not None:
            found.append((tokenizer.convert_ids_to_tokens(piece), [place]))
    return found


def words_of_run(
    tokenizer: Any, pieces: list[int], places: Sequence[int]
) -> list[tuple[str, list[int]]]:
    """The words of pieces without a special token among them."""
    matches = list(WORD.finditer(tokenizer.decode(pieces))) if pieces else []
    found: list[tuple[str, list[int]]] = [(match.group().lower(), []) for match in matches]
    waiting = []
    start = 0
    word = 0
    for number, place in enumerate(places, start=1):
        waiting.append(place)
        # The bytes of a letter that is not whole yet are decoded as U+FFFD.
        # How far the text reaches with this piece: decoding again is slow, and right for every tokenizer.
        end = len(tokenizer.decode(pieces[:number]).rstrip("\ufffd"))
        if end <= start:
            continue
        while word < len(matches) and matches[word].start() < end:
            if matches[word].end() > start:
                found[word][1].extend(waiting)
            # The word goes on in the next piece.
            if matches[word].end() > end:
                break
            word += 1
        start = end
        waiting = []
    return [(text, own) for text, own in found if own]


def decoded(tokenizer: Any, pieces: Sequence[int]) -> str:
    """Pieces as text; a special token by its name."""
    text: str = tokenizer.decode(pieces, skip_special_tokens=True).strip()
    return text or tokenizer.convert_ids_to_tokens(pieces[-1]) or f"token {pieces[-1]}"


def table_of(
    heads: Sequence[Head],
    sentences: Sequence[Said],
    documents: np.ndarray,
    tokenizer: Any,
    seed: int,
    progress: OnProgress = silent,
) -> pd.DataFrame:
    """The table, columns WORDS. documents: the number of each sentence's document, which is in one half alone."""
    words = sorted({word for said in sentences for word in said.lost})
    column_of = {word: column for column, word in enumerate(words)}
    _, document = np.unique(documents, return_inverse=True)
    # Whole documents: sentences of one document share words.
    half = np.random.default_rng(seed).permutation(document.max() + 1)[document] % 2
    there = np.zeros((2, len(words)), dtype=int)
    lost = np.zeros((2, len(heads), len(words)), dtype=int)
    for which, said in zip(half, sentences, strict=True):
        for word, without in said.lost.items():
            there[which, column_of[word]] += 1
            lost[which, :, column_of[word]] += without

    rows = []
    chances = []
    confirming = [said for which, said in zip(half, sentences, strict=True) if which == 1]
    for place, head in enumerate(heads):
        progress(place / len(heads), "tests of lost words")
        # Half 0 finds, half 1 confirms: all numbers of the row are of half 1.
        for column in found_words(lost[0, place], there[0], there[1]):
            word = words[column]
            units, times = there[1, column], lost[1, place, column]
            low, high = proportion_interval(times, units)
            others = (lost[1, place].sum() - times) / max(1, there[1].sum() - units)
            chances.append(chance_of(lost[1], there[1], place, column))
            losing = [said for said in confirming if (place, word) in said.instead]
            pieces = Counter(said.instead[place, word] for said in losing)
            instead = [
                (decoded(tokenizer, [piece]), count) for piece, count in pieces.most_common(1)
            ]
            before = [decoded(tokenizer, said.pieces[: said.ends[word]]) for said in losing[:1]]
            numbers = (times / units, float(low), float(high), times, units, others)
            rows.append((*head, word, *numbers, *(instead or [("", 0)])[0], "".join(before)))
    table = pd.DataFrame(rows, columns=[name for name in WORDS.names if name != "p"])
    table.insert(WORDS.names.index("p"), "p", corrected(np.array(chances)) if chances else [])
    return table.sort_values("p", kind="stable", ignore_index=True)


def chance_of(lost: np.ndarray, there: np.ndarray, head: int, column: int) -> float:
    """The larger p of both tests of `LostWords.table`. lost H W, there W: of the confirming half."""
    times, units, total = lost[head, column], there[column], there.sum()
    of_head = lost[head].sum()
    # sf(x) is the probability of more than x.
    fisher = float(hypergeom.sf(times - 1, total, of_head, units))
    # A head that is alone has no others to be compared with.
    if len(lost) == 1:
        return fisher
    of_word = lost[:, column].sum()
    all_others = (total - units) * (len(lost) - 1)
    rest = lost.sum() - of_word - (of_head - times)
    # A head that loses much of everything loses this word, too: by these odds.
    odds = odds_of(of_head - times, total - units) / odds_of(rest, all_others)
    of_heads = nchypergeom_fisher.sf(times - 1, units * len(lost), of_word, units, odds)
    return max(fisher, float(of_heads))


def odds_of(lost: int, count: int) -> float:
    """The odds of being lost, with half a word more on both sides, so that they are above 0."""
    return (lost + 0.5) / (count - lost + 0.5)


def found_words(lost: np.ndarray, there: np.ndarray, again: np.ndarray) -> list[int]:
    """The words that one half finds for a head: lost more often than the head's other words (binomial test), the surest
    first. lost, there: in how many of its sentences; again: of the other half's."""
    # One more word lost and one more kept (Laplace), so that the rate is never 0 or 1.
    rate = (lost.sum() - lost + 1) / (there.sum() - there + 2)
    chance = binom.sf(lost - 1, there, rate)
    # A word that the other half lacks could not be confirmed.
    chance[(lost < LEAST) | (again == 0)] = 1.0
    surest = np.argsort(chance, kind="stable")[:OF_A_HEAD]
    return [int(column) for column in surest if chance[column] < FALSE_WORDS]
