"""Translations by CTranslate2, as an alternative to transformers' `generate`. `engines/ct2_files.py` writes what it reads.

The search is the same on the same weights, float32. Lines differ where two translations have nearly equal scores, and
where `generate` stops before the better one is complete: it ends a sentence when the best running score, by the length
so far, is below that of `beam` finished translations; CTranslate2 ends it at a number of finished ones (PATIENCE times
`beam`).
"""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from headwise.core.options import Search
from headwise.models.attention.capture import refuse_captured
from headwise.models.attention.discover import Discovery
from headwise.models.attention.offload import refuse_offloaded
from headwise.models.decoding.translator import banned_words, sentence_limit
from headwise.models.engines.ct2_files import write_folder
from headwise.models.vocabulary import ending

# With 1, CTranslate2's own, it stops before `generate` does, and more lines differ.
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
    "eos_token_id",
    "length_penalty",
    "max_length",
    "num_beams",
    "pad_token_id",
    "renormalize_logits",
    "temperature",
    "top_k",
    "top_p",
    "transformers_version",
    "use_cache",
}


def other_search(hf: Any, tokenizer: Any) -> str | None:
    """Why CTranslate2 would search in another way than `generate`; None where it would not."""
    family = hf.config.model_type
    if not hf.config.is_encoder_decoder or family == "whisper":
        return f"a {family} does not translate text"

    settings = hf.generation_config
    changed = {
        name for name in settings.to_diff_dict() if not name.startswith(("_", "output_", "return_"))
    }
    # Both engines end a translation that is cut with this token (`forced_end`).
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
        refuse_offloaded(hf, "Translating with ct2")
        refuse_captured(hf, "Translating with ct2")
        import ctranslate2  # an extra

        self.engine = f"ctranslate2 {version('ctranslate2')}"
        self.tokenizer = tokenizer
        self.longest = sentence_limit(hf)
        self.ends = ending(hf)
        self.banned = [tokenizer.convert_ids_to_tokens(row) for row in banned_words(hf, tokenizer)]
        # Whether the last token of a translation that is cut is the end token.
        self.forced_end = hf.generation_config.forced_eos_token_id is not None
        with tempfile.TemporaryDirectory() as folder:
            write_folder(hf, tokenizer, discovery, Path(folder), "float32")
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
            suppress_sequences=self.banned or None,
            end_token=self.ends or None,
            return_end_token=True,
            # `token_ids` has truncated already; CTranslate2's own limit is 1,024.
            max_input_length=0,
            # `generate` puts the forced end token in the last place.
            max_decoding_length=length - (self.forced_end and not exactly),
            min_decoding_length=length if exactly else 0,
        )
        return [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
