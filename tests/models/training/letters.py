"""A tokenizer made in a moment, whose words are the letters a to z."""

from __future__ import annotations

import string

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
PAD, START, END, UNKNOWN, MASK = range(5)
LETTERS = tuple(string.ascii_lowercase)


def letters(form: str = "<s> $A </s>", **special: str | None) -> PreTrainedTokenizerFast:
    """form: what stands around a sentence `$A`. special: other special tokens, or None for those it shall not have."""
    ids = {word: place for place, word in enumerate([*SPECIAL, *LETTERS])}
    made = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(
        single=form, special_tokens=[(word, ids[word]) for word in form.split() if word != "$A"]
    )
    names = {
        "pad_token": "<pad>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", **{**names, **special})
