"""A pruned language model beside the whole one in each engine: size, decoding speed, memory, short and long context.

    python benchmarks/engines.py MODEL PRUNED --context 128 1920 --batch 1 16 --rounds 3

Both are exported in float32 and decode greedily after a context of random tokens. Each measurement is a process of its
own, the two models in turn; speed is tokens per second of decoding alone, without the reading of the context: median
and range over rounds. `expected` is the ratio by bytes: one step reads all weights but the input embeddings once, and
the keys and values of every sequence.

    python benchmarks/engines.py MODEL PRUNED --text FILE --beam 4

compares transformers' `generate` and CTranslate2 on the translation of a text: processor time, and equal lines.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

STEPS = 32
ENGINES = {
    "torch": "PyTorch (transformers)",
    "gguf": "llama.cpp",
    "ct2": "CTranslate2",
    "onnx": "ONNX Runtime",
}


def decode_torch(folder: Path, prompts: list[list[int]], threads: int) -> float:
    """Seconds of STEPS decoding steps."""
    import torch

    import headwise as hw

    torch.set_num_threads(threads)
    model = hw.load(folder).hf
    with torch.inference_mode():
        out = model(torch.tensor(prompts), use_cache=True, logits_to_keep=1)
        start = time.perf_counter()
        for _ in range(STEPS):
            new = out.logits[:, -1:].argmax(-1)
            out = model(new, past_key_values=out.past_key_values, use_cache=True)
        return time.perf_counter() - start


def decode_gguf(folder: Path, prompts: list[list[int]], threads: int) -> float:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_parallel, params.port = str(folder / "model.gguf"), len(prompts), 0
    params.n_ctx = len(prompts) * (len(prompts[0]) + STEPS + 8)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.warmup, params.verbosity = False, -1
    server, lock, ready = (
        xllamacpp.Server(params),
        threading.Lock(),
        threading.Barrier(len(prompts)),
    )
    spans: list[tuple[float, float]] = []

    def ask(prompt: list[int], count: int) -> None:
        body = {
            "prompt": prompt,
            "n_predict": count,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": True,
        }
        request = urllib.request.Request(
            server.listening_address + "/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=3600).read()

    def one(place: int) -> None:
        slot = prompts[place]
        ask(slot, 1)
        ready.wait()
        start = time.perf_counter()
        ask(slot, STEPS)
        with lock:
            spans.append((start, time.perf_counter()))

    workers = [threading.Thread(target=one, args=[place]) for place in range(len(prompts))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return max(end for _, end in spans) - min(start for start, _ in spans)


def decode_ct2(folder: Path, prompts: list[list[int]], threads: int) -> float:
    import ctranslate2

    engine = ctranslate2.Generator(
        str(folder), compute_type="float32", intra_threads=threads, inter_threads=1
    )
    words = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    starts = [[words[token] for token in prompt] for prompt in prompts]

    def seconds(count: int) -> float:
        start = time.perf_counter()
        engine.generate_batch(
            starts,
            max_length=count,
            min_length=count,
            sampling_topk=1,
            include_prompt_in_result=False,
            max_batch_size=len(starts),
        )
        return time.perf_counter() - start

    seconds(1)
    first = seconds(1)
    return seconds(1 + STEPS) - first


def decode_onnx(folder: Path, prompts: list[list[int]], threads: int) -> float:
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    batch, names = (
        len(prompts),
        [one for one in session.get_inputs() if one.name.startswith("past")],
    )
    past = {one.name: np.zeros((batch, one.shape[1], 0, one.shape[3]), np.float32) for one in names}
    new, length, start = np.array(prompts), len(prompts[0]), 0.0
    for step in range(STEPS + 1):
        if step == 1:
            start = time.perf_counter()
        mask = np.ones((batch, length + step), np.int64)
        logits, *states = session.run(None, {"input_ids": new, "attention_mask": mask, **past})
        new, past = logits[:, -1:].argmax(-1), dict(zip(past, states, strict=True))
    return time.perf_counter() - start


def work(engine: str, folder: Path, batch: int, context: int, threads: int, words: int) -> None:
    """One measurement, as a line of JSON: tokens per second, and peak memory of the process in bytes."""
    import random

    draw = random.Random(1)
    prompts = [[draw.randrange(4, words) for _ in range(context)] for _ in range(batch)]
    seconds = globals()[f"decode_{engine}"](folder, prompts, threads)
    status = Path("/proc/self/status").read_text(
        encoding="utf-8"
    )  # getrusage's peak would be the parent's
    (peak,) = re.findall(r"VmHWM:\s+(\d+)", status)
    print("RESULT", json.dumps({"speed": batch * STEPS / seconds, "memory": 1024 * int(peak)}))


def measured(
    engine: str, folder: Path, batch: int, context: int, threads: int, words: int
) -> dict[str, float]:
    given = [engine, str(folder), str(batch), str(context), str(threads), str(words)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, __file__, "--worker", *given],
        capture_output=True,
        text=True,
        env=environment,
    )
    lines = [line for line in done.stdout.splitlines() if "RESULT " in line]
    if not lines:
        raise SystemExit(f"{engine} {folder.name} failed: {done.stderr[-2000:]}")
    return dict(json.loads(lines[-1].partition("RESULT ")[2]))


def translations(folders: list[Path], source: Path, beam: int, rounds: int, threads: int) -> None:
    """A row for each model: processor seconds of both engines (medians), ratios, the share of equal lines."""
    import torch

    import headwise as hw
    from headwise.core.options import Engine, Search
    from headwise.data.lines import read_lines
    from headwise.models.decoding.translator import translate

    torch.set_num_threads(threads)
    lines = list(read_lines(source))
    print("| model | generate, s | CTranslate2, s | ratio | by the clock | equal lines |")
    print("|---|---|---|---|---|---|")
    for folder in folders:
        model = hw.load(folder)
        spent: dict[Engine, list[tuple[float, float]]] = {"transformers": [], "ct2": []}
        texts = {}
        for _ in range(rounds):
            for engine, times in spent.items():
                writer, start = model.translator(engine), (time.process_time(), time.perf_counter())
                texts[engine], _ = translate(writer, lines, Search(beam=beam))
                times.append((time.process_time() - start[0], time.perf_counter() - start[1]))
        (slow, slow_clock), (fast, fast_clock) = (
            map(statistics.median, zip(*t, strict=True)) for t in spent.values()
        )
        equal = statistics.mean(a == b for a, b in zip(*texts.values(), strict=True))
        print(
            f"| {folder.name} | {slow:.1f} | {fast:.1f} | {slow / fast:.2f} | {slow_clock / fast_clock:.2f} "
            f"| {equal:.1%} |",
            flush=True,
        )


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        engine, folder, *numbers = sys.argv[2:]
        work(engine, Path(folder), *map(int, numbers))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("pruned", type=Path, nargs="?")
    parser.add_argument("--context", type=int, nargs="+", default=[128, 1920])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--text", type=Path, help="translate this text, a sentence a line, instead")
    parser.add_argument("--beam", type=int, default=4)
    options = parser.parse_args()
    if not options.pruned:
        print("Skipped: name a model and a pruned one.")
        return
    if options.source:
        translations(
            [options.model, options.pruned],
            options.source,
            options.beam,
            options.rounds,
            options.threads,
        )
        return

    import torch
    import transformers

    import headwise as hw

    models = {"whole": hw.load(options.model), "pruned": hw.load(options.pruned)}
    words = models["whole"].hf.config.vocab_size
    embedded = {
        name: 0
        if model.hf.config.tie_word_embeddings
        else model.hf.get_input_embeddings().weight.nbytes
        for name, model in models.items()
    }

    def read(name: str, batch: int, context: int) -> int:
        """Bytes that a step of decoding reads."""
        model = models[name]
        return model.weight_bytes - embedded[name] + batch * model.cache_size(context + STEPS // 2)

    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folders = {("torch", "whole"): options.model, ("torch", "pruned"): options.pruned}
        for engine in [engine for engine in options.engines if engine != "torch"]:
            for name, model in models.items():
                folders[engine, name] = scratch / f"{name}-{engine}"
                hw.export(model, engine, folders[engine, name], "float32")
        print(
            f"torch {torch.__version__}, transformers {transformers.__version__}, {platform.processor()}, "
            f"{options.threads} threads, {STEPS} tokens, {options.rounds} rounds"
        )
        print(
            "| engine | size, MB | batch | context | tokens/s whole | pruned | ratio | expected | memory, MB |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for engine in options.engines:
            sizes = [
                sum(f.stat().st_size for f in folders[engine, n].rglob("*") if f.is_file())
                for n in models
            ]
            for batch in options.batch:
                for context in options.context:
                    runs: dict[str, list[dict[str, float]]] = {name: [] for name in models}
                    for _ in range(options.rounds):
                        for name, found in runs.items():
                            found.append(
                                measured(
                                    engine,
                                    folders[engine, name],
                                    batch,
                                    context,
                                    options.threads,
                                    words,
                                )
                            )
                    speeds = {name: [one["speed"] for one in found] for name, found in runs.items()}
                    pairs = [
                        new / old
                        for old, new in zip(speeds["whole"], speeds["pruned"], strict=True)
                    ]
                    memory = [
                        statistics.median(one["memory"] for one in found) for found in runs.values()
                    ]
                    expected = read("whole", batch, context) / read("pruned", batch, context)
                    cells = [
                        ENGINES[engine],
                        " → ".join(f"{size / 1e6:.1f}" for size in sizes),
                        str(batch),
                        str(context),
                        *(f"{statistics.median(speeds[name]):.0f}" for name in models),
                        f"{statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})",
                        f"{expected:.2f}",
                        " → ".join(f"{one / 1e6:.0f}" for one in memory),
                    ]
                    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
