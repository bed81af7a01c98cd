"""One pass for each text, in which all tests use the same attention weights; nothing of size query × key is kept.

The texts are a treebank, sentence pairs, repeated random tokens, and texts that are generated from templates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Kind
from headwise.data.annotated import Annotated
from headwise.data.subwords import Aligned, Coverage, align_subwords
from headwise.models.attention.capture import capture
from headwise.models.attention.configuration import start_token
from headwise.models.attention.discover import Discovery, evaluating
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.offload import device_of, loaded
from headwise.models.attention.output import run_layers
from headwise.models.attention.projection import direct_weights
from headwise.models.model import Model
from headwise.models.positions import positions_of
from headwise.models.token_rows import batch_spans
from headwise.roles.alignment import (
    AlignedPair,
    Gold,
    PromptTemplate,
    WordLinks,
    aligned_pairs,
    aligner,
    check_links,
    counted_words,
    decoder_sides,
    drawn_links,
    links_of,
)
from headwise.roles.halves import Half, Halved, document_of, halve, halves_of, in_half, in_turn
from headwise.roles.induction import repeated_sequences
from headwise.roles.passage import Passage, View
from headwise.roles.probe import AnswerSums, Arc, Probe, pointing
from headwise.roles.rare import FREQUENT_TOKENS, histogram, why_untested
from headwise.roles.role import RoleTest, role
from headwise.roles.shape import OPENING, means, opening
from headwise.roles.templates import Generated, Readout

BATCH_POSITIONS = 4096  # positions in a batch, at most
WORK = 1e11  # parameters times positions of a batch on a CPU, at most: some seconds, so that progress moves
WINDOW = 1024  # sentences that are sorted by length together
MAX_LENGTH = 512  # subwords of a sentence, where the model has no lower limit
VARIABILITY_SENTENCES = 256  # sentences for the mean attention that `variability` needs

Test = Callable[..., Any]  # from the passages of a kind of attention to a probe
Tests = Mapping[Kind, Sequence[Test]]
ByHalf = dict[tuple[Kind, Half], AnswerSums]
CountWords = Callable[[int], None]  # called after every batch with its number of words


def uncounted(words: int) -> None:
    """Count nothing."""


@dataclass(frozen=True)
class RoleOptions:
    """Options of the tests.

    max_length: sentences of more subwords are left out and counted. top: how many of the most frequent tokens are never
    rare.
    """

    max_length: int = MAX_LENGTH
    top: int = FREQUENT_TOKENS


@dataclass
class Subject:
    """The tested model, its tokenizer and heads, and the options of the tests.

    coverage: what was used of each text. warnings: sentences on tests that could not be made and on the halves of texts.
    links: those that eflomal drew.
    """

    model: PreTrainedModel
    tokenizer: Any
    discovery: Discovery
    options: RoleOptions = field(default_factory=RoleOptions)
    coverage: dict[str, Coverage] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    links: WordLinks | None = None

    @property
    def kind(self) -> Kind:
        """The self-attention that is tested on a text."""
        return "encoder-self" if "encoder-self" in self.discovery.heads.kinds else "decoder-self"

    @property
    def pad(self) -> int:
        # The mask hides padding, so that any id does where a tokenizer has none.
        return self.tokenizer.pad_token_id or 0

    @property
    def limit(self) -> int:
        """The most tokens of a sentence: the least limit of model, tokenizer and options."""
        # Models with relative positions have no limit of their own.
        positions = positions_of(self.model) or MAX_LENGTH
        return min(int(positions), int(self.tokenizer.model_max_length), self.options.max_length)

    @property
    def positions(self) -> int:
        """The most positions of a batch: fewer for a large model on a CPU."""
        if device_of(self.model).type != "cpu":
            return BATCH_POSITIONS
        return min(BATCH_POSITIONS, max(1, int(WORK / self.model.num_parameters())))

    @property
    def readout(self) -> Readout | None:
        """The direct path to logits; None where heads go through something else first."""
        embeddings = self.model.get_output_embeddings()
        if embeddings is None:
            return None
        try:
            return Readout(direct_weights(self.model, self.discovery), loaded(embeddings))
        except HeadwiseError:
            return None


def subject_of(model: Model, options: RoleOptions | None = None) -> Subject:
    """A model, as it is tested."""
    options = options or RoleOptions(max_length=model.task.longest)
    return Subject(model.hf, model.tokenizer, model.discovery, options)


@dataclass
class PassageBatch:
    """The inputs of the model, and by kind of attention the passages of queries and keys (one where both are equal)."""

    half: Half
    inputs: dict[str, Tensor]
    sides: Mapping[Kind, tuple[Passage, ...]]

    @property
    def words(self) -> int:
        """How many words it has, of source and target; of random tokens each is one."""
        words = 0
        for passage in self.sides.get("cross") or next(iter(self.sides.values())):
            words += int((passage.subwords > 0).sum())
        return words


def observe(
    model: PreTrainedModel,
    discovery: Discovery,
    batches: Iterable[PassageBatch],
    tests: Tests,
    count: CountWords = uncounted,
) -> ByHalf:
    """Apply every test to every layer of its kind, in one pass; the answers by kind and half of the text."""
    gathered: ByHalf = {}
    current: dict[Kind, tuple[tuple[Passage, ...], list[Probe]]] = {}
    answers: dict[Kind, dict[int, list[Tensor]]] = {}

    def hook(call: AttentionCall) -> None:
        # Not every batch asks every kind: recordings without word times ask no cross heads.
        if call.site.kind not in current:
            return
        assert call.weights is not None
        sides, probes = current[call.site.kind]
        # A recording is shorter than what the model hears at once.
        # One passage for self-attention, two for cross: the first has the queries, the last the keys.
        weights = call.weights[..., : sides[0].ids.shape[1], : sides[-1].ids.shape[1]]
        view = View(weights, sides[0], sides[-1], call)
        # Now, while the weights are there: a layer's are gone when the next one runs.
        answers[call.site.kind][call.site.layer] = [probe.answer(view) for probe in probes]

    with evaluating(model), torch.no_grad(), capture(model, discovery, hook=hook, weights=True):
        for batch in batches:
            for kind, sides in batch.sides.items():
                # What a test asks of a batch is prepared once, and answered by every layer.
                current[kind] = sides, [test(*sides) for test in tests[kind]]
                answers[kind] = {}
            run_model(model, discovery, batch.inputs)
            for kind in batch.sides:
                probes = current[kind][1]
                gathered.setdefault((kind, batch.half), AnswerSums(kind)).add(probes, answers[kind])
            count(batch.words)
    return gathered


def run_model(model: PreTrainedModel, discovery: Discovery, inputs: Mapping[str, Tensor]) -> None:
    """Run the model up to its output layer, as nobody reads logits here: over many words they take most of the time and
    memory. An encoder-decoder without target text runs only its encoder."""
    if "cross" in discovery.heads.kinds and "decoder_input_ids" not in inputs:
        model.get_encoder()(**inputs)
    else:
        run_layers(model, inputs)


def aligned_batches(
    subject: Subject, sentences: Iterable[Halved], coverage: Coverage
) -> Iterator[tuple[Half, list[Aligned]]]:
    """Batches of sentences in subwords, of one half and similar length each; `coverage` counts what is left out."""
    waiting: tuple[list[Aligned], list[Aligned]] = ([], [])
    stream = iter(sentences)
    # Fast tokenizers are fast on many sentences at once.
    while some := list(islice(stream, 256)):
        for which, rows in enumerate(waiting):
            of_half = [sentence for half, sentence in some if half == which]
            # Each half on its own, so that no batch mixes them.
            rows += align_subwords(subject.tokenizer, of_half, subject.limit, coverage)
            if len(rows) >= WINDOW:
                for batch in batched(rows, lambda row: len(row.ids), subject.positions):
                    yield which, batch
                rows.clear()
    for which, rows in enumerate(waiting):
        for batch in batched(rows, lambda row: len(row.ids), subject.positions):
            yield which, batch


SentenceOrPair = TypeVar("SentenceOrPair", Aligned, AlignedPair)


def batched(
    rows: Iterable[SentenceOrPair],
    length: Callable[[SentenceOrPair], int],
    positions: int = BATCH_POSITIONS,
) -> Iterator[list[SentenceOrPair]]:
    """Batches of at most so many positions (one row at least), shortest first."""
    in_order = sorted(rows, key=length)
    for span in batch_spans([length(row) for row in in_order], positions):
        yield in_order[span]


def declared_tests(data: str, kind: Kind, arguments: Mapping[str, Any]) -> list[RoleTest]:
    """The tests of one kind of attention on some data, in the order of the table of scores.

    arguments: what tests may take. A test is left out where an argument that it needs has no value.
    """
    tests = []
    for declared in role.values():
        if data not in declared.data or kind not in declared.kinds:
            continue
        unknown = set(declared.takes) - set(arguments)
        if unknown:
            raise HeadwiseError(
                f"The role '{declared.name}' takes {', '.join(sorted(unknown))}, but a test on {data} can take "
                f"{', '.join(arguments) or 'nothing'}."
            )
        if all(arguments[name] is not None for name in declared.needs):
            tests.append(declared)
    return tests


def tests_on(data: str, kind: Kind, arguments: Mapping[str, Any]) -> list[Test]:
    """The functions of the declared tests, each once, with their arguments."""
    tests: dict[Test, Test] = {}
    for declared in declared_tests(data, kind, arguments):
        taken = {name: arguments[name] for name in declared.takes}
        # Several tests may share a function, which answers all of them at once.
        # By the bare function: two partials of one function are never equal.
        tests.setdefault(declared.function, partial(declared.function, **taken))
    return list(tests.values())


def by_words(declared: RoleTest, passage: Passage) -> Probe:
    """How often words attend most to one of the words that a test names."""
    arcs = []
    for number, sentence in enumerate(passage.sentences):
        for query, key in declared.right_words(sentence):
            arcs.append(Arc(number, query, key, declared.name))
    return pointing(arcs, passage, passage, "offset")


def on_treebank(
    subject: Subject,
    treebank: Iterable[Annotated],
    confirm: Iterable[Annotated] | None,
    frequencies: Mapping[int, int] | None,
    count: CountWords,
    seed: int = 0,
) -> ByHalf:
    """All tests on a treebank, in one pass (after a short one for the mean that `variability` needs).

    seed: of the halves, where no other treebank confirms.
    """
    kind = subject.kind
    coverage = subject.coverage.setdefault("treebank", Coverage())
    # `variability` compares with the mean over sentences, which must be known before.
    sample = in_half(0, islice(treebank, VARIABILITY_SENTENCES))
    batches = treebank_batches(subject, sample, Coverage())
    if kind == "decoder-self":
        # A causal head sees nothing to the right, so the first tokens tell its usual attention.
        batches = map(beginning, batches)
    first = observe(subject.model, subject.discovery, batches, {kind: [opening]}, count)
    if not first:
        raise HeadwiseError(
            f"None of the first {VARIABILITY_SENTENCES} sentences can be used: they have more than {subject.limit} "
            "subwords, or words that the tokenizer drops. Give other text, or raise max_length."
        )
    if frequencies is not None:
        some = list(islice(treebank, VARIABILITY_SENTENCES))
        aligned = align_subwords(subject.tokenizer, some, subject.limit, Coverage())
        if untested := why_untested(frequencies, aligned):
            subject.warnings.append(untested)
            frequencies = None
    arguments = {
        "top": subject.options.top,
        "counts": None if frequencies is None else histogram(frequencies),
        "mean": means(first[kind, 0]),
    }
    tests = tests_on("treebank", kind, arguments)
    # These say, sentence by sentence, which word should attend to which.
    tests += [partial(by_words, declared) for declared in declared_tests("sentence", kind, {})]

    if confirm is None:
        halves, block = halve(map(document_of, treebank), seed)
        text: Iterable[Halved] = zip(halves, treebank, strict=True)
        if block is not None:
            subject.warnings.append(
                f"Nearly all {len(halves)} sentences of the treebank are of one document: its halves are blocks of "
                f"{block} neighbouring sentences ({halves.count(0)} and {halves.count(1)}), which are less independent "
                "than documents. Confirm roles on another text."
            )
    else:
        # The first text finds roles, the other confirms them.
        text = chain(in_half(0, treebank), in_half(1, confirm))
    batches = treebank_batches(subject, text, coverage)
    return observe(subject.model, subject.discovery, batches, {kind: tests}, count)


def words_of_treebank(
    subject: Subject, treebank: Iterable[Annotated], confirm: Iterable[Annotated] | None
) -> int:
    """How many words `on_treebank` reads."""
    words = 0
    for number, sentence in enumerate(treebank):
        words += len(sentence.words)
        if number < VARIABILITY_SENTENCES:
            first = OPENING if subject.kind == "decoder-self" else len(sentence.words)
            words += min(first, len(sentence.words))
    for sentence in confirm or ():
        words += len(sentence.words)
    return words


def treebank_batches(
    subject: Subject, text: Iterable[Halved], coverage: Coverage
) -> Iterator[PassageBatch]:
    """Sentences as batches for self-attention."""
    kind = subject.kind
    device = device_of(subject.model)
    for half, aligned in aligned_batches(subject, text, coverage):
        passage = Passage.of(aligned, subject.pad, device, kind == "decoder-self")
        yield PassageBatch(half, passage_inputs(passage), {kind: (passage,)})


def beginning(batch: PassageBatch) -> PassageBatch:
    """The first tokens of a batch of sentences, for what a causal model does there: later tokens change nothing."""
    ((kind, (passage,)),) = batch.sides.items()
    first = passage.changed(lambda tensor: tensor[:, :OPENING])
    return PassageBatch(batch.half, passage_inputs(first), {kind: (first,)})


def passage_inputs(passage: Passage) -> dict[str, Tensor]:
    return {"input_ids": passage.ids, "attention_mask": passage.mask.long()}


def on_pairs(
    subject: Subject,
    text: Sequence[tuple[str, str]],
    gold: Sequence[Gold] | None,
    count: CountWords,
    seed: int = 0,
) -> ByHalf:
    """The tests of cross attention and of a decoder's self-attention, on sentence pairs.

    gold: their reference links; without any those of eflomal, and without eflomal no test of alignment. seed: of the
    halves.
    """
    if "cross" not in subject.discovery.heads.kinds:
        raise HeadwiseError(
            f"Sentence pairs were given, but a {type(subject.model).__name__} does not translate: leave them out."
        )
    if gold is None and aligner() is not None:
        gold = subject.links = drawn_links(text)
    pairs = subword_pairs(subject, text, gold)
    links = None
    if gold is not None:
        # Sure and possible links together: either is a right answer.
        links = {name: both for name, (_, both) in links_of(pairs, text, gold).items()}
    arguments = {"links": links}
    if links is None:
        subject.warnings.append(
            "Alignment was not tested: it needs links (--links FILE) or the word aligner eflomal (pip install "
            "'headwise[align]')."
        )
    kinds: tuple[Kind, ...] = ("cross", "decoder-self")
    tests = {kind: tests_on("pairs", kind, arguments) for kind in kinds}
    halves = halves_of_pairs(pairs, seed)
    of_halves = [pair_batches(subject, of_half(pairs, halves, half), half) for half in (0, 1)]
    return observe(subject.model, subject.discovery, chain(*of_halves), tests, count)


def subword_pairs(
    subject: Subject,
    text: Sequence[tuple[str, str]],
    gold: Sequence[Gold] | None,
    prompt: PromptTemplate | None = None,
) -> list[AlignedPair]:
    """Sentence pairs in subwords, in the words that their reference links count, if there are any. prompt: of a language
    model.

    Raises HeadwiseError for links that are not those of the text, and where no pair is short enough.
    """
    if gold is not None:
        check_links(text, gold)
    pairs = aligned_pairs(
        text,
        subject.tokenizer,
        subject.limit,
        subject.coverage.setdefault("source", Coverage()),
        subject.coverage.setdefault("target", Coverage()),
        counted_words(gold),
        prompt,
    )
    if not pairs:
        raise HeadwiseError(
            f"No sentence pair can be used: none has at most {subject.limit} subwords on both sides."
        )
    return pairs


def halves_of_pairs(pairs: Sequence[AlignedPair], seed: int = 0) -> list[Half]:
    """The half of every sentence pair."""
    return halves_of([document_of(source.sentence) for source, _ in pairs], seed)


def pair_batches(
    subject: Subject, pairs: Sequence[AlignedPair], half: Half
) -> Iterator[PassageBatch]:
    """Batches of the pairs of a half: source and target for cross attention, the decoder's input for its self-attention."""
    start = start_token(subject.model)
    device = device_of(subject.model)
    for batch in batched(
        pairs, lambda pair: max(len(side.ids) for side in pair), subject.positions
    ):
        sources, targets = zip(*batch, strict=True)
        source = Passage.of(sources, subject.pad, device)
        # Cross attention is asked where a word is written, self-attention where it is read.
        ids, written, read = decoder_sides(targets, start, subject.pad, device)
        inputs = {**passage_inputs(source), "decoder_input_ids": ids}
        yield PassageBatch(half, inputs, {"cross": (written, source), "decoder-self": (read,)})


