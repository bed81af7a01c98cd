#!/usr/bin/env bash
# sentence-transformers 6.2.0: the length at which a model cuts sentences, `max_seq_length`, is no longer saved in
# sentence_bert_config.json but as `model_max_length` in tokenizer_config.json. Who reads the old place alone compares
# whole sentences where the model reads their beginnings.
# seen 2026-11-29, Python 3.11, torch 2.13.0, transformers 5.23.0: model_max_length 8 in the one, nothing in the other;
# two sentences that differ from the seventh word on have the same vector (cosine 1.0)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fresh() {
  "${PYTHON:-python3}" -m venv "$folder/venv"
  "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@" 2>&1 | grep -v '^WARNING' || true
}

run() {
  (cd "$folder" && "$folder/venv/bin/python" -)
}
fresh sentence-transformers==6.2.0 transformers==5.23.0 torch==2.13.0 numpy
run <<'PYTHON'
import json
from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnop"]
tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, "[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained("bert")
sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained("bert")

reader = Transformer("bert")
reader.max_seq_length = 8
SentenceTransformer(modules=[reader, Pooling(16, "mean")], device="cpu").save("cut")
old = json.loads(Path("cut/sentence_bert_config.json").read_text())
new = json.loads(Path("cut/tokenizer_config.json").read_text())
print("sentence_bert_config.json:", old.get("max_seq_length"), "tokenizer_config.json:", new.get("model_max_length"))
model = SentenceTransformer("cut", device="cpu")
one, other = model.encode(["a b c d e f g h", "a b c d e f o p"])
alike = float(model.similarity(one, other))
print("cosine:", alike)
assert "max_seq_length" not in old
assert new["model_max_length"] == 8
assert alike > 0.999999
PYTHON
