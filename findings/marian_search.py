"""Part of marian-search-is-not-its-scorer-in-pre-norm.sh: trains two small models and compares search and scorer."""

import random
import subprocess
import sys
from pathlib import Path

draw = random.Random(0)
words = ["red", "old", "cat", "dog", "sea", "sun", "runs", "sees", "small", "house"]
lines = [" ".join(draw.choices(words, k=draw.randint(3, 7))) for _ in range(200)]
Path("source").write_text("\n".join(lines) + "\n")
Path("target").write_text("\n".join(" ".join(reversed(line.split())) for line in lines) + "\n")
Path("few").write_text("\n".join(lines[:20]) + "\n")
SHAPE = "--type transformer --enc-depth 2 --dec-depth 2 --dim-emb 32 --transformer-dim-ffn 64 --transformer-heads 4"
SMALL = "--quiet --cpu-threads 1 --workspace 256"
ORDERS = {
    "post-norm": "--transformer-postprocess dan",
    "pre-norm": "--transformer-preprocess n --transformer-postprocess da --transformer-postprocess-top n",
}


def marian(command):
    done = subprocess.run(
        [sys.executable, "-m", "pymarian", *command.split(), *SMALL.split()],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


different = {}
for name, order in ORDERS.items():
    files = f"--vocabs {name}.spm {name}.spm"
    marian(
        f"train {SHAPE} {order} --tied-embeddings-all --model {name}.npz --train-sets source target {files} "
        "--dim-vocabs 22 22 --after-batches 150 --mini-batch 16 --learn-rate 0.003 --seed 1 --overwrite"
    )
    found = marian(f"decode -m {name}.npz {files} -i few -b 1 --n-best")
    parts = [line.split(" ||| ") for line in found]
    Path("said").write_text("\n".join(part[1] for part in parts) + "\n")
    scores = marian(f"score -m {name}.npz {files} -t few said")
    pairs = [(float(part[-1]), float(score)) for part, score in zip(parts, scores, strict=True)]
    different[name] = sum(abs(a - b) > 0.01 for a, b in pairs)
print(different, "of 20 differ")
assert different["post-norm"] == 0 and different["pre-norm"] > 10
