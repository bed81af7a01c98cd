"""All options of training, search and pruning, as classes: `hw.prune(model, text, hw.Gates(penalty=0.01))`.

The sections of a plan are the same classes (study/plan.py adds what only a plan has). Their descriptions are the help
of the command line and the tables of docs/plan.md. Options are checked when they are made, long before torch is needed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from headwise.core.errors import HeadwiseError, did_you_mean, few_names, reason_in, shown_value
from headwise.core.heads import KINDS, HeadMap, Kind
from headwise.core.qualities import LOSSES

SEED = 1  # of all that draws, where none is named
TEXTLESS_ORDERS = ("random", "weight-norm")  # orders of removal that look at no text
# Orders of encoder heads that read no targets of a translation model's text.
REPAIR = "repair"  # the order of what repair cannot restore
TARGETLESS_ORDERS = (*TEXTLESS_ORDERS, REPAIR)
DEEPEST = 1000  # layers
FURTHEST_START = 100.0  # log α of a gate
MOST_WEIGHTS = 100_000_000_000
FULL_LENGTH = ("epochs", "learning_rate", "warmup", "schedule", "average", "patience")

Scale = Literal["paper", "code"]
Rule = Literal["sign", "deterministic"]
Unit = Literal["head", "balanced", "group", "uniform"]
Train = Literal["distil", "apart", "all", "gates", "lora"]
Engine = Literal["transformers", "ct2"]
Schedule = Literal["inverse_sqrt", "constant_with_warmup", "linear", "cosine"]
Keep = int | float | Mapping[Kind, int]

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]  # of the heads that may be removed
Counts = Count | Share | Mapping[Kind, Count]
Penalty = Annotated[float, Field(ge=0)]
Checked = TypeVar("Checked", bound=BaseModel)


def option(
    default: Any, description: str, page: str = "", flag: str = "", value: str = "", **limits: Any
) -> Any:
    """A field. page: where docs/plan.md sends readers for more, from docs/ on. flag: of the command line, where it is not
    the field's name. value: what the help calls its value, where it is not called by its type."""
    facts = {"page": page, "flag": flag, "value": value}
    more: Any = {name: fact for name, fact in facts.items() if fact}
    return Field(default=default, description=description, json_schema_extra=more, **limits)


