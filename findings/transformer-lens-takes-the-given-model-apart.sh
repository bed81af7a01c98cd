#!/usr/bin/env bash
# transformer-lens 4.3.0: TransformerBridge.boot_transformers(hf_model=model) puts modules of its own into the model that
# it is given. That still runs, and gives the same logits, but its weights have other names, its attention no longer goes
# by transformers' interface, and save_pretrained raises. Give it a copy.
# seen 2026-11-29, Python 3.11, torch 2.13.0, transformers 5.23.0: transformer.wte.weight has become
# transformer.wte._original_component.weight; RuntimeError in save_pretrained
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fresh() {
  "${PYTHON:-python3}" -m venv "$folder/venv"
  "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@" 2>&1 | grep -v '^WARNING' || true
}

run() {
  (cd "$folder" && HF_HUB_OFFLINE=1 "$folder/venv/bin/python" -)
}
fresh transformer-lens==4.3.0 transformers==5.23.0 torch==2.13.0
run <<'PYTHON'
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

words = ["<end>", *"abcdefgh"]
tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, "<end>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
names = {"bos_token": "<end>", "eos_token": "<end>", "unk_token": "<end>"}
PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained("tokenizer")

torch.manual_seed(0)
sizes = {"n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
model = GPT2LMHeadModel(GPT2Config(vocab_size=9, bos_token_id=0, eos_token_id=0, **sizes)).eval()
tokens = torch.tensor([[1, 2, 3, 4]])
logits, parts = model(tokens).logits, [*model.state_dict()]
given = AutoTokenizer.from_pretrained("tokenizer")
TransformerBridge.boot_transformers("gpt2", hf_model=model, tokenizer=given)
print("first weight before:", parts[0])
print("first weight after: ", [*model.state_dict()][0])
assert torch.allclose(model(tokens).logits, logits, atol=1e-5)
assert not {*parts} & {*model.state_dict()}
try:
    model.save_pretrained("saved")
except RuntimeError as error:
    print("save_pretrained:", str(error)[:60])
else:
    raise AssertionError("save_pretrained works")
PYTHON
