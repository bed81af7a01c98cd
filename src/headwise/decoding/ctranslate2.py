"""Translation by CTranslate2 as an alternative to transformers' `generate`: the same search on the same weights, float32.

Lines differ where two translations have nearly equal scores, and where `generate` stops before the better one is
complete: it ends a sentence when the best running score, by the length so far, is below that of `beam` finished
translations; CTranslate2 ends it at a number of finished ones (PATIENCE times `beam`).
"""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from headwise.attention import Discovery, device_of
from headwise.attention.capture import refuse_captured
from headwise.attention.offload import refuse_offloaded
from headwise.decoding import ct2_folder
from headwise.decoding.translator import Generate, Translator, ending, sentence_limit
from headwise.errors import HeadwiseError
from headwise.options import Engine, Search

PATIENCE = 4

# Settings of generation_config.json that both engines follow, that `generate` is given with every call, or that mean
# nothing in beam search.
KNOWN_SETTINGS = {
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


def translator_of(
    hf: Any, tokenizer: Any, discovery: Discovery, engine: Engine = "transformers"
) -> Translator:
    """What translates with a model in an engine. Raises HeadwiseError where the engine is not installed or cannot run
    the model."""
    if engine == "ct2":
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
    reason = other_search(hf, tokenizer) or ct2_folder.refusal(hf, tokenizer, discovery)
    if reason:
        raise HeadwiseError(f"This {type(hf).__name__} cannot be translated with ct2: {reason}.")


def other_search(hf: Any, tokenizer: Any) -> str | None:
    """Why CTranslate2 would search in another way than `generate`; None where it would not."""
    family = hf.config.model_type
    if not hf.config.is_encoder_decoder or family == "whisper":
        return f"a {family} does not translate text"

    settings = hf.generation_config
    changed = {
        name for name in settings.to_diff_dict() if not name.startswith(("_", "output_", "return_"))
    }
    if settings.forced_eos_token_id in ending(hf):
        changed.discard("forced_eos_token_id")
    unknown = sorted(changed - KNOWN_SETTINGS)
    if unknown:
        return f"it does not know {', '.join(unknown)} of generation_config.json"

    name = type(tokenizer).__name__
    if name.startswith("MBartTokenizer") or getattr(tokenizer, "separate_vocabs", False):
        return f"the first token or the vocabulary is another one for each language ({name})"
    return None


class CTranslate2:
    """A model in CTranslate2, in memory: later changes of the model do not reach it."""

    def __init__(self, hf: Any, tokenizer: Any, discovery: Discovery) -> None:
        refuse_engine("ct2", device_of(hf).type)
        refuse_model("ct2", hf, tokenizer, discovery)
        refuse_offloaded(hf, "Translating with ct2")
        refuse_captured(hf, "Translating with ct2")
        import ctranslate2

        self.engine = f"ctranslate2 {version('ctranslate2')}"
        self.tokenizer = tokenizer
        self.longest = sentence_limit(hf)
        self.ends = ending(hf)
        # Whether the last token of a translation that is cut is the end token.
        self.forced_end = hf.generation_config.forced_eos_token_id is not None
        with tempfile.TemporaryDirectory() as folder:
            ct2_folder.write(hf, tokenizer, discovery, Path(folder), "f32")
            self.translator: Any = ctranslate2.Translator(
                folder,
                compute_type="float32",
                intra_threads=torch.get_num_threads(),
                inter_threads=1,
            )

    def write(
        self, sources: list[list[int]], search: Search, length: int, exactly: bool
    ) -> list[list[int]]:
        tokenizer = self.tokenizer
        results = self.translator.translate_batch(
            [tokenizer.convert_ids_to_tokens(source) for source in sources],
            beam_size=search.beam,
            patience=PATIENCE,
            length_penalty=search.length_penalty,
            disable_unk=tokenizer.unk_token_id is not None,
            end_token=self.ends or None,
            return_end_token=True,
            max_input_length=0,
            max_decoding_length=length - (self.forced_end and not exactly),
            min_decoding_length=length if exactly else 0,
        )
        return [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
