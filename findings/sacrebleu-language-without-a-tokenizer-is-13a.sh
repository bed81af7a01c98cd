#!/usr/bin/env bash
# sacrebleu 2.6.0: BLEU(trg_lang="ja-mecab"), or any language that it does not know by that name, takes 13a without a
# word: a Japanese sentence is one token, and BLEU of a perfect translation 0.
# seen 2026-11-28, Python 3.11: 13a; 0.0
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
fresh sacrebleu==2.6.0
run <<'PYTHON'
from sacrebleu.metrics import BLEU

metric = BLEU(trg_lang="ja-mecab")
score = metric.corpus_score(["猫がマットの上に座った"], [["猫がマットの上に座った"]]).score
print(metric.get_signature(), score)
assert "tok:13a" in str(metric.get_signature()) and score == 0
PYTHON
