"""The texts and their tests: a treebank, sentence pairs, probes of random tokens, and texts made from templates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from headwise.attention import Discovery, device_of, start_token
from headwise.attention.offload import loaded
from headwise.data.annotated import Annotated
from headwise.data.subwords import Aligned, Coverage
from headwise.errors import HeadwiseError
from headwise.heads import Kind
from headwise.roles.alignment import (
    Gold,
    aligned_pairs,
    decoder_sides,
    links,
    merged,
    refuse_other_pairs,
)
from headwise.roles.answers import Answers
from headwise.roles.coreference import windows
from headwise.roles.generated import Readout
from headwise.roles.language_model import output_weights, probes
from headwise.roles.observe import Batch, Half, Test, aligned_batches, batched, half_of, observe
from headwise.roles.passage import Passage
from headwise.roles.question import Arc, Question, pointing
from headwise.roles.rare import TOP, histogram
from headwise.roles.role import RoleTest, role
from headwise.roles.shape import means, opening

MAX_LENGTH = 512  # subwords of a sentence, where the model has no lower limit
SAMPLE = 256  # sentences for the mean attention that `variability` needs

ByHalf = dict[tuple[Kind, Half], Answers]
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Reading:
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
    """The tested model, its tokenizer and heads, the options of the tests, the coverage of each text, and sentences on
    tests that were refused."""

    model: PreTrainedModel
    tokenizer: Any
    found: Discovery
    reading: Reading = field(default_factory=Reading)
    coverage: dict[str, Coverage] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    @property
    def kind(self) -> Kind:
        """The self-attention that is tested on a text."""
        return "encoder-self" if "encoder-self" in self.found.heads.kinds else "decoder-self"

    @property
    def pad(self) -> int:
        return self.tokenizer.pad_token_id or 0

    @property
    def limit(self) -> int:
        """The most tokens of a sentence: the least limit of model, tokenizer and options."""
        positions = getattr(self.model.config, "max_position_embeddings", None) or MAX_LENGTH
        return min(int(positions), int(self.tokenizer.model_max_length), self.reading.max_length)


def declared_tests(data: str, kind: Kind, arguments: Mapping[str, Any]) -> list[RoleTest]:
    """The tests of one kind of attention on some data, in the order of the table of scores.

    arguments: what tests may take. A test that needs one of which there is none is left out.
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


def by_words(declared: RoleTest, passage: Passage) -> Question:
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
    progress: Progress,
) -> ByHalf:
    """All tests on a treebank, in one pass (after a short one for the mean that `variability` needs)."""
    kind, coverage = subject.kind, subject.coverage.setdefault("treebank", Coverage())
    sample = treebank_batches(subject, islice(treebank, SAMPLE), lambda sentence: 0, Coverage())
    first = observe(subject.model, subject.found, sample, {kind: [opening]})
    if not first:
        raise HeadwiseError(
            f"None of the first {SAMPLE} sentences can be used: they have more than {subject.limit} subwords, or words "
            "that the tokenizer drops. Give other text, or raise max_length."
        )
    arguments = {
        "edges": subject.reading.edges,
        "per_arc": subject.reading.per_arc,
        "top": subject.reading.top,
        "counts": None if frequencies is None else histogram(frequencies),
        "mean": means(first[kind, 0]),
    }
    tests = tests_on("treebank", kind, arguments) + tests_on_sentences(kind)
    texts: list[tuple[Iterable[Annotated], Callable[[Annotated], Half]]] = [(treebank, half_of)]
    if confirm is not None:
        texts = [(treebank, lambda sentence: 0), (confirm, lambda sentence: 1)]
    batches = (
        batch for text, half in texts for batch in treebank_batches(subject, text, half, coverage)
    )
    return observe(subject.model, subject.found, batches, {kind: tests}, progress)


def treebank_batches(
    subject: Subject,
    treebank: Iterable[Annotated],
    half: Callable[[Annotated], Half],
    coverage: Coverage,
) -> Iterator[Batch]:
    """Sentences, or windows of several, as batches for self-attention."""
    reading, kind, device = subject.reading, subject.kind, device_of(subject.model)
    text = windows(treebank, reading.context)
    for which, aligned in aligned_batches(text, subject.tokenizer, subject.limit, coverage, half):
        passage = Passage.of(
            aligned, subject.pad, device, kind == "decoder-self", reading.first_subword
        )
        yield Batch(which, inputs_of(passage), {kind: (passage,)})


def inputs_of(passage: Passage) -> dict[str, Tensor]:
    return {"input_ids": passage.ids, "attention_mask": passage.there.long()}


