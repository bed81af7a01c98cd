"""The predictions of a model for a sentence, with some of its heads turned down.

The prompt depends on the task (`PROMPTS`): the model's own translation, the next token of a text, a
hidden token, a class, or a vector. A task of another package may bring a subclass of `Predictor`
(`Task.predictor_class`), which imports the names in `__all__`.
The numbers of the lab are log-probabilities of these tokens, in nats.

With a gate g from 0 to 1 a head gives g · own + (1 − g) · replacement. The replacement is that of
ablation (`headwise.importance.ablation`): zero (Michel et al. 2019, section 2.3), the head's mean
output over the tokens of this sentence, or its output with equal weights on all visible keys.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from headwise.core.errors import HeadwiseError
from headwise.core.heads import Head, Site
from headwise.core.options import Search
from headwise.core.progress import OnProgress
from headwise.faces.lab.sentence import Sentence, Trees, read_sentence, sentence_of, with_tree
from headwise.importance.ablation import uniform_output
from headwise.models.attention.capture import capture
from headwise.models.attention.discover import output_of
from headwise.models.attention.kernel import AttentionCall
from headwise.models.attention.removal import with_others
from headwise.models.attention.reuse import (
    Trial,
    clear_unless_reusable,
    recording,
    tried,
)
from headwise.models.decoding.translator import decode, most_written, sentence_limit
from headwise.models.model import Model
from headwise.models.tasks.embedding import Embedding
from headwise.models.tasks.objective import predict as logits_of
from headwise.models.tasks.pooling import Pooling, Reading

__all__ = [
    "NO_CHANGE",
    "Ablation",
    "Change",
    "PredictedToken",
    "Prediction",
    "Predictor",
    "Prompt",
    "one_thread",
]

Ablation = Literal["zero", "mean", "uniform"]
MAX_TOKENS = 128  # tokens of a sentence
NOT_ITS_ANSWER = (
    "headwise does not measure this model's answers: the similarity compares the means of its last hidden states, "
    "and says nothing of its answer."
)
LIKELY = 8  # most likely tokens that are shown
MOST_LOGITS = 1 << 26  # logits of a forward with many copies of a sentence
MOST_POSITIONS = 1 << 13  # and its positions


@dataclass(frozen=True)
class Change:
    """Heads that are turned down.

    gates: from 0 (off) to 1; heads without one are on. ablation: what a head gives instead of its output. means: every
    head's mean output over the tokens of the sentence without any gate, H D by site.
    """

    gates: Mapping[Head, float] = field(default_factory=dict)
    ablation: Ablation = "zero"
    means: Mapping[Site, Tensor] = field(default_factory=dict)

    def without(self, heads: Sequence[Head]) -> Change:
        """The change with some heads off in addition."""
        return replace(self, gates={**self.gates, **dict.fromkeys(heads, 0.0)})

    def replacement(self, call: AttentionCall, head: int) -> Tensor | float:
        """What a head gives instead of its output, B Q D."""
        if self.ablation == "zero":
            return 0.0
        if self.ablation == "mean":
            # Of the unchanged sentence, so that a second head that is off does not move it.
            return self.means[call.site][head].to(call.output)
        # The sentence stands alone, so there is no padding to leave out.
        batch, queries = call.output.shape[:2]
        everywhere = partial(torch.ones, dtype=torch.bool, device=call.query.device)
        return uniform_output(
            call, head, everywhere(batch, queries), everywhere(batch, call.key.shape[2])
        )


NO_CHANGE = Change()


@dataclass(frozen=True)
class PredictedToken:
    """A predicted token: the position of its logits, its id, and whether it is part of the output.
    The given text of a language model is also predicted and shown, but it is no output."""

    position: int
    token: int
    in_output: bool = True


@dataclass(frozen=True)
class Prompt:
    """What the model is asked about a sentence.

    inputs: of its forward, 1 S and for translation 1 T. target: the translation, from the start
    token on. predicted_tokens: those whose log-probabilities are compared; none for an embedding model.
    position: of the logits that are shown. means: those of a `Change`.
    """

    inputs: dict[str, Tensor]
    source: Sentence
    predicted_tokens: tuple[PredictedToken, ...] = ()
    position: int | None = None
    target: Sentence | None = None
    means: Mapping[Site, Tensor] = field(default_factory=dict)

    @property
    def read(self) -> dict[str, Any]:
        """What one forward reads."""
        return self.inputs

    @property
    def source_positions(self) -> int:
        """The number of positions that the first side of a forward has."""
        return len(self.source.ids)

    @property
    def positions(self) -> int:
        """The number of positions that a forward has, of both sides."""
        return self.source_positions + (self.length if self.target else 0)

    @property
    def length(self) -> int:
        """The number of positions with logits."""
        return self.inputs["decoder_input_ids" if self.target else "input_ids"].shape[1]


@dataclass(frozen=True)
class Prediction:
    """The result of a forward: the log-probabilities of the predicted tokens, the output as text, the
    log-probabilities of all tokens at the position that is shown (V), and the vector of the text from an
    embedding model (M)."""

    log_probabilities: Tensor
    text: str = ""
    shown_log_probabilities: Tensor | None = None
    vector: Tensor | None = None


class Predictor:
    """A model and the trees of sentences that it may be asked about. Its layers carry the hooks, so
    it answers one question at a time.

    patience: how many times longer than others it may take. cached_sentences: how many sentences' outputs without
    gates are kept. raise_if_cancelled: called at every layer; raises HeadwiseError to end the computation.
    """

    patience: ClassVar[float] = 1.0
    cached_sentences: ClassVar[int] = 64
    said: dict[str, str] | None = None  # of recordings, by name
    raise_if_cancelled: Callable[[], None]

    def __init__(self, model: Model, trees: Trees | None = None) -> None:
        hf: Any = model.hf
        model.task.check_tokenizer()
        reads_text = getattr(hf, "main_input_name", "input_ids") == "input_ids"
        if not (reads_text or model.task.reads_audio):
            raise HeadwiseError(
                f"{model.name} is a {type(hf).__name__}, which reads no text, and the lab asks about sentences: give a "
                "model of text, or see its heads in the report of a study."
            )
        self.model = model
        self.hf = hf
        self.tokenizer = model.tokenizer
        self.task_output = model.task.output
        self.heads = list(model.heads)
        self.trees = trees or {}
        task = model.task
        # As its folder says, and as `evaluate` measures it.
        self.reading = task.reading() if isinstance(task, Embedding) else Reading()
        self.pooling = task.pooling() if isinstance(task, Embedding) else Pooling(("mean",))
        self.max_tokens = min(MAX_TOKENS, sentence_limit(hf), self.reading.longest or MAX_TOKENS)
        self.raise_if_cancelled = lambda: None
        self.unchanged_cache = lru_cache(self.cached_sentences)(self.predict_unchanged)

    def unchanged_prediction(
        self, text: str, beam: int, position: int | None
    ) -> tuple[Prompt, Prediction]:
        """The prompt of a sentence, and the prediction without any gate; both are kept for the next
        change of a head."""
        # Only translations depend on the beam: others must not be computed again for another one.
        return self.unchanged_cache(
            text, beam if self.task_output == "translation" else 0, position
        )

    def predict_unchanged(
        self, text: str, beam: int, position: int | None
    ) -> tuple[Prompt, Prediction]:
        """`unchanged_prediction` for a new sentence."""
        read = self.reading(text) if text.strip() else text
        sentence = read_sentence(self.tokenizer, read, self.max_tokens)
        # A tree has no words of a prompt.
        tree = None if self.reading.prompt else self.trees.get(text.strip())
        if not self.model.task.measured:
            sentence = replace(sentence, note=f"{NOT_ITS_ANSWER} {sentence.note}".strip())
        sentence = with_tree(self.tokenizer, sentence, tree)
        with self.changed(NO_CHANGE):
            prompt = PROMPTS[self.task_output](self, sentence, beam, position)

        return self.answered(prompt, {})

    def answered(
        self, prompt: Prompt, means: dict[Site, Tensor], first: int = 0
    ) -> tuple[Prompt, Prediction]:
        """The prompt with every head's mean output over the positions from `first` on, and the
        prediction without any gate. means: those that are known, H D by site; gets the others."""

        def note_mean(call: AttentionCall) -> None:
            means[call.site] = call.output[0, first:].float().mean(0)

        # With weights, as `Session.inspect` asks for: another kernel would give other last digits.
        with self.changed(NO_CHANGE, note_mean):
            prediction = self.predict(prompt)
        return replace(prompt, means=means), prediction

    def encoded(self, prompt: Prompt, change: Change) -> Prompt:
        """The prompt with the states of the changed encoder, if the prompt keeps them."""
        return prompt

    def maps_of_encoder(self, prompt: Prompt) -> Mapping[Site, Tensor]:
        """Attention, H Q K by site, of an encoder whose states the prompt keeps."""
        return {}

    def sound(self, name: str) -> dict[str, Any]:
        """The recording of a name, for the page. Raises HeadwiseError for a model that reads text."""
        raise HeadwiseError(f"{self.model.name} is {self.model.task.noun}: it hears no sound.")

    def sound_json(self, prompt: Prompt, before: str, after: str) -> dict[str, Any] | None:
        """What the page shows of a recording and two transcripts; nothing of a model that reads text."""
        return None

    def map_of(self, prompt: Prompt, call: AttentionCall) -> Tensor:
        """The attention of a call with weights, H Q K, as the page shows it."""
        assert call.weights is not None
        return call.weights[0].float().cpu()

    def predict(self, prompt: Prompt) -> Prediction:
        """The prediction of one forward."""
        if not prompt.predicted_tokens:
            return Prediction(torch.empty(0), vector=self.vectors(prompt.inputs)[0])

        log_probabilities = logits_of(self.hf, prompt.read)[0].float().log_softmax(-1).cpu()
        positions = [predicted.position for predicted in prompt.predicted_tokens]
        tokens = [predicted.token for predicted in prompt.predicted_tokens]
        # A number a token: its position, its id.
        of_tokens = log_probabilities[positions, tokens]
        if prompt.target:
            text = self.tokenizer.decode(prompt.target.ids, skip_special_tokens=True)
            return Prediction(of_tokens, str(text).strip())

        likeliest = []
        for predicted in prompt.predicted_tokens:
            if predicted.in_output:
                likeliest.append(int(log_probabilities[predicted.position].argmax()))
        text = " ".join(self.token_names(likeliest))
        return Prediction(of_tokens, text, log_probabilities[prompt.position])

    def vectors(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The vectors of texts of equal length, B M."""
        states = output_of(self.hf.base_model, inputs)[0].float().cpu()
        return self.pooling(states, torch.ones(states.shape[:2], dtype=torch.bool))

    def prompt_with_new_translation(self, prompt: Prompt, change: Change, beam: int) -> Prompt:
        """The prompt with the translation that the changed model writes; other models' prompts stay,
        because they are asked for the same tokens."""
        # Without a gate the translation is the one that is there.
        if not (prompt.target and change.gates):
            return prompt
        with self.changed(change):
            ids = self.translate(prompt, beam)
        return prompt if ids == prompt.target.ids else self.with_target(prompt, ids)

    def translate(self, prompt: Prompt, beam: int) -> list[int]:
        """The ids of a translation, from the start token to the end of the sentence."""
        source = {name: prompt.inputs[name] for name in ("input_ids", "attention_mask")}
        length = most_written(source["input_ids"].shape[1], sentence_limit(self.hf))
        with one_thread():
            ids = decode(self.hf, self.tokenizer, source, Search(beam=beam), length)[0]
        written: list[int] = ids.tolist()
        return written

    def with_target(self, prompt: Prompt, ids: Sequence[int]) -> Prompt:
        """The prompt with another translation: its tokens are what the model is asked about."""
        # A translation of the start token alone: a forward still needs one token.
        target = torch.tensor([ids[:-1] or ids], device=self.hf.device)
        predicted_tokens = []
        for position, token in enumerate(ids[1:]):
            predicted_tokens.append(PredictedToken(position, token))
        return replace(
            prompt,
            inputs={**prompt.inputs, "decoder_input_ids": target},
            predicted_tokens=tuple(predicted_tokens),
            target=sentence_of(self.tokenizer, ids),
        )

    def changed(
        self, change: Change, hook: Callable[[AttentionCall], None] | None = None
    ) -> AbstractContextManager[Any]:
        """A block in which heads are turned down. Layers without a gate compute as usual. hook:
        sees every call with its weights."""
        by_site: dict[Site, dict[int, float]] = defaultdict(dict)
        for head, gate in change.gates.items():
            by_site[Site(head.kind, head.layer)][head.head] = gate

        def check_and_call_hook(call: AttentionCall) -> None:
            self.raise_if_cancelled()
            if hook:
                hook(call)

        return capture(
            self.hf,
            self.model.discovery,
            hook=check_and_call_hook,
            weights=hook is not None,
            replace={
                site: partial(blended, gates=gates, change=change)
                for site, gates in by_site.items()
            },
        )

    def effects(
        self, prompt: Prompt, unchanged: Prediction, change: Change, progress: OnProgress
    ) -> Tensor:
        """The difference in the predicted tokens' log-probabilities when one more head is off, in
        addition to a change: heads x tokens. An embedding model has one column, the difference in the
        similarity to its vector without any gate.

        Exact: every head is a row of a batch of copies of the sentence.
        """
        discovery = self.model.discovery
        indices_on = []
        trials: list[Trial] = []
        for index, head in enumerate(self.heads):
            if change.gates.get(head, 1.0) > 0:
                indices_on.append(index)
                # In addition to the gates of `change`, which the block below sets.
                off = partial(switched_off, head=head.head, change=change)
                trials.append({Site(head.kind, head.layer): off})

        logits_per_position = (
            self.hf.config.get_text_config().vocab_size if prompt.predicted_tokens else 1
        )
        # How many copies fit into memory: of the logits, and of the states.
        copies = max(
            1,
            min(
                MOST_POSITIONS // prompt.positions,
                MOST_LOGITS // (prompt.length * logits_per_position),
            ),
        )
        forward = partial(self.copies_log_probabilities, prompt, unchanged)

        def on_share(share: float) -> None:
            progress(share, f"{round(share * len(trials))} of {len(trials)} heads")

        with self.changed(change):
            # Only layers above the switched-off head are computed again, where the model allows that.
            with recording(self.hf, discovery, 1, lambda call: None) as record:
                # With the change alone: what each head's row is compared with.
                before = forward(1)
            clear_unless_reusable(self.hf, discovery, record, forward, before)
            after = tried(self.hf, discovery, record, trials, copies, forward, before[0], on_share)
        effects = torch.zeros(len(self.heads), before.shape[1])
        effects[indices_on] = after - before
        return effects

    def copies_log_probabilities(
        self, prompt: Prompt, unchanged: Prediction, copies: int
    ) -> Tensor:
        """The predicted tokens' log-probabilities in each of some copies of a sentence, B T. An
        embedding model has one column, the similarity to its vector without any gate."""
        inputs = {
            name: tensor.expand(copies, *tensor.shape[1:]) for name, tensor in prompt.inputs.items()
        }
        if unchanged.vector is not None:
            return torch.cosine_similarity(unchanged.vector, self.vectors(inputs), dim=-1)[:, None]

        device = self.hf.device
        predicted = prompt.predicted_tokens
        positions = torch.tensor([each.position for each in predicted], device=device)
        tokens = torch.tensor([each.token for each in predicted], device=device)
        with logits_at(self.hf, positions, (copies, prompt.length)):
            logits = logits_of(self.hf, inputs)
        # `logits_at` has left all of them where the positions are not fewer, or the output layer is
        # of another sort.
        if logits.shape[1] == prompt.length:
            logits = logits[:, positions]
        log_probabilities = logits.float().log_softmax(-1)
        return log_probabilities.gather(-1, tokens.expand(copies, -1)[..., None])[..., 0].cpu()

    def parse_gates(self, named: Mapping[str, float]) -> dict[Head, float]:
        """Gates by head. Raises HeadwiseError for heads that the model does not have, and for gates
        beyond 0 to 1."""
        gates: dict[Head, float] = {}
        for name, gate in named.items():
            if not 0 <= gate <= 1:
                raise HeadwiseError(
                    f"{name} got the gate {gate}: give a number from 0 (off) to 1 (on)."
                )
            heads = self.model.heads.named(name)
            if gate < 1:  # layers without a gate compute as usual, to the last digit
                gates |= dict.fromkeys(heads, gate)
        return gates

    def token_names(self, tokens: Sequence[int]) -> list[str]:
        """The texts of predicted tokens, or the names of predicted classes."""
        if self.task_output == "classification":
            return [str(self.hf.config.id2label.get(token, token)) for token in tokens]
        return sentence_of(self.tokenizer, tokens).tokens

    def likeliest_next(self, before: Tensor, after: Tensor) -> list[dict[str, Any]]:
        """The tokens that are likeliest before or after, with both probabilities."""
        count = min(LIKELY, len(before))
        tokens = before.topk(count).indices.tolist() + after.topk(count).indices.tolist()
        tokens = list(dict.fromkeys(tokens))  # each once, in this order
        rows = []
        for token, name in zip(tokens, self.token_names(tokens), strict=True):
            shares = {"before": math.exp(before[token]), "after": math.exp(after[token])}
            rows.append({"token": name, **shares})
        return rows

    def inputs_of(self, ids: Sequence[int]) -> dict[str, Tensor]:
        """A sentence as the inputs of a forward, 1 S."""
        row = torch.tensor([ids], device=self.hf.device)
        return {"input_ids": row, "attention_mask": torch.ones_like(row)}

    def likeliest(self, inputs: Mapping[str, Tensor]) -> list[int]:
        """The likeliest token at every position, or the likeliest class of a text."""
        best: list[int] = logits_of(self.hf, inputs)[0].argmax(-1).tolist()
        return best


