"""How quick the lab is: on a random model of Multi30k's size, and with many users at once.

    python benchmarks/lab.py                        # 3 + 3 layers, 8 heads, width 256
    python benchmarks/lab.py --users 20 --seconds 60
    python benchmarks/lab.py --large                # also a BERT of 72 heads and a GPT-2 of 144, random weights
    python benchmarks/lab.py --model FOLDER --sentence "When Mary and John went to the store, John gave a drink to"
    python benchmarks/lab.py --model whisper-base --audio words.csv --sentence 000.wav

A real server on loopback answers; times are those a client sees. `toggle` is a new head off and the new translation of
a sentence of 20 tokens (beam 5); `all heads` the exact ablation of every head. First paint is Chromium's own number for
a page that was never open before, and `heads shown` when all small maps are there. The processor time is what a machine
with nothing else to do would need on one thread.
"""

from __future__ import annotations

import argparse
import itertools
import json
import queue
import random
import shutil
import statistics
import threading
import time
from typing import Any

import requests
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

import headwise as hw
from headwise.core.options import Architecture
from headwise.faces.lab.server import serve
from headwise.faces.lab.session import Session
from headwise.models.training.tokenizer import learn_subwords
from headwise.models.training.translation_model import build_model


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--users", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--model", help="a checkpoint, instead of random weights")
    parser.add_argument("--sentence", help="with --model; of a speech model, a recording's name")
    parser.add_argument("--audio", help="a speech model's table of recordings")
    options = parser.parse_args()
    if (options.model is None) != (options.sentence is None):
        parser.error("--model and --sentence belong together: give both or none")
    print(json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads()}))
    if options.model:
        session = Session.open(options.model, audio=options.audio)
        model = session.model
        place = served(session)
        time_model(model.name, model, place, options.sentence, options.rounds)
        first_paint(place, options.sentence)
        return
    tokenizer, sentence = words()
    model = hw.Model(build_model(Architecture(), tokenizer, 0), tokenizer, "random")
    # random weights never end a sentence: its length is that of the source, as in a trained model
    model.hf.generation_config.exponential_decay_length_penalty = (18, 2.0)
    place = served(Session(model))
    time_model("3 + 3 layers, 8 heads, width 256", model, place, sentence, options.rounds)
    first_paint(place, sentence)
    if options.users:
        crowd(place, sentence, [str(head) for head in model.heads], options.users, options.seconds)
    if options.large:
        size = {
            "vocab_size": 30_522,
            "num_hidden_layers": 6,
            "hidden_size": 384,
            "intermediate_size": 1536,
        }
        bert = BertForMaskedLM(BertConfig(**size, num_attention_heads=12, pad_token_id=0))
        gpt = GPT2LMHeadModel(GPT2Config())
        for name, hf in (("BERT, 6 layers, 72 heads", bert), ("GPT-2, 12 layers, 144 heads", gpt)):
            other = hw.Model(hf, tokenizer, name)
            time_model(name, other, served(Session(other)), sentence, 3)


def words() -> tuple[PreTrainedTokenizerFast, str]:
    """A subword model of invented words, with a mask token, and a sentence of 20 tokens."""
    draw = random.Random(0)
    lexicon = [
        "".join(draw.choices("abcdefghijklmnoprstu", k=draw.randint(2, 7))) for _ in range(4000)
    ]
    tokenizer = learn_subwords([" ".join(draw.choices(lexicon, k=12)) for _ in range(3000)], 7_999)
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    for count in range(5, 20):
        sentence = " ".join(lexicon[:count])
        if len(tokenizer(sentence)["input_ids"]) >= 20:
            break
    return tokenizer, sentence


def served(session: Session) -> str:
    said: queue.Queue[str] = queue.Queue()
    threading.Thread(
        target=serve, args=(session, "127.0.0.1", 0, False, said.put), daemon=True
    ).start()
    return said.get(timeout=60)


def ask(
    session: requests.Session, place: str, name: str, **question: Any
) -> tuple[float, dict[str, Any]]:
    """Seconds, and the answer."""
    start = time.perf_counter()
    reply = session.post(f"{place}ask/{name}", json=question, timeout=600)
    last = json.loads(reply.content.splitlines()[-1])
    if reply.status_code != 200 or "answer" not in last:
        raise RuntimeError(f"{reply.status_code}: {last}")
    return time.perf_counter() - start, last["answer"]


def time_model(name: str, model: hw.Model, place: str, sentence: str, rounds: int) -> None:
    session, heads = requests.Session(), [str(head) for head in model.heads]
    first, answer = ask(session, place, "inspect", text=sentence)
    toggles, cost = [], time.process_time()
    for turn in range(rounds):
        toggles.append(
            ask(session, place, "inspect", text=sentence, gates={heads[-1 - turn]: 0})[0]
        )
    toggle_cost, cost = (time.process_time() - cost) / rounds, time.process_time()
    everyone = [ask(session, place, "head_effects", text=sentence)[0] for _ in range(3)]
    every_cost = (time.process_time() - cost) / 3
    tokens = f"{len(answer['source']['tokens'])} tokens"
    tokens += f", {len(answer['target']['tokens'])} written" if answer["target"] else ""
    print(f"{name}: {tokens}; first answer {first:.3f} s")
    print(f"  toggle {spread(toggles)}, processor {toggle_cost:.3f} s")
    print(f"  all heads {spread(everyone)}, processor {every_cost:.3f} s", flush=True)


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} s ({min(values):.3f} to {max(values):.3f})"


def first_paint(place: str, sentence: str) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        print("first paint: there is no chromium on this machine")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        paints, shown = [], []
        for _ in range(5):
            page = browser.new_context().new_page()
            start = time.perf_counter()
            page.goto(f"{place}#text={sentence.replace(' ', '+')}")
            page.locator("[data-head] canvas").last.wait_for()
            shown.append(time.perf_counter() - start)
            paints.append(
                page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
                / 1000
            )
        browser.close()
    print(f"first paint {spread(paints)}; heads shown {spread(shown)}", flush=True)


def crowd(place: str, sentence: str, heads: list[str], users: int, seconds: float) -> None:
    """Every user switches a head off, waits for the answer, and switches another one off."""
    times: list[list[float]] = [[] for _ in range(users)]
    errors: list[str] = []
    end = time.perf_counter() + seconds

    def use(user: int) -> None:
        session = requests.Session()
        for turn in itertools.count(user):
            if time.perf_counter() > end:
                return
            try:
                gates = {heads[turn % len(heads)]: 0}
                times[user].append(ask(session, place, "inspect", text=sentence, gates=gates)[0])
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=use, args=(user,)) for user in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every, counts = [t for one in times for t in one], [len(one) for one in times]
    answers = f"{len(every)} answers ({min(counts)} to {max(counts)} a user), {len(errors)} errors"
    print(
        f"{users} users, {seconds:.0f} s: {answers}; answer {spread(every)}",
        *errors[:3],
        flush=True,
    )


if __name__ == "__main__":
    main()
