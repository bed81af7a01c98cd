"""When words are spoken, read from a Whisper model's cross attention, against reference times.

Heads are asked as transformers asks them for the times of tokens (`_extract_token_timestamps` of Whisper, after
OpenAI's code): attention of each token that is read, normalised over the tokens, smoothed by a median filter over time,
averaged over heads, and aligned with time by dynamic time warping.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, WhisperFeatureExtractor
from transformers.models.whisper.generation_whisper import _median_filter

from headwise.attention import AttentionCall, device_of
from headwise.data.annotated import Annotated
from headwise.data.speech import Utterance, samples
from headwise.data.subwords import Coverage
from headwise.errors import HeadwiseError
from headwise.roles.head_sets import AlignmentBatch, AlignmentBatches, Counts
from headwise.roles.passes import half_of

FRAME = 0.02  # seconds between the states of Whisper's encoder


def speech_batches(
    model: Any, tokenizer: Any, speech: Sequence[Utterance], coverage: Coverage
) -> AlignmentBatches:
    """Batches of one utterance each. Those with more tokens than the model writes, or fewer than two words, are left out and
    counted."""
    extractor = WhisperFeatureExtractor(
        feature_size=model.config.num_mel_bins,
        chunk_length=round(model.config.max_source_positions * FRAME),
    )
    coverage.sentences += len(speech)
    fitting = []
    for utterance in speech:
        prompt, words = prompt_of(model, tokenizer, utterance), tokens_by_word(tokenizer, utterance)
        if len(prompt) + sum(map(len, words)) > model.config.max_target_positions:
            coverage.too_long += 1
        elif len(words) < 2 or not all(words):
            coverage.unalignable += 1
        else:
            coverage.used += 1
            fitting.append((utterance, prompt, words))

    def batches(half: int) -> Iterator[AlignmentBatch]:
        for utterance, prompt, words in fitting:
            if half_of(Annotated.plain("", str(utterance.audio))) == half:
                yield utterance_batch(model, extractor, utterance, prompt, words)

    return batches


def prompt_of(model: Any, tokenizer: Any, utterance: Utterance) -> list[int]:
    """The tokens that begin a transcription without time stamps."""
    names = ["<|startoftranscript|>", "<|notimestamps|>"]
    if utterance.language:
        names[1:1] = [f"<|{utterance.language}|>", "<|transcribe|>"]
    elif getattr(model.generation_config, "is_multilingual", False):
        raise HeadwiseError(
            f"This Whisper knows several languages: give that of {utterance.audio} in a column `language`."
        )
    known = tokenizer.get_vocab()
    if unknown := [name for name in names if name not in known]:
        raise HeadwiseError(
            f"{unknown[0]}, which {utterance.audio} needs, is no token of this model."
        )
    return [known[name] for name in names]


def tokens_by_word(tokenizer: Any, utterance: Utterance) -> list[list[int]]:
    """The tokens of each word, with the blank in front."""
    return [tokenizer(f" {word}", add_special_tokens=False).input_ids for word in utterance.words]


def utterance_batch(
    model: PreTrainedModel,
    extractor: Any,
    utterance: Utterance,
    prompt: list[int],
    words: list[list[int]],
) -> AlignmentBatch:
    """One utterance.

    alignment.seconds = mean over words of |start that is read − start of the reference|. Rule: tokens follow
    each other evenly from the beginning of the audio to its end.
    """
    audio = samples(utterance.audio, extractor.sampling_rate)
    seconds = len(audio) / extractor.sampling_rate
    if len(audio) > extractor.n_samples or utterance.starts[-1] > seconds:
        raise HeadwiseError(
            f"{utterance.audio} has {seconds:.2f} s, but its last word starts at {utterance.starts[-1]:.2f} s, and the "
            f"model hears {extractor.chunk_length} s: cut the audio, and correct the times."
        )
    device = device_of(model)
    features = extractor(
        audio, sampling_rate=extractor.sampling_rate, return_tensors="pt"
    ).input_features
    flat = [token for word in words for token in word]
    first = torch.tensor(list(accumulate(map(len, words), initial=0))[:-1], device=device)
    expected = torch.tensor(utterance.starts, device=device)
    inputs = {
        "input_features": features.to(device, model.dtype),
        "decoder_input_ids": torch.tensor([[*prompt, *flat]], device=device),
    }
    frames = len(audio) // extractor.hop_length // 2

    def answers(mixed: Tensor) -> Tensor:
        return (token_starts(-mixed[0])[:, first] * FRAME)[None]

    def counted(starts: Tensor) -> Counts:
        wrong = (starts - expected).abs().sum(-1)
        return {"alignment.seconds": (wrong, torch.full_like(wrong, len(expected)))}

    width = int(model.config.median_filter_width)
    rule = first / len(flat) * seconds
    return AlignmentBatch(
        inputs, partial(maps, len(prompt), frames, width), answers, rule[None, None], counted
    )


def maps(prompt: int, frames: int, width: int, call: AttentionCall) -> Tensor:
    """Attention of tokens behind the prompt over time, normalised over tokens and smoothed: 1 H tokens frames."""
    assert call.weights is not None
    weights = call.weights[:, :, prompt:, :frames].float()
    if not weights.shape[1]:
        return weights
    std, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    smooth: Tensor = _median_filter(((weights - mean) / std).nan_to_num(0), width)
    return smooth


def token_starts(costs: Tensor) -> Tensor:
    """The frame at which each token begins on the cheapest monotonic path, C N, through costs C N M.

    Dynamic time warping as in transformers' `_dynamic_time_warping` (the same choice among equal paths), for C matrices
    at once, an anti-diagonal at a time.
    """
    count, rows, columns = costs.shape
    steps = rows + columns - 1
    inf = torch.inf
    # cell (i, j) goes to place (i, i + j), so that an anti-diagonal is a column
    skewed = torch.nn.functional.pad(costs.float(), (0, rows), value=inf).flatten(1)[
        :, : rows * steps
    ]
    skewed = skewed.view(count, rows, steps)
    before = costs.new_full(
        (count, rows + 1), inf, dtype=torch.float32
    )  # two anti-diagonals back, row 0 is the border
    before[:, 0] = 0
    last = torch.full_like(before, inf)
    moves = torch.empty((count, rows, steps), dtype=torch.uint8, device=costs.device)
    for step in range(steps):
        both, up, left = before[:, :-1], last[:, :-1], last[:, 1:]
        is_both, is_up = (both < up) & (both < left), (up < both) & (up < left)
        moves[:, :, step] = torch.where(is_both, 0, torch.where(is_up, 1, 2))
        now = torch.where(is_both, both, torch.where(is_up, up, left)) + skewed[:, :, step]
        before, last = last, torch.nn.functional.pad(now, (1, 0), value=inf)
    starts = torch.zeros((count, rows), dtype=torch.long, device=costs.device)
    row = torch.full((count, 1), rows - 1, device=costs.device)
    column = torch.full((count, 1), columns - 1, device=costs.device)
    flat = moves.flatten(1)
    for _ in range(steps):
        starts.scatter_(
            1, row, column
        )  # walked backwards: the last frame written is the first of the token
        move = flat.gather(1, row * steps + row + column)
        row, column = (
            (row - (move != 2).long()).clamp_min(0),
            (column - (move != 1).long()).clamp_min(0),
        )
    return starts
