"""Whether a tokenizer writes with the words that a model predicts, asked before a text is read for it.

Labels come from a tokenizer, and any number is a label: those of another vocabulary give a loss, too. No family is named
here: words that the tokenizer knows are made labels, as the measures make them, and read again.
"""

from __future__ import annotations

import unicodedata
import warnings
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from headwise.core.errors import HeadwiseError, few_names

LOOKED_AT = 400  # tokens of a vocabulary, evenly spread, among which words are looked for
WORDS = 16  # that are made labels


def refuse_other_words(hf: PreTrainedModel, tokenizer: Any, name: str) -> None:
    """Raise HeadwiseError where texts would become other words than those that a model reads and predicts. name: of the
    model, for messages."""
    sizes = []
    for side in ("encoder", "decoder"):
        sizes.append(getattr(getattr(hf.config, side, None), "vocab_size", None))
    first, second = sizes
    if None not in sizes and first != second:
        raise HeadwiseError(
            f"{name} has an encoder with {first:,} words and a decoder with {second:,}, and one tokenizer, so that headwise "
            "cannot read a text for it: give batches with labels in Python."
        )
    layer: Any = hf.get_output_embeddings()
    known = getattr(tokenizer, "vocab_size", 0)
    if isinstance(layer, nn.Linear) and known > layer.out_features:
        raise HeadwiseError(
            f"{name} predicts {layer.out_features:,} words, and its tokenizer has {known:,}: it is another model's, whose "
            "own belongs there."
        )


def refuse_other_targets(tokenizer: Any, name: str) -> None:
    """Raise HeadwiseError where the labels of a target are not its words to the model that writes them, as of FSMT with
    two vocabularies."""
    words = known_words(tokenizer)
    if not words:
        return
    labels: list[list[int]] = tokenizer(text_target=words)["input_ids"]
    read = [tokenizer.decode(row, skip_special_tokens=True) for row in labels]
    # Half, because the middle of a word need not be a word.
    lost = [
        word for word, again in zip(words, read, strict=True) if letters(word) not in letters(again)
    ]
    if 2 * len(lost) > len(words):
        raise HeadwiseError(
            f"The tokenizer of {name}, a {type(tokenizer).__name__}, writes targets with other words than it reads them "
            f"with ({few_names(lost)} become others), so that headwise cannot read a text for it: give batches with labels "
            "in Python."
        )


def warn_of_endless_targets(hf: PreTrainedModel, tokenizer: Any, name: str) -> None:
    """Warn of a model that translates, and whose labels do not have the token that ends its translations."""
    writes = hf.config.is_encoder_decoder and hf.can_generate() and hasattr(tokenizer, "get_vocab")
    # Without a language to write in, tokenizers take that of the source from the first target on.
    if not writes or getattr(tokenizer, "tgt_lang", "") is None:
        return
    # What names no word is refused where the model writes.
    ends = [end for end in ending(hf) if type(end) is int and 0 <= end < len(tokenizer)]
    if ends and not {*ends}.intersection(tokenizer(text_target="a")["input_ids"]):
        end = tokenizer.convert_ids_to_tokens(ends[0])
        warnings.warn(
            f"The tokenizer of {name} does not end targets with {end}, with which the model ends its translations: what it "
            "loses there is not counted.",
            stacklevel=4,
        )


def ending(model: PreTrainedModel) -> list[int]:
    """The ids of the tokens that end a translation."""
    ends = model.generation_config.eos_token_id
    if ends is None:
        return []
    return ends if isinstance(ends, list) else [ends]


def known_words(tokenizer: Any) -> list[str]:
    """Words of letters alone that a tokenizer knows, of all parts of its vocabulary of targets."""
    step = max(1, len(tokenizer) // LOOKED_AT)
    read = [tokenizer.decode([number]).strip() for number in range(0, len(tokenizer), step)]
    words = [word for word in read if word.isalpha()]
    return words[:: max(1, len(words) // WORDS)][:WORDS]


def letters(text: str) -> str:
    """The letters of a text, without case, accents and forms, which tokenizers may declare to be one."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in plain if letter.isalnum())
