"""Training on Hugging Face's Seq2SeqTrainer, with four changes for small translation models on CPU.

1. batches of tokens in a few fixed shapes (`batches`); 2. explicit attention, whose backward pass on CPU is ten times
faster than sdpa's; 3. the loss without logits in memory (`loss`); 4. fast dropout (`dropout`). Afterwards the model is
a stock model again. Only checkpoints with a completion marker are resumed.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.trainer_callback import PrinterCallback, TrainerCallback, TrainerState

from headwise.attention import Discovery, capture, evaluating
from headwise.errors import HeadwiseError, NotWritten
from headwise.heads import Site, write_text
from headwise.progress import Report, silent
from headwise.translation.batches import IGNORED, Collator, Encoded, TokenBatches
from headwise.translation.dropout import FastDropout
from headwise.translation.loss import summed_loss

MARKER = "complete"
SCHEDULES = "^(inverse_sqrt|constant_with_warmup|linear|cosine)$"
WEIGHTS = "model.safetensors"
LOGGED = {"loss": "loss", "learning_rate": "learning_rate", "eval_loss": "dev_loss"}


class Recipe(BaseModel):
    """How to train. The rate rises to `learning_rate` in `warmup` updates, then falls with the inverse square root of
    the update (Vaswani et al. 2017)."""

    model_config = ConfigDict(extra="forbid")

    epochs: int = Field(default=40, ge=1)
    batch_tokens: int = Field(default=5040, ge=16, description="positions a side in one batch, padding included")
    accumulate: int = Field(default=1, ge=1, description="batches per update, over all processes")
    learning_rate: float = Field(default=1e-3, gt=0)
    warmup: int = Field(default=1000, ge=0)
    schedule: str = Field(default="inverse_sqrt", pattern=SCHEDULES)
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    clip: float = Field(default=1.0, gt=0)
    patience: int = Field(default=10, ge=1, description="epochs without a better dev loss before training stops")
    average: int = Field(default=5, ge=1, description="how many of the last checkpoints are averaged")
    dtype: str = Field(default="auto", pattern="^(auto|fp32|bf16)$", description="auto: bf16 where it is native")


@dataclass(frozen=True)
class Training:
    """What every training has in common: data, recipe, a folder for checkpoints, a seed, a progress reporter."""

    data: Encoded
    dev: Encoded
    recipe: Recipe
    work: Path
    seed: int = 1
    progress: Report = silent


@dataclass(frozen=True)
class Gated:
    """What a training with gates adds.

    gates: by site, as `capture` takes them. before: called before every forward, to draw the gates. penalty: a cost per
    target token. groups: parameter groups of the optimizer, those of the model included.
    """

    gates: Mapping[Site, Callable[[], Tensor]]
    before: Callable[[], None]
    penalty: Callable[[], Tensor]
    groups: list[dict[str, Any]]


class TranslationTrainer(Seq2SeqTrainer):
    """Seq2SeqTrainer with token batches, a dev loss per token, a completion marker on checkpoints, and parameter groups
    with learning rates of their own.

    seconds: training time of interrupted runs, up to the checkpoint from which this one resumes.
    """

    def __init__(
        self, *, training: Training, groups: list[dict[str, Any]] | None, seconds: float, **kwargs: Any
    ) -> None:
        super().__init__(train_dataset=training.data, eval_dataset=training.dev, **kwargs)
        self.data, self.dev, self.recipe, self.groups = training.data, training.dev, training.recipe, groups
        self.begun = time.perf_counter() - seconds
        self.compute_loss_func = lambda *_: None  # makes the Trainer count target tokens for compute_loss

    def get_train_dataloader(self) -> Any:
        sampler = TokenBatches(self.data, self.recipe.batch_tokens, self.args.seed, multiple=self.recipe.accumulate)
        collate = Collator(self.processing_class, self.model.config.decoder_start_token_id, sampler.shapes)
        dataset: Any = self.data
        ahead: Any = {"num_workers": 2, "pin_memory": True} if self.args.device.type == "cuda" else {}
        return self.accelerator.prepare(DataLoader(dataset, batch_sampler=sampler, collate_fn=collate, **ahead))

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The mean loss over the target tokens of an update, including those of other batches and processes."""
        loss = model(**inputs, smoothing=self.recipe.label_smoothing) / num_items_in_batch
        loss = loss * self.accelerator.num_processes  # whose gradients are averaged
        return (loss, {}) if return_outputs else loss

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        groups = self.groups or [{"params": [p for p in self.model.parameters() if p.requires_grad]}]
        rate, decay = self.recipe.learning_rate, self.recipe.weight_decay
        self.optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), eps=1e-9, weight_decay=decay, fused=True)
        return self.optimizer

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """The dev loss; the mean over processes, so that all make the same decisions."""
        loss = dev_loss(self.model, self.dev, self.processing_class, self.recipe.batch_tokens)
        loss = float(self.accelerator.reduce(torch.tensor(loss, dtype=torch.float64, device=self.args.device), "mean"))
        self.log({"eval_loss": loss})
        self.control: Any = self.callback_handler.on_evaluate(self.args, self.state, self.control, {"eval_loss": loss})
        return {"eval_loss": loss}

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, and stop all processes together when a loss diverged."""
        super().log(logs, start_time)
        for name in ("loss", "eval_loss"):
            refuse_diverged(logs.get(name, 0.0), self.state.global_step, self.recipe)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        try:
            super()._save_checkpoint(model, trial)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise NotWritten(f"The checkpoint {folder} could not be written ({error}): free some space.") from None
        self.accelerator.wait_for_everyone()  # every process has added its random state
        if self.args.should_save:
            facts = {"seconds": time.perf_counter() - self.begun, "finished": self.control.should_training_stop}
            write_text(folder / MARKER, json.dumps(facts))
        self.accelerator.wait_for_everyone()


@contextlib.contextmanager
def loss_forward(
    model: PreTrainedModel, before: Callable[[], None] | None = None, extra: Callable[[], Tensor] | None = None
) -> Iterator[None]:
    """Inside the block `model(**batch, smoothing=ε)` gives the summed loss of a batch, in one forward for data-parallel
    training. before: called first (gates draw their noise). extra: a penalty per target token, added to the loss.
    """

    def forward(
        input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor, labels: Tensor, smoothing: float
    ) -> Tensor:
        if before:
            before()
        source = model.get_encoder()(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        states = model.get_decoder()(
            input_ids=decoder_input_ids, encoder_hidden_states=source, encoder_attention_mask=attention_mask,
            use_cache=False,
        ).last_hidden_state  # fmt: skip
        if getattr(model.config, "scale_decoder_outputs", False):  # T5 with tied embeddings
            states = states * model.config.d_model**-0.5
        bias = getattr(model, "final_logits_bias", None)
        loss = summed_loss(states, model.get_output_embeddings().weight, bias, labels, smoothing)
        return loss + extra() * (labels != IGNORED).sum() if extra and model.training else loss

    model.forward = forward
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


def refuse_diverged(loss: float, updates: int, recipe: Recipe) -> None:
    """Raise HeadwiseError for a loss that is not a finite number."""
    if not math.isfinite(loss):
        raise HeadwiseError(
            f"The training diverged: the loss is not a number ({loss}) after {updates} updates; lower learning_rate, "
            f"which is {recipe.learning_rate:g}, or raise warmup, which is {recipe.warmup}."
        )


class Watch(TrainerCallback):
    """Reports progress, and stops when the dev loss has not fallen for `patience` epochs.

    It has no state: the history is in the checkpoints, so a resumed run stops where an uninterrupted one does.
    """

    def __init__(self, patience: int | None, progress: Report) -> None:
        self.patience, self.progress = patience, progress

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        losses = dev_losses(state)
        best = f", loss {min(losses):.3f}" if losses else ""
        self.progress(state.global_step / state.max_steps, f"epoch {state.epoch:.1f}{best}")

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_log = True  # a logged mean never spans a checkpoint

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        losses = dev_losses(state)
        if self.patience and len(losses) - 1 - losses.index(min(losses)) >= self.patience:
            control.should_training_stop = True


def dev_losses(state: TrainerState) -> list[float]:
    return [entry["eval_loss"] for entry in state.log_history if "eval_loss" in entry]


def fit(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, found: Discovery, training: Training,
    gated: Gated | None = None, callbacks: Sequence[TrainerCallback] = (), patience: int | None = None, keep: int = 2,
) -> dict[str, float]:  # fmt: skip
    """Train a model in place, from the last complete checkpoint in `work` if there is one; writes `log.csv` there.

    patience: epochs without a better dev loss before training stops. keep: how many checkpoints stay. Returns the
    seconds it took (of interrupted runs, up to their last checkpoint, too) and the number of updates. Raises
    HeadwiseError as soon as a training or dev loss is not a number; what was trained since is not kept.
    """
    recipe, work = training.recipe, training.work
    arguments = training_arguments(training, keep, model.device.type)
    arguments.ddp_find_unused_parameters = gated is not None  # a loaded model's fixed positions never get a gradient
    with PartialState().main_process_first():
        resumed = resume_point(work)
    facts = read_marker(resumed)
    if resumed and facts["finished"]:
        load_model(model, resumed / WEIGHTS, strict=False)
    else:
        caching = model.config.use_cache
        trainer = TranslationTrainer(
            training=training, groups=gated.groups if gated else None, seconds=facts["seconds"], model=model,
            args=arguments, processing_class=tokenizer,
            callbacks=[Watch(patience, training.progress), *callbacks],
        )  # fmt: skip
        trainer.remove_callback(PrinterCallback)
        explicit = model.device.type == "cpu"
        fast: contextlib.AbstractContextManager[Any] = FastDropout() if explicit else contextlib.nullcontext()
        try:
            with (
                capture(model, found, gates=gated.gates if gated else None, explicit=explicit),
                loss_forward(model, gated.before if gated else None, gated.penalty if gated else None),
                fast,
            ):
                trainer.train(resume_from_checkpoint=str(resumed) if resumed else None)
        finally:
            model.config.use_cache = caching  # the Trainer turns it off
    last = checkpoints(work)[-1]
    state = TrainerState.load_from_json(str(last / "trainer_state.json"))
    refuse_diverged(dev_losses(state)[-1], state.global_step, recipe)
    if PartialState().is_main_process:
        write_text(work / "log.csv", tidy(state))
    return {"seconds": read_marker(last)["seconds"], "updates": state.global_step}


def training_arguments(training: Training, keep: int, device: str) -> Seq2SeqTrainingArguments:
    """The Trainer's arguments. `accumulate` counts batches per update over all processes, the Trainer those of one."""
    recipe, seed = training.recipe, training.seed
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(training.work), num_train_epochs=recipe.epochs, gradient_accumulation_steps=1,
        learning_rate=recipe.learning_rate, lr_scheduler_type=recipe.schedule, warmup_steps=recipe.warmup,
        max_grad_norm=recipe.clip, seed=seed, data_seed=seed, eval_strategy="epoch", save_strategy="epoch",
        save_total_limit=keep, logging_strategy="steps", logging_steps=20, disable_tqdm=True,
        bf16=bfloat16(recipe.dtype, device), report_to=["tensorboard"], remove_unused_columns=False,
        accelerator_config={"even_batches": False, "non_blocking": device == "cuda"},
        logging_nan_inf_filter=False, log_level="error", use_cpu=device == "cpu",
    )  # fmt: skip
    processes = arguments.world_size
    if recipe.accumulate % processes:
        raise HeadwiseError(
            f"accumulate = {recipe.accumulate} batches per update cannot be divided by {processes} processes."
        )
    arguments.gradient_accumulation_steps = recipe.accumulate // processes
    return arguments


