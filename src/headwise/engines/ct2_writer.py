"""Translation by CTranslate2, beside transformers' `generate`: the same search on the exported weights, in float32.

Lines differ where two translations have nearly equal scores, and where `generate` stops before the better one is
complete: it ends a sentence when the best running score, by the length so far, is below that of `beam` finished
translations; CTranslate2 ends it at a number of finished ones (PATIENCE times `beam`).
"""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from headwise.attention import device_of
from headwise.attention.capture import refuse_captured
from headwise.decoding.translator import Generate, Writer, ending, longest
from headwise.engines.export import ENGINES, export, need
from headwise.errors import HeadwiseError
from headwise.model import Model
from headwise.options import Engine, Search

PATIENCE = 4
FOLLOWED = {  # by both engines, or given to `generate` with every call, or without a meaning in beam search
    "alignment_heads",
    "bad_words_ids",
    "bos_token_id",
    "cache_implementation",
    "decoder_start_token_id",
    "do_sample",
    "early_stopping",
    "eos_token_id",
    "length_penalty",
    "max_length",
    "min_length",
    "num_beams",
    "pad_token_id",
    "renormalize_logits",
    "temperature",
    "top_k",
    "top_p",
    "transformers_version",
    "use_cache",
}


def writer_of(model: Model, engine: Engine) -> Writer:
    """What translates with a model. Raises HeadwiseError where an engine is missing or cannot run it."""
    return CTranslate2(model) if engine == "ct2" else Generate(model.hf, model.tokenizer)


def refuse_engine(engine: Engine, device: str, model: Model | None = None) -> None:
    """Raise HeadwiseError where an engine is missing, or would not translate with a model as `generate` does."""
    if engine == "transformers":
        return
    need("ct2", "Translating with ct2")
    if device != "cpu":
        raise HeadwiseError(
            f"Translating with ct2 was asked for on {device}, but headwise runs CTranslate2 on the CPU: choose "
            "--device cpu, or the engine transformers."
        )
    if model is not None and (reason := differs(model) or ENGINES["ct2"].refuse(model)):
        raise HeadwiseError(f"{model.name} cannot be translated with ct2: {reason}.")


def differs(model: Model) -> str | None:
    """Why CTranslate2 would search in another way than `generate`; None where it would not."""
    settings, kind = model.hf.generation_config, model.hf.config.model_type
    given = {
        name for name in settings.to_diff_dict() if not name.startswith(("_", "output_", "return_"))
    }
    if not model.hf.config.is_encoder_decoder or kind == "whisper":
        return f"a {kind} does not translate text"
    if settings.forced_eos_token_id in ending(model.hf):
        given.discard("forced_eos_token_id")
    if unknown := sorted(given - FOLLOWED):
        return f"it does not know {', '.join(unknown)} of generation_config.json"
    if type(model.tokenizer).__name__.startswith("MBartTokenizer") or getattr(
        model.tokenizer, "separate_vocabs", False
    ):
        return f"the first token or the vocabulary is another one for each language ({type(model.tokenizer).__name__})"
    return None


class CTranslate2:
    """A model in CTranslate2, in memory: later changes of the model do not reach it."""

    def __init__(self, model: Model) -> None:
        refuse_engine("ct2", device_of(model.hf).type, model)
        import ctranslate2

        refuse_captured(model.hf, "Translating with ct2")
        self.engine, self.tokenizer = f"ctranslate2 {version('ctranslate2')}", model.tokenizer
        self.longest, self.ends = longest(model.hf), ending(model.hf)
        self.forced = (
            model.hf.generation_config.forced_eos_token_id is not None
        )  # the last token of a cut translation
        with tempfile.TemporaryDirectory() as scratch:
            export(model, "ct2", folder := Path(scratch) / "ct2")
            self.translator: Any = ctranslate2.Translator(
                str(folder),
                compute_type="float32",
                intra_threads=torch.get_num_threads(),
                inter_threads=1,
            )

    def write(
        self, sources: list[list[int]], search: Search, length: int, exactly: bool
    ) -> list[list[int]]:
        known = self.tokenizer
        found = self.translator.translate_batch(
            [known.convert_ids_to_tokens(source) for source in sources],
            beam_size=search.beam,
            patience=PATIENCE,
            length_penalty=search.length_penalty,
            disable_unk=known.unk_token_id is not None,
            end_token=self.ends or None,
            return_end_token=True,
            max_input_length=0,
            max_decoding_length=length - (self.forced and not exactly),
            min_decoding_length=length if exactly else 0,
        )
        return [known.convert_tokens_to_ids(one.hypotheses[0]) for one in found]
