"""Did a number move? Commands run on tiny random models of every task, and two such runs are compared number by number.

    python tests/frozen.py make INPUTS                    models and texts; once
    python tests/frozen.py run INPUTS OUT [score study]   every command, or those whose name has one of the words
    python tests/frozen.py compare OUT OTHER              what differs; exit status 1 where anything does

PYTHONPATH says which package runs. Everything random has a seed, and one thread computes. Tables (.csv) and facts
(.json) are compared by key, translations by line, and with --pages the text of pages, too; OUT/weights.csv stands for
the saved models. Times, places and versions are left out. --changes FILE.py: what is renamed on purpose. It may define

    files = {"old/name.csv": "new/name.csv"}              by their ends
    columns = {"pruning.csv": {"kept": "heads_left"}}     by file, in the old table
    rows = {"pruning.csv": function}                      from the old table to the new one, both data frames
    without = ["*/facts.json"]                            files that are not compared
"""

from __future__ import annotations

import argparse
import fnmatch
import html
import importlib
import json
import math
import multiprocessing
import os
import pkgutil
import random
import re
import resource
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

# Before torch is imported.
os.environ |= {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "COLUMNS": "120",
}

# Inputs

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
PAD, START, END = 0, 1, 2
SIZE = 400  # of the vocabulary
WORDS = "abcdefgh"  # that are said
RATE = 16000
STACK = {
    "vocab_size": SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 256,
    "pad_token_id": PAD,
    "bos_token_id": START,
    "eos_token_id": END,
}
TWO_STACKS = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}


def make(inputs: Path) -> None:
    """Write the models and the texts."""
    inputs.mkdir(parents=True, exist_ok=True)
    make_texts(inputs)
    make_speech(inputs)
    make_models(inputs)


def make_texts(inputs: Path) -> None:
    """Parts of the embedded corpus, with labels, scores, links and prompts that mean nothing."""
    from headwise.data.embedded import write_parallel, write_treebank

    write_parallel(inputs, "train", 400)
    write_parallel(inputs, "dev", 40)
    write_parallel(inputs, "test", 16)
    write_parallel(inputs / "few", "dev", 6)
    write_treebank(inputs / "trees.conllu", 80)
    drawn = random.Random(0)
    for split in ("train", "dev", "test"):
        english = (inputs / f"{split}.en").read_text().splitlines()
        french = (inputs / f"{split}.fr").read_text().splitlines()
        labelled = ["text\tlabel"]
        scored = ["sentence1\tsentence2\tscore"]
        links = []
        for place, (one, other) in enumerate(zip(english, french, strict=True)):
            labelled.append(f"{one}\t{drawn.randrange(3)}")
            scored.append(f"{one}\t{english[place - 1]}\t{drawn.randrange(5)}")
            length, of_other = len(one.split()), len(other.split())
            pairs = [f"{n}-{min(n, of_other - 1)}" for n in range(length)]
            links.append(" ".join(pairs))
        write_lines(inputs / f"{split}.labelled.tsv", labelled)
        if split == "dev":
            write_lines(inputs / "few" / "dev.labelled.tsv", labelled[:7])
        write_lines(inputs / f"{split}.scored.tsv", scored)
        write_lines(inputs / f"{split}.links", links)
    names = ["Anna", "Ben", "Clara", "David", "Emma", "Frank"]
    prompts = ["clean\tcorrupted\tanswer\twrong_answer"]
    for number in range(24):
        one, other, third = drawn.sample(names, 3)
        start = "When {} and {} went out, {} gave it to"
        prompts.append(
            f"{start.format(one, other, other)}\t{start.format(one, other, one)}\t{one}\t{other}"
            if number % 2
            else f"{start.format(one, other, other)}\t{start.format(third, other, other)}\t{one}\t{third}"
        )
    write_lines(inputs / "prompts.tsv", prompts)


def make_speech(inputs: Path) -> None:
    """Recordings of noise: a table with what is said in each, and one with when its words start."""
    from scipy.io import wavfile

    said = ["audio,text,language"]
    timed = ["audio,word,start,end,language"]
    for number in range(24):
        drawn = np.random.default_rng(number)
        seconds = 1 + 0.03 * number
        noise = drawn.integers(-9999, 9999, round(RATE * seconds), np.int16)
        wavfile.write(inputs / f"{number}.wav", RATE, noise)
        words = drawn.choice(list(WORDS), 3 + number % 3)
        said.append(f"{number}.wav,{' '.join(words)},en")
        for place, word in enumerate(words):
            start, end = (seconds * at / len(words) for at in (place, place + 1))
            timed.append(f"{number}.wav,{word},{start:.3f},{end:.3f},en")
    write_lines(inputs / "said.csv", said)
    write_lines(inputs / "few" / "said.csv", [said[0], *(f"../{line}" for line in said[1:6])])
    write_lines(inputs / "timed.csv", timed)


