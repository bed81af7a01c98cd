"""Greedy and beam search in place of transformers' own loops, which write the same translations more slowly.

`generate` prepares all as ever and calls `search_rows`. What is faster: sentences that have ended leave the batch, the
vocabulary's scores are never held for the whole batch, and where the processor multiplies bfloat16, likely words are
found by such products (`Words`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers.generation import (
    EosTokenCriteria,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    GenerationMode,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
from transformers.modeling_outputs import BaseModelOutput

from headwise.models.attention.offload import is_offloaded
from headwise.models.attention.output import Projection, few_logits, given_to, projection
from headwise.models.tasks.objective import same_logits

# What forbids and forces words by the length so far alone.
BY_LENGTH = (
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
STOPPING = (EosTokenCriteria, MaxLengthCriteria)
FAR = -1e9  # a score of what cannot be chosen, as in transformers
BLOCK = 1 << 21  # logits at once: the processor's cache holds about as many
SCREENED = 8192  # words from which products in bfloat16 save time
SPARE = 22  # words that are computed exactly beyond those asked for
HALF = 2**-8  # two numbers rounded to bfloat16 have a product that is off by this share at most


class OtherSearch(Exception):
    """A model or its settings ask for more than `search_rows` does."""


def search_rows(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    **given: Any,
) -> Tensor:
    """The `custom_generate` of `generate`: the best row of each sentence, from the start token on, padded.

    Raises OtherSearch, before anything is searched, for what it does not do.
    """
    config = generation_config
    modes = (GenerationMode.GREEDY_SEARCH, GenerationMode.BEAM_SEARCH)
    known = (
        config.get_generation_mode() in modes
        and not config.low_memory
        and config.early_stopping is False
        and given.get("use_cache")
        and all(type(each) in BY_LENGTH for each in logits_processor)
        and all(type(each) in STOPPING for each in stopping_criteria)
        and not any(map(reads_history, logits_processor))
        and not is_offloaded(model)
    )
    if not known:
        raise OtherSearch
    running = Running(model, logits_processor, given)
    end, fill = config._eos_token_tensor, config._pad_token_tensor
    if end is None:
        end = input_ids.new_zeros(0)
    rows = len(input_ids) // config.num_beams
    out = input_ids.new_full((rows, config.max_length), -1 if fill is None else int(fill))
    if config.num_beams == 1:
        greedy(running, input_ids, end, out)
    else:
        in_beams(running, input_ids, end, out, config)
    return out


def reads_history(processor: Any) -> bool:
    """Whether a processor forbids words by those before them."""
    return any(len(words) > 1 for words in getattr(processor, "sequence_bias", ()))


def greedy(running: Running, tokens: Tensor, end: Tensor, out: Tensor) -> None:
    """Write the likeliest word of each row until its end, into `out`."""
    places = torch.arange(len(tokens), device=tokens.device)
    length = tokens.shape[1]
    out[:, :length] = tokens
    while True:
        words = running.words_after(tokens, 1, scored=False)[1]
        out[places, length] = words[:, 0]
        length += 1
        open_rows = ~torch.isin(words[:, 0], end)
        if length == out.shape[1] or not bool(open_rows.any()):
            return
        tokens = torch.cat([tokens, words], 1)
        if not bool(open_rows.all()):
            kept = open_rows.nonzero()[:, 0]
            tokens, places = tokens[kept], places[kept]
            running.keep(kept, sentences_left=True)


def in_beams(running: Running, tokens: Tensor, end: Tensor, out: Tensor, config: Any) -> None:
    """Write the best of some hypotheses of each sentence into `out`: transformers' search, with `early_stopping` off.

    A sentence ends when its best running score, by the length so far, is below those of all finished hypotheses.
    """
    beams, penalty = config.num_beams, config.length_penalty
    prompt = tokens.shape[1]
    tokens = tokens.view(-1, beams, prompt)
    # As many as may end at once, and `beams` that run on.
    count = max(2, 1 + len(end)) * beams
    first = torch.arange(count, device=tokens.device) < beams
    places = torch.arange(len(tokens), device=tokens.device)
    scores = torch.full(tokens.shape[:2], FAR, device=tokens.device)
    scores[:, 0] = 0
    finished = out[:, None].repeat(1, beams, 1)
    finished_scores = torch.full_like(scores, FAR)
    is_finished = torch.zeros_like(scores, dtype=torch.bool)
    while True:
        likely, words = running.words_after(tokens.flatten(0, 1), count, scored=True)
        totals = scores[:, :, None] + likely.reshape(len(tokens), beams, -1)
        best, at = totals.flatten(1).topk(count)
        parents = at // totals.shape[2]
        chosen = words.reshape(len(tokens), -1).gather(1, at)
        longer = torch.cat([picked(tokens, parents), chosen[:, :, None]], 2)
        length = longer.shape[2]
        is_last = length == out.shape[1]
        ended = torch.isin(chosen, end) | is_last

        padded = out.new_full((*longer.shape[:2], out.shape[1]), 0)
        padded[:] = out[0, -1]
        padded[:, :, :length] = longer
        new = (best / (length - prompt) ** penalty).where(ended & first, FAR)
        finished_scores, at = torch.cat([finished_scores, new], 1).topk(beams)
        finished = picked(torch.cat([finished, padded], 1), at)
        is_finished = torch.cat([is_finished, ended & first], 1).gather(1, at)

        scores, at = (best + ended * FAR).topk(beams)
        tokens, parents = picked(longer, at), parents.gather(1, at)
        worst = finished_scores[:, -1].where(is_finished.all(1), FAR)
        open_rows = scores[:, 0] / (length - prompt) ** penalty > worst
        if is_last:
            open_rows = torch.zeros_like(open_rows)
        out[places[~open_rows]] = finished[~open_rows, 0]
        kept = open_rows.nonzero()[:, 0]
        if not len(kept):
            return
        running.keep((kept[:, None] * beams + parents[kept]).flatten(), len(kept) < len(places))
        tokens, scores, places = tokens[kept], scores[kept], places[kept]
        finished, finished_scores = finished[kept], finished_scores[kept]
        is_finished = is_finished[kept]


def picked(rows: Tensor, at: Tensor) -> Tensor:
    """Of S N L, those rows of each of the S that `at`, S K, names: S K L."""
    return rows.gather(1, at[:, :, None].expand(-1, -1, rows.shape[2]))


class Running:
    """The rows of a batch that still run: their cache and what they read of the encoder."""

    def __init__(self, model: Any, processors: Any, given: Mapping[str, Any]) -> None:
        self.model = model
        self.processors = processors
        self.cache = given["past_key_values"]
        self.encoded = given["encoder_outputs"][0]
        self.mask = given["attention_mask"]
        self.words: Words | None = None

    def words_after(self, tokens: Tensor, count: int, scored: bool) -> tuple[Tensor, Tensor]:
        """The likeliest words after rows of tokens, N T, and their log-probabilities, each N `count`; with `scored` off
        the latter are no probabilities."""
        inputs = {
            "encoder_outputs": BaseModelOutput(last_hidden_state=self.encoded),
            "attention_mask": self.mask,
            "decoder_input_ids": tokens if self.words is None else tokens[:, -1:],
            "past_key_values": self.cache,
            "use_cache": True,
        }
        if self.words is None:
            states, self.words = self.first(inputs)
        else:
            (states,) = given_to(self.model.get_output_embeddings(), self.model, inputs)
        # Processors go by the length alone, so what they do to one row of zeros they do to all.
        zeros = states.new_zeros((1, self.words.count), dtype=torch.float32)
        shift = self.processors(tokens[:1], zeros)[0]
        return self.words.likeliest(states[:, -1], count, shift, scored)

    def first(self, inputs: Mapping[str, Any]) -> tuple[Tensor, Words]:
        """The states of the first step, and the output layer, which the model's own logits are compared with."""
        project = projection(self.model, self.encoded.device)
        if (
            project is None
        ):  # as of FSMT, whose table of words also stands at the input of its decoder
            raise OtherSearch
        with few_logits(self.model) as seen:
            own = self.model(**inputs).logits
        if len(seen) != 1 or not same_logits(project(seen[0][:1, : own.shape[1]]), own):
            raise OtherSearch
        return seen[0], Words(project)

    def keep(self, rows: Tensor, sentences_left: bool) -> None:
        """Go on with some of the rows, in another order. sentences_left: whether some sentences have none any more; else
        all rows keep what they read of the encoder."""
        self.cache.self_attention_cache.batch_select_indices(rows)
        if sentences_left:
            self.cache.cross_attention_cache.batch_select_indices(rows)
            self.encoded, self.mask = self.encoded[rows], self.mask[rows]


