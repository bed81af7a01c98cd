"""What searches for translations: transformers' `generate`, or CTranslate2 (`Engine` in core/options.py)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from headwise.core.errors import HeadwiseError
from headwise.core.options import Engine
from headwise.models.attention.discover import Discovery
from headwise.models.attention.offload import device_of
from headwise.models.decoding.ctranslate2 import CTranslate2, other_search
from headwise.models.decoding.translator import Generate, Translator, refuse_tokens
from headwise.models.engines.ct2_files import ct2_refusal


def translator_of(
    hf: Any, tokenizer: Any, discovery: Discovery, engine: Engine = "transformers"
) -> Translator:
    """What translates with a model in an engine. Raises HeadwiseError where the engine is not installed or cannot run
    the model."""
    refuse_tokens(hf)
    if engine == "ct2":
        refuse_engine(engine, device_of(hf).type)
        refuse_model(engine, hf, tokenizer, discovery)
        return CTranslate2(hf, tokenizer, discovery)
    return Generate(hf, tokenizer)


def refuse_engine(engine: Engine, device: str) -> None:
    """Raise HeadwiseError where an engine is not installed, or does not run on a device."""
    if engine == "transformers":
        return
    if find_spec("ctranslate2") is None:
        raise HeadwiseError("Translating with ct2 needs ctranslate2: pip install 'headwise[ct2]'.")
    if device != "cpu":
        raise HeadwiseError(
            f"Translating with ct2 was asked for on {device}, but headwise runs CTranslate2 on the CPU: choose "
            "--device cpu, or the engine transformers."
        )


def refuse_model(engine: Engine, hf: Any, tokenizer: Any, discovery: Discovery) -> None:
    """Raise HeadwiseError where an engine would not translate with a model as `generate` does."""
    if engine == "transformers":
        return
    reason = other_search(hf, tokenizer) or ct2_refusal(hf, tokenizer, discovery)
    if reason:
        raise HeadwiseError(f"This {type(hf).__name__} cannot be translated with ct2: {reason}.")
