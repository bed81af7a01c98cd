#!/usr/bin/env bash
# Marian 1.12.42 (pymarian, 600 MB): a Transformer trained with --transformer-train-position-embeddings, with
# --transformer-no-affine or with --transformer-no-bias is the one without these options, number by number: positions stay
# sinusoids, norms keep scale and bias, layers their biases. --transformer-no-projection does leave its matrices out.
# seen 2026-11-29, Python 3.11: 0 of 86 matrices differ with each of the three; without a projection 12 are missing
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
fresh pymarian==1.12.42 numpy==2.4.6
run <<'PYTHON'
import random
import subprocess
import sys
from pathlib import Path

import numpy as np

draw = random.Random(0)
words = ["red", "old", "cat", "dog", "sea", "sun", "runs", "sees", "small", "house"]
lines = [" ".join(draw.choices(words, k=draw.randint(3, 7))) for _ in range(200)]
Path("source").write_text("\n".join(lines) + "\n")
Path("target").write_text("\n".join(" ".join(reversed(line.split())) for line in lines) + "\n")
SHAPE = (
    "--type transformer --enc-depth 2 --dec-depth 2 --dim-emb 32 --transformer-dim-ffn 64 --transformer-heads 4 "
    "--tied-embeddings-all --vocabs v.spm v.spm --dim-vocabs 22 22 --train-sets source target --after-batches 20 "
    "--mini-batch 16 --learn-rate 0.003 --seed 1 --overwrite --quiet --cpu-threads 1 --workspace 256"
)


def matrices(name, option=""):
    command = f"train {SHAPE} --model {name}.npz {option}"
    subprocess.run(
        [sys.executable, "-m", "pymarian", *command.split()], check=True, capture_output=True
    )
    with np.load(f"{name}.npz") as archive:
        return {each: archive[each] for each in archive.files if not each.startswith("special:")}


plain = matrices("plain")
for option in ("train-position-embeddings", "no-affine", "no-bias", "no-projection"):
    other = matrices(option, f"--transformer-{option}")
    missing = plain.keys() - other.keys()
    different = [name for name in other if not np.array_equal(other[name], plain.get(name))]
    print(f"{option}: {len(different)} of {len(other)} matrices differ, {len(missing)} are missing")
    if option == "no-projection":
        assert len(missing) == 12
    else:
        assert not different and not missing
PYTHON
