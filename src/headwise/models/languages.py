"""The languages of a model that translates between many (NLLB, mBART, M2M100). Two places state the target: what its
translations begin with (`forced_bos_token_id`, or `decoder_start_token_id` of mBART-25), and what its tokenizer marks
targets with (`tgt_lang`), from which labels come. Where one is silent the other decides; two that differ are refused.
"""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any

from transformers import PreTrainedModel

from headwise.core.errors import HeadwiseError, few_names

LANGUAGE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")  # eng_Latn, en_XX
# What a source line begins with: >>por<<, <2de>.
TARGET = re.compile(r">>\S+<<|<2[a-z]{2,3}([_-]\w+)?>")


def settle_languages(hf: PreTrainedModel, tokenizer: Any, name: str) -> None:
    """Give a model and its tokenizer the same target language, in memory. name: of the model, for messages.

    Raises HeadwiseError where both name one, and not the same.
    """
    if not hasattr(tokenizer, "tgt_lang") or not hf.can_generate():
        return
    settings: Any = hf.generation_config
    marked = tokenizer.tgt_lang
    begun = forced = language_of(tokenizer, settings.forced_bos_token_id)
    if begun is None:
        start = settings.decoder_start_token_id
        if start is None:
            # Some configurations have no such attribute at all (PLBart's, T5's).
            start = getattr(hf.config, "decoder_start_token_id", None)
        begun = language_of(tokenizer, start)
    if begun is not None and marked is None:
        tokenizer.tgt_lang = begun
    elif begun is not None and marked != begun:
        option = "decoder_start_token_id" if forced is None else "forced_bos_token_id"
        raise HeadwiseError(
            f"{name} translates into {begun} ({option} of its generation configuration), but its tokenizer marks targets "
            f"as {marked} (tgt_lang): give both the same language."
        )
    elif begun is None and marked is not None and settings.forced_bos_token_id is None:
        # Where targets begin with the language; those of mBART-25 end with it.
        first = first_of_target(tokenizer)
        if language_of(tokenizer, first) == marked:
            hf.generation_config = copy.copy(settings)  # another model may have the same one
            hf.generation_config.forced_bos_token_id = first
        elif start is None:
            raise HeadwiseError(
                f"{name} does not say what its translations begin with: set decoder_start_token_id in its "
                f"generation_config.json to the number of its token of {marked}."
            )


def warn_of_line_prefixes(hf: PreTrainedModel, tokenizer: Any, name: str) -> None:
    """Warn of a model whose source lines begin with a language or a task. Once for a model: it reads the vocabulary."""
    if hf.config.is_encoder_decoder and hasattr(tokenizer, "get_vocab"):
        warn_of_codes(tokenizer, name)
    warn_of_prefixes(hf, name)


def warn_of_codes(tokenizer: Any, name: str) -> None:
    """Warn of a model that writes the language which each source line names (multilingual OPUS-MT, MADLAD-400)."""
    codes = sorted(token for token in tokenizer.get_vocab() if TARGET.fullmatch(token))
    if len(codes) > 1:
        warnings.warn(
            f"{name} writes {len(codes)} languages ({few_names(codes)}): begin each source line with one, such as "
            f"'{codes[0]} A sentence.', or it chooses by itself.",
            stacklevel=4,
        )


def warn_of_prefixes(hf: PreTrainedModel, name: str) -> None:
    """Warn of a model whose texts begin with their task (T5: `translate English to German: `)."""
    tasks = getattr(hf.config, "task_specific_params", None)
    settings = [*tasks.values()] if isinstance(tasks, dict) else []
    named = [task.get("prefix") for task in settings if isinstance(task, dict)]
    prefixes = [prefix for prefix in named if isinstance(prefix, str) and prefix.strip()]
    if prefixes:
        warnings.warn(
            f"{name} learned texts that begin with their task ({few_names([repr(each) for each in prefixes])}; "
            "task_specific_params of its configuration), and headwise adds nothing: begin each source line with the one "
            "that you mean.",
            stacklevel=4,
        )


def language_of(tokenizer: Any, number: int | None) -> str | None:
    """The language that a token stands for, as the tokenizer calls it; None where it stands for none."""
    if number is None:
        return None
    known = getattr(tokenizer, "lang_code_to_id", None) or {}
    for code, other in known.items():
        if other == number:
            return str(code)
    token = str(tokenizer.convert_ids_to_tokens(number))
    return token if LANGUAGE.fullmatch(token) else None


def first_of_target(tokenizer: Any) -> int:
    """The token that every target begins with, or the first of a word."""
    return int(tokenizer(text_target="a")["input_ids"][0])


def languages_of(tokenizer: Any) -> str:
    """What a tokenizer marks sources and targets with, in words; empty for one without languages."""
    source, target = (getattr(tokenizer, name, None) for name in ("src_lang", "tgt_lang"))
    return f"from {source} to {target}" if source and target else ""


def refuse_other_labels(hf: PreTrainedModel, tokenizer: Any, name: str) -> None:
    """Raise HeadwiseError where labels would not be in the language that the model's translations begin with."""
    settle_languages(hf, tokenizer, name)
    if getattr(tokenizer, "tgt_lang", "") is None:
        raise HeadwiseError(
            f"{name} has no target language: write its token as forced_bos_token_id into generation_config.json, or give "
            "its tokenizer a tgt_lang."
        )
    forced = getattr(getattr(hf, "generation_config", None), "forced_bos_token_id", None)
    if forced is not None and (first := first_of_target(tokenizer)) != forced:
        if language_of(tokenizer, forced) is None:
            raise HeadwiseError(
                f"{name} begins its translations with {tokenizer.convert_ids_to_tokens(forced)} (forced_bos_token_id of its "
                "generation configuration), which its tokenizer does not put before targets: let its template add it, or "
                "write null there."
            )
        begun, marked = tokenizer.convert_ids_to_tokens([forced, first])
        raise HeadwiseError(
            f"{name} begins its translations with {begun} (forced_bos_token_id of its generation configuration), but its "
            f"tokenizer begins targets with {marked}: give both the same language."
        )