@dataclass(frozen=True)
class Words:
    """An output layer that is asked for the likeliest words after states.

    Where no probabilities are asked for and the processor multiplies bfloat16, such products choose the words asked for and
    SPARE more, whose logits are then computed in float32. After a state for which a word that was not chosen might still
    belong to those asked for, by the bound of the rounding, all words are computed.
    """

    project: Projection

    @property
    def count(self) -> int:
        return len(self.project.weight)

    @cached_property
    def rounded(self) -> Tensor | None:
        """The weights in bfloat16; None where such products save no time."""
        weight = self.project.weight
        large = len(weight) >= SCREENED and weight.dtype == torch.float32
        return weight.bfloat16() if large and multiplies_bfloat16(weight.device) else None

    @cached_property
    def longest(self) -> Tensor:
        """The length of the longest of the weights' rows."""
        longest: Tensor = torch.linalg.vector_norm(self.project.weight, dim=1).max()
        return longest

    def likeliest(
        self, states: Tensor, count: int, shift: Tensor, scored: bool
    ) -> tuple[Tensor, Tensor]:
        """The likeliest words after states, N M, and their log-probabilities, N `count`, or as many as there are words.
        shift: 0, or −∞ for words that are forbidden, V; a word that alone is allowed costs nothing."""
        count = min(count, self.count)
        forbidden = shift.isneginf().nonzero()[:, 0]
        if len(forbidden) == self.count - 1:
            order = shift.argsort(descending=True)[:count].expand(len(states), -1)
            return shift[order], order
        parts = []
        for rows in states.split(max(1, BLOCK // self.count)):
            # log Σ exp needs all words as they are: rounded ones could turn a near tie of beams.
            if scored or self.rounded is None or count + SPARE >= self.count:
                parts.append(self.of_all(rows, count, forbidden, scored))
            else:
                parts.append(self.of_some(rows, count, forbidden))
        scores, words = (torch.cat(each) for each in zip(*parts, strict=True))
        return scores, words

    def of_all(
        self, states: Tensor, count: int, forbidden: Tensor, scored: bool
    ) -> tuple[Tensor, Tensor]:
        logits = self.project(states).float()
        if scored:
            logits = logits.log_softmax(-1)
        best = logits.index_fill_(1, forbidden, -torch.inf).topk(count)
        return best.values, best.indices

    def of_some(self, states: Tensor, count: int, forbidden: Tensor) -> tuple[Tensor, Tensor]:
        assert self.rounded is not None
        near = (states.bfloat16() @ self.rounded.T).float()
        if self.project.bias is not None:
            near += self.project.bias
        near = self.project.capped(near)
        top, at = near.index_fill_(1, forbidden, -torch.inf).topk(count + SPARE)
        exact = torch.einsum("nm,nkm->nk", states, self.project.weight[at])
        if self.project.bias is not None:
            exact = exact + self.project.bias[at]
        exact = self.project.capped(exact)
        best, place = exact.topk(count)
        words = at.gather(1, place)
        off = HALF * (states.norm(dim=1) * self.longest + top[:, -1].abs())
        doubt = (best[:, -1] <= top[:, -1] + off).nonzero()[:, 0]
        if len(doubt):
            best[doubt], words[doubt] = self.of_all(states[doubt], count, forbidden, False)
        return best, words


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether a processor has an instruction for products of bfloat16: without, they are slower than those of float32."""
    if device.type != "cpu":
        return False
    # From torch 2.12 on.
    able: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(able.get(name, False) for name in ("avx512_bf16", "amx_bf16"))