def of_half(pairs: Sequence[AlignedPair], halves: Sequence[Half], half: Half) -> list[AlignedPair]:
    return [pair for pair, its_half in zip(pairs, halves, strict=True) if its_half == half]


def on_repeats(
    subject: Subject, frequencies: Mapping[int, int] | None, count: CountWords, seed: int
) -> ByHalf:
    """The tests of language models on repeated random tokens."""
    tests = tests_on("repeats", "decoder-self", {"readout": subject.readout})
    device = device_of(subject.model)

    def batches() -> Iterator[PassageBatch]:
        for half, drawn in repeats(subject, frequencies, seed):
            there = drawn.changed(lambda tensor: tensor.to(device))
            # All sequences are equally long, so there is nothing to sort.
            size = max(1, subject.positions // drawn.ids.shape[1])
            for start in range(0, len(drawn.ids), size):
                passage = there.changed(itemgetter(slice(start, start + size)))
                yield PassageBatch(half, passage_inputs(passage), {"decoder-self": (passage,)})

    return observe(subject.model, subject.discovery, batches(), {"decoder-self": tests}, count)


def repeats(
    subject: Subject, frequencies: Mapping[int, int] | None, seed: int
) -> Iterator[tuple[Half, Passage]]:
    """For each half, random tokens that are repeated."""
    tokenizer = subject.tokenizer
    special = set(tokenizer.all_special_ids)
    # A model may have fewer embeddings than the tokenizer has tokens, or more (padding).
    size = min(len(tokenizer), subject.model.config.get_text_config().vocab_size)
    words = [token for token in range(size) if token not in special]
    return repeated_sequences(words, tokenizer.bos_token_id, subject.limit, seed, frequencies)


def generated_texts(subject: Subject, seed: int) -> list[Generated]:
    """The generated texts that language models are tested on, except those that the tokenizer does not allow."""
    texts = []
    arguments = {"readout": subject.readout, "longest": subject.limit, "seed": seed}
    for generate in tests_on("texts", "decoder-self", arguments):
        try:
            texts.append(generate(subject.tokenizer))
        except HeadwiseError as refusal:
            subject.warnings.append(str(refusal))
    return texts


def on_generated(subject: Subject, texts: Sequence[Generated], count: CountWords) -> list[ByHalf]:
    """The tests of language models on generated texts."""
    passes: list[ByHalf] = []
    for generated in texts:
        coverage = subject.coverage.setdefault(f"texts of {generated.name}", Coverage())
        batches = treebank_batches(subject, in_turn(generated.texts), coverage)
        tests: Tests = {"decoder-self": [generated.test]}
        answers = observe(subject.model, subject.discovery, batches, tests, count)
        # One half alone confirms nothing.
        if len(answers) == 2:
            passes.append(answers)
        else:
            subject.warnings.append(
                f"The texts of {generated.name} do not fit into {subject.limit} subwords: left out."
            )
    return passes
