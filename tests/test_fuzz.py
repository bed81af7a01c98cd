"""Every reader of files and options, given damaged input: HeadwiseError or a result, at once, in little memory.

A few examples of each reader run with all tests; `make attack` (attack.py) runs 40,000.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from headwise.core import tables
from headwise.core.errors import LONGEST_MESSAGE, OUR_MISTAKE, HeadwiseError
from headwise.core.heads import Head, HeadMap
from headwise.core.layout import HeadMask
from headwise.core.tables import SCORES, score_table
from headwise.data.sentence_pairs import SentencePairs
from headwise.data.text import LabelledText, ParallelText, PromptPairs, Text
from headwise.data.treebank import Treebank
from headwise.faces import cli
from headwise.models.marian import files as marian_files
from headwise.roles.alignment import read_links
from headwise.study.plan import read_plan

SECONDS = 5.0  # of the processor: other work on the machine does not count
MEMORY = 1 << 30  # bytes that one input may add to the peak
LARGEST = 200_000  # bytes of an input

TEXT = "A cat sleeps .\nDeux chiens courent .\n\nÇa va ? 猫\n".encode()
TSV = b"A cat .\tUn chat .\nIt rains .\tIl pleut .\n\n"
JSONL = b'{"source": "A cat .", "target": "Un chat .", "id": 7}\n{"translation": {"source": "a", "target": "b"}}\n'
LABELLED = b'text,label,id\nA cat .,1,7\n"It rains",0,8\n'
CONLLU = b"""\
# newdoc id = made_up
# global.Entity = GRP-etype-infstat-salience-centering-minspan-link-identity
# sent_id = 1
0.1\t_\ton\tPRON\t_\t_\t_\t_\t2:nsubj\tEntity=(e1)
1\tAnna\tAnna\tPROPN\t_\tNumber=Sing\t2\tnsubj\t_\tEntity=(1-person-new-sssss-cf1-1-coref)(e2[1/2])
2\tsold\tsell\tVERB\t_\t_\t0\troot\t_\tEntity=(e3
3-4\tdu\t_\t_\t_\t_\t_\t_\t_\tSpaceAfter=No
3\tde\tde\tADP\t_\t_\t5\tcase\t_\t_
4\tle\tle\tDET\t_\t_\t5\tdet\t_\tEntity=(e2[2/2])
5\tparc\tparc\tNOUN\t_\t_\t2\tobl\t_\tEntity=e3)|SpaceAfter=No
5.1\t_\ton\tPRON\t_\t_\t_\t_\t2:obj\t_

# newdoc
# sent_id = 2
1\tShe\tshe\tPRON\t_\t_\t0\troot:x\t_\tEntity=(1-person-giv:act-sssss-cf1-1-ana)

