"""Does the suite find mistakes? Some forty of them are planted in a copy of the package, one at a time, and the tests run.

    python tests/planted.py --out planted.json          all, and what is left after an interruption
    python tests/planted.py --out planted.json 3 17     these alone
    python tests/planted.py --check                     whether every mistake still has its place in the source

For each mistake the tests of its package run first, those of its module before the others; if none fails, all other
test files that import the module; then those that import a module which imports it. Each stage ends at the first failure
or after SECONDS of processor time. A test that also fails without the mistake counts for nothing.
--tree: another copy of the repository, such as an older one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SECONDS = 600  # of processor time, for a stage
PATIENCE = 4  # how many times longer by the clock, on a busy machine
COPIED = ("src", "tests", "tools", "docs", "examples", "benchmarks")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Defect:
    """A mistake: in this file of src/headwise, `old`, which is there once, became `new`."""

    file: str
    old: str
    new: str
    wrong: str


DEFECTS = (
    # attention
    Defect(
        "models/attention/kernel.py",
        "return pairs.tril(keys.shape[1] - queries.shape[1])",
        "return pairs.tril()",
        "wrong offset: with a cache the last query is not the last token",
    ),
    Defect(
        "models/attention/kernel.py",
        "gate.repeat_interleave(batch // gate.shape[0], 0)[:, None, :, None]",
        "gate.repeat(batch // gate.shape[0], 1)[:, None, :, None]",
        "wrong axis order: the gates of one sentence go to the beams of another",
    ),
    Defect(
        "models/attention/capture.py",
        "        block.callback(model.register_forward_pre_hook(restart).remove)\n        yield",
        "        yield",
        "lost reset: after a failed forward the layers of a shared module are shifted",
    ),
    Defect(
        "models/attention/matrices.py",
        "rows[:, -self.outputs().shape[2] :]",
        "rows[:, : self.outputs().shape[2]]",
        "wrong slice: the first rows of a fused projection are not its values",
    ),
    Defect(
        "models/attention/removal.py",
        "module.key_value_origin = [origin[head] for head in key_heads]",
        "module.key_value_origin = list(key_heads)",
        "wrong head index after removal: of the model cut before, not of the first one",
    ),
    # importance, relevance
    Defect(
        "models/evaluation/recorded_batch.py",
        "other[asking] = asking.roll(-1)",
        "other[asking] = asking.roll(1)",
        "wrong direction: the sentence before, not the next one",
    ),
    Defect(
        "importance/ablation.py",
        "group = head * call.value.shape[1] // call.output.shape[2]",
        "group = head % call.value.shape[1]",
        "wrong key/value head of a query head",
    ),
    Defect(
        "importance/gradient.py",
        "queries.sum(1) * some)",
        "queries.sum(1))",
        "wrong denominator: sentences without a predicted token count",
    ),
    Defect(
        "models/evaluation/mean_outputs.py",
        "output = call.output * queries[..., None, None]",
        "output = call.output",
        "padding counted in a mean",
    ),
    Defect(
        "models/evaluation/sums.py",
        "units = float(effective_units(counts))",
        "units = float(len(counts))",
        "wrong number of units: long and short sentences say equally much",
    ),
    Defect(
        "importance/lrp/relevance.py",
        "there = (asked[:, steps] * weight[:, None]).T.to(rows.dtype)",
        "there = asked[:, steps].T.to(rows.dtype)",
        "dropped weight: a position that stands for several counts once",
    ),
    Defect(
        "importance/lrp/rules.py",
        "return relevance * (self.alpha / (up + self.epsilon)), relevance * (\n"
        "            self.beta / (down - self.epsilon)\n"
        "        )",
        "return relevance * (self.beta / (up + self.epsilon)), relevance * (\n"
        "            self.alpha / (down - self.epsilon)\n"
        "        )",
        "swapped pair: alpha and beta",
    ),
    # roles
    Defect(
        "roles/positional.py",
        "sight = queries.cumsum(1) if passage.causal else queries.sum(1, keepdim=True)"
        ".expand(-1, length)",
        "sight = queries.sum(1, keepdim=True).expand(-1, length)",
        "ignored mask: in the baseline a decoder's token sees the future",
    ),
    Defect(
        "roles/head_sets.py",
        "counts, rules = counts_of(model, discovery, kind, batches(1), mixing)",
        "counts, rules = counts_of(model, discovery, kind, batches(0), mixing)",
        "a set is confirmed on the half on which it was chosen",
    ),
    Defect(
        "roles/causal.py",
        "for place, head in enumerate(switched, start=1):",
        "for place, head in enumerate(switched):",
        "off by one: the column of another head",
    ),
    Defect(
        "roles/rare.py",
        ".values[top - 1] if len(counts) >= top else 0",
        ".values[top] if len(counts) > top else 0",
        "off by one: the most frequent tokens are one more",
    ),
    Defect(
        "roles/alignment.py",
        "bisect_right(starts, start) - 1 for",
        "bisect_right(starts, start - 1) for",
        "wrong index of words that became one",
    ),
    # evaluation, statistics
    Defect(
        "core/answers.py",
        "drawn = self.quality.change(self.drawn(to, seed), self.drawn(model, seed))",
        "drawn = self.quality.change(self.drawn(model, seed), self.drawn(to, seed))",
        "interval of the wrong side",
    ),
    Defect(
        "core/statistics.py",
        "p: np.ndarray = 2 * scipy.stats.t.sf(",
        "p: np.ndarray = scipy.stats.t.sf(",
        "one side of a p of two sides",
    ),
    Defect(
        "core/statistics.py",
        "rest = np.where(asked, sums - sums.sum(0) / total * counts, 0) / without",
        "rest = np.where(asked, sums - sums.sum(0) / total * counts, 0)",
        "wrong denominator: a left-out unit does not shorten the text",
    ),
    Defect(
        "core/answers.py",
        "(apart >= apart[0] - 1e-12).mean()",
        "(apart > apart[0] + 1e-12).mean()",
        "the exact test does not count the difference itself",
    ),
    # pruning
    Defect(
        "pruning/gates.py",
        "total = (self.distribution.p_open(self.trained) * self.heads_in).sum()",
        "total = self.distribution.p_open(self.trained).sum()",
        "wrong unit: the penalty counts units, not heads",
    ),
    Defect(
        "pruning/target_count.py",
        '            "maximize": True,\n',
        "",
        "wrong sign: multipliers descend",
    ),
    Defect(
        "study/evaluation_steps.py",
        "answers = task.answers(text, masks, cut if own else None, whole)",
        "answers = task.answers(text, masks, None, whole)",
        "ignored option: the choice is made without repair",
    ),
    Defect(
        "pruning/gate_training.py",
        "if parameter not in encoder or parameter in decoder:",
        "if parameter not in encoder:",
        "embeddings that the frozen decoder shares train",
    ),
    # training
    Defect(
        "models/training/loss.py",
        'count += int((tensors["labels"] != IGNORED).sum())',
        'count += tensors["labels"].numel()',
        "padding counted in the dev loss",
    ),
    Defect(
        "models/training/token_batches.py",
        "random = np.random.default_rng((self.seed, self.epoch))",
        "random = np.random.default_rng(self.seed)",
        "lost seed: the same order in every epoch",
    ),
    Defect(
        "models/training/token_batches.py",
        "return digest([text.fingerprint, type(model).__name__, languages, rules])",
        "return digest([text.fingerprint, type(model).__name__, languages])",
        "token ids of another tokenizer of the same class are taken",
    ),
    # tasks, data
    Defect(
        "models/tasks/objective.py",
        'there = {**there, "source": there["source"] & batch["counted"]}',
        'there = {**there, "source": there["source"]}',
        "dropped mask: tokens that two windows share count twice",
    ),
    Defect(
        "data/subwords.py",
        "if len(ids) > max_length:",
        "if len(ids) >= max_length:",
        "lost row: a sentence of just the longest length",
    ),
    Defect(
        "data/store.py",
        "if not record.files or record.damage():",
        "if not record.files:",
        "file not checked: a damaged text is taken from the cache",
    ),
    # study
    Defect(
        "study/records.py",
        '        with FileLock(below(self.folder / ".steps", f"{label}.lock")):\n            yield',
        "        yield",
        "lock not taken: two processes make one step",
    ),
    Defect(
        "study/results.py",
        "low, high = reversed_change(high), reversed_change(low)",
        "low, high = reversed_change(low), reversed_change(high)",
        "swapped ends of an interval",
    ),
    Defect(
        "study/known_models.py",
        "if self.is_candidate(variant) and not self.has_failed(variant):",
        "if not self.has_failed(variant):",
        "a control can be chosen",
    ),
    # report
    Defect(
        "faces/report/comparison.py",
        "low = b - a - math.hypot(b - low_b, high_a - a)",
        "low = b - a - math.hypot(b - low_b, a - low_a)",
        "wrong end of an interval in a difference",
    ),
    Defect(
        "faces/report/quality_curves.py",
        "quality.moved(base, -quality.better * limit)",
        "quality.moved(base, quality.better * limit)",
        "wrong sign: the allowed loss is a gain",
    ),
    # engines
    Defect(
        "models/engines/gguf_tensors.py",
        "factors = plain / actual",
        "factors = actual / plain",
        "swapped pair: rotary frequencies are multiplied, not divided",
    ),
    # lab
    Defect(
        "faces/lab/predictor.py",
        "effects[indices_on] = after - before",
        "effects[: len(indices_on)] = after - before",
        "wrong head index where a head is off already",
    ),
)


@dataclass
class Outcome:
    """What became of a planted mistake. tests: the first that failed; stage: where; seconds: by the clock."""

    defect: Defect
    found: bool
    tests: list[str]
    stage: str
    seconds: float
    notes: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("numbers", nargs="*", type=int, help="of defects, from 1; none for all")
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--out", type=Path, default=Path("planted.json"))
    parser.add_argument("--check", action="store_true", help="only look for the places")
    given = parser.parse_args()
    lost = [defect for defect in DEFECTS if places(given.tree, defect) != 1]
    for defect in lost:
        print(f"{places(given.tree, defect)} places of {defect.old!r} in {defect.file}")
    if given.check or lost:
        sys.exit(bool(lost))

    done = json.loads(given.out.read_text()) if given.out.exists() else {}
    with tempfile.TemporaryDirectory(prefix="planted-") as scratch:
        copy = copied(given.tree, Path(scratch))
        for number, defect in enumerate(DEFECTS, start=1):
            if given.numbers and number not in given.numbers:
                continue
            if str(number) in done and not given.numbers:
                continue
            outcome = tried(copy, defect)
            done[str(number)] = asdict(outcome)
            given.out.write_text(json.dumps(done, indent=1, ensure_ascii=False) + "\n")
            print(line_of(number, outcome), flush=True)
    missed = [name for name, outcome in done.items() if not outcome["found"]]
    print(f"{len(done) - len(missed)} of {len(done)} found; missed: {', '.join(missed) or 'none'}")


def line_of(number: int, outcome: Outcome) -> str:
    found = outcome.tests[0] if outcome.tests else f"missed ({outcome.stage})"
    notes = f" [{'; '.join(outcome.notes)}]" if outcome.notes else ""
    defect = outcome.defect
    return f"{number:2} {defect.file}: {defect.wrong} — {found}, {outcome.seconds:.0f} s{notes}"


def places(tree: Path, defect: Defect) -> int:
    """How often the text of a mistake is in the source."""
    file = tree / "src/headwise" / defect.file
    return file.read_text(encoding="utf-8").count(defect.old) if file.exists() else 0


def copied(tree: Path, scratch: Path) -> Path:
    """A copy of what tests read, so that nothing is written into the repository."""
    copy = scratch / "headwise"
    for name in COPIED:
        ignored = shutil.ignore_patterns("__pycache__", ".hypothesis", "node_modules")
        shutil.copytree(tree / name, copy / name, ignore=ignored)
    for file in tree.iterdir():
        if file.is_file():
            shutil.copy(file, copy / file.name)
    return copy


def tried(copy: Path, defect: Defect) -> Outcome:
    """Plant a mistake, run the tests of all stages until one fails, and take the mistake out again."""
    file = copy / "src/headwise" / defect.file
    whole = file.read_text(encoding="utf-8")
    start = time.perf_counter()
    notes: list[str] = []
    for stage, tests in stages(copy, defect.file):
        broken: list[str] = []  # tests that fail without the mistake, too
        while True:
            file.write_text(whole.replace(defect.old, defect.new), encoding="utf-8")
            failed, ended = run(copy, tests, broken)
            file.write_text(whole, encoding="utf-8")
            if not ended:
                notes.append(f"{stage}: not finished")
            innocent = [name for name in failed if run(copy, [name], [])[0]]
            if not innocent:
                break
            broken += innocent
            notes.append(f"{', '.join(innocent)} fails without it, too")
        if failed:
            return Outcome(defect, True, failed, stage, time.perf_counter() - start, notes)
    return Outcome(defect, False, [], "all stages", time.perf_counter() - start, notes)


def stages(copy: Path, file: str) -> Iterator[tuple[str, list[str]]]:
    """Test files, each once and the nearest first: those of the package, those elsewhere that import the module, and
    those that import a module that does."""
    source = copy / "src/headwise"
    every = sorted((copy / "tests").rglob("test_*.py"))
    folder = copy / "tests" / file.split("/")[0]
    own = source / file

    def is_of(test: Path, module: Path) -> bool:
        return test.stem == f"test_{module.stem}"

    def nearness(test: Path) -> tuple[bool, bool]:
        return not is_of(test, own), not imports(test, source, own)

    users = [module for module in sorted(source.rglob("*.py")) if imports(module, source, own)]
    by_stage = {
        "package": [test for test in every if folder in test.parents or is_of(test, own)],
        "importers": [test for test in every if imports(test, source, own)],
        "users": [
            test
            for test in every
            if any(is_of(test, module) or imports(test, source, module) for module in users)
        ],
    }
    seen: set[Path] = set()
    for stage, tests in by_stage.items():
        left = [test for test in sorted(tests, key=nearness) if test not in seen]
        seen.update(left)
        if left:
            yield stage, [str(test.relative_to(copy)) for test in left]


def imports(file: Path, source: Path, module: Path) -> bool:
    """Whether a file imports a module of the package."""
    name = ".".join(module.relative_to(source.parent).with_suffix("").parts)
    package, _, last = name.rpartition(".")
    listed = rf"from {re.escape(package)} import (?:[^(\n]*|\([^)]*)\b{last}\b"
    text = file.read_text(encoding="utf-8")
    return bool(re.search(rf"\b{re.escape(name)}\b|{listed}", text))


def run(copy: Path, tests: Sequence[str], broken: Sequence[str]) -> tuple[list[str], bool]:
    """The first tests that fail, and whether pytest came to an end within the limit."""
    words = ["-x", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-p", "no:xdist"]
    words += [f"--deselect={name}" for name in broken]
    # a path that pytest itself would put first must not bring another copy of the package
    paths = [copy / "src", copy / "tests", copy / "tools"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *words, *tests],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS)),
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=PATIENCE * SECONDS)
    except subprocess.TimeoutExpired:
        end_all(process)
        return [], False
    return FAILED.findall(output), process.returncode in (0, 1, 5)


def end_all(process: subprocess.Popen[Any]) -> None:
    """End a run and what it started."""
    os.killpg(process.pid, 9)
    process.wait()


if __name__ == "__main__":
    main()
