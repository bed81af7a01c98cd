"""A campaign against headwise: mutated texts, command lines and settings of plans, damaged runs, killed studies.

Every input must end in a result or in one sentence, at once and in little memory; no damage may pass unnoticed.
`make attack MINUTES=10` runs as much of each campaign as fits; the same seed tries the same things in the same order.
It ends with a table, and with status 1 where anything was found.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import importlib
import json
import os
import pkgutil
import random
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch

import headwise
import test_fuzz as fuzz
import test_speech_fuzz
from headwise.core.errors import HeadwiseError
from headwise.core.progress import Progress
from headwise.data import embedded
from headwise.faces import cli
from headwise.study import study as study_module
from headwise.study.plan import Plan, read_plan
from headwise.study.study import run_study
from hearers import hearer, recordings
from models.engines.pruned import language_model, uneven
from models.marian import toolkit_models
from models.tasks.askers import asker, sentences
from study import dying
from study.studies import TINY, again, different, numbers, plan_of
from study.test_damage import DAMAGES, after_damage, files_of
from study.test_kills import POINTS

FULL = {"settings": 2_000, "texts": 40_000, "command lines": 2_000, "damages": 250, "kills": 25}
SHARES = {"settings": 0.05, "texts": 0.3, "command lines": 0.3, "damages": 0.3, "kills": 0.05}
PROCESSOR = 60  # seconds of the processor after which a case hangs
WALL = 900  # seconds of the clock, for cases that wait for something
TOGETHER = {"settings": 10, "texts": 100}  # cases of one process, which are measured one by one
SORTS = ("no sentence", "hang or memory", "unnoticed")

Finding = tuple[str, str]  # one of SORTS, and what happened
Attempt = Callable[[Path], list[Finding]]


@dataclass
class Outcome:
    """How a campaign went."""

    name: str
    tried: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """Cases that one process tries. what: for its findings."""

    cases: int
    what: str
    attempt: Attempt


# Processes


def run_jobs(name: str, jobs: Iterator[Job], until: float, folder: Path) -> Outcome:
    """Try jobs in processes of their own, as many at once as there are processors, until the time is over."""
    outcome = Outcome(name)
    begun = time.monotonic()
    running: dict[int, tuple[Job, Path, float]] = {}
    number = 0
    job = next(jobs, None)
    while job is not None or running:
        if job is not None and time.monotonic() > until:
            job = None
        elif job is not None and len(running) < (os.cpu_count() or 1):
            place = folder / f"{name}-{number}"
            number += 1
            running[begin(job, place)] = (job, place, time.monotonic())
            job = next(jobs, None)
            continue
        time.sleep(0.005)
        for pid, (tried, place, since) in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended and time.monotonic() - since > WALL:
                os.kill(pid, signal.SIGKILL)
                ended, status = os.waitpid(pid, 0)
                status = signal.SIGXCPU
            if ended:
                del running[pid]
                outcome.tried += tried.cases
                outcome.findings += findings_of(tried, place, status)
                shutil.rmtree(place, ignore_errors=True)
    outcome.seconds = time.monotonic() - begun
    return outcome


def begin(job: Job, place: Path) -> int:
    """A forked process that tries a job in a folder of its own and writes down what it found."""
    place.mkdir()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    printed = os.open(place / "printed", os.O_WRONLY | os.O_CREAT)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR * job.cases, PROCESSOR * job.cases + 5))
    try:
        os.chdir(place)
        found = job.attempt(place)
    except BaseException:
        found = [("no sentence", f"{job.what}: {last_line(traceback.format_exc())}")]
    (place / "found.json").write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)


def findings_of(job: Job, place: Path, status: int) -> list[Finding]:
    """What a job found, or how its process died."""
    found = place / "found.json"
    if found.exists():
        return [(sort, what) for sort, what in json.loads(found.read_text())]
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
        return [("hang or memory", f"{job.what}: more than {PROCESSOR} seconds")]
    return [("no sentence", f"{job.what}: the process died (status {status})")]


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else ""


def finding(fault: str | None, what: str) -> list[Finding]:
    """What `fuzz.fault` says as a finding."""
    if fault is None:
        return []
    slow = fault.endswith(("seconds", "MiB more")) or fault.startswith("Hangs")
    return [(SORTS[1] if slow else SORTS[0], f"{what}: {fault}")]


# Texts: files of every format, with words lost, repeated or replaced


def text_jobs(seed: int) -> Iterator[Job]:
    names = list(fuzz.READERS)
    for number in range(FULL["texts"] // TOGETHER["texts"]):
        name = names[number % len(names)]
        yield Job(TOGETHER["texts"], f"{name}, seed {seed}-{number}", mutated(name, seed, number))


def mutated(name: str, seed: int, number: int) -> Attempt:
    def attempt(place: Path) -> list[Finding]:
        found: list[Finding] = []
        stop_before_work()

        def note(fault: str | None, content: bytes) -> None:
            found.extend(finding(fault, f"{name} {content[:200]!a}"))

        fuzz.attack(name, TOGETHER["texts"], place, note, f"{seed} {number}")
        return found

    return attempt


# Settings of plans, up to where the work would begin


def no_work(*_: Any, **__: Any) -> NoReturn:
    """Instead of the jobs of a study."""
    raise HeadwiseError("The work would begin here.")


def stop_before_work() -> None:
    """In this process, studies end where their jobs would begin."""
    assert callable(study_module.run_jobs)
    study_module.run_jobs = no_work


VALUES = (
    *("-1", "0", "1", "2", "3", "1.5", "0.5", "1e-9", "1e308", "nan", "inf", "-inf", "true"),
    *("100000000", "99999999999999999999", '""', '"x"', '"../x"', '"a/b"', '"$HOME"', '"nope"'),
    *("[]", "[1]", '["a"]', '["a", "a"]', "[[1]]", "{}", "{a = 1}", "{embedded = {train = 20}}"),
    *('"auto"', '"cuda"', '"cpu"', '"fp16"', '"random"', '"gates"', '"greedy"', '"top-k"', '"all"'),
    *("1979-05-27", '"\\u0000"', '"' + "a" * 300 + '"', "9" * 400, "[" * 200, "'", "=", " "),
)


def setting_names(model: Any = Plan, start: str = "") -> list[str]:
    """The dotted names of all settings of a plan, and of the options of sweeps."""
    names = []
    for name, info in model.model_fields.items():
        names.append(start + name)
        for inner in classes_in(info.annotation):
            if start.count(".") < 2:
                names += setting_names(inner, f"{start}{name}.")
    return sorted(set(names))


def classes_in(annotation: Any) -> list[Any]:
    """The classes of options that a type names."""
    if hasattr(annotation, "model_fields"):
        return [annotation]
    return [one for inner in getattr(annotation, "__args__", ()) for one in classes_in(inner)]


def setting_jobs(seed: int) -> Iterator[Job]:
    names = setting_names()
    chance = random.Random(f"settings {seed}")
    for number in range(FULL["settings"] // TOGETHER["settings"]):
        cases = []
        for _ in range(TOGETHER["settings"]):
            count = chance.choice((1, 1, 2, 3))
            cases.append([f"{chance.choice(names)}={chance.choice(VALUES)}" for _ in range(count)])
        yield Job(len(cases), f"settings {number}", with_settings(cases))


def with_settings(cases: Sequence[list[str]]) -> Attempt:
    def attempt(place: Path) -> list[Finding]:
        stop_before_work()
        file = place / "plan.toml"
        file.write_text(plan_of(TINY).to_toml())
        found: list[Finding] = []
        for number, settings in enumerate(cases):

            def begin_study(_: bytes, folder: Path, settings: list[str] = settings) -> None:
                run_study(read_plan(file, settings), folder, Progress(quiet=True))

            fault = fuzz.fault(begin_study, b"", place / f"out-{number}")
            found += finding(fault, f"--set {' --set '.join(map(shlex.quote, settings))}")
        return found

    return attempt


# Command lines, with damaged words, options and models

EXPORTS = ("gguf", "ct2", "onnx", "torch")  # what is checked of other engines


def command_lines(shop: Path) -> list[list[str]]:
    """Good ones, whose work takes a second or less."""
    lm, mt, bert, small, hears = (
        str(shop / name) for name in ("lm", "mt", "bert", "small", "hears")
    )
    said, prompts = str(shop / "said.csv"), str(shop / "prompts.tsv")
    text, tsv, trees = (str(shop / name) for name in ("lines.txt", "pairs.tsv", "trees.conllu"))
    run, plan, marian = str(shop / "run"), str(shop / "plan.toml"), str(shop / "marian")
    checked = [["check", str(shop / name), "--original", str(shop / "llama")] for name in EXPORTS]
    return [
        *checked,
        ["score", lm, "--text", text, "--measure", "confidence", "--measure", "gradient"],
        ["score", bert, "--text", text, "--measure", "entropy", "--seed", "1"],
        ["score", mt, "--text", tsv, "--measure", "gradient", "--judge"],
        ["roles", lm, "--treebank", trees, "--text", text],
        ["align", mt, "--text", tsv],
        ["evaluate", lm, lm, "--text", text],
        ["evaluate", mt, "--text", tsv, "--beam", "1"],
        ["prune", lm, "--text", text, "--dev", text, "--keep", "2", "--measure", "gradient"],
        ["prune", mt, "--text", tsv, "--dev", tsv, "--penalty", "0.1"],
        ["export", lm, "--to", "torch"],
        ["export", lm, "--list"],
        ["push", lm, "owner/name", "--dry-run"],
        ["check", small, "--original", lm],
        ["check", lm],
        ["check", marian],
        ["score", marian, "--text", tsv, "--measure", "confidence"],
        ["export", marian, "--to", "marian"],
        ["evaluate", bert, "--text", text, "--dry-run"],
        ["align", lm, "--prompt", "Translate", "--text", tsv],
        ["roles", lm, "--text", text],
        ["prune", lm, "--text", text, "--dev", text, "--max-drop", "5"],
        ["score", lm, "--text", prompts, "--measure", "attribution.counterpart"],
        ["score", hears, "--audio", said, "--measure", "confidence"],
        ["evaluate", hears, "--audio", said, "--beam", "1"],
        ["translate", mt, "--text", text, "--beam", "1"],
        ["run", plan, "--dry-run"],
        ["run", plan, "--set", "pruning=[]"],
        ["report", run],
        ["report", run, run],
        ["train", "--text", tsv, "--dev", tsv, "--set", "training.epochs=1"],
        ["data", "list"],
    ]


def hostile_words(shop: Path) -> list[str]:
    words = [token.decode("utf-8", "surrogateescape") for token in fuzz.TOKENS]
    words = [word.replace("\0", "") for word in words if len(word) < 5_000]
    files = [str(path) for path in shop.iterdir()]
    return [*words, *files, "a" * 300, "", "--", "-", "/", ".", "cross/0/1", "[0]", "--help", "-h"]


def options_of(command: str) -> list[str]:
    params = commands()[command].params
    return [name for option in params for name in option.opts if name.startswith("--")]


def commands() -> dict[str, Any]:
    """What headwise can be asked for, by name."""
    found: Any = cli.parser()
    return dict(found.commands)


fuzz.READERS |= test_speech_fuzz.READERS
DAMAGED = ("lm", "mt", "bert", "small", "hears", "run", "marian", *EXPORTS)
CHANGES = ("value", "value", "option", "option", "model", "model", "model", "word", "lost", "twice")


def command_jobs(seed: int, shop: Path) -> Iterator[Job]:
    good = command_lines(shop)
    hostile = hostile_words(shop)
    chance = random.Random(f"commands {seed}")
    for number in range(FULL["command lines"]):
        words = list(good[number % len(good)])
        damaged = None
        for _ in range(chance.choice((1, 1, 2, 3))):
            change = chance.choice(CHANGES)
            at = chance.randrange(1, len(words))
            if change == "value":  # of an option, or an argument
                at = chance.choice(
                    [i for i in range(1, len(words)) if words[i][:2] != "--"] or [at]
                )
            if change in ("value", "word"):
                words[at] = chance.choice(hostile)
            elif change == "lost" and len(words) > 2:
                del words[at]
            elif change == "twice":
                words.insert(at, words[at])
            elif change == "option" and words[0] in commands():
                name = chance.choice(options_of(words[0]) or ["--nope"])
                words += [name, chance.choice([*hostile, "1", "2", "cpu", "gradient"])]
            elif change == "model":
                named = [name for name in DAMAGED if str(shop / name) in words]
                damaged = chance.choice(named or DAMAGED)
        yield Job(1, shlex.join(words)[:500], command(words, shop, damaged, f"{seed} {number}"))


def command(words: list[str], shop: Path, damaged: str | None, chance: str) -> Attempt:
    """A command line, with a copy of what it names of the shop; damaged: the model or run that is damaged before."""

    def attempt(place: Path) -> list[Finding]:
        stop_before_work()
        own = place / "shop"
        own.mkdir()
        for path in shop.iterdir():
            if path.is_file():
                shutil.copy(path, own)
            elif path.name == damaged or any(str(path) in word for word in words):
                shutil.copytree(path, own / path.name)
        texts = {file: file.read_bytes() for file in own.iterdir() if file.is_file()}
        said = damage_model(own / damaged, random.Random(chance)) if damaged else ""
        what = f"headwise {shlex.join(words)[:500]}{said}"
        sys.argv = ["headwise", *(word.replace(str(shop), str(own)) for word in words)]
        status: Any = 0
        try:
            cli.main()
        except SystemExit as ended:
            status = ended.code
        except BaseException:
            return [("no sentence", f"{what}: {last_line(traceback.format_exc())}")]
        sys.stderr.flush()
        printed = (place / "printed").read_text(errors="replace")
        if "Traceback (most recent call last)" in printed or status not in (0, 1, 2):
            return [("no sentence", f"{what}: status {status}, {last_line(printed)}")]
        if status == 1 and not last_line(printed).startswith("headwise: "):
            return [("no sentence", f"{what}: status 1, {last_line(printed)!a}")]
        lost = [
            file.name for file in texts if not file.exists() or file.read_bytes() != texts[file]
        ]
        return [("unnoticed", f"{what}: {name} is another") for name in lost]

    return attempt


JSON_VALUES = (
    None,
    -1,
    0,
    1,
    99_999_999,
    1e308,
    "",
    "x",
    "../x",
    [],
    [1],
    ["a"],
    {},
    {"a": 1},
    True,
)


def damage_model(folder: Path, chance: random.Random) -> str:
    """Change a file of a model or a run: most often a value of a JSON file. Returns what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    jsons = [path for path in files if path.suffix == ".json"]
    file = chance.choice(jsons if jsons and chance.random() < 0.8 else files)
    name = file.relative_to(folder)
    with contextlib.suppress(ValueError):
        content = json.loads(file.read_text()) if file.suffix == ".json" else None
        if isinstance(content, dict) and content:
            key = chance.choice([*content, "decoder_start_token_id", "model_input_names"])
            value = chance.choice(JSON_VALUES)
            if chance.random() < 0.2:
                content.pop(key, None)
            else:
                content[key] = value
            file.write_text(json.dumps(content))
            return f"  # {name}: {key} = {value!r}"
    how = chance.choice(list(DAMAGES))
    DAMAGES[how](file, chance)
    return f"  # {name} {how}"