def make_models(inputs: Path) -> None:
    """A model of each task, and a second one of two tasks, in folders of transformers."""
    import transformers as hf

    texts = [str(inputs / name) for name in ("train.en", "train.fr", "prompts.tsv")]
    translating = {
        "vocab_size": SIZE,
        "max_position_embeddings": 128,
        "pad_token_id": PAD,
        "bos_token_id": None,
        "eos_token_id": END,
        "decoder_start_token_id": PAD,
        "forced_eos_token_id": None,
        "scale_embedding": True,
        "dropout": 0.1,
        **TWO_STACKS,
    }
    grouped = {**STACK, "num_key_value_heads": 2, "head_dim": 8}
    classes = {"num_labels": 3}
    made: dict[str, tuple[Any, str]] = {
        "translation": (hf.MarianMTModel(hf.MarianConfig(**translating)), "$A </s>"),
        "translation-2": (hf.MarianMTModel(hf.MarianConfig(**translating)), "$A </s>"),
        "language": (hf.LlamaForCausalLM(hf.LlamaConfig(**grouped)), "<s> $A"),
        "masked": (hf.BertForMaskedLM(hf.BertConfig(**STACK)), "<s> $A </s>"),
        "classifier": (
            hf.BertForSequenceClassification(hf.BertConfig(**STACK, **classes)),
            "<s> $A </s>",
        ),
        "embeddings": (hf.BertModel(hf.BertConfig(**STACK)), "<s> $A </s>"),
        "embeddings-2": (hf.BertModel(hf.BertConfig(**STACK)), "<s> $A </s>"),
    }
    for seed, (name, (model, form)) in enumerate(made.items()):
        randomise(model, seed)
        model.save_pretrained(inputs / name)
        tokenizer_of(texts, form, masks="embeddings" not in name).save_pretrained(inputs / name)
    speech, tokenizer = speech_model()
    randomise(speech, len(made))
    speech.save_pretrained(inputs / "speech")
    tokenizer.save_pretrained(inputs / "speech")


def tokenizer_of(files: Sequence[str], form: str, masks: bool) -> Any:
    """Subwords of bytes, so that no word is unknown. form: what stands around a sentence $A."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers, processors, trainers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    raw.decoder = decoders.ByteLevel()
    raw.train(
        list(files),
        trainers.BpeTrainer(
            vocab_size=SIZE,
            special_tokens=list(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    raw.post_processor = processors.TemplateProcessing(
        single=form,
        special_tokens=[(word, SPECIAL.index(word)) for word in form.split() if word != "$A"],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        **({"mask_token": "<mask>"} if masks else {}),
    )


def speech_model() -> tuple[Any, Any]:
    """A Whisper of two seconds, and its tokenizer of letters."""
    import transformers as hf

    pieces = ["Ġ", *WORDS, *[f"Ġ{word}" for word in WORDS]]
    tokenizer = hf.WhisperTokenizer(
        vocab={piece: number for number, piece in enumerate(pieces)},
        merges=[("Ġ", word) for word in WORDS],
    )
    names = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|transcribe|>"]
    names += ["<|translate|>", "<|notimestamps|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": names[1:]})
    end, start, english, transcribe, _, no_times = tokenizer.convert_tokens_to_ids(names)
    config = hf.WhisperConfig(
        **TWO_STACKS,
        num_mel_bins=8,
        max_source_positions=100,
        max_target_positions=24,
        vocab_size=no_times + 1 + 101,
        decoder_start_token_id=start,
        eos_token_id=end,
        pad_token_id=end,
        bos_token_id=end,
        median_filter_width=3,
    )
    model = hf.WhisperForConditionalGeneration(config)
    settings: Any = model.generation_config
    settings.is_multilingual = True
    settings.no_timestamps_token_id = no_times
    settings.lang_to_id = {"<|en|>": english}
    settings.task_to_id = {"transcribe": transcribe}
    settings.suppress_tokens = [start, english, transcribe]
    settings.begin_suppress_tokens = [end]
    settings._from_model_config = False  # else transformers drops what it does not know
    return model, tokenizer


def randomise(model: Any, seed: int) -> None:
    """Weights so large that attention is far from uniform and no bias is 0."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                drawn = torch.randn(parameter.shape, generator=generator)
                if parameter.dim() > 1:
                    parameter.copy_(drawn * (1.5 * parameter.shape[-1] ** -0.5))
                else:
                    parameter.add_(drawn, alpha=0.1)
    model.eval()


