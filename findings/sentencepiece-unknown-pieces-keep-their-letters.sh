#!/usr/bin/env bash
# sentencepiece 0.2.3: encode(out_type=str) shows an unknown letter as itself; only the numbers say that it is <unk>, and
# decoding gives " ⁇ ". Printed pieces do not show that a vocabulary lacks letters.
# seen 2026-11-28, Python 3.11: ['▁a', '▁', '“'], decoded "a ⁇ "
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
fresh sentencepiece==0.2.3
run <<'PYTHON'
import io

import sentencepiece

made = io.BytesIO()
text = ["a b a b c", "b a c", "c c a b"] * 20
options = {"vocab_size": 8, "hard_vocab_limit": False, "minloglevel": 2}
sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(text), model_writer=made, **options)
model = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
pieces, numbers = model.encode("a “", out_type=str), model.encode("a “")
print(pieces, numbers, repr(model.decode(numbers)))
assert pieces[-1] == "“" and numbers[-1] == model.unk_id() and "⁇" in model.decode(numbers)
PYTHON