# A finished study, damaged or killed


def damage_jobs(seed: int, whole: Path) -> Iterator[Job]:
    cases = [(name, how) for name in files_of(whole) for how in DAMAGES]
    random.Random(f"damages {seed}").shuffle(cases)
    for name, how in cases[: FULL["damages"]]:
        yield Job(1, f"{name} {how}", one_damage(whole, name, how, seed))


def one_damage(whole: Path, name: str, how: str, seed: int) -> Attempt:
    def attempt(place: Path) -> list[Finding]:
        torch.set_num_threads(1)
        ended = after_damage(whole, place / "damaged", name, how, seed)
        return [("unnoticed", f"{name} {how}")] if ended == "different" else []

    return attempt


def dies(plan: Path, out: Path, step: str, point: str) -> Attempt:
    """A study that kills itself."""

    def attempt(place: Path) -> list[Finding]:
        dying.study(plan, out, step, point)
        return []

    return attempt


def killed(order: Sequence[str], whole: Path, seed: int, until: float, folder: Path) -> Outcome:
    """A study that is killed again and again, each time at a later step, and then ends."""
    outcome = Outcome("kills")
    begun = time.monotonic()
    chance = random.Random(f"kills {seed}")
    victims = [(step, chance.choice(POINTS)) for step in order] + [("tables", ""), ("report", "")]
    places = sorted(chance.sample(range(len(victims)), min(len(victims), FULL["kills"])))
    plan = folder / "killed.toml"
    plan.write_text(plan_of(TINY).to_toml())
    out = folder / "killed"
    for place in places:
        if time.monotonic() > until:
            break
        process = folder / f"killed-{place}"
        pid = begin(Job(1, victims[place][0], dies(plan, out, *victims[place])), process)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status != -signal.SIGKILL:
            printed = last_line((process / "printed").read_text(errors="replace"))
            what = f"{victims[place]}: not killed, status {status}, {printed}"
            outcome.findings.append(("no sentence", what))
        outcome.tried += 1
    if outcome.tried:
        again(plan_of(TINY), out)
        for name in different(numbers(out), numbers(whole)):
            outcome.findings.append(("unnoticed", f"after {outcome.tried} kills: {name}"))
    outcome.seconds = time.monotonic() - begun
    return outcome