def on_pairs(
    subject: Subject,
    text: Sequence[tuple[str, str]],
    progress: Progress,
    gold: Sequence[Gold] | None = None,
) -> ByHalf:
    """The tests of cross attention and of a decoder's self-attention, on sentence pairs, with reference links or,
    without any, with those of eflomal."""
    coverage = [subject.coverage.setdefault(name, Coverage()) for name in ("source", "target")]
    if gold is None:
        pairs = aligned_pairs(text, subject.tokenizer, subject.limit, coverage[0], coverage[1])
    else:
        refuse_other_pairs(text, gold)
        pairs = aligned_pairs(
            text, subject.tokenizer, subject.limit, coverage[0], coverage[1], words=Annotated.plain
        )
    if not pairs:
        raise HeadwiseError(
            f"No sentence pair can be used: none has at most {subject.limit} subwords on both sides."
        )
    linked = (
        links(pairs)
        if gold is None
        else {pair[0].sentence.id: merged(pair, text, gold)[1] for pair in pairs}
    )
    arguments = {"edges": subject.reading.edges, "links": linked}
    kinds: tuple[Kind, ...] = ("cross", "decoder-self")
    tests = {kind: tests_on("pairs", kind, arguments) for kind in kinds}
    batches = pair_batches(subject, pairs)
    return observe(subject.model, subject.found, batches, tests, progress)


def pair_batches(subject: Subject, pairs: Sequence[tuple[Aligned, Aligned]]) -> Iterator[Batch]:
    """Batches of pairs: source and target for cross attention, the decoder's input for its self-attention."""
    start, device = start_token(subject.model), device_of(subject.model)
    for half in (0, 1):
        rows = [pair for pair in pairs if half_of(pair[0].sentence) == half]
        for batch in batched(rows, lambda pair: max(len(side.ids) for side in pair)):
            source = Passage.of([pair[0] for pair in batch], subject.pad, device)
            ids, written, read = decoder_sides(
                [pair[1] for pair in batch], start, subject.pad, device
            )
            inputs = {**inputs_of(source), "decoder_input_ids": ids}
            yield Batch(half, inputs, {"cross": (written, source), "decoder-self": (read,)})


def on_probes(subject: Subject, frequencies: Mapping[int, int] | None, seed: int) -> ByHalf:
    """The tests of language models that need probes of repeated random tokens."""
    tokenizer, model = subject.tokenizer, subject.model
    special = set(tokenizer.all_special_ids)
    words = [
        each
        for each in range(min(len(tokenizer), model.config.get_text_config().vocab_size))
        if each not in special
    ]
    readout = read_out(subject)
    arguments = {
        "outputs": None if readout is None else readout.outputs,
        "embeddings": None if readout is None else readout.embeddings,
    }
    tests = tests_on("repeats", "decoder-self", arguments)
    drawn = probes(words, tokenizer.bos_token_id, subject.limit, seed, frequencies)
    batches = (
        Batch(half, inputs_of(p := passage.to(device_of(model))), {"decoder-self": (p,)})
        for half, passage in drawn
    )
    return observe(model, subject.found, batches, {"decoder-self": tests})


def read_out(subject: Subject) -> Readout | None:
    """The direct path to logits; None where heads go through something else first."""
    embeddings, outputs = (
        subject.model.get_output_embeddings(),
        output_weights(subject.model, subject.found),
    )
    return None if embeddings is None or outputs is None else Readout(outputs, loaded(embeddings))


def on_templates(subject: Subject, seed: int) -> list[ByHalf]:
    """The tests of language models on texts made from templates, but for those that the tokenizer does not allow."""
    found: list[ByHalf] = []
    arguments = {"readout": read_out(subject), "longest": subject.limit, "seed": seed}
    for generate in tests_on("texts", "decoder-self", arguments):
        try:
            task = generate(subject.tokenizer)
        except HeadwiseError as refusal:
            subject.refused.append(str(refusal))
            continue
        coverage = subject.coverage.setdefault(f"texts of {task.name}", Coverage())
        batches = treebank_batches(subject, task.texts, numbered_half, coverage)
        answers = observe(subject.model, subject.found, batches, {"decoder-self": [task.test]})
        if len(answers) == 2:
            found.append(answers)
        else:
            subject.refused.append(
                f"The texts of {task.name} do not fit into {subject.limit} subwords: left out."
            )
    return found


def numbered_half(text: Annotated) -> Half:
    """Texts made from templates go to the two halves in turn, by the number that their name begins with."""
    return int(text.id.split()[0]) & 1