def write_lines(file: Path, lines: Sequence[str]) -> None:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


# Commands

PLAN = """
name = "frozen"
seeds = [1, 2]

[data.embedded]
train = 150
dev = 24
test = 24

[model]
encoder_layers = 2
decoder_layers = 2
heads = 4
width = 32
feedforward = 64
dropout = 0.1
vocabulary = 300
max_length = 48

[training]
epochs = 2
batch_tokens = 1260
learning_rate = 3e-3
warmup = 5
average = 2
dtype = "float32"

[scoring]
measures = ["confidence", "gradient", "ablation.zero"]
random_orders = 1
untrained = 1
interactions = 2
pruned = ["confidence"]

[[pruning]]
name = "gates"
penalty = [0.005]
epochs = 1
gate_learning_rate = 0.5
warmup = 3
controls = ["fine-tuned"]

[[pruning]]
name = "all"
kinds = ["encoder-self", "decoder-self", "cross"]
keep = [9]
epochs = 1
gate_learning_rate = 1.0
warmup = 2
controls = ["narrower"]
seeds = [1]

[[pruning]]
name = "top"
method = "top-k"
keep = [3]
epochs = 1
gate_learning_rate = 1.0
warmup = 2
seeds = [1]

[[pruning]]
name = "greedy"
method = "greedy"
measure = ["gradient", "random"]
orders = 1
step = 0.5
repair = true

[choice]
max_drop = "any"

[search]
beam = 1

[speed]
sentences = 2
rounds = 1
tokens = 4
"""


@dataclass(frozen=True)
class Command:
    """A command line. Its result is OUT/name; {IN} and {OUT} are the folders, {PLAN} the file of the plan."""

    name: str
    words: str


SCORED = (
    "--measure confidence --measure entropy --measure dormancy --measure gradient "
    "--measure attribution.zero --measure lrp.ding.pooled --measure ablation.zero"
)
JUDGED = f"{SCORED} --judge --untrained 1 --interactions 4"
TO_PRUNE = "--epochs 1 --batch-tokens 1000 --gate-learning-rate 1 --warmup 2 --beam 2"
IN_STEPS = "--method greedy --step 0.5 --max-drop any"


