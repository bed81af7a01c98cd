"""Train a small Llama with grouped queries from plain text on one CPU core: 8 query heads on 4 key/value heads a layer.

    python examples/small_language_model.py --out runs/small-lm train.en.gz …

Byte-level tokenizer, packed blocks of 2,048 tokens, next-token loss. A stopped run goes on when the command is given
again. `runs/small-lm/model` is an ordinary folder of transformers, for `headwise score`, `prune` and `export`.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterator
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

BLOCK = 2048


def lines(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            yield from file


def learn_tokenizer(paths: list[Path], words: int) -> PreTrainedTokenizerFast:
    """Byte pairs on bytes, as in GPT-2: llama.cpp reads such a tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=words,
        special_tokens=["<s>", "</s>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(lines(paths), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def blocks(paths: list[Path], tokenizer: PreTrainedTokenizerFast, size: int) -> Dataset:
    """Every line with an end after it, packed into blocks of so many tokens."""

    def rows() -> Iterator[dict[str, list[int]]]:
        waiting: list[int] = []
        for line in lines(paths):
            waiting += [*tokenizer(line.strip()).input_ids, tokenizer.eos_token_id]
            while len(waiting) >= size:
                yield {"input_ids": waiting[:size], "labels": waiting[:size]}
                waiting = waiting[size:]

    return Dataset.from_generator(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/small-lm"))
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--words", type=int, default=4096)
    parser.add_argument("--block", type=int, default=BLOCK, help="tokens of a row")
    parser.add_argument("--rows", type=int, default=4, help="rows of an update")
    parser.add_argument(
        "--bf16",
        action="store_true",
        help="bfloat16 products: twice as fast on processors that have them",
    )
    options = parser.parse_args()
    folder = options.out / "model"
    if (folder / "tokenizer.json").exists():
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    else:
        tokenizer = learn_tokenizer(options.text, options.words)
        tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.width,
        intermediate_size=3 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=BLOCK,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    rows_at_once = min(options.rows, max(1, BLOCK // options.block))
    arguments = TrainingArguments(
        output_dir=str(options.out / "checkpoints"),
        num_train_epochs=options.epochs,
        learning_rate=2e-3,
        lr_scheduler_type="cosine",
        warmup_steps=100,
        per_device_train_batch_size=rows_at_once,
        gradient_accumulation_steps=options.rows // rows_at_once,
        weight_decay=0.1,
        adam_beta2=0.95,
        save_steps=50,
        save_total_limit=2,
        logging_steps=10,
        seed=1,
        use_cpu=True,
        bf16=options.bf16,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        LlamaForCausalLM(config),
        arguments,
        train_dataset=blocks(options.text, tokenizer, options.block),
    )
    Path(arguments.output_dir).mkdir(parents=True, exist_ok=True)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(arguments.output_dir))
    trainer.model.save_pretrained(folder)


if __name__ == "__main__":
    main()