# All of it


def make_shop(shop: Path) -> list[str]:
    """Models, texts, a plan and a finished run. Returns the steps of the run in the order in which they were made."""
    order = shop / "order.json"
    if order.exists():
        steps: list[str] = json.loads(order.read_text())
        return steps
    print("making models and a study: a minute or two", flush=True)
    shop.mkdir(parents=True)
    lm = asker("gpt2")
    lm.without(["decoder-self/0/0"]).save(shop / "small")
    models = {"lm": lm, "mt": asker(), "bert": asker("bert"), "hears": hearer()}
    for name, model in models.items():  # as others save theirs: without the sums that show damage
        model.hf.save_pretrained(shop / name)
        model.tokenizer.save_pretrained(shop / name)
    llama = language_model("llama")
    llama.save(shop / "llama")
    for engine in EXPORTS:
        headwise.export(uneven(llama), engine, shop / engine, say=lambda note: None)
    toolkit_models.write(shop / "marian", toolkit_models.options())
    recordings(shop, 3)
    (shop / "prompts.tsv").write_bytes(fuzz.PROMPTS)
    (shop / "lines.txt").write_text("\n".join(sentences(24, 0)) + "\n")
    pairs = zip(sentences(24, 0), sentences(24, 1), strict=True)
    (shop / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    (shop / "trees.conllu").write_bytes(fuzz.CONLLU)
    (shop / "plan.toml").write_text(plan_of(copy.deepcopy(TINY)).to_toml())
    steps = list(dict.fromkeys(again(plan_of(TINY), shop / "run").made))
    order.write_text(json.dumps(steps))
    return steps


def preload(shop: Path, room: Path) -> None:
    """Import everything and use it once, so that no forked process spends its seconds on that."""
    for module in pkgutil.walk_packages(headwise.__path__, "headwise."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # an extra that is not installed
                importlib.import_module(module.name)
    for samples, read in fuzz.READERS.values():
        if read is not fuzz.read_words:
            read(samples[0], room)
    for name in ("lm", "mt", "bert", "small", "hears", "marian"):
        headwise.load(shop / name)
    for split in embedded.PAIR_COUNTS:
        embedded.pairs(split)
    cli.parser()
    importlib.import_module("typer.rich_utils")
    # A forked process that looks for garbage would copy every page of what is there.
    gc.collect()
    gc.freeze()


def table(outcomes: Sequence[Outcome]) -> str:
    """A row for each campaign."""
    rows = [("campaign", "tried", "of", *SORTS, "seconds")]
    for outcome in outcomes:
        counts = [str(sum(kind == sort for kind, _ in outcome.findings)) for sort in SORTS]
        whole = f"{FULL[outcome.name]:,}"
        rows.append((outcome.name, f"{outcome.tried:,}", whole, *counts, f"{outcome.seconds:.0f}"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        name, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([name.strip().ljust(widths[0]), *others]))
    return "\n".join(lines)


def attack(
    minutes: float, seed: int, only: Sequence[str], given: Path | None = None
) -> list[Outcome]:
    """All campaigns, each for its share of the time; what one leaves is for those after it. given: the folder that
    `make_shop` fills, or has filled before."""
    torch.set_num_threads(1)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        shop = room / "shop" if given is None else given.resolve()
        order = make_shop(shop)
        preload(shop, room)
        begun = time.monotonic()
        jobs: dict[str, Callable[[], Iterator[Job]]] = {
            "settings": lambda: setting_jobs(seed),
            "texts": lambda: text_jobs(seed),
            "command lines": lambda: command_jobs(seed, shop),
            "damages": lambda: damage_jobs(seed, shop / "run"),
        }
        share = 0.0
        for name in (name for name in FULL if name in only):
            share += SHARES[name] / sum(SHARES[one] for one in only)
            until = begun + 60 * minutes * share
            if name == "kills":
                outcome = killed(order, shop / "run", seed, until, room)
            else:
                outcome = run_jobs(name, jobs[name](), until, room)
            outcomes.append(outcome)
            for sort, what in outcome.findings:
                print(f"{sort}: {what}".encode("ascii", "backslashreplace").decode(), flush=True)
            print(f"{name}: {outcome.tried:,} tried", flush=True)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=list(FULL))
    parser.add_argument("--shop", type=Path, help="folder for models and a study, to use again")
    given = parser.parse_args()
    if "HF_HUB_OFFLINE" not in os.environ:  # libraries read it when they are imported
        parser.error("it must not ask the hub for made-up names: set HF_HUB_OFFLINE=1 before")
    outcomes = attack(given.minutes, given.seed, given.only or list(FULL), given.shop)
    print(f"\n{table(outcomes)}")
    return int(any(outcome.findings for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
