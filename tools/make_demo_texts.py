"""Make the texts of `headwise demo`, in src/headwise/data/demo: English to train on, pairs to test on, trees.

python tools/make_demo_texts.py DATA     a folder with ud_english_ewt/ and en-pt/
"""

import gzip
import random
import re
import sys
from pathlib import Path

OUT = Path(__file__).parent.parent / "src" / "headwise" / "data" / "demo"
WORDS = range(8, 41)  # of a sentence: fragments and lists teach little
TRAIN, DEV, TEST, TREES = 5000, 300, 600, 500


def read(file: Path, separator: str) -> list[str]:
    with gzip.open(file, "rt", encoding="utf-8", newline="\n") as stream:
        return stream.read().strip("\n").split(separator)


def write(name: str, parts: list[str], separator: str) -> None:
    text = "".join(part + separator for part in parts)
    (OUT / name).write_bytes(gzip.compress(text.encode("utf-8"), 9, mtime=0))


def main(data: Path) -> None:
    trees = read(data / "ud_english_ewt" / "en_ewt-ud-train.conllu.gz", "\n\n")
    sentences = [re.findall(r"^# text = (.*)$", tree, re.MULTILINE)[0] for tree in trees]
    usable = [sentence for sentence in sentences if len(sentence.split()) in WORDS]
    random.Random(1).shuffle(usable)
    drawn = list(dict.fromkeys(usable))[: DEV + TRAIN]
    write("dev.en.gz", drawn[:DEV], "\n")
    write("train.en.gz", drawn[DEV:], "\n")
    for language in ("en", "pt"):
        lines = read(data / "en-pt" / f"flores-dev.{language}.gz", "\n")
        write(f"test.{language}.gz", lines[:TEST], "\n")
    others = read(data / "ud_english_ewt" / "en_ewt-ud-test.conllu.gz", "\n\n")
    write("trees.conllu.gz", others[:TREES], "\n\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
