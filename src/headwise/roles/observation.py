"""One pass for each text, in which all tests use the same attention weights; nothing of size query × key is kept.

The texts are a treebank, sentence pairs, repeated random tokens, and texts that are generated from templates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headwise.attention import (
    AttentionCall,
    Discovery,
    capture,
    device_of,
    evaluating,
    start_token,
)
from headwise.attention.discover import output_of
from headwise.attention.offload import loaded
from headwise.data.annotated import Annotated
from headwise.data.subwords import Aligned, Coverage, align_subwords
from headwise.errors import HeadwiseError
from headwise.heads import Kind
from headwise.roles.alignment import Gold, decoder_sides, possible_links
from headwise.roles.coreference import windows
from headwise.roles.induction import direct_output_weights, repeated_sequences
from headwise.roles.passage import Passage, View
from headwise.roles.probe import AnswerSums, Arc, Probe, pointing
from headwise.roles.rare import TOP, histogram
from headwise.roles.role import RoleTest, role
from headwise.roles.shape import means, opening
from headwise.roles.templates import Readout

TOKENS = 4096  # positions in a batch
WINDOW = 1024  # sentences that are sorted by length together
MAX_LENGTH = 512  # subwords of a sentence, where the model has no lower limit
SAMPLE = 256  # sentences for the mean attention that `variability` needs

Test = Callable[..., Any]  # from the passages of a kind of attention to a probe
Tests = Mapping[Kind, Sequence[Test]]
Half = int  # 0: where roles are found, 1: where they are confirmed
ByHalf = dict[tuple[Kind, Half], AnswerSums]
Count = Callable[[int], None]  # called after every batch with its number of sentences


def uncounted(sentences: int) -> None:
    """Count nothing."""


@dataclass(frozen=True)
class RoleOptions:
    """Options of the tests on which the papers differ or say nothing.

    max_length: sentences of more subwords are left out and counted. first_subword: a word is its first subword, not the
    sum (as a key) or mean (as a query) over its subwords. edges: queries without a token at an offset count as misses
    for positional heads. per_arc: count dependencies, not words that have one. top: how many of the most frequent
    tokens are never rare. context: how many neighbouring sentences of a document are read as one.
    """

    max_length: int = MAX_LENGTH
    first_subword: bool = False
    edges: bool = False
    per_arc: bool = False
    top: int = TOP
    context: int = 1


@dataclass
class Subject:
    """The tested model, its tokenizer and heads, and the options of the tests.

    coverage: what was used of each text. refused: sentences on tests that could not be made.
    """

    model: PreTrainedModel
    tokenizer: Any
    discovery: Discovery
    options: RoleOptions = field(default_factory=RoleOptions)
    coverage: dict[str, Coverage] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    @property
    def kind(self) -> Kind:
        """The self-attention that is tested on a text."""
        return "encoder-self" if "encoder-self" in self.discovery.heads.kinds else "decoder-self"

    @property
    def pad(self) -> int:
        return self.tokenizer.pad_token_id or 0

    @property
    def limit(self) -> int:
        """The most tokens of a sentence: the least limit of model, tokenizer and options."""
        positions = getattr(self.model.config, "max_position_embeddings", None) or MAX_LENGTH
        return min(int(positions), int(self.tokenizer.model_max_length), self.options.max_length)

    @property
    def readout(self) -> Readout | None:
        """The direct path to logits; None where heads go through something else first."""
        embeddings = self.model.get_output_embeddings()
        outputs = direct_output_weights(self.model, self.discovery)
        if embeddings is None or outputs is None:
            return None
        return Readout(outputs, loaded(embeddings))


@dataclass
class PassageBatch:
    """The inputs of the model, and by kind of attention the passages of queries and keys (one where both are equal)."""

    half: Half
    inputs: dict[str, Tensor]
    sides: Mapping[Kind, tuple[Passage, ...]]


def observe(
    model: PreTrainedModel,
    discovery: Discovery,
    batches: Iterable[PassageBatch],
    tests: Tests,
    count: Count = uncounted,
) -> ByHalf:
    """Apply every test to every layer of its kind, in one pass; the answers by kind and half of the text."""
    gathered: ByHalf = {}
    current: dict[Kind, tuple[tuple[Passage, ...], list[Probe]]] = {}
    answers: dict[Kind, dict[int, list[Tensor]]] = {}

    def hook(call: AttentionCall) -> None:
        if call.site.kind not in current:
            return
        assert call.weights is not None
        sides, probes = current[call.site.kind]
        view = View(call.weights, sides[0], sides[-1], call)
        answers[call.site.kind][call.site.layer] = [probe.answer(view) for probe in probes]

    with evaluating(model), torch.no_grad(), capture(model, discovery, hook=hook, weights=True):
        for batch in batches:
            for kind, sides in batch.sides.items():
                current[kind] = sides, [test(*sides) for test in tests[kind]]
                answers[kind] = {}
            run_model(model, discovery, batch.inputs)
            for kind in batch.sides:
                probes = current[kind][1]
                gathered.setdefault((kind, batch.half), AnswerSums(kind)).add(probes, answers[kind])
            count(len(batch.inputs["input_ids"]))
    return gathered


def run_model(model: PreTrainedModel, discovery: Discovery, inputs: Mapping[str, Tensor]) -> None:
    """Run the model; only the encoder of an encoder-decoder without target text."""
    if "cross" in discovery.heads.kinds and "decoder_input_ids" not in inputs:
        model.get_encoder()(**inputs)
    else:
        output_of(model, inputs)


def half_of(sentence: Annotated) -> Half:
    """The half of a sentence: by its document's name, so that no document is in both; otherwise by its id or text.

    Not by CRC32, which the embedded corpus is split by: its dev sentences would all be in one half.
    """
    name = sentence.document or sentence.id or sentence.text
    return hashlib.sha256(name.encode()).digest()[0] & 1


def numbered_half(text: Annotated) -> Half:
    """Generated texts go to the two halves in turn, by the number that their name begins with."""
    return int(text.id.split()[0]) & 1


def aligned_batches(
    sentences: Iterable[Annotated],
    tokenizer: Any,
    max_length: int,
    coverage: Coverage,
    half: Callable[[Annotated], Half] = half_of,
) -> Iterator[tuple[Half, list[Aligned]]]:
    """Batches of sentences in subwords, of one half and similar length each; `coverage` counts what is left out."""
    waiting: tuple[list[Aligned], list[Aligned]] = ([], [])
    stream = iter(sentences)
    while some := list(islice(stream, 256)):
        for aligned in align_subwords(tokenizer, some, max_length, coverage):
            waiting[half(aligned.sentence)].append(aligned)
        for which, rows in enumerate(waiting):
            if len(rows) >= WINDOW:
                for batch in batched(rows, lambda row: len(row.ids)):
                    yield which, batch
                rows.clear()
    for which, rows in enumerate(waiting):
        for batch in batched(rows, lambda row: len(row.ids)):
            yield which, batch


Row = TypeVar("Row", Aligned, tuple[Aligned, Aligned])


def batched(rows: Iterable[Row], length: Callable[[Row], int]) -> Iterator[list[Row]]:
    """Batches of at most TOKENS positions (one row at least), shortest first."""
    batch: list[Row] = []
    for row in sorted(rows, key=length):
        if batch and length(row) * (len(batch) + 1) > TOKENS:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def declared_tests(data: str, kind: Kind, arguments: Mapping[str, Any]) -> list[RoleTest]:
    """The tests of one kind of attention on some data, in the order of the table of scores.

    arguments: what tests may take. A test is left out where an argument that it needs has no value.
    """
    tests = []
    for declared in sorted(role.values(), key=lambda each: each.row):
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
        tests.setdefault(declared.function, partial(declared.function, **taken))
    return list(tests.values())


def tests_on_sentences(kind: Kind) -> list[Test]:
    """The tests whose function says, sentence by sentence, which word should attend to which."""
    return [partial(by_words, declared) for declared in declared_tests("sentence", kind, {})]


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
    count: Count,
) -> ByHalf:
    """All tests on a treebank, in one pass (after a short one for the mean that `variability` needs)."""
    kind = subject.kind
    coverage = subject.coverage.setdefault("treebank", Coverage())
    sample = treebank_batches(subject, islice(treebank, SAMPLE), lambda sentence: 0, Coverage())
    first = observe(subject.model, subject.discovery, sample, {kind: [opening]})
    if not first:
        raise HeadwiseError(
            f"None of the first {SAMPLE} sentences can be used: they have more than {subject.limit} subwords, or words "
            "that the tokenizer drops. Give other text, or raise max_length."
        )
    arguments = {
        "edges": subject.options.edges,
        "per_arc": subject.options.per_arc,
        "top": subject.options.top,
        "counts": None if frequencies is None else histogram(frequencies),
        "mean": means(first[kind, 0]),
    }
    tests = tests_on("treebank", kind, arguments) + tests_on_sentences(kind)

    def batches() -> Iterator[PassageBatch]:
        if confirm is None:
            yield from treebank_batches(subject, treebank, half_of, coverage)
        else:
            yield from treebank_batches(subject, treebank, lambda sentence: 0, coverage)
            yield from treebank_batches(subject, confirm, lambda sentence: 1, coverage)

    return observe(subject.model, subject.discovery, batches(), {kind: tests}, count)


def treebank_batches(
    subject: Subject,
    treebank: Iterable[Annotated],
    half: Callable[[Annotated], Half],
    coverage: Coverage,
) -> Iterator[PassageBatch]:
    """Sentences, or windows of several, as batches for self-attention."""
    options = subject.options
    kind = subject.kind
    device = device_of(subject.model)
    text = windows(treebank, options.context)
    for which, aligned in aligned_batches(text, subject.tokenizer, subject.limit, coverage, half):
        passage = Passage.of(
            aligned, subject.pad, device, kind == "decoder-self", options.first_subword
        )
        yield PassageBatch(which, passage_inputs(passage), {kind: (passage,)})


def passage_inputs(passage: Passage) -> dict[str, Tensor]:
    return {"input_ids": passage.ids, "attention_mask": passage.mask.long()}


def on_pairs(
    subject: Subject, text: Sequence[tuple[str, str]], count: Count, gold: Sequence[Gold] | None
) -> ByHalf:
    """The tests of cross attention and of a decoder's self-attention, on sentence pairs.

    gold: their reference links; without any those of eflomal.
    """
    if "cross" not in subject.discovery.heads.kinds:
        raise HeadwiseError(
            f"Sentence pairs were given, but a {type(subject.model).__name__} does not translate."
        )
    sources = subject.coverage.setdefault("source", Coverage())
    targets = subject.coverage.setdefault("target", Coverage())
    pairs, links = possible_links(text, gold, subject.tokenizer, subject.limit, sources, targets)
    arguments = {"edges": subject.options.edges, "links": links}
    kinds: tuple[Kind, ...] = ("cross", "decoder-self")
    tests = {kind: tests_on("pairs", kind, arguments) for kind in kinds}
    batches = pair_batches(subject, pairs)
    return observe(subject.model, subject.discovery, batches, tests, count)


def pair_batches(
    subject: Subject, pairs: Sequence[tuple[Aligned, Aligned]]
) -> Iterator[PassageBatch]:
    """Batches of pairs: source and target for cross attention, the decoder's input for its self-attention."""
    start = start_token(subject.model)
    device = device_of(subject.model)
    for half in (0, 1):
        rows = [pair for pair in pairs if half_of(pair[0].sentence) == half]
        for batch in batched(rows, lambda pair: max(len(side.ids) for side in pair)):
            source = Passage.of([pair[0] for pair in batch], subject.pad, device)
            targets = [pair[1] for pair in batch]
            ids, written, read = decoder_sides(targets, start, subject.pad, device)
            inputs = {**passage_inputs(source), "decoder_input_ids": ids}
            yield PassageBatch(half, inputs, {"cross": (written, source), "decoder-self": (read,)})