def checkpoints(work: Path) -> list[Path]:
    """The complete checkpoints, oldest first."""
    found = (marker.parent for marker in work.glob(f"checkpoint-*/{MARKER}"))
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def resume_point(work: Path) -> Path | None:
    """The last complete checkpoint. Deletes incomplete ones."""
    complete = checkpoints(work)
    for path in set(work.glob("checkpoint-*")) - set(complete):
        shutil.rmtree(path)
    return complete[-1] if complete else None


def read_marker(checkpoint: Path | None) -> dict[str, Any]:
    """The content of a completion marker: seconds of training so far, and whether training was finished."""
    if checkpoint is None:
        return {"seconds": 0.0, "finished": False}
    facts: dict[str, Any] = json.loads((checkpoint / MARKER).read_text())
    return facts


def tidy(state: TrainerState) -> str:
    """The Trainer's log, as CSV."""
    lines = ["step,epoch,measure,value"]
    for entry in state.log_history:
        start = f"{entry['step']},{entry['epoch']:.4f}"
        lines += [f"{start},{LOGGED[name]},{value:.8g}" for name, value in entry.items() if name in LOGGED]
    return "\n".join(lines) + "\n"


def average(model: PreTrainedModel, work: Path, count: int) -> int:
    """Load the mean of the last `count` checkpoints into the model (Vaswani et al. 2017, section 6.1); returns their
    number."""
    found = checkpoints(work)[-count:]
    total: dict[str, Tensor] = {}
    for path in found:
        load_model(model, path / WEIGHTS, strict=False)
        for name, tensor in model.state_dict().items():
            wide = tensor.to(torch.float64, copy=True)
            total[name] = total[name] + wide if name in total else wide
    dtypes = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    model.load_state_dict({name: (tensor / len(found)).to(dtypes[name]) for name, tensor in total.items()})
    return len(found)


def converge(
    hf: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, found: Discovery, training: Training
) -> dict[str, Any]:  # fmt: skip
    """Train a fresh model to convergence, and use the mean of the last checkpoints if that lowers the dev loss.

    Returns what `fit` does, the dev loss, and over how many checkpoints the model is averaged.
    """
    recipe = training.recipe
    cost = fit(hf, tokenizer, found, training, patience=recipe.patience, keep=max(recipe.average, 2))
    with loss_forward(hf):
        last = dev_loss(hf, training.dev, tokenizer, recipe.batch_tokens)
        averaged = average(hf, training.work, recipe.average)
        mean = dev_loss(hf, training.dev, tokenizer, recipe.batch_tokens)
    if mean > last:
        averaged = average(hf, training.work, 1)
    return {**cost, "dev_loss": min(mean, last), "averaged": averaged}


def bfloat16(dtype: str, device: str) -> bool:
    """Whether to compute in bfloat16: `bf16`, or `auto` on a processor with native bfloat16 products."""
    if dtype != "auto":
        return dtype == "bf16"
    return bool(torch.cpu._is_avx512_bf16_supported() if device == "cpu" else torch.cuda.is_bf16_supported())
