"""What is watched in every evaluation: translations that became shorter, and further training that does harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from headwise.core.answers import Answers
from headwise.core.measured import FINE_TUNED
from headwise.core.qualities import AGREEMENT
from headwise.models.decoding.bleu import TRANSLATION_LENGTH
from headwise.models.tasks.task import source_sentences
from headwise.pruning.harm import likely_causes
from headwise.study.run_context import RunContext
from headwise.study.variants import FULL, Variant

LENGTH = "length_ratio"  # the name of that number
SHORT = 0.95  # words for each word of the full model: below, text is missing
SAMPLE = 1000  # sentences of a text whose length is named


def length_ratio(own: Answers, full: Answers) -> float:
    """The words that a model writes for each word of the full model; of translations."""
    words = [answers.stats[:, 0, TRANSLATION_LENGTH].sum() for answers in (own, full)]
    return float(words[0] / max(1.0, words[1]))


def doubts_of(
    run: RunContext,
    variant: Variant,
    numbers: Mapping[str, tuple[float | None, ...]],
    against: Mapping[str, tuple[float | None, ...]],
    training: Callable[[], Mapping[str, Any] | None],
) -> Iterator[str]:
    """Sentences about a variant that lost text, and about the control `fine-tuned` where it is worse than the full model.
    numbers: of the variant by measure. against: its change from others by name. training: gives what the step that made
    it says of its training."""
    (ratio, *_) = numbers.get(LENGTH, (None,))
    if ratio is not None and ratio < SHORT:
        yield (
            f"{variant.name} writes {ratio:.2f} words for each word of the full model: text is missing. Keep more heads, or "
            "train its weights longer, with a lower learning_rate, without dropout (train = 'distil' or 'apart')."
        )
    if variant.control != FINE_TUNED or FULL.name not in against:
        return
    value, low, high, *_ = against[FULL.name]
    quality = run.quality_on("dev")
    better = quality.better
    if value is None or low is None or high is None or max(better * low, better * high) >= 0:
        return
    trained = training()
    # Agreement with the full model's own translations begins at 100: any training lowers it. The loss says more.
    if quality is AGREEMENT and trained and trained["loss_after"] < trained["loss_before"]:
        return
    unit = quality.unit or f" {quality.title}"
    yield (
        f"Training on without pruning changes the full model by {value:+.2f}{unit} [{low:+.2f}, {high:+.2f}]: the training "
        f"itself does harm, to pruned models as well. Likely causes: {', '.join(causes(run, variant))}."
    )


def causes(run: RunContext, variant: Variant) -> Iterator[str]:
    """Why training on a given model may do harm."""
    sweep: Any = run.sweep(variant)
    train, dev = words_of(run.text("train")), words_of(run.text("dev"))
    return likely_causes(run.full.hf, sweep.train, sweep.learning_rate, train, dev, "words")


def words_of(text: Any) -> list[int]:
    """The number of words of the first sentences of a text."""
    return [len(line.split()) for line in islice(source_sentences(text), SAMPLE)]
