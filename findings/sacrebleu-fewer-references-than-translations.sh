#!/usr/bin/env bash
# sacrebleu 2.6.0 compares as many lines as the shorter side has: with references that broke off, BLEU is that of the
# beginning, without a word.
# seen 2026-11-28, Python 3.11: 100.0 of three translations and one reference
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
import sacrebleu

good = "the cat sat on the mat"
score = sacrebleu.corpus_bleu([good, "wrong words here", "more wrong words"], [[good]]).score
print(score)
assert round(score, 6) == 100
PYTHON
