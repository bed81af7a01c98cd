"""Write the report of a run with a section more: the claims of the papers.

python -m benchmarks.papers runs/both-papers
"""

from __future__ import annotations

import sys

import headwise as hw
from headwise.core.errors import HeadwiseError

from .claims import declare


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("Give the folder of a run: python -m benchmarks.papers RUN")
    declare()
    try:
        print(hw.report(sys.argv[1]))
    except HeadwiseError as error:
        raise SystemExit(f"headwise: {error}") from None


if __name__ == "__main__":
    main()