def on_repeats(subject: Subject, frequencies: Mapping[int, int] | None, seed: int) -> ByHalf:
    """The tests of language models on repeated random tokens."""
    tokenizer = subject.tokenizer
    model = subject.model
    special = set(tokenizer.all_special_ids)
    size = min(len(tokenizer), model.config.get_text_config().vocab_size)
    words = [token for token in range(size) if token not in special]
    readout = subject.readout
    arguments = {
        "outputs": None if readout is None else readout.outputs,
        "embeddings": None if readout is None else readout.embeddings,
    }
    tests = tests_on("repeats", "decoder-self", arguments)

    def batches() -> Iterator[PassageBatch]:
        for half, drawn in repeated_sequences(
            words, tokenizer.bos_token_id, subject.limit, seed, frequencies
        ):
            passage = drawn.to(device_of(model))
            yield PassageBatch(half, passage_inputs(passage), {"decoder-self": (passage,)})

    return observe(model, subject.discovery, batches(), {"decoder-self": tests})


def on_generated(subject: Subject, seed: int) -> list[ByHalf]:
    """The tests of language models on generated texts, but for those that the tokenizer does not allow."""
    passes: list[ByHalf] = []
    arguments = {"readout": subject.readout, "longest": subject.limit, "seed": seed}
    for generate in tests_on("texts", "decoder-self", arguments):
        try:
            generated = generate(subject.tokenizer)
        except HeadwiseError as refusal:
            subject.refused.append(str(refusal))
            continue
        coverage = subject.coverage.setdefault(f"texts of {generated.name}", Coverage())
        batches = treebank_batches(subject, generated.texts, numbered_half, coverage)
        tests: Tests = {"decoder-self": [generated.test]}
        answers = observe(subject.model, subject.discovery, batches, tests)
        if len(answers) == 2:
            passes.append(answers)
        else:
            subject.refused.append(
                f"The texts of {generated.name} do not fit into {subject.limit} subwords: left out."
            )
    return passes
