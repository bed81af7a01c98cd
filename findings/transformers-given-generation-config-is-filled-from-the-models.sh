#!/usr/bin/env bash
# transformers 5.23.0: fields that a GenerationConfig given to `generate` leaves unset are filled from the model's own
# configuration. `GenerationConfig(max_new_tokens=8)` is no greedy search where the folder says do_sample: two runs differ.
# seen 2026-11-29, Python 3.11, torch 2.13.0: given.do_sample is None; eight tokens drawn, not the likeliest ones;
# do_sample=False in it makes them the likeliest again
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
fresh transformers==5.23.0 torch==2.13.0 numpy
run <<'PYTHON'
import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=99, n_embd=16, n_layer=1, n_head=2, n_positions=32)).eval()
model.generation_config.do_sample = True  # as many published folders say
ids = torch.tensor([[5, 6, 7]])


def written(seed, **fields):
    torch.manual_seed(seed)
    given = GenerationConfig(max_new_tokens=8, pad_token_id=0, **fields)
    return model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=given).tolist()


likeliest = ids
for _ in range(8):
    best = model(likeliest).logits[:, -1].argmax(-1, keepdim=True)
    likeliest = torch.cat([likeliest, best], 1)
print("unset:", GenerationConfig().do_sample, written(1), written(2))
assert GenerationConfig().do_sample is None
assert len({str(written(seed)) for seed in range(4)}) > 1
assert written(1, do_sample=False) == written(2, do_sample=False) == likeliest.tolist()
PYTHON
