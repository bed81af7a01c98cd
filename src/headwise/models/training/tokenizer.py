"""The subword model: one joint byte-pair vocabulary for both languages, as a fast tokenizer with character offsets."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from headwise.core.errors import HeadwiseError

PAD, END, START, UNKNOWN = "<pad>", "</s>", "<s>", "<unk>"
# Their ids are 0, 1, 2, 3.
SPECIAL_TOKENS = (PAD, END, START, UNKNOWN)


def learn_subwords(lines: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Learn a byte-pair vocabulary of at most `vocabulary` subwords (special tokens included) from training lines.

    A blank belongs to the subword after it (as in SentencePiece), and every punctuation mark is a subword, so that
    decoding restores the text exactly and no subword crosses a word boundary. Every sentence ends with `</s>`.
    Sennrich et al. 2016, "Neural machine translation of rare words with subword units".
    """
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation("isolated")]
    )
    tokenizer.decoder = decoders.Metaspace()
    # Else a text with more letters (Chinese) would make a larger vocabulary than was asked for.
    letters = vocabulary - len(SPECIAL_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        limit_alphabet=letters,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    if tokenizer.get_vocab_size() <= len(SPECIAL_TOKENS):
        raise HeadwiseError(
            "No subword vocabulary can be learned: the training text has no letters. Give other text."
        )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, SPECIAL_TOKENS.index(END))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        bos_token=START,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        split_special_tokens=True,  # `</s>` in the text is text
    )
