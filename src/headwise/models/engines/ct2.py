"""CTranslate2 as an engine to export to; `decoding/ctranslate2.py` writes its files."""

from __future__ import annotations

from pathlib import Path

from headwise.models.decoding import ctranslate2
from headwise.models.model import Model


def why_not_ct2(model: Model) -> str | None:
    """Why CTranslate2 cannot run this model; None where it can."""
    return ctranslate2.ct2_refusal(model.hf, model.tokenizer, model.discovery)


def write_ct2(model: Model, folder: Path, dtype: str) -> list[str]:
    """Write a CTranslate2 model to a folder, of Whisper with the settings of its features. Returns notes for the user."""
    notes = ctranslate2.write_folder(model.hf, model.tokenizer, model.discovery, folder, dtype)
    model.task.save_processor(folder)
    return notes
