#!/usr/bin/env bash
# ctranslate2 4.8.5: optimize(quantization="int8") of a specification multiplies the arrays that it was given in place.
# With the weights of a model in memory, the model is ruined; the written file is right.
# seen 2026-11-28, Python 3.11: largest weight 1.0 before, 127.0 after int8; 1.0 after float16
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
fresh ctranslate2==4.8.5 numpy==2.4.6
run <<'PYTHON'
import numpy as np
from ctranslate2.specs import common_spec, model_spec


class Spec(model_spec.ModelSpec):
    def __init__(self):
        super().__init__()
        self.linear = common_spec.LinearSpec()

    @property
    def name(self):
        return "Spec"


largest = {}
for kind in ("float16", "int8"):
    mine = np.eye(4, dtype=np.float32)
    spec = Spec()
    spec.linear.weight = mine
    spec.validate()
    spec.optimize(quantization=kind)
    largest[kind] = float(mine.max())
print(largest)
assert largest == {"float16": 1.0, "int8": 127.0}
PYTHON