class Options(BaseModel):
    """What all options have: unknown names and other types are refused, in one sentence."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    def __init__(self, *unnamed: Any, **values: Any) -> None:
        if unnamed:
            name = type(self).__name__
            few = few_names([*type(self).model_fields])
            raise HeadwiseError(
                f"{name} was given {shown_value(unnamed[0])} without the name of an option ({few}): write hw.{name}(NAME=…)."
            )
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise HeadwiseError(
                describe_misfit(error, type(self), values, type(self).__name__)
            ) from None

    # Inside a plan pydantic then reports where in the plan something does not fit, rather than calling __init__.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @field_validator("*")
    @classmethod
    def fits_a_machine(cls, value: Any) -> Any:
        # Estimates compute with floats, which cannot hold any whole number.
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError("no machine counts so far: give a number of at most 18 digits")
        return value


def refuse_other_options(given: object, wanted: type[Options], name: str, example: str) -> None:
    """Raise HeadwiseError for what was given in place of options. example: of one, `batch_tokens=2000`."""
    if not isinstance(given, wanted):
        raise HeadwiseError(
            f"{name} is {shown_value(given)}: give hw.{wanted.__name__}(…), such as hw.{wanted.__name__}({example})."
        )


class Architecture(Options):
    """The shape of a Transformer to train (Vaswani et al. 2017)."""

    norm: Literal["post", "pre"] = option(
        "post",
        "where activations are normalised: after each sublayer (post: Marian) or before it (pre: M2M100)",
    )
    encoder_layers: int = option(3, "encoder layers", ge=1, le=DEEPEST)
    decoder_layers: int = option(3, "decoder layers", ge=1, le=DEEPEST)
    heads: int = option(8, "heads of every attention layer; must divide width", ge=1, le=1024)
    width: int = option(256, "numbers per token between layers", ge=4, le=65_536)
    feedforward: int = option(1024, "width inside the feed-forward sublayers", ge=1, le=1_000_000)
    dropout: float = option(0.1, "dropout between sublayers", ge=0, lt=1)
    attention_dropout: float = option(0.0, "dropout on attention weights", ge=0, lt=1)
    vocabulary: int = option(
        8000,
        "subwords of the joint vocabulary, at most, special tokens included",
        ge=10,
        le=1_000_000,
    )
    max_length: int = option(
        128,
        "longest sentence in tokens, end of sentence included; longer training pairs are left out and counted",
        ge=4,
        le=1_000_000,
    )

    @model_validator(mode="after")
    def refuse_too_large(self) -> Self:
        """A shape that no machine trains is a slip of the keyboard."""
        attention = 4 * self.width**2
        sublayers = 2 * self.width * self.feedforward
        encoder = self.encoder_layers * (attention + sublayers)
        decoder = self.decoder_layers * (2 * attention + sublayers)
        weights = encoder + decoder + self.width * (self.vocabulary + self.max_length)
        if weights > MOST_WEIGHTS:
            raise ValueError(
                f"a model of this shape has {weights:,} weights, and {MOST_WEIGHTS:,} is the most that is trained here"
            )
        return self

    @property
    def head_map(self) -> HeadMap:
        """The heads of a model of this shape."""
        encoder = (self.heads,) * self.encoder_layers
        decoder = (self.heads,) * self.decoder_layers
        return HeadMap({"encoder-self": encoder, "decoder-self": decoder, "cross": decoder})


class Training(Options):
    """How weights are trained. By default the rate rises to `learning_rate` in `warmup` updates, then falls with the
    inverse square root of the update (Vaswani et al. 2017)."""

    epochs: int = option(40, "epochs, at most: see patience", ge=1)
    batch_tokens: int = option(
        5040,
        "positions a side in one batch, padding included; of a text with fewer, batches are smaller, and that is said",
        ge=16,
        le=1_000_000_000,
    )
    accumulate: int = option(1, "batches per update, over all processes", ge=1)
    learning_rate: float = option(1e-3, "the highest rate, reached after warmup", gt=0)
    warmup: int = option(1000, "updates until the highest rate", ge=0)
    schedule: Schedule = option(
        "inverse_sqrt",
        "the rate after warmup: inverse_sqrt, constant_with_warmup, linear or cosine",
    )
    label_smoothing: float = option(
        0.1,
        "share of a target's probability that goes to all words; "
        "of a given model 0 unless it is named",
        ge=0,
        lt=1,
    )
    weight_decay: float = option(0.0, "decay of the weights", ge=0)
    clip: float = option(1.0, "largest norm of a gradient", gt=0)
    patience: int = option(10, "epochs without a better dev loss before training stops", ge=1)
    average: int = option(
        5, "how many of the last checkpoints are averaged, if that lowers the dev loss", ge=1
    )
    dtype: Literal["auto", "float32", "bfloat16"] = option(
        "auto",
        "type of numbers: auto, float32 or bfloat16; auto: bfloat16 where it is native, else float32. "
        "Weights of half precision train in float32 and are saved in their own type",
    )


WIDEST = 1000  # hypotheses: memory and time grow with them


class Search(Options):
    """Beam search for translations."""

    beam: int = option(5, "hypotheses that are followed at once", ge=1, le=WIDEST)
    length_penalty: float = option(
        1.0,
        "a hypothesis' log-probability is divided by its length to this power; 0: no correction",
    )
    batch: int = option(25, "sentences decoded at once", ge=1)
    engine: Engine = option(
        "transformers",
        "what searches: transformers, or ct2 (CTranslate2)",
        page="howto/export.md#translate-with-ctranslate2",
    )


# Of the ways to train that have a rate of their own.
RATES: dict[str | None, float] = {"apart": 1e-4, "distil": 1e-3}
RATE_AFTER_REPAIR = 4e-4  # with distil: the usual one would undo the repair within an epoch
WITHOUT_DROPOUT = ("apart", "distil", "gates")


class FineTuning(Options):
    """How long a trained model trains on. The rate climbs for `warmup` updates, then falls to 0."""

    epochs: int = option(8, "epochs of fine-tuning for each model", ge=1)
    learning_rate: float = option(
        3e-4,
        f"rate of the weights, after warmup; unless it is named {RATES['apart']:g} with train = 'apart', "
        f"{RATES['distil']:g} with 'distil' ({RATE_AFTER_REPAIR:g} after repair)",
        gt=0,
    )
    warmup: int = option(50, "updates until the rates are reached", ge=0)
    schedule: Schedule = option(
        "linear",
        "the rates after warmup: inverse_sqrt, constant_with_warmup, linear or cosine",
    )
    average: int = option(1, "how many of the last checkpoints are averaged, gates included", ge=1)

    def with_train(self, train: Train) -> Self:
        """The same where `train` says what trains. Raises ValueError for options that do not go with it."""
        return self.model_copy(update={"train": train, **self.changed_by(train)})

    def changed_by(self, train: Train | None) -> dict[str, Any]:
        """The options that are different where `train` says what trains."""
        if "learning_rate" in self.model_fields_set or train not in RATES:
            return {}
        return {"learning_rate": RATES[train]}

    def within(self, training: Training) -> Training:
        """`training` with the length, rate and schedule of fine-tuning."""
        names = ("epochs", "learning_rate", "warmup", "schedule")
        return training.model_copy(update={name: getattr(self, name) for name in names})


class Pruning(Options):
    """What all methods of pruning have."""

    keep: Counts | list[Counts] | None = option(
        None,
        "how many heads stay: a number, or a share such as 50%, in total or of each kind",
        page="methods/target-count.md",
    )
    kinds: Sequence[Kind] | None = option(
        None,
        "kinds of the heads that may be removed: encoder-self, decoder-self, cross. "
        "With encoder-self alone the decoder is frozen",
        min_length=1,
    )
    unit: Unit | None = option(
        None,
        "heads that are removed together: head, balanced, group or uniform; "
        "unset: what keeps key/value groups equally large",
        page="methods/removal.md#what-is-removed-at-once",
    )
    max_drop: float | None = option(
        None,
        f"the smaller model may lose at most so much on dev, else no head goes: {LOSSES}",
        ge=0,
    )

    @field_validator("keep", mode="before")
    @classmethod
    def known_counts(cls, keep: Any) -> Any:
        """Checked before the type: a number or a table would only miss a number. A percentage becomes a share."""
        counts = [share_of_percent(one) for one in several(keep)]
        for one in counts:
            unknown = (
                [kind for kind in one if kind not in KINDS] if isinstance(one, Mapping) else []
            )
            if unknown:
                raise ValueError(f"'{unknown[0]}' is no kind of heads; there is {', '.join(KINDS)}")
            if isinstance(one, float) and not 0 < one < 1:
                raise ValueError(
                    f"{one:g} is neither a number of heads nor a share of them, above 0 % and below 100 %"
                )
        return counts if isinstance(keep, list | tuple) or keep is None else counts[0]

    @field_validator("kinds", mode="before")
    @classmethod
    def one_or_several_kinds(cls, kinds: Any) -> Any:
        return [kinds] if isinstance(kinds, str) else kinds

    @field_validator("kinds", "keep")
    @classmethod
    def distinct(cls, values: Any) -> Any:
        listed = several(values)  # not a set: mappings have no hash
        if any(value in listed[:place] for place, value in enumerate(listed)):
            raise ValueError("nothing may be there twice")
        return values

    @model_validator(mode="after")
    def same_kinds(self) -> Self:
        for keep in several(self.keep):
            if isinstance(keep, Mapping) and self.kinds is not None and {*keep} != {*self.kinds}:
                raise ValueError(
                    f"keep names {', '.join(keep)}, but the kinds are {', '.join(self.kinds)}: name the same"
                )
        return self


class GateTraining(Pruning, FineTuning):
    """How gates are trained beside the weights. They have a learning rate of their own and no weight decay."""

    train: Train | None = option(
        None,
        "what trains besides the gates: the encoder of a translation model, to give the decoder what the whole one gives "
        "it (distil); first no weight, then all without dropout, for half of the epochs each (apart); all weights at "
        "once; no weight (gates); low-rank changes of linear layers (lora). Unset: all for a model that the study trains; "
        "for a given translation model distil, to target counts of encoder heads without a penalty; else apart. Greedy "
        "removal trains nothing unless this says distil, all or lora",
        page="methods/gates.md#what-trains",
    )
    gate_learning_rate: float = option(0.05, "rate of the gates, after warmup", gt=0)
    start: float | Literal["glorot"] = option(
        3.0,
        "log α of every gate at the start; from 2.4 on step 0 is the converged model; "
        "glorot: as the released code draws it",
        page="methods/gates.md#start",
    )
    settle: float | None = option(
        None,
        "share of the run, at its end, with decided gates; unset: 0 (as in the paper), "
        "and a quarter with a target count, unless train is gates or apart",
        ge=0,
        le=0.4,
    )

    @field_validator("start")
    @classmethod
    def within_reach(cls, start: Any) -> Any:
        """No training moves a gate that far."""
        # Far enough away the sigmoid of a gate is exactly 0 or 1, without a gradient.
        if isinstance(start, float) and abs(start) > FURTHEST_START:
            raise ValueError(f"log α may be at most {FURTHEST_START:g} away from 0")
        return start

    @model_validator(mode="after")
    def refuse_idle(self) -> Self:
        """With frozen weights some options would do nothing."""
        idle = changed_options(self, ("settle", "learning_rate"))
        if self.train == "gates" and idle:
            raise ValueError(
                f"train = 'gates' freezes all weights, so {' and '.join(idle)} would change nothing"
            )
        # Not by assignment, which would mark the rate as one that the user has named.
        vars(self).update(self.changed_by(self.train))
        return self

    def changed_by(self, train: Train | None) -> dict[str, Any]:
        if train == "apart" and self.settle is not None:
            raise ValueError(
                "settle would change nothing where weights train after the gates: set train = 'all', or leave it out"
            )
        return super().changed_by(train)

    @property
    def reads_targets(self) -> bool:
        """Whether the targets of a translation model's training text are read."""
        return self.train != "distil"

    @property
    def of_gates(self) -> Self:
        """How gates train: where weights train apart, on frozen weights for the first half of the epochs."""
        if self.train != "apart":
            return self
        first = {"train": "gates", "epochs": self.epochs - self.epochs // 2}
        return self.model_copy(update=first)

    @property
    def of_weights(self) -> Self:
        """How weights train: where they train apart, for the other half of the epochs, at least one."""
        if self.train != "apart":
            return self
        return self.model_copy(update={"epochs": max(1, self.epochs // 2)})


class Gates(GateTraining):
    """Hard Concrete gates (Voita et al. 2019, section 6), to a penalty or to a number of heads."""

    penalty: Penalty | list[Penalty] | None = option(
        None, "λ of the gates: the larger, the fewer heads stay", page="methods/gates.md"
    )
    penalty_scale: Scale = option(
        "paper",
        "what λ multiplies: the sum over heads (paper), or the mean over layers of their sums (code)",
        page="methods/gates.md#two-scales-of-the-penalty",
    )
    temperature: float = option(0.33, "temperature β of the gates", gt=0)
    rule: Rule = option(
        "sign",
        "which heads stay under a penalty: sign (the paper's rule) or deterministic (the released code's)",
        page="methods/gates.md#two-rules-at-the-end",
    )

    @model_validator(mode="after")
    def refuse_ignored(self) -> Self:
        """A target count has no penalty, and the order of the gates decides."""
        ignored = changed_options(self, ("rule", "penalty_scale"))
        if self.keep and not several(self.penalty) and ignored:
            raise ValueError(
                f"{', '.join(ignored)} would mean nothing without a penalty: give one, or leave it out"
            )
        return self


class TopK(GateTraining):
    """Relaxed top-K gates (Li, Cotterell and Sachan 2021): exactly `keep` gates are open in every step."""


class Greedy(Pruning, FineTuning):
    """Heads are removed in the order of a measure (Michel et al. 2019, section 4.2); `train` trains the smaller model on."""

    measure: str | list[str] | None = option(
        None,
        "the order of removal: a measure, weight-norm or random; unset: repair",
        page="howto/score.md#choose-a-measure",
    )
    rescore: bool = option(False, "score again after every step")
    step: float = option(0.1, "share of the heads that is removed at a time", gt=0, le=1)
    repair: bool | None = option(
        None,
        "fit what is left by least squares, so that the heads that stay do what they can of the others' work; before "
        "training, where some is asked for; unset: where no measure is named",
        page="methods/repair.md",
    )
    train: Literal["distil", "all", "lora"] | None = option(
        None,
        "what trains after removal: the encoder of a translation model, to give the decoder what the whole one gives it "
        "(distil); all weights; or low-rank changes of linear layers (lora); unset: nothing",
        page="methods/greedy.md#recovery",
    )
    search: Search | None = option(
        None, "how translations are searched for, to measure BLEU; unset: as hw.Search() does"
    )

    def changed_by(self, train: Train | None) -> dict[str, Any]:
        changes = super().changed_by(train)
        if changes and train == "distil" and self.repair:
            changes["learning_rate"] = RATE_AFTER_REPAIR
        return changes

    @model_validator(mode="after")
    def refuse_idle(self) -> Self:
        vars(self).update(self.changed_by(self.train))
        idle = changed_options(self, tuple(FineTuning.model_fields))
        if idle and not self.train:
            raise ValueError(
                f"{', '.join(idle)} would mean nothing without train: set train, or leave it out"
            )
        # An order that looks at no text is the same after every step.
        scores = several(self.measure)
        if self.rescore and scores and {*scores} <= {*TEXTLESS_ORDERS}:
            raise ValueError(
                f"rescore would change nothing: {', '.join(scores)} stays as it is, so leave rescore out"
            )
        return self

    @property
    def reads_targets(self) -> bool:
        """Whether the targets of a translation model's training text are read: by training or by an order."""
        orders = {*several(self.measure)}
        unread = bool(orders) and orders <= {*TARGETLESS_ORDERS}
        return not (
            unread and self.train in (None, "distil") and {*(self.kinds or ())} == {"encoder-self"}
        )


class Choice(Options):
    """Which pruned model of a study is chosen: the one with the fewest heads that loses at most `max_drop` BLEU on dev
    (a language model: `max_drop` % of perplexity; a classifier: points of accuracy), or `any`."""

    max_drop: float | Literal["any"] = option(
        0.5,
        "the most that a model may lose on dev to be chosen: BLEU, % of perplexity, or points; any: no limit",
    )

    @field_validator("max_drop", mode="before")
    @classmethod
    def bounded(cls, drop: Any) -> Any:
        number = isinstance(drop, int | float) and not isinstance(drop, bool)  # True is an int
        if drop != "any" and not (number and 0 <= drop < math.inf):
            raise ValueError("give a number of at least 0, or any")
        return drop

    @property
    def limit(self) -> float | None:
        """The largest loss allowed on dev; None: any."""
        return None if self.max_drop == "any" else float(self.max_drop)


METHODS: dict[str, type[Pruning]] = {"gates": Gates, "top-k": TopK, "greedy": Greedy}


def several(value: Any) -> list[Any]:
    """The values of an option that takes one or several."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def changed_options(options: BaseModel, names: Sequence[str]) -> list[str]:
    """Those of the options that are not as they are by default."""
    fields = type(options).model_fields
    return [name for name in names if getattr(options, name) != fields[name].default]


def share_of_percent(value: Any) -> Any:
    """`50%` as 0.5; anything else as it is."""
    if not isinstance(value, str) or not value.rstrip().endswith("%"):
        return value
    try:
        return float(value.rstrip().removesuffix("%")) / 100
    except ValueError:
        return value


def keep_name(keep: Keep) -> str:
    """What a target count is called: `10`, `0.5`, `encoder-self-4+cross-6`."""
    if not isinstance(keep, Mapping):
        return f"{keep:g}"
    return "+".join(f"{kind}-{count}" for kind, count in keep.items())


def too_few(options: Gates, updates: int, exactly: bool = True) -> str:
    """A sentence where a run has too few updates for gates to close, or to settle, under a penalty; else nothing.

    Adam moves log α by about the learning rate an update, so over a run by the sum of the rates at most. To settle, a
    gate goes from `start` to −`start`. exactly: whether the updates are counted, not estimated.
    """
    if isinstance(options.start, str):
        return ""
    # The mean rate over a run, as a share of the highest.
    mean = 0.5 if options.schedule in ("linear", "cosine") else 1.0
    enough = math.ceil(2 * options.start / (options.gate_learning_rate * mean))
    epochs = math.ceil(options.epochs * enough / updates)
    found = f"{'' if exactly else 'about '}{updates} updates"
    advice = (
        f"a gate needs {enough} to settle: set epochs to {epochs}, or a higher gate_learning_rate"
    )
    if updates < enough / 2:
        return f"Pruning trains for {found}, in which no gate can close; {advice}."
    if updates < enough:
        return f"Pruning trains for {found}, in which gates may not settle; {advice}."
    return ""


def smaller_batches(recipe: Training, tokens: float, exactly: bool = True) -> str:
    """A sentence where the training text has fewer tokens than the batches of one update; else nothing."""
    update = recipe.batch_tokens * recipe.accumulate
    if tokens >= update:
        return ""
    found = f"{'' if exactly else 'about '}{round(tokens)} tokens"
    return (
        f"The training text has {found}, fewer than one update reads ({update}): batches are smaller, and every epoch is "
        "one update. Give more text, or a lower batch_tokens for more updates."
    )


def validated(
    kind: type[Checked], values: dict[str, Any], source: str, typed: Mapping[str, str] = {}
) -> Checked:
    """Options as `kind` has them; raises HeadwiseError with the key, what was found and what is allowed.

    typed: what the user typed for a key on the command line, such as `--kinds` for pruning.kinds: it is named instead.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise HeadwiseError(describe_misfit(error, kind, values, source, typed)) from None


def describe_misfit(
    error: ValidationError,
    kind: type[BaseModel],
    values: dict[str, Any],
    source: str,
    typed: Mapping[str, str] = {},
) -> str:
    """What does not fit, in one sentence: an unknown key first, else the deepest problem."""
    problems = error.errors()
    # An option that takes several types has a problem with each of them; the deepest is the one that was meant.
    problem = max(
        problems,
        key=lambda one: (one["type"] == "extra_forbidden", len(path_of(one["loc"], values))),
    )
    path = path_of(problem["loc"], values)
    key = ".".join(path)
    if problem["type"] == "extra_forbidden":
        table = table_at(kind, problem["loc"][:-1])
        names = sorted(table.model_fields)
        method = table.model_fields.get("method")
        words = typed_for(path, typed)
        if method and words.startswith("--") and " " not in words:  # an option of another method
            others = [name for name, other in METHODS.items() if path[-1] in other.model_fields]
            return f"{words} means nothing with --method {method.default}, only with {' and '.join(others)}."
        guess = did_you_mean(path[-1], names)
        if path[0] == "model" and path[-1] in ("path", "name", "folder", "id", "spec"):
            guess = ": a model that is there is named at the top of the plan, model = 'my-model'"
        where = f"with method '{method.default}'" if method else "here"
        return (
            f"{words or source}: unknown key '{key}'{guess}; allowed {where}: {', '.join(names)}."
        )
    reason = reason_in(problem["msg"]).rstrip(".")
    reason = reason[0].lower() + reason[1:] if reason[1:2].islower() else reason
    if isinstance(problem["input"], dict | BaseModel):
        given = [words for name, words in typed.items() if key and name.startswith(f"{key}.")]
        if given:
            return f"{', '.join(given)}: {reason}."
        about = f"'{key}' does not fit: " if key else ""
        return f"{source}: {about}{reason}."
    found = repr(problem["input"])
    found = found if len(found) <= 200 else f"{found[:200]} …"
    guess = ""
    if problem["type"] == "literal_error" and isinstance(problem["input"], str):
        reason = f"choose {problem['ctx']['expected']}"
        allowed = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
        guess = did_you_mean(problem["input"], allowed)
    if words := typed_for(path, typed):
        return f"{words}: {found} does not fit: {reason}{guess}."
    return f"{source}: '{key}' is {found}, which does not fit: {reason}{guess}."


def typed_for(path: Sequence[str], typed: Mapping[str, str]) -> str:
    """What the user typed for a place in a plan, for a table around it or for a key in it; else nothing."""
    names = [part for part in path if not part.isdecimal()]
    for key, words in typed.items():
        keys = key.split(".")
        shared = min(len(names), len(keys))
        if shared and names[:shared] == keys[:shared]:
            return words
    return ""


def path_of(loc: Sequence[str | int], values: Any) -> list[str]:
    """The keys and numbers on the way to a problem that the user wrote; pydantic puts names of types between them."""
    path = []
    for part in loc:
        listed = isinstance(values, list | tuple) and isinstance(part, int) and part < len(values)
        if listed or (isinstance(values, Mapping) and part in values):
            values = values[part]
            path.append(str(part))
    return path


def table_at(table: type[BaseModel], loc: Sequence[str | int]) -> type[BaseModel]:
    """The class of options in which a problem lies; where there are several, as for methods of pruning, the one that the
    tag on the way names."""
    for part in loc:
        field = table.model_fields.get(str(part))
        inner = list(tables_in(field.annotation)) if field else []
        for other in inner:
            method = other.model_fields.get("method")
            if method is None or method.default in loc:
                table = other
                break
    return table


def tables_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The classes of options that a type names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from tables_in(inner)
