#!/usr/bin/env bash
# conllu 6.0.0 reads MISC "Gloss=a=b" as "a", and writes it back so. The format ends a value at "|" or a tab alone.
# seen 2026-11-28, Python 3.11: {'Gloss': 'a'}, written "Gloss=a"
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
fresh conllu==6.0.0
run <<'PYTHON'
import conllu

line = "\t".join(["1", "x", "x", "X", "_", "_", "0", "root", "_", "Gloss=a=b"])
(sentence,) = conllu.parse(f"{line}\n\n")
print(sentence[0]["misc"], sentence.serialize().split("\t")[-1].strip())
assert sentence[0]["misc"] == {"Gloss": "a"}
assert sentence.serialize().split("\t")[-1].strip() == "Gloss=a"
PYTHON