def translation_prompt(
    predictor: Predictor, sentence: Sentence, beam: int, position: int | None
) -> Prompt:
    """The model's own translation: all its tokens are asked for."""
    prompt = Prompt(predictor.inputs_of(sentence.ids), sentence)
    return predictor.with_target(prompt, predictor.translate(prompt, beam))


def next_token(predictor: Predictor, sentence: Sentence, beam: int, position: int | None) -> Prompt:
    """The token after a position (the last one where none is given), and those of the text
    itself."""
    last = len(sentence.ids) - 1
    if position is None or not 0 <= position <= last:
        position = last
    inputs = predictor.inputs_of(sentence.ids)
    text_tokens = [
        PredictedToken(index, token, in_output=False)
        for index, token in enumerate(sentence.ids[1:])
    ]
    best = PredictedToken(position, predictor.likeliest(inputs)[position])
    return Prompt(inputs, sentence, (*text_tokens, best), position)


def hidden_token(
    predictor: Predictor, sentence: Sentence, beam: int, position: int | None
) -> Prompt:
    """The tokens that are masked in the text; where there is none, one at a position or in the
    middle is."""
    tokenizer: Any = predictor.tokenizer
    mask = tokenizer.mask_token_id
    if mask is None:
        raise HeadwiseError(
            "This model's tokenizer has no mask token, so nothing can be asked of it."
        )
    masked = [index for index, token in enumerate(sentence.ids) if token == mask]
    if masked:
        position = position if position in masked else masked[0]
    else:
        # Hiding the end of a sentence asks nothing that a reader would want to know.
        special = set(tokenizer.all_special_ids)
        maskable = [index for index, token in enumerate(sentence.ids) if token not in special]
        maskable = maskable or [0]
        position = position if position in maskable else maskable[len(maskable) // 2]
        ids = list(sentence.ids)
        ids[position] = mask
        with_mask = sentence_of(tokenizer, ids, sentence.note)
        sentence = replace(with_mask, words=sentence.words, tree=sentence.tree)
        # The only hidden token now.
        masked = [position]

    inputs = predictor.inputs_of(sentence.ids)
    best = predictor.likeliest(inputs)
    predicted_tokens = tuple(PredictedToken(index, best[index]) for index in masked)
    return Prompt(inputs, sentence, predicted_tokens, position)


def class_prompt(
    predictor: Predictor, sentence: Sentence, beam: int, position: int | None
) -> Prompt:
    """The class of the text, whose logits have one position, or of each of its tokens."""
    inputs = predictor.inputs_of(sentence.ids)
    classes = predictor.likeliest(inputs)
    if position is None or not 0 <= position < len(classes):
        position = 0
    predicted = tuple(PredictedToken(place, each) for place, each in enumerate(classes))
    return Prompt(inputs, sentence, predicted, position)


def vector_prompt(
    predictor: Predictor, sentence: Sentence, beam: int, position: int | None
) -> Prompt:
    """The vectors of the tokens: no token is predicted."""
    return Prompt(predictor.inputs_of(sentence.ids), sentence)


# How a model is asked about a sentence, by the output of its task.
PROMPTS: dict[str, Callable[[Predictor, Sentence, int, int | None], Prompt]] = {
    "translation": translation_prompt,
    "causal-lm": next_token,
    "masked-lm": hidden_token,
    "classification": class_prompt,
    "embedding": vector_prompt,
}


def blended(call: AttentionCall, gates: Mapping[int, float], change: Change) -> Tensor:
    """The outputs B Q H D of a call with some heads turned down."""
    output = call.output.clone()
    for head, gate in gates.items():
        output[:, :, head] = output[:, :, head] * gate + change.replacement(call, head) * (1 - gate)
    return output


def switched_off(call: AttentionCall, head: int, change: Change) -> Tensor:
    """The outputs B Q H D of a call in which one head gives its replacement."""
    return with_others(call, head, change.replacement(call, head))


@contextmanager
def one_thread() -> Iterator[None]:
    """One token of one sentence at a time is too little work for several threads: two take twice as
    long as one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def logits_at(hf: Any, positions: Tensor, shape: tuple[int, int]) -> Iterator[None]:
    """A block in which a forward of B T tokens computes the logits of some positions only, where
    these are fewer."""
    output_layer = hf.get_output_embeddings()
    if output_layer is None or len(positions) >= shape[1]:
        yield
        return

    def shorten(_: Any, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        states = given[0]
        # Anything else is no batch of all positions: such a model computes all its logits.
        if states.dim() == 3 and states.shape[:2] == shape:
            return states[:, positions], *given[1:]
        return None

    hook = output_layer.register_forward_pre_hook(shorten)
    try:
        yield
    finally:
        hook.remove()