def commands() -> list[Command]:
    """Every command, in an order in which each finds what it reads."""
    dev, test, train, few = (
        f"--text {{IN}}/{name}.en --text {{IN}}/{name}.fr"
        for name in ("dev", "test", "train", "few/dev")
    )
    trees = "--treebank {IN}/trees.conllu"
    chosen = "--dev {IN}/dev.en --dev {IN}/dev.fr"
    tested = "--test {IN}/test.en --test {IN}/test.fr"
    by_name = {
        "translation/score": f"score {{IN}}/translation {dev} {JUDGED}",
        "translation/all": f"score {{IN}}/translation {few} --measure all --measure ablation.bleu",
        "translation/roles": f"roles {{IN}}/translation {trees} {dev} --links {{IN}}/dev.links "
        "--training {IN}/train.en --untrained 1",
        "translation/align": f"align {{IN}}/translation {dev} --links {{IN}}/dev.links",
        "translation/evaluate": f"evaluate {{IN}}/translation {{IN}}/translation-2 {test} --beam 2",
        "translation/greedy": f"prune {{IN}}/translation {train} {chosen} {tested} {IN_STEPS} --beam 1 "
        "--measure gradient --kinds encoder-self,cross --repair",
        "translation/gates": f"prune {{IN}}/translation {train} {chosen} {TO_PRUNE} --method gates "
        "--penalty 0.01 --penalty 1",
        "language/align": f"align {{IN}}/language {dev} --links {{IN}}/dev.links "
        "--prompt {source}={target}",
        "language/roles": f"roles {{IN}}/language {trees} --untrained 1",
        "language/prompts": "score {IN}/language --text {IN}/prompts.tsv --measure gradient "
        "--measure ablation.counterpart --measure attribution.counterpart",
        "masked/roles": f"roles {{IN}}/masked {trees} --training {{IN}}/train.en",
        "embeddings/score": "score {IN}/embeddings --text {IN}/dev.en",
        "embeddings/evaluate": "evaluate {IN}/embeddings {IN}/embeddings-2 --text {IN}/dev.en",
        "embeddings/scored": "evaluate {IN}/embeddings --text {IN}/test.scored.tsv",
        "embeddings/greedy": "prune {IN}/embeddings --text {IN}/train.en --dev {IN}/dev.en "
        f"{IN_STEPS}",
        "speech/score": "score {IN}/speech --audio {IN}/said.csv --measure gradient "
        "--measure confidence --measure ablation.zero",
        "speech/roles": "roles {IN}/speech --audio {IN}/timed.csv",
        "speech/align": "align {IN}/speech --audio {IN}/timed.csv",
        "speech/evaluate": "evaluate {IN}/speech --audio {IN}/few/said.csv",
        "speech/greedy": "prune {IN}/speech --audio {IN}/said.csv --dev {IN}/few/said.csv "
        f"{IN_STEPS} --measure gradient --kinds decoder-self",
    }
    for task, ending in {"language": "en", "masked": "en", "classifier": "labelled.tsv"}.items():
        training, choosing, testing = (
            f"{{IN}}/{name}.{ending}" for name in ("train", "dev", "test")
        )
        texts = f"--text {training} --dev {choosing} --test {testing}"
        pruning = f"prune {{IN}}/{task} {texts}"
        scored, every = JUDGED, "--measure all"
        if task == "classifier":  # which relevance does not support
            scored = scored.replace("--measure lrp.ding.pooled", "")
            every = "--measure ablation --measure gradient.token --measure attribution.steps"
        by_name |= {
            f"{task}/score": f"score {{IN}}/{task} --text {choosing} {scored}",
            f"{task}/all": f"score {{IN}}/{task} --text {{IN}}/few/dev.{ending} {every}",
            f"{task}/greedy": f"{pruning} {IN_STEPS} --measure gradient",
            f"{task}/gates": f"{pruning} {TO_PRUNE} --method gates --keep 4",
            f"{task}/evaluate": f"evaluate {{OUT}}/{task}/gates --text {testing}",
        }
    by_name["study"] = "run {PLAN}"
    by_name["compare"] = "report {OUT}/study/seed-1 {OUT}/study/seed-2"
    return [Command(name, words) for name, words in by_name.items()]


def run(inputs: Path, out: Path, words: Sequence[str]) -> int:
    """Run the commands, each in a process of its own with this one's imports. Returns how many failed."""
    load_everything()
    inputs, out = inputs.resolve(), out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    plan = out / "frozen.toml"
    plan.write_text(PLAN, encoding="utf-8")
    places = {"{IN}": str(inputs), "{OUT}": str(out), "{PLAN}": str(plan)}
    failed = 0
    for command in commands():
        if words and not any(word in command.name for word in words):
            continue
        line = []
        for word in command.words.split():
            for name, place in places.items():
                word = word.replace(name, place)
            line.append(word)
        line += ["--out", str(out / command.name)]
        if command.name != "compare":
            line.append("--quiet")  # no forecasts, which take time
        start = seconds_of_children()
        process = multiprocessing.get_context("fork").Process(
            target=call, args=(line, out / f"{command.name}.log")
        )
        process.start()
        process.join()
        failed += process.exitcode != 0
        ended = "" if process.exitcode == 0 else f" failed with status {process.exitcode}"
        print(f"{command.name}: {seconds_of_children() - start:.1f} s{ended}", flush=True)
    write_weights(out)
    return failed


