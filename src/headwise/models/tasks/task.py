"""The task: what a model is for, and everything that follows from it.

A model has one task, `model.task`, chosen once from its class. Scores, roles, pruning, evaluation, studies,
the report and the lab ask the task; nothing else asks what sort of model or text they have. A new task is
one file with one class, which says which models have it (`fits`) and what they answer (`own_answers`), named in
`OWN_TASKS` (task_table.py) or by the entry point of a package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from torch import Tensor
from transformers import PreTrainedModel

from headwise.core.answers import Answers
from headwise.core.errors import HeadwiseError, few_names, shown_value
from headwise.core.heads import HeadMap, Kind
from headwise.core.layout import HeadMask
from headwise.core.options import GateTraining, Greedy, Search, Train, several
from headwise.core.progress import OnProgress, silent, turn
from headwise.core.qualities import Number, QualityMeasure
from headwise.data.lines import is_file, named_files
from headwise.data.store import AnyText
from headwise.data.text import made_text
from headwise.models.attention.capture import keeping
from headwise.models.attention.discover import Discovery
from headwise.models.positions import positions_of
from headwise.models.tasks.batches import Batches
from headwise.models.tasks.own_batches import OwnBatches
from headwise.models.training.token_batches import TrainingData
from headwise.models.vocabulary import refuse_other_words

Need = Literal["loss", "words", "text", "counterparts", "translations"]
Output = Literal[
    "translation", "causal-lm", "masked-lm", "classification", "embedding", "transcription"
]
Given: TypeAlias = Any  # in place of a text (`Task.text_of`)
OwnInputs = Sequence[
    Mapping[str, Tensor]
]  # batches of the model's own keyword tensors, with labels
# What models are given of a text. Of one text all tokens have the type that is usual without types.
READ = ("input_ids", "attention_mask", "token_type_ids")
MOST_SENTENCE_TOKENS = 512  # tokens of a sentence, where the model does not say less


class Task(ABC):
    """What a model is for.

    hf, tokenizer, discovery (where its heads are): of the model. model_name: for messages. folder: the model's own,
    where it has one.
    """

    output: ClassVar[Output]  # what the lab asks for and shows
    noun: ClassVar[str]  # "a translation model": for sentences
    needs: ClassVar[str]  # the text that it needs: for sentences
    text_class: type[AnyText]
    also_reads: ClassVar[tuple[Any, ...]] = ()  # other classes of text, each with `is_named_by`
    provides: ClassVar[frozenset[Need]]  # what measures may ask for
    quality: ClassVar[QualityMeasure]
    measured: ClassVar[bool] = True  # whether headwise can say how good such a model is
    usual_score: ClassVar[str] = "gradient"  # that greedy removal goes by
    trains: ClassVar[bool] = True  # whether headwise trains its weights and gates
    samples_text: ClassVar[bool] = False  # ablation reads a sample of it, where no time is given
    answer_forwards: ClassVar[float] = 1.0  # that measuring its quality takes as long as
    reads_audio: ClassVar[bool] = False  # named by --audio, not --text

    def __init__(
        self,
        hf: PreTrainedModel,
        tokenizer: Any,
        discovery: Discovery,
        model_name: str,
        folder: Path | None = None,
    ) -> None:
        self.hf = hf
        self.tokenizer = tokenizer
        self.discovery = discovery
        self.model_name = model_name
        self.folder = folder

    @classmethod
    @abstractmethod
    def fits(cls, hf: PreTrainedModel, heads: HeadMap) -> bool:
        """Whether a model has this task. heads: those of the model, or of a sort that its class has."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model_name!r})"

    # What it can do

    @property
    def heads(self) -> HeadMap:
        return self.discovery.heads

    @property
    def has_loss(self) -> bool:
        """Whether the model predicts something, so that it has a loss, gradients and gates."""
        return "loss" in self.provides

    @property
    def generates(self) -> bool:
        """Whether the model writes translations: beam search, BLEU, decoding speed."""
        return "translations" in self.provides

    @property
    def languages(self) -> str:
        """The languages that it is asked to translate between, in words; empty where it has no choice."""
        return ""

    @property
    def longest(self) -> int:
        """The longest sentence, in tokens, that the model is given."""
        return min(MOST_SENTENCE_TOKENS, positions_of(self.hf) or MOST_SENTENCE_TOKENS)

    @property
    def stride(self) -> int | None:
        """How many tokens after one another the windows begin in which longer documents are read; None: longer sentences
        are left out."""
        return None

    @property
    def usual_kinds(self) -> tuple[Kind, ...]:
        """The kinds of heads that are pruned where none is named."""
        return self.heads.kinds

    @classmethod
    def train_of(cls, options: GateTraining | Greedy) -> Train:
        """What trains, where the options name kinds of heads: as they say, or what harms a given model least.

        Raises HeadwiseError for `distil` unless only encoder heads of a translation model may go.
        """
        kinds = options.kinds or ()
        distils = set(kinds) == {"encoder-self"} and "translations" in cls.provides
        if options.train == "distil" and not distils:
            raise HeadwiseError(
                "train = 'distil' teaches the encoder of a translation model what the whole encoder gives the decoder, but "
                f"{' and '.join(kinds)} heads of {cls.noun} may go: take 'all', or kinds = ['encoder-self']."
            )
        # λ counts against a loss in nats.
        penalties = several(getattr(options, "penalty", None))
        usual: Train = "distil" if distils and not penalties else "apart"
        return options.train or usual

    # Text

    def provides_of(self, text: Any) -> frozenset[Need]:
        """What measures may ask for when the model is scored on a text."""
        return self.provides

    @classmethod
    def read(cls, spec: Any, cache: Path | None = None) -> Any:
        """The text that a user names: one file, two files, or `datasets:NAME`. cache: a folder for its copy."""
        usual: Any = cls.text_class
        text_class = next((each for each in cls.also_reads if each.is_named_by(spec)), usual)
        return text_class.open(spec, cache=cache)

    def text_of(self, given: Any) -> Any:
        """A text, of what a user has: a file or two, as `read` takes them, or what `made_text` makes one of. Anything else
        stays as it is. Raises HeadwiseError for a sentence in place of a file."""
        if isinstance(given, AnyText):
            return given
        if isinstance(given, str) and any(map(str.isspace, given)) and not is_file(given):
            raise HeadwiseError(
                f"'{given[:100]}' is no file: give a list, even of one sentence, ['…']."
            )
        files = named_files(given)
        if files is not None:
            return self.read(files)
        wanted: Any = self.text_class
        return made_text(given, wanted)

    def check(self, text: Any) -> None:
        """Raise HeadwiseError for text of another sort than the model needs, and a model without a tokenizer."""
        self.check_tokenizer()
        if not isinstance(text, (self.text_class, *self.also_reads)):
            kind = type(self.hf).__name__
            given = shown_value(text)
            if isinstance(text, Iterable) and not isinstance(text, AnyText | str):
                # Rows of other columns, or what can be gone through once only.
                kind_given = type(text).__name__
                given = f"a value of the type {kind_given}: in Python give {listed_rows(self.text_class)}"
            raise HeadwiseError(
                f"{self.model_name} is a {kind}, which needs {self.needs}, and was given {given}."
            )

    def completed(
        self, text: Any, progress: OnProgress | None = None, outline: bool = False
    ) -> Any:
        """A text as the model works on it, with what the model itself must add: a translation model writes the targets of
        one-sided text. Raises HeadwiseError as `check`.

        progress: gets the share that is done; by default a bar. outline: for an estimate, add nothing that takes long.
        """
        text = self.text_of(text)
        self.check(text)
        return text

    def unread(self, text: Any) -> Any:
        """A training text whose targets nothing reads, so that the model need not write them."""
        return self.completed(text)

    def dev_of_training(self, train: Any, dev: Any) -> Any:
        """What the dev loss of a training is measured on: the dev text, with targets made as those that are trained on."""
        return dev

    def check_quality(self, text: Any = None) -> None:  # noqa: B027 - most can
        """Raise HeadwiseError for a model that cannot give the answers of its task, and for a text that has none."""

    def check_answers(self) -> None:  # noqa: B027 - most have
        """Raise HeadwiseError for a model that can be pruned to a number of heads, and whose answers headwise does not
        make, such as vectors by a module of its own."""

    def check_generates(self) -> None:
        """Raise HeadwiseError for a model that does not translate."""
        if not self.generates or not self.hf.can_generate():
            kind = type(self.hf).__name__
            raise HeadwiseError(
                f"{self.model_name} is a {kind}, but a translation model (encoder and decoder) is needed here."
            )
        self.check_tokenizer()

    def check_tokenizer(self) -> None:
        """Raise HeadwiseError for a model without a tokenizer, with one for its encoder alone, and for one that reads more
        than the tokens of a text."""
        if self.tokenizer is not None:
            refuse_other_words(self.hf, self.tokenizer, self.model_name)
            if others := other_inputs(self.hf, self.tokenizer):
                raise HeadwiseError(
                    f"{self.model_name}, a {type(self.hf).__name__}, also reads {others}, which headwise does not give with "
                    "a text: give batches with them in Python."
                )
            return
        reads = self.hf.main_input_name
        if reads == "input_ids":
            raise HeadwiseError(
                f"{self.model_name} has no tokenizer beside its weights: save one there."
            )
        raise HeadwiseError(
            f"{self.model_name} reads {reads}, not text: give a list of its own batches."
        )

    def batches(self, text: Any, progress: OnProgress = silent) -> Batches:
        """The batches that the model is scored on: of a text, or those of a user (`OwnInputs`).

        progress: gets the share of the sentences that were read. Raises HeadwiseError for text of another sort than
        the model needs.
        """
        text = self.text_of(text)
        if not isinstance(text, AnyText):
            if isinstance(text, Sequence) and text and not isinstance(text[0], Mapping):
                raise HeadwiseError(
                    f"{shown_value(text)} was given, but {self.model_name} is {self.noun}: give "
                    f"{self.needs}, as a file or {listed_rows(self.text_class)}."
                )
            if not self.has_loss:
                raise HeadwiseError(
                    f"Batches were given, and {self.model_name} is {self.noun}, without a loss that their labels would "
                    f"have: give {self.needs}."
                )
            own = OwnBatches(self.hf, self.discovery, self.model_name, text)
            return Batches(own, own, self.provides & {"loss"}, progress)
        text = self.completed(text)
        data = self.encoded(text)
        return Batches(text, data, self.provides_of(text), progress, self.languages)

    def quality_batches(
        self, text: Any, progress: OnProgress = silent, search: Search | None = None
    ) -> Batches:
        """The batches that a model's quality is measured on: as `batches`, but of a text that has a quality.

        search: how translations are searched for. Raises HeadwiseError where it was given and none are written.
        """
        if search is not None:
            raise HeadwiseError(
                f"{self.model_name} was given a search, but is {self.noun}, which writes no translations: leave it (--beam, "
                "--length-penalty, --batch, --engine) out."
            )
        return self.batches(text, progress)

    def answers(
        self,
        batches: Batches,
        masks: Sequence[HeadMask] = (),
        cut: Callable[[HeadMask], Task] | None = None,
        whole: Answers | None = None,
    ) -> Answers:
        """What the whole model and some smaller ones answer on `quality_batches`, in this order: a pass for each.

        masks: the heads that each smaller one has left; the others are silent. cut: makes the smaller model of a mask,
        where that is another one. whole: what was measured of the whole model on this text, where that is not measured
        again.
        """
        if whole is None:
            whole = self.own_answers(
                batches.with_progress(turn(batches.progress, 0, 1 + len(masks)))
            )
        smaller = []
        for number, mask in enumerate(masks, start=1):
            share = batches.with_progress(turn(batches.progress, number, 1 + len(masks)))
            if cut is not None:
                smaller.append(cut(mask).own_answers(share))
                continue
            with keeping(self.hf, self.discovery, mask):
                smaller.append(self.own_answers(share))
        return whole.beside(*smaller)

    @abstractmethod
    def own_answers(self, batches: Batches) -> Answers:
        """What the model answers on `quality_batches` as it is."""

    @classmethod
    def quality_on(cls, text: Any) -> QualityMeasure:
        """What models are compared by on a text."""
        return cls.quality

    @classmethod
    def doubts_about(cls, text: Any, number: Number) -> list[str]:
        """Sentences about what makes the quality of a whole model, measured on a text, doubtful."""
        return []

    def dev_loss(self, dev: Any) -> float | None:
        """The loss of a text in nats per token, where the answers of the task do not say it."""
        return None

    @abstractmethod
    def encoded(self, text: Any) -> Any:
        """A text as token ids: an object with `__len__`, `batches(hide)`, `noun` (what it counts: sentences) and
        `left_out` (how many are not read, by the reason)."""

    def continued(self, text: str) -> str | None:
        """How the model continues a text: its likeliest tokens, one after the other. None where it continues none."""
        return None

    def training_data(
        self, text: Any, batch_tokens: int, cache: Path | None = None, limit: int | None = None
    ) -> TrainingData:
        """A text as the model trains on it. limit: the longest sentence in tokens, by default the model's own.

        Raises HeadwiseError for a model without a loss, and for text of another sort than it needs.
        """
        text = self.completed(text)
        return self.trained_on(text, batch_tokens, cache, limit or self.longest)

    def save_processor(self, folder: Path) -> None:  # noqa: B027 - text needs no more
        """Write to a folder what prepares the model's input, where that is more than a tokenizer."""

    def role_data(self, text: Any, confirm: Any, pairs: Any, training: Any) -> Any:
        """What is given to `hw.roles`, as `headwise.roles.role_data.RoleData`; None where heads are tested on a
        treebank. Raises HeadwiseError for what the model does not read."""
        return None

    def alignment_data(self, text: Any) -> Any:
        """The text of `align`, as `headwise.roles.alignment_heads.AlignmentData`; None of sentence pairs."""
        return None

    def predictor_class(self) -> type | None:
        """A subclass of the lab's Predictor that asks such a model; None for the lab's own."""
        return None

    def no_loss(self) -> HeadwiseError:
        """The refusal to train a model without a loss."""
        kind = type(self.hf).__name__
        return HeadwiseError(
            f"{self.model_name} is a {kind}, which predicts no words, so there is no loss to train it by: remove "
            "heads with hw.Greedy (method 'greedy'), or train gates in a loop of your own (GatedLoop)."
        )

    def trained_on(
        self, text: Any, batch_tokens: int, cache: Path | None, limit: int
    ) -> TrainingData:
        """`training_data` of a text that fits. Tasks with a loss say how; all others refuse."""
        raise self.no_loss()


