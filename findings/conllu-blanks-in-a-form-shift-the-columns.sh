#!/usr/bin/env bash
# conllu 6.0.0 splits columns at two blanks, too: a form with two blanks in a tab-separated file moves every later
# column by one, without a word. Universal Dependencies allow blanks in forms.
# seen 2026-11-28, Python 3.11: lemma "000" (the second half of the form), head None, deprel "0"
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

line = "\t".join(["1", "10  000", "10000", "NUM", "_", "_", "0", "root", "_", "_"])
(token,) = conllu.parse(f"{line}\n\n")[0]
print(dict(token))
assert (token["form"], token["lemma"]) == ("10", "000")
assert token["head"] is None and token["deprel"] == "0"
PYTHON
