"""Make the embedded corpus: `python tools/make_embedded_corpus.py` writes src/headwise/data/embedded/ (seconds).

SPLIT.en.bz2 and SPLIT.fr.bz2 are the first sentences of the stream with seed 1, one a line; dev.conllu.bz2 has the
trees and the coreference of the dev sentences. The same generator makes the same bytes: bzip2 stores no time.
`--out FOLDER` writes elsewhere, to compare. A change of the generator changes the corpus, and every number of the demo.
"""

import argparse
import bz2
from itertools import islice
from pathlib import Path

from corpus.examples import examples

SEED = 1
SIZES = {"train": 24_000, "dev": 1_000, "test": 1_000}
PACKAGE = Path(__file__).parents[1] / "src" / "headwise" / "data" / "embedded"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=PACKAGE)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for split, size in SIZES.items():
        made = list(islice(examples(split, SEED), size))
        texts = {
            f"{split}.en": [f"{one.source}\n" for one in made],
            f"{split}.fr": [f"{one.target}\n" for one in made],
        }
        if split == "dev":
            texts["dev.conllu"] = [one.conllu(number) for number, one in enumerate(made, start=1)]
        for name, lines in texts.items():
            (out / f"{name}.bz2").write_bytes(
                bz2.compress("".join(lines).encode(), compresslevel=9)
            )


if __name__ == "__main__":
    main()