def load_everything() -> None:
    """Import what the commands import, once for all."""
    import headwise

    for module in pkgutil.walk_packages(headwise.__path__, "headwise."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(module.name)
    for name in ("bert", "llama", "marian", "whisper"):
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    importlib.import_module("transformers.trainer_seq2seq")


def seconds_of_children() -> float:
    """The processor time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def call(line: list[str], log: Path) -> None:
    """One command, as a user writes it; what it says goes to `log`."""
    import torch

    from headwise.faces.cli import main as headwise

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sys.argv = ["headwise", *line]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as said, redirect_stdout(said), redirect_stderr(said):
        print("headwise", *line)
        status = 1
        try:
            headwise()
            status = 0
        except SystemExit as ended:
            status = int(ended.code or 0) if isinstance(ended.code, int | None) else 1
        except BaseException:
            traceback.print_exc()
    os._exit(status)


def write_weights(out: Path) -> None:
    """weights.csv: what all tensors of all saved models are, in three numbers each."""
    from safetensors.numpy import load_file

    rows = []
    for file in sorted(out.rglob("*.safetensors")):
        if ".work" in file.parts:
            continue
        for name, tensor in sorted(load_file(file).items()):
            numbers = tensor.astype(np.float64).ravel()
            rows.append(
                {
                    "file": str(file.relative_to(out)),
                    "tensor": name,
                    "shape": " ".join(map(str, tensor.shape)),
                    "sum": numbers.sum(),
                    "norm": math.sqrt((numbers**2).sum()),
                    "turned": float(numbers @ np.cos(np.arange(len(numbers)))),
                }
            )
    if rows:
        pd.DataFrame(rows).to_csv(out / "weights.csv", index=False)


# Comparison

TIMES = ("seconds", "tokens_per_second", "forward_seconds")  # measures, columns and keys
NOT_NUMBERS = re.compile(
    r"seconds|environment|versions|machine|kernel|threads|host|platform|time|date|path|folder|fingerprint"
    r"|key|commit|python|device|sha|memory"
)
TOOK = re.compile(r"[\d.,]+ (ms|s|min|h)$")  # a line of a page
KINDS = (".csv", ".json", ".txt")
PLACE = re.compile(r"/(?:[^/\s]+/)+(?=[^/\s]+)")
WIDTH = 200  # of what is printed of a difference
HIDDEN = ("plan.json", "tokenizer.json", "tokenizer_config.json")


@dataclass
class Changes:
    """What was renamed on purpose; see the module."""

    files: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    rows: Mapping[str, Callable[[pd.DataFrame], pd.DataFrame]] = field(default_factory=dict)
    without: Sequence[str] = ()

    @classmethod
    def read(cls, file: Path | None) -> Changes:
        if file is None:
            return cls()
        defined = runpy.run_path(str(file))
        return cls(**{name: defined[name] for name in vars(cls()) if name in defined})

    def new_name(self, name: str) -> str:
        """The name of an old file now."""
        for old, new in self.files.items():
            if name == old or name.endswith(f"/{old}"):
                return name.removesuffix(old) + new
        return name

    def new_table(self, name: str, table: pd.DataFrame) -> pd.DataFrame:
        """An old table as it would be written now."""
        for file, names in self.columns.items():
            if name == file or name.endswith(f"/{file}"):
                table = table.rename(columns=dict(names))
        for file, convert in self.rows.items():
            if name == file or name.endswith(f"/{file}"):
                table = convert(table)
        return table


@dataclass
class Difference:
    """A file that differs: what, in words, and the largest relative difference of its numbers."""

    file: str
    lines: list[str]
    largest: float = 0.0


def compare(
    out: Path, other: Path, changes: Changes, tolerance: float, kinds: Sequence[str] = KINDS
) -> int:
    """Say what differs between two runs. Returns in how many files."""
    old = {changes.new_name(name): file for name, file in frozen_files(out, changes, kinds)}
    new = dict(frozen_files(other, changes, kinds))
    found = []
    numbers = 0
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            found.append(Difference(name, ["is gone"], math.inf))
        elif name not in old:
            found.append(Difference(name, ["is new"], math.inf))
        else:
            count, difference = compare_files(name, old[name], new[name], changes, tolerance)
            numbers += count
            if difference is not None:
                found.append(difference)
    for one in found:
        largest = f" (largest difference {one.largest:.3g})" if 0 < one.largest < math.inf else ""
        print(f"{one.file}{largest}")
        for line in one.lines[:8]:
            print(f"    {line[:WIDTH]}")
        if len(one.lines) > 8:
            print(f"    … and {len(one.lines) - 8} more")
    print(
        f"{numbers:,} numbers in {len(old.keys() & new.keys())} files compared: {len(found)} files differ."
    )
    return len(found)


def frozen_files(out: Path, changes: Changes, kinds: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """The files that are compared, by their names in the folder."""
    for file in sorted(out.rglob("*")):
        name = file.relative_to(out)
        hidden = any(part.startswith(".") for part in name.parts) or file.name in HIDDEN
        left_out = any(fnmatch.fnmatch(str(name), pattern) for pattern in changes.without)
        if file.is_file() and file.suffix in kinds and not hidden and not left_out:
            yield str(name), file


def compare_files(
    name: str, old: Path, new: Path, changes: Changes, tolerance: float
) -> tuple[int, Difference | None]:
    """How many numbers two files have, and what differs in them."""
    if name.endswith(".csv"):
        one = keyed(changes.new_table(name, read_table(old)))
        two = keyed(read_table(new))
    elif name.endswith(".json"):
        one, two = (dict(facts_of(json.loads(file.read_text()))) for file in (old, new))
    else:
        one, two = (dict(lines_of(file)) for file in (old, new))
    lines = []
    largest = 0.0
    for key in [*one, *(key for key in two if key not in one)]:
        if key not in two or key not in one:
            lines.append(f"{key} {'is gone' if key in one else 'is new'}")
            continue
        apart = distance(one[key], two[key])
        if apart > tolerance:
            largest = max(largest, apart)
            lines.append(f"{key}: {one[key]} became {two[key]}")
    return len(one), Difference(name, lines, largest) if lines else None


def distance(one: Any, other: Any) -> float:
    """How far apart two numbers are, as a share of the larger; of other values 0 or infinity."""
    numbers = [each for each in (one, other) if isinstance(each, int | float)]
    if len(numbers) < 2:
        return 0.0 if one == other else math.inf
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    if math.isnan(one) or math.isnan(other):
        return math.inf
    apart = abs(one - other) / max(abs(one), abs(other))
    return math.inf if math.isnan(apart) else apart


def read_table(file: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(file)
    except pd.errors.EmptyDataError:
        return pd.DataFrame()


def keyed(table: pd.DataFrame) -> dict[str, Any]:
    """Every cell by its row and column. A row is known by its words, and by its whole numbers where these are too few."""
    table = table.drop(columns=[name for name in table if name in TIMES])
    for name in ("measure", "statistic"):
        if name in table:
            table = table[~table[name].isin(TIMES)]
    words = [name for name in table if not pd.api.types.is_numeric_dtype(table[name])]
    whole = [name for name in table if name in KEYS and name not in words]
    named = words + whole
    cells: dict[str, Any] = {}
    seen: dict[str, int] = {}
    for row in table.to_dict("records"):
        key = PLACE.sub("", " ".join(f"{name}={row[name]}" for name in named))
        seen[key] = seen.get(key, 0) + 1
        if seen[key] > 1:
            key += f" ({seen[key]})"
        cells[key] = True  # a row of words alone counts, too
        for name, value in row.items():
            if name not in named:
                cells[f"{key}: {name}"] = value
    return cells


# Columns of numbers that say what a row is about.
KEYS = (
    "layer",
    "head",
    "other_layer",
    "other_head",
    "seed",
    "removed",
    "penalty",
    "step",
    "kept",
    "total",
)


def facts_of(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and word of a JSON file by its path, but for times and places."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if not NOT_NUMBERS.search(str(key).lower()):
                yield from facts_of(inner, f"{path}/{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from facts_of(inner, f"{path}/{number}")
    elif not (isinstance(value, str) and ("/" in value or "\\" in value)):
        yield path, value


def lines_of(file: Path) -> Iterator[tuple[str, str]]:
    """The lines of a text or, without its tags and scripts, of a page."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".html":
        text = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", text, flags=re.DOTALL)
        text = html.unescape(re.sub(r"<[^>]+>", "\n", text))
    lines = [
        line.strip() for line in text.splitlines() if line.strip() and not TOOK.match(line.strip())
    ]
    for number, line in enumerate(lines, start=1):
        yield f"line {number}", line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    making = modes.add_parser("make")
    making.add_argument("inputs", type=Path)
    running = modes.add_parser("run")
    running.add_argument("inputs", type=Path)
    running.add_argument("out", type=Path)
    running.add_argument("words", nargs="*")
    comparing = modes.add_parser("compare")
    comparing.add_argument("out", type=Path)
    comparing.add_argument("other", type=Path)
    comparing.add_argument("--changes", type=Path)
    comparing.add_argument("--tolerance", type=float, default=0.0, help="as a share; 0 for equal")
    comparing.add_argument("--pages", action="store_true", help="the text of pages, too")
    given = parser.parse_args()
    if given.mode == "make":
        make(given.inputs)
    elif given.mode == "run":
        sys.exit(min(1, run(given.inputs, given.out, given.words)))
    else:
        changes = Changes.read(given.changes)
        kinds = (*KINDS, ".html") if given.pages else KINDS
        sys.exit(min(1, compare(given.out, given.other, changes, given.tolerance, kinds)))


if __name__ == "__main__":
    main()