def other_inputs(hf: PreTrainedModel, tokenizer: Any) -> str:
    """What a model reads beside the tokens of a text, in words: what its tokenizer makes of it, the places of words on a
    page, the language of each token. Without it the forward runs, and computes something else."""
    if hf.main_input_name != "input_ids":
        return ""
    config: Any = hf.config
    reads = signature(hf.forward).parameters
    found = [name for name in tokenizer("a") if name in reads and name not in READ]
    if "bbox" in reads:
        found.append("bbox")
    if "langs" in reads and getattr(config, "use_lang_emb", False) and config.n_langs > 1:
        found.append(f"langs ({few_names([*config.lang2id])})")
    return " and ".join(found)


def listed_rows(text_class: Any) -> str:
    """What a user may give in Python in place of a text, in words."""
    columns = text_class.columns
    if len(columns) == 1:
        return "a list of sentences"
    return f"a list of rows, [({', '.join(columns)}), …]"


def source_sentences(text: Any) -> Iterator[str]:
    """The sentences that a model reads first: the source side of pairs, all lines of other texts."""
    yield from (text.sources if hasattr(text, "sources") else text.lines)


HELD_OUT_EVERY = 10  # sentence that is held out where no dev text is given


def held_out(text: Any, count: int | None = None) -> tuple[Any, Any]:
    """All but some sentences of a text, spread evenly over it, and these: so many, or every tenth. Raises HeadwiseError
    where that leaves no sentence in one of the two."""
    total = len(text)
    if total < 2:
        raise HeadwiseError(
            f"Dev text is held out of the training text, which has {total or 'no'} "
            f"sentence{'s' * (total != 1)}: give a text of at least two, or dev text as well."
        )
    if count is None and total < HELD_OUT_EVERY:
        raise HeadwiseError(
            f"Every tenth sentence is held out, but there are only {total}: give dev text as well."
        )
    asked = total // HELD_OUT_EVERY if count is None else count
    if not 0 < asked < total:
        raise HeadwiseError(
            f"{asked} of the {total} sentences of the training text are to be held out: hold out "
            f"{'1' if total == 2 else f'from 1 to {total - 1}'}."
        )
    span = HELD_OUT_EVERY * asked if count is None else total
    away = {(place + 1) * span // asked - 1 for place in range(asked)}
    kept = [place for place in range(total) if place not in away]
    return text.take(kept), text.take(sorted(away))


def sample_text(text: AnyText | OwnInputs, count: int) -> Any:
    """At most so many sentences of a text, spread evenly over it; batches that a user brings stay whole."""
    if not isinstance(text, AnyText) or len(text) <= count:
        return text
    return text.take([number * len(text) // count for number in range(count)])
