#!/usr/bin/env bash
# conllu 6.0.0: to_tree() of a sentence in which two words govern each other leaves both out, without an error.
# seen 2026-11-28, Python 3.11: 3 words, 1 in the tree
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

heads = [0, 3, 2]
lines = [f"{n}\tw{n}\tw\tX\t_\t_\t{head}\tdep\t_\t_" for n, head in enumerate(heads, 1)]
(sentence,) = conllu.parse("\n".join(lines) + "\n\n")


def count(node):
    return 1 + sum(map(count, node.children))


print(len(sentence), "words,", count(sentence.to_tree()), "in the tree")
assert len(sentence) == 3 and count(sentence.to_tree()) == 1
PYTHON
