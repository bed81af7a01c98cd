#!/usr/bin/env bash
# Marian 1.12.42 (pymarian, 600 MB): of a model with pre-norm (transformer-preprocess n) the search gives its translations
# other probabilities than `score` gives the same words: earlier keys and values get no norm there. Post-norm is equal.
# seen 2026-11-28, Python 3.11: of 20 translations 0 differ in post-norm, 20 in pre-norm
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
fresh pymarian==1.12.42
cp "$(dirname "$0")"/marian_search.py "$folder"
(cd "$folder" && "$folder/venv/bin/python" marian_search.py)