"""
PROMPTS = b"clean\tcorrupted\tanswer\twrong_answer\na b c\td b c\te\tf\nb b\tc b\td\te\n"
RATED = b'sentence1,sentence2,score\nA cat .,"A dog, too",2.5\nIt rains,It snows,4\n'
PLAN = b"""\
name = "mine"
seed = 3
seeds = [1, 2]
weights = "chosen"
[data.embedded]
train = 150
[model]
encoder_layers = 2
heads = 4
[training]
epochs = 2
learning_rate = 1e-3
dtype = "float32"
[scoring]
measures = ["confidence", "lrp"]
[[pruning]]
name = "a"
penalty = [0.01, 0.02]
kinds = ["encoder-self", "cross"]
[[pruning]]
name = "b"
method = "greedy"
measure = ["random"]
keep = [4]
[choice]
max_drop = 0.5
[search]
length_penalty = 1.0
"""
PAIRS = b'[data]\ntrain = ["$HOME/a.en", "~/a.fr"]\n[languages.en-de]\ntrain = "datasets:a/b?split=c&source=en"\n'
HEADS = HeadMap({"encoder-self": (2, 3), "cross": (4, 0)}, {"encoder-self": (1, 3)})
CIRCUIT = HeadMap({"decoder-self": (2, 2)})
NAMES = (
    b'[["decoder-self", 0, 1], [1, 0], "a0.h1", {"kind": "decoder-self", "layer": 1, "head": 1}]'
)
LAYOUT = json.dumps(HeadMask.full(HEADS).to_json(), indent=1).encode()
WORDS = b"--keep 3\0--keep cross=3\0--penalty 0.01\0--max-drop any\0--kinds cross,encoder-self\0--set pruning.epochs=1"

TOKENS = [
    b"9" * 4301,
    b"-1",
    b"1.5",
    b"NaN",
    b"1e999",
    b"true",
    b"null",
    b"100000000",
    b"18446744073709551616",
    b"0x10",
    b"../../x",
    b"/etc/x",
    b"~nobody/x",
    b"$HOME",
    b"${NOT_SET}",
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
    b'"\\ud800"',
    b"\xe2\x80\xa8",
    b"\xef\xbb\xbf",
    b"\x1b[2J",
    b"\r",
    b"\n",
    b"\t",
    b" ",
    b'"',
    b"'",
    b"=",
    b"|",
    b"(",
    b")",
    b"[",
    b"]",
    b"{}",
    b"#",
    b"-",
    b"_",
    b",",
    b":",
    b"[" * 100_000,
    b"(" * 16_000,
    b"a" * 16_000,
    b'{"a":' * 30_000,
    b"a." * 16_000,
    b"(e" * 16_000,
    b"[[a]]\n" * 999,
    b"a={" * 16_000,
    b"x=" * 16_000,
    b"1-2-" * 4_000,
    b"\xd9\xa3",
    b"inf",
    b"Infinity",
    b"[-8]",
    b"[]",
    b'""',
    b"1 2\n" * 16_000,
]

WORD = re.compile(rb"[\w.+-]+")


@st.composite
def damaged(draw: st.DrawFn, samples: tuple[bytes, ...]) -> bytes:
    """A good input with up to five changes: a word or a few bytes lost, repeated, or replaced by a hostile token."""
    content = draw(st.sampled_from(samples))
    for _ in range(draw(st.sampled_from([1, 1, 2, 5]))):
        words = [found.span() for found in WORD.finditer(content[:20_000])]
        if words and draw(st.booleans()):
            start, end = draw(st.sampled_from(words))
        else:
            start = draw(st.integers(0, len(content)))
            end = min(len(content), start + draw(st.sampled_from([0, 1, 2, 5, 20, 200])))
        before, chosen, after = content[:start], content[start:end], content[end:]
        new = draw(
            st.one_of(
                st.sampled_from(TOKENS),
                st.binary(max_size=4),
                st.just(chosen * draw(st.sampled_from([0, 2, 50, 2000]))),
                st.just(draw(st.sampled_from(samples))[start : start + 50]),
            )
        )
        content = (before + new + after)[:LARGEST]
    return content


def write(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def open_by_name(content: bytes, folder: Path) -> None:
    """A name as a plan has it, but of no data set of the hub."""
    write(folder, "a.tsv", TSV)
    with contextlib.chdir(folder):
        ParallelText.open(text_of(content).removeprefix("datasets:"))


def read_scores(content: bytes, folder: Path) -> None:
    text, _, signature = content.partition(b"\0\0")
    write(folder, "heads.json", signature)
    tables.read_scores(write(folder, "heads.csv", text))


def table() -> bytes:
    rows = [
        {"kind": h.kind, "layer": h.layer, "head": h.head, "measure": "m", "value": 0.5}
        for h in HEADS
    ]
    folder = Path(__import__("tempfile").mkdtemp())
    signature = {"heads": HEADS.to_json(), "seed": 1}
    SCORES.save(score_table(rows), signature, folder)
    return (folder / "heads.csv").read_bytes() + b"\0\0" + (folder / "heads.json").read_bytes()


def marian_file_bytes(ending: str) -> bytes:
    """A file of Marian with two matrices."""
    place = Path(__import__("tempfile").mkdtemp()) / f"model{ending}"
    matrices = {name: np.ones((3, 4), np.float32) for name in ("Wemb", "encoder_l1_self_Wq")}
    write = marian_files.write_npz if ending == ".npz" else marian_files.write_bin
    write(place, matrices, {"type": "transformer", "dim-emb": 4})
    return place.read_bytes()


def read_words(content: bytes, folder: Path) -> None:
    """A command line with these words, up to where the work would begin."""
    words = [
        word
        for part in content.split(b"\0")
        for word in part.decode("utf-8", "surrogateescape").split(" ", 1)
    ]
    data = write(folder, "a.tsv", TSV)
    argv = [
        "prune",
        str(folder / "no-model"),
        "--text",
        str(data),
        "--out",
        str(folder / "out"),
        "--quiet",
        *words,
    ]
    before, sys.argv = sys.argv, ["headwise", *argv]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            cli.main()
    except SystemExit as ended:
        assert ended.code in (0, 1, 2), ended.code
    finally:
        sys.argv = before
    assert OUR_MISTAKE not in said.getvalue(), said.getvalue()


def read_circuit(content: bytes, folder: Path) -> None:
    """Heads as other tools name them, in JSON."""
    with contextlib.suppress(ValueError, RecursionError):  # no JSON: not ours to say
        given = json.loads(content)
        assert all(head in CIRCUIT for head in CIRCUIT.named(given))


def read_layout(content: bytes, folder: Path) -> None:
    mask = HeadMask.read(write(folder, "layout.json", content))
    assert HeadMask.from_json(json.loads(json.dumps(mask.to_json()))) == mask and repr(mask)


def text_of(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


Read = Callable[[bytes, Path], Any]
READERS: dict[str, tuple[tuple[bytes, ...], Read]] = {
    "one-sided text": ((TEXT,), lambda content, folder: Text.read(write(folder, "a.txt", content))),
    "parallel text": (
        (TEXT,),
        lambda content, folder: ParallelText.read(
            write(folder, "a", content), write(folder, "b", TEXT)
        ),
    ),
    "tsv": ((TSV,), lambda content, folder: ParallelText.from_tsv(write(folder, "a.tsv", content))),
    "jsonl": (
        (JSONL,),
        lambda content, folder: ParallelText.from_jsonl(write(folder, "a.jsonl", content)),
    ),
    "gzip": (
        (gzip.compress(TEXT, mtime=0),),
        lambda content, folder: Text.read(write(folder, "a.gz", content)),
    ),
    "packed": (
        (TEXT, CONLLU),
        lambda content, folder: Text.read(
            write(folder, "a.gz", gzip.compress(content, 1, mtime=0))
        ),
    ),
    "text by name": (
        (b"a.tsv", b"datasets:a/b?split=c&source=en", b"~/a/b.jsonl.gz"),
        open_by_name,
    ),
    "conll-u": (
        (CONLLU,),
        lambda content, folder: list(Treebank.read(write(folder, "a.conllu", content))),
    ),
    "plan": ((PLAN, PAIRS), lambda content, folder: read_plan(write(folder, "plan.toml", content))),
    "plan's settings": (
        (b"training.epochs=1", b"data.embedded.train=20", b"seeds=[1, 2]", b"model=abc"),
        lambda content, folder: read_plan(write(folder, "plan.toml", PLAN), [text_of(content)]),
    ),
    "layout": ((LAYOUT,), read_layout),
    "head table": ((table(),), read_scores),
    "head address": (
        (b"encoder-self/0/3", b"cross/12/7"),
        lambda content, folder: Head.parse(text_of(content)),
    ),
    "head name": (
        (b"blocks.0.attn.hook_z[..., 1]", b"a0.h1", b"decoder.0.attn.hook_z"),
        lambda content, folder: HeadMap({"decoder-self": (2,)}).named(text_of(content)),
    ),
    "heads of a circuit": ((NAMES, b'{"head": "L1H0"}', b'"3.5"'), read_circuit),
    "labelled csv": (
        (LABELLED,),
        lambda content, folder: LabelledText.open(write(folder, "a.csv", content)),
    ),
    "labelled tsv": (
        (LABELLED.replace(b",", b"\t"),),
        lambda content, folder: LabelledText.open(write(folder, "a.tsv", content)),
    ),
    "labelled jsonl": (
        (b'{"text": "a", "label": "b"}\n{"text": "c", "label": 1}\n',),
        lambda content, folder: LabelledText.open(write(folder, "a.jsonl", content)),
    ),
    "text in a table": (
        (b'{"text": "a b"}\n{"text": null}\n',),
        lambda content, folder: Text.read(write(folder, "a.jsonl", content)),
    ),
    "prompts in pairs": (
        (PROMPTS,),
        lambda content, folder: PromptPairs.open(write(folder, "a.tsv", content)),
    ),
    "pairs with scores": (
        (RATED,),
        lambda content, folder: SentencePairs.open(write(folder, "a.csv", content)),
    ),
    "links": (
        (b"0-0 1-2 2p1\n\n1-1\n",),
        lambda content, folder: read_links(write(folder, "a.links", content)),
    ),
    "marian npz": (
        (marian_file_bytes(".npz"),),
        lambda content, folder: marian_files.read(write(folder, "model.npz", content)),
    ),
    "marian bin": (
        (marian_file_bytes(".bin"),),
        lambda content, folder: marian_files.read(write(folder, "model.bin", content)),
    ),
    "options": ((WORDS, b"--text a.tsv\0--method greedy\0--score lrp"), read_words),
}


class Hangs(Exception):
    """The input took four times as long as it may."""


def stop(number: int, frame: object) -> None:
    raise Hangs


def fault(read: Read, content: bytes, folder: Path) -> str | None:
    """What is wrong with how a reader answers this content, or None."""
    peak, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, 4 * SECONDS)
    try:
        read(content, folder)
    except HeadwiseError as error:
        if len(str(error)) > LONGEST_MESSAGE or not str(error).isprintable():
            return f"a message of {len(str(error)):,} characters: {str(error)[:200]!a}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]!a}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    if (seconds := time.process_time() - begun) > SECONDS:
        return f"{seconds:.0f} seconds"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * 1024
    return f"{grown >> 20} MiB more" if grown > MEMORY else None


def attack(
    name: str,
    examples: int,
    folder: Path,
    answer: Callable[[str | None, bytes], None],
    chance: str = "",
) -> None:
    """Call `answer` with what is wrong, example after example: the same examples for the same `chance`."""
    samples, read = READERS[name]
    quick = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    test = given(damaged(samples))(lambda content: answer(fault(read, content, folder), content))
    seed(f"{name} {chance}")(quick(test))()


def refuse(found: str | None, content: bytes) -> None:
    assert found is None, f"{found} for {content[:300]!a}"


@pytest.fixture(autouse=True)
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What options lead to is not done here."""
    monkeypatch.setattr("headwise.study.study.run_study", lambda *words, **options: None)


@pytest.mark.parametrize("name", READERS)
def test_damaged_input_is_refused_or_read(name: str, tmp_path: Path) -> None:
    attack(name, 20, tmp_path, refuse)


@pytest.mark.parametrize("name", READERS)
def test_the_good_input_is_read(name: str, tmp_path: Path) -> None:
    """Else a reader that refuses everything would pass."""
    samples, read = READERS[name]
    read(samples[0], tmp_path)
