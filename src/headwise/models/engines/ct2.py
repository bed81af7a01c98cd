"""CTranslate2 as an engine to export to; `ct2_files.py` writes its files."""

from __future__ import annotations

from pathlib import Path

from headwise.models.engines.ct2_files import ct2_refusal, write_folder
from headwise.models.model import Model


def why_not_ct2(model: Model) -> str | None:
    """Why CTranslate2 cannot run this model; None where it can."""
    return ct2_refusal(model.hf, model.tokenizer, model.discovery)


def write_ct2(model: Model, folder: Path, dtype: str) -> list[str]:
    """Write a CTranslate2 model to a folder, of Whisper with the settings of its features. Returns notes for the user."""
    notes = write_folder(model.hf, model.tokenizer, model.discovery, folder, dtype)
    model.task.save_processor(folder)
    return notes
