"""A treebank of the embedded corpus, and a tokenizer that knows its words."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from headwise.data.embedded import write_treebank
from headwise.data.treebank import Treebank

PAD, END, UNKNOWN = 0, 1, 2


@pytest.fixture(scope="session")
def treebank(tmp_path_factory: pytest.TempPathFactory) -> Treebank:
    """400 sentences of the embedded corpus, each a document of its own."""
    path = tmp_path_factory.mktemp("treebank") / "dev.conllu"
    return Treebank.read(write_treebank(path, 400))


@pytest.fixture(scope="session")
def tokenizer(treebank: Treebank) -> PreTrainedTokenizerFast:
    """Its words, and an end of sentence behind them."""
    forms = sorted({word.form for sentence in treebank for word in sentence.words})
    ids = {
        "<pad>": PAD,
        "</s>": END,
        "<unk>": UNKNOWN,
        **{form: n + 3 for n, form in enumerate(forms)},
    }
    raw = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]
    )
    raw.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", END)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
