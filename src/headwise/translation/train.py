"""Training on Hugging Face's Seq2SeqTrainer, with the four things a small translation model on CPU needs.

1. batches of tokens in a few fixed shapes (`batches`); 2. attention through the seam in its explicit form, whose backward on CPU is ten times faster than
sdpa's; 3. the loss without the logits (`loss`); 4. dropout at the speed of memory (`dropout`). Everything is undone afterwards.
Checkpoints are resumed only when their completion marker is there; the last few are averaged at the end.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_model
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.trainer_callback import PrinterCallback, TrainerCallback

from headwise.attention import Discovery, capture, evaluating
from headwise.errors import HeadwiseError
from headwise.heads import Site
from headwise.translation.batches import IGNORED, Collator, Encoded, TokenBatches
from headwise.translation.dropout import FastDropout
from headwise.translation.loss import summed_loss

MARKER = "complete"


class Recipe(BaseModel):
    """How to train. The rate climbs to `learning_rate` in `warmup` updates, then falls with the inverse square root of the update (Vaswani et al. 2017)."""

    model_config = ConfigDict(extra="forbid")

    epochs: int = Field(default=40, ge=1)
    batch_tokens: int = Field(default=5040, ge=16, description="positions a side in one batch, padding included")
    accumulate: int = Field(default=1, ge=1, description="batches per update, over all processes")
    learning_rate: float = Field(default=1e-3, gt=0)
    warmup: int = Field(default=1000, ge=0)
    schedule: str = Field(default="inverse_sqrt", pattern="^(inverse_sqrt|constant_with_warmup|linear|cosine)$")
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    clip: float = Field(default=1.0, gt=0)
    patience: int = Field(default=10, ge=1, description="epochs without a better dev loss before training stops")
    average: int = Field(default=5, ge=1, description="how many of the last checkpoints are averaged")
    dtype: str = Field(default="auto", pattern="^(auto|fp32|bf16)$", description="auto: bf16 where the processor multiplies it natively")


class TranslationTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer with token batches, a completion marker on checkpoints, a dev loss per token, and room for gates with a learning rate of their own."""

    def __init__(self, *, data: Encoded, dev: Encoded, recipe: Recipe, smooth: float, groups: list[dict[str, Any]] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data, self.dev, self.recipe, self.smooth, self.groups = data, dev, recipe, smooth, groups
        self.loss_is_scaled_for_ga = True
        self.compute_loss_func = lambda *_: None  # makes the Trainer count the target tokens of an update; compute_loss below does the work

    def get_train_dataloader(self) -> DataLoader:
        sampler = TokenBatches(self.data, self.recipe.batch_tokens, self.args.seed, multiple=self.recipe.accumulate)
        collate = Collator(self.processing_class, self.model.config.decoder_start_token_id, sampler.shapes)
        loader: DataLoader = self.accelerator.prepare(DataLoader(self.data, batch_sampler=sampler, collate_fn=collate))
        return loader

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        loss = model(**inputs, smoothing=self.smooth) / num_items_in_batch * self.accelerator.num_processes
        return (loss, {}) if return_outputs else loss

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        groups = self.groups or [{"params": [p for p in self.model.parameters() if p.requires_grad]}]
        self.optimizer = torch.optim.AdamW(
            groups, lr=self.recipe.learning_rate, betas=(0.9, 0.98), eps=1e-9, weight_decay=self.recipe.weight_decay, fused=True
        )
        return self.optimizer

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        metrics = {"eval_loss": dev_loss(self.model, self.dev, self.processing_class, self.recipe.batch_tokens)}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            (Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}" / MARKER).touch()


@contextlib.contextmanager
def loss_forward(model: PreTrainedModel, before: Callable[[], None] | None = None, extra: Callable[[], Tensor] | None = None) -> Iterator[None]:
    """For the time of the block `model(**batch, smoothing=ε)` gives the summed loss of a batch, so that a data-parallel wrapper sees one forward.

    before: called first (gates draw their noise). extra: a penalty per target token, added to the loss.
    """

    def forward(input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        if before:
            before()
        states = model.base_model(
            input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids, use_cache=False
        ).last_hidden_state
        bias = getattr(model, "final_logits_bias", None)
        loss = summed_loss(states, model.get_output_embeddings().weight, bias, labels, smoothing)
        return loss + extra() * (labels != IGNORED).sum() if extra and model.training else loss

    model.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        del model.forward


def dev_loss(model: PreTrainedModel, data: Encoded, tokenizer: PreTrainedTokenizerBase, tokens: int) -> float:
    """Cross-entropy per target token in nats, without smoothing. Inside `loss_forward`."""
    sampler = TokenBatches(data, max(tokens, int(data.longest.max())), seed=0, shuffle=False)
    collate = Collator(tokenizer, model.config.decoder_start_token_id, sampler.shapes)
    total, count = 0.0, 0
    with evaluating(model), torch.no_grad():
        for indices in sampler:
            batch = {name: t.to(model.device) for name, t in collate(data.__getitems__(indices)).items()}
            total += float(model(**batch, smoothing=0.0))
            count += int((batch["labels"] != IGNORED).sum())
    return total / count


class Log(TrainerCallback):
    """Writes what the Trainer logs to a tidy CSV (`step,epoch,measure,value`), shows progress, and stops when the dev loss no longer falls."""

    def __init__(self, path: Path, patience: int | None, progress: Callable[[float, str], None]) -> None:
        self.path, self.patience, self.progress = path, patience, progress
        self.best, self.since = math.inf, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After a resume the log is cut back to the checkpoint, and the best dev loss is read from it."""
        rows = [line.split(",") for line in self.path.read_text().splitlines()[1:]] if self.path.exists() else []
        rows = [row for row in rows if int(row[0]) <= state.global_step]
        self.path.write_text("step,epoch,measure,value\n" + "".join(",".join(row) + "\n" for row in rows))
        for row in rows:
            if row[2] == "dev_loss":
                self.note(float(row[3]))

    def note(self, loss: float) -> None:
        self.best, self.since = (loss, 0) if loss < self.best else (self.best, self.since + 1)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        names = {"loss": "loss", "eval_loss": "dev_loss", "learning_rate": "learning_rate"}
        if state.is_world_process_zero:
            with self.path.open("a") as file:
                for name, value in (logs or {}).items():
                    if name in names:
                        file.write(f"{state.global_step},{state.epoch:.4f},{names[name]},{float(value):.6g}\n")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.progress(state.global_step / state.max_steps, f"epoch {state.epoch:.1f}, best dev loss {self.best:.3f}")

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **_: Any) -> None:
        self.note((metrics or {})["eval_loss"])
        if self.patience and self.since >= self.patience:
            control.should_training_stop = True


def fit(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, found: Discovery, data: Encoded, dev: Encoded, recipe: Recipe, work: Path, seed: int, *,
    gates: dict[Site, Callable[[], Tensor]] | None = None, before: Callable[[], None] | None = None, penalty: Callable[[], Tensor] | None = None,
    groups: list[dict[str, Any]] | None = None, callbacks: list[TrainerCallback] | None = None, patience: int | None = None, keep: int = 2,
    progress: Callable[[float, str], None] = lambda share, text: None,
) -> dict[str, float]:  # fmt: skip
    """Train a model in place, resuming from the last complete checkpoint in `work` if there is one. Returns seconds and tokens per second."""
    work.mkdir(parents=True, exist_ok=True)
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(work), num_train_epochs=recipe.epochs, gradient_accumulation_steps=1, learning_rate=recipe.learning_rate,
        lr_scheduler_type=recipe.schedule, warmup_steps=recipe.warmup, max_grad_norm=recipe.clip, seed=seed, data_seed=seed, eval_strategy="epoch",
        save_strategy="epoch", save_total_limit=keep, logging_strategy="steps", logging_steps=20, disable_tqdm=True, bf16=bfloat16(recipe.dtype),
        report_to=["tensorboard"], remove_unused_columns=False, accelerator_config={"even_batches": False}, log_level="error",
        use_cpu=model.device.type == "cpu", ddp_find_unused_parameters=False, dataloader_num_workers=0,
    )  # fmt: skip
    if recipe.accumulate % arguments.world_size:
        raise HeadwiseError(f"accumulate = {recipe.accumulate} batches per update cannot be shared out evenly to {arguments.world_size} processes.")
    arguments.gradient_accumulation_steps = recipe.accumulate // arguments.world_size
    log = Log(work / "log.csv", patience, progress)
    trainer = TranslationTrainer(
        data=data, dev=dev, recipe=recipe, smooth=recipe.label_smoothing, groups=groups, model=model, args=arguments, train_dataset=data, eval_dataset=dev,
        processing_class=tokenizer, callbacks=[log, *(callbacks or [])],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    start, caching = time.perf_counter(), model.config.use_cache
    before_steps = resume_point(work)
    explicit = model.device.type == "cpu"
    fast: contextlib.AbstractContextManager[Any] = FastDropout() if explicit else contextlib.nullcontext()
    with capture(model, found, gates=gates, explicit=explicit), loss_forward(model, before, penalty), fast:
        trainer.train(resume_from_checkpoint=str(before_steps) if before_steps else None)
    model.config.use_cache = caching  # the Trainer turns it off
    return {"seconds": time.perf_counter() - start, "updates": trainer.state.global_step}


def resume_point(work: Path) -> Path | None:
    """The last complete checkpoint; half-written ones are cleared away."""
    found = sorted(work.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    for path in found:
        if not (path / MARKER).exists():
            shutil.rmtree(path)
    return next((path for path in reversed(found) if path.exists()), None)


def average(model: PreTrainedModel, work: Path, count: int) -> int:
    """Put the mean of the last `count` checkpoints into the model (Vaswani et al. 2017, section 6.1). Returns how many there were."""
    found = sorted((p.parent for p in work.glob(f"checkpoint-*/{MARKER}")), key=lambda path: int(path.name.rpartition("-")[2]))[-count:]
    total: dict[str, Tensor] = {}
    for path in found:
        load_model(model, path / "model.safetensors", strict=False)
        for name, tensor in model.state_dict().items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    model.load_state_dict({name: (tensor / len(found)).to(model.state_dict()[name].dtype) for name, tensor in total.items()})
    return len(found)


def bfloat16(dtype: str) -> bool:
    """Whether to compute in bfloat16: asked for, or `auto` on a processor with native bfloat16 products."""
    if dtype != "auto":
        return dtype == "bf16"
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported()
    return bool(torch.cpu._is_avx512_bf16_supported())
