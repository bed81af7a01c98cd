"""Training: what is logged, that a broken run goes on bit for bit, half-written checkpoints, averaging, errors."""

from __future__ import annotations

import errno
import json
import math
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.trainer_callback import TrainerCallback, TrainerState

from headwise.core.errors import HeadwiseError
from headwise.core.options import Architecture, Gates, Search, Training
from headwise.core.progress import OnProgress, silent
from headwise.data import embedded
from headwise.data.text import ParallelText
from headwise.models.attention.discover import discover
from headwise.models.token_rows import IGNORED
from headwise.models.training.loss import dev_loss, loss_forward
from headwise.models.training.token_batches import Collator, Encoded, TokenBatches
from headwise.models.training.tokenizer import learn_subwords
from headwise.models.training.trainer import (
    TrainingSetup,
    average,
    bfloat16,
    resume_point,
    train_model,
    training_arguments,
)
from headwise.models.training.translation_model import build_model

SHAPE = Architecture(
    encoder_layers=1,
    decoder_layers=1,
    heads=4,
    width=32,
    feedforward=32,
    dropout=0.1,
    vocabulary=300,
)
RECIPE = Training(epochs=3, batch_tokens=1260, learning_rate=3e-3, warmup=10, dtype="float32")
State = dict[str, Tensor]


class Evil:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


class Crash(Exception):
    """A kill, as seen from inside."""


@dataclass
class Steps(TrainerCallback):  # type: ignore[misc]
    """Remembers the updates that were made, and crashes at one."""

    crash_at: int | None = None
    seen: list[int] = field(default_factory=list)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seen.append(state.global_step)
        if state.global_step == self.crash_at:
            raise Crash


@dataclass
class Bench:
    """Text, tokenizer and data for many short trainings; `run` trains a fresh model in a folder."""

    tokenizer: PreTrainedTokenizerBase
    data: Encoded
    dev: Encoded

    def model(self, shape: Architecture = SHAPE) -> PreTrainedModel:
        return build_model(shape, self.tokenizer, seed=1)

    def run(
        self,
        work: Path,
        recipe: Training = RECIPE,
        steps: Steps | None = None,
        shape: Architecture = SHAPE,
        progress: OnProgress = silent,
        **more: Any,
    ) -> tuple[PreTrainedModel, dict[str, float]]:
        model = self.model(shape)
        callbacks: list[Any] = [steps] if steps else []
        training = TrainingSetup(self.data, self.dev, recipe, work, 5, progress)
        return model, train_model(
            model, self.tokenizer, discover(model), training, callbacks=callbacks, **more
        )

    def dev_loss(self, model: PreTrainedModel) -> float:
        with loss_forward(model):
            return dev_loss(model, self.dev, 1260)


@pytest.fixture(scope="module")
def bench() -> Bench:
    torch.set_num_threads(1)
    pairs = embedded.pairs("train", 160)
    dev = embedded.pairs("dev", 20)
    tokenizer = learn_subwords((side for pair in pairs for side in pair), SHAPE.vocabulary)
    texts = (ParallelText.from_pairs(part) for part in (pairs, dev))
    return Bench(tokenizer, *(Encoded(text, tokenizer, SHAPE.max_length) for text in texts))


@pytest.fixture(scope="module")
def unbroken(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> tuple[State, str, int]:
    """The weights, the log and the updates of an epoch of a training that nobody broke."""
    work = tmp_path_factory.mktemp("unbroken")
    model, cost = bench.run(work)
    return state_of(model), (work / "log.csv").read_text(), int(cost["updates"]) // RECIPE.epochs


def state_of(model: PreTrainedModel) -> State:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_equal(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def names(work: Path) -> list[str]:
    return sorted(path.name for path in work.glob("checkpoint-*"))


class TestLog:
    def test_it_is_tidy_and_the_dev_loss_falls(
        self, bench: Bench, unbroken: tuple[State, str, int], tmp_path: Path
    ) -> None:
        (tmp_path / "log.csv").write_text(unbroken[1])
        log, epoch = pd.read_csv(tmp_path / "log.csv"), unbroken[2]
        assert list(log.columns) == ["step", "epoch", "measure", "value"]
        dev = log[log.measure == "dev_loss"]
        assert list(dev.step) == [epoch, 2 * epoch, 3 * epoch] and list(dev.epoch) == [1, 2, 3]
        assert dev.value.is_monotonic_decreasing
        assert {*range(20, 3 * epoch + 1, 20), *dev.step} == set(log[log.measure == "loss"].step)

    def test_the_rate_follows_its_schedule(
        self, unbroken: tuple[State, str, int], tmp_path: Path
    ) -> None:
        (tmp_path / "log.csv").write_text(unbroken[1])
        log = pd.read_csv(tmp_path / "log.csv")
        for row in log[log.measure == "learning_rate"].itertuples():
            step = int(row.step) - 1  # the rate of the update that was made
            rate = 3e-3 * min(step / 10, math.sqrt(10 / max(step, 1)))
            assert row.value == pytest.approx(rate, rel=1e-3)

    def test_the_loss_is_the_mean_over_all_tokens_of_an_update(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        """Accumulated batches have different numbers of target tokens: the sum over both by the count over both."""
        shape = SHAPE.model_copy(update={"dropout": 0.0})
        sampler = TokenBatches(bench.data, 1260, seed=5, multiple=4)
        assert len(sampler) == 4
        recipe = RECIPE.model_copy(update={"epochs": 1, "accumulate": 4})
        bench.run(tmp_path, recipe, shape=shape)
        log = pd.read_csv(tmp_path / "log.csv").set_index("measure").value
        model, total, count = bench.model(shape), 0.0, 0
        collate = Collator(bench.tokenizer, model.config.decoder_start_token_id, sampler.shapes)
        with loss_forward(model), torch.no_grad():
            for indices in sampler:
                batch = collate(bench.data.__getitems__(indices))
                total += float(model(**batch, smoothing=0.1))
                count += int((batch["labels"] >= 0).sum())
        assert log["loss"] == pytest.approx(total / count, rel=1e-6)


class TestResume:
    @pytest.mark.parametrize(
        "where", ["before a checkpoint", "just after one", "in the middle of an epoch"]
    )
    def test_a_broken_run_goes_on_bit_for_bit(
        self, bench: Bench, unbroken: tuple[State, str, int], tmp_path: Path, where: str
    ) -> None:
        weights, log, epoch = unbroken
        crash = {"before a checkpoint": 2, "just after one": epoch + 1}.get(
            where, epoch + epoch // 2
        )
        with pytest.raises(Crash):
            bench.run(tmp_path, steps=Steps(crash))
        steps = Steps()
        model, cost = bench.run(tmp_path, steps=steps)
        first = 1 if crash < epoch else epoch + 1
        assert steps.seen == list(range(first, 3 * epoch + 1)) and cost["updates"] == 3 * epoch
        assert_equal(state_of(model), weights)
        assert (tmp_path / "log.csv").read_text() == log

    def test_killed_while_a_checkpoint_is_written(
        self,
        bench: Bench,
        unbroken: tuple[State, str, int],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        weights, log, epoch = unbroken
        save, second = TrainerState.save_to_json, f"checkpoint-{2 * epoch}"

        def die(self: TrainerState, path: str) -> None:
            if second in path:
                raise Crash
            save(self, path)

        monkeypatch.setattr(TrainerState, "save_to_json", die)
        with pytest.raises(Crash):
            bench.run(tmp_path)
        monkeypatch.undo()
        assert (tmp_path / second / "model.safetensors").exists()
        assert not (tmp_path / second / "complete").exists()
        steps = Steps()
        model, _ = bench.run(tmp_path, steps=steps)
        assert steps.seen[0] == epoch + 1
        assert_equal(state_of(model), weights)
        assert (tmp_path / "log.csv").read_text() == log

    def test_resume_point_clears_what_is_half_written(self, tmp_path: Path) -> None:
        for name in ("checkpoint-9", "checkpoint-20", "checkpoint-100"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "model.safetensors").write_bytes(b"half")
        assert resume_point(tmp_path) is None and names(tmp_path) == []
        for name in ("checkpoint-9", "checkpoint-20", "checkpoint-100"):
            (tmp_path / name).mkdir()
        (tmp_path / "checkpoint-9" / "complete").write_text("{}")
        (tmp_path / "checkpoint-20" / "complete").write_text("{}")
        assert resume_point(tmp_path) == tmp_path / "checkpoint-20"
        assert names(tmp_path) == ["checkpoint-20", "checkpoint-9"]

    def test_finished_but_not_yet_used(
        self, bench: Bench, unbroken: tuple[State, str, int], tmp_path: Path
    ) -> None:
        first = bench.run(tmp_path)[1]
        steps = Steps()
        model, cost = bench.run(tmp_path, steps=steps)
        assert steps.seen == [] and cost == first
        assert_equal(state_of(model), unbroken[0])

    @pytest.mark.parametrize(
        "name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"]
    )
    def test_a_pickle_in_a_checkpoint_is_not_run(
        self, bench: Bench, unbroken: tuple[State, str, int], tmp_path: Path, name: str
    ) -> None:
        epoch, trace = unbroken[2], tmp_path / "trace"
        with pytest.raises(Crash):
            bench.run(tmp_path, steps=Steps(epoch + 1))
        torch.save(Evil(trace), tmp_path / f"checkpoint-{epoch}" / name)
        with (
            nullcontext()
            if name == "training_args.bin"
            else pytest.raises(HeadwiseError, match=r"checkpoint .* damaged")
        ):
            bench.run(tmp_path)
        assert not trace.exists()

    def test_stopped_early_it_stays_stopped(self, bench: Bench, tmp_path: Path) -> None:
        recipe = RECIPE.model_copy(update={"epochs": 9, "learning_rate": 2.0, "warmup": 0})
        model, cost = bench.run(tmp_path, recipe, patience=2)
        losses = pd.read_csv(tmp_path / "log.csv").query("measure == 'dev_loss'").value.tolist()
        assert len(losses) < 9 and losses.index(min(losses)) == len(losses) - 3
        steps = Steps()
        again, cost_again = bench.run(tmp_path, recipe, steps, patience=2)
        assert steps.seen == [] and cost_again == cost
        assert_equal(state_of(again), state_of(model))

    def test_the_seconds_of_broken_tries_count(self, bench: Bench, tmp_path: Path) -> None:
        marker = tmp_path / "checkpoint-{}" / "complete"
        steps = Steps()
        bench.run(tmp_path, steps=steps)
        shutil.rmtree(tmp_path / f"checkpoint-{steps.seen[-1]}")
        kept = Path(str(marker).format(steps.seen[-1] * 2 // 3))
        kept.write_text(kept.read_text().replace('"seconds": ', '"seconds": 1000'))
        assert bench.run(tmp_path)[1]["seconds"] > 1000


class TestAverage:
    def test_the_mean_of_the_last_checkpoints(self, bench: Bench, tmp_path: Path) -> None:
        model, cost = bench.run(tmp_path, keep=3)
        assert len(names(tmp_path)) == 3
        epoch = int(cost["updates"]) // 3
        last = [
            load_file(tmp_path / f"checkpoint-{n * epoch}" / "model.safetensors") for n in (2, 3)
        ]
        assert average(model, tmp_path, 2) == 2
        found = model.state_dict()
        for name in last[0]:
            expected = ((last[0][name].double() + last[1][name].double()) / 2).to(
                last[0][name].dtype
            )
            assert torch.equal(found[name], expected), name
        assert average(model, tmp_path, 9) == 3
        assert average(model, tmp_path, 1) == 1
        assert torch.equal(model.state_dict()[name], last[1][name])

    def test_only_as_many_checkpoints_stay_as_asked(self, bench: Bench, tmp_path: Path) -> None:
        bench.run(tmp_path)
        assert len(names(tmp_path)) == 2


class TestUndone:
    def left(self, model: PreTrainedModel) -> tuple[Any, ...]:
        marked = [name for name, module in model.named_modules() if "headwise" in vars(module)]
        modes = [module.training for module in model.modules()]
        return (
            model.config._attn_implementation,
            model.config.use_cache,
            "forward" in vars(model),
            marked,
            modes,
        )

    @pytest.mark.parametrize("crash_at", [None, 2])
    def test_training_leaves_the_model_as_it_was(
        self, bench: Bench, tmp_path: Path, crash_at: int | None
    ) -> None:
        model = bench.model()
        model.model.encoder.train()
        before, training = self.left(model), TrainingSetup(bench.data, bench.dev, RECIPE, tmp_path)
        with pytest.raises(Crash) if crash_at else nullcontext():
            train_model(
                model, bench.tokenizer, discover(model), training, callbacks=[Steps(crash_at)]
            )
        assert self.left(model) == before

    def test_the_forward_of_the_loss(self, bench: Bench) -> None:
        """Inside the block the summed loss, with a penalty per token only in training; afterwards the stock forward."""
        model = bench.model(SHAPE.model_copy(update={"dropout": 0.0}))
        batch = Collator(bench.tokenizer, model.config.decoder_start_token_id)(
            bench.data.__getitems__([0, 1])
        )
        count, drawn = int((batch["labels"] >= 0).sum()), []
        with torch.no_grad():
            expected = float(model(**batch).loss) * count
            with loss_forward(model, lambda: drawn.append(1), lambda: torch.tensor(0.25)):
                assert float(model.eval()(**batch, smoothing=0.0)) == pytest.approx(
                    expected, rel=1e-5
                )
                assert float(model.train()(**batch, smoothing=0.0)) == pytest.approx(
                    expected + count / 4, rel=1e-5
                )
            assert drawn == [1, 1]
            assert float(model(**batch).loss) * count == pytest.approx(expected, rel=1e-5)


class TestErrors:
    def test_a_corpus_shorter_than_a_batch(self, bench: Bench, tmp_path: Path) -> None:
        with pytest.raises(HeadwiseError, match="fewer than 50400 batches that hold its longest"):
            bench.run(tmp_path, RECIPE.model_copy(update={"accumulate": 50400}))
        assert names(tmp_path) == []

    @pytest.mark.parametrize(("rate", "epochs"), [(1e30, 9), (1e12, 1)])
    def test_a_training_that_diverged_stops_at_once_and_leaves_nothing(
        self, bench: Bench, tmp_path: Path, rate: float, epochs: int
    ) -> None:
        recipe, steps = (
            RECIPE.model_copy(update={"learning_rate": rate, "warmup": 0, "epochs": epochs}),
            Steps(),
        )
        with pytest.raises(HeadwiseError, match=r"loss is nan after \d+ updates;"):
            bench.run(tmp_path, recipe, steps)
        assert len(steps.seen) <= 20
        assert names(tmp_path) == []
        assert not (tmp_path / "log.csv").exists()

    def test_a_dev_loss_that_is_no_number_stops_it_too(
        self, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headwise.models.training.trainer.dev_loss", lambda *_: math.inf)
        steps = Steps()
        with pytest.raises(HeadwiseError, match=r"after \d+ updates; lower learning_rate.* 0.003"):
            bench.run(tmp_path, steps=steps)
        assert len(steps.seen) > 0 and names(tmp_path) == []

    def test_one_that_was_once_taken_for_finished_is_refused(
        self, bench: Bench, tmp_path: Path
    ) -> None:
        bench.run(tmp_path)
        (last,) = (path for path in tmp_path.glob("checkpoint-*") if path == resume_point(tmp_path))
        state = json.loads((last / "trainer_state.json").read_text())
        next(entry for entry in reversed(state["log_history"]) if "eval_loss" in entry)[
            "eval_loss"
        ] = math.nan
        (last / "trainer_state.json").write_text(json.dumps(state))
        with pytest.raises(HeadwiseError, match="The training diverged"):
            bench.run(tmp_path)

    @pytest.mark.parametrize(
        "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("write failed")]
    )
    def test_a_full_disk_is_reported_and_training_can_go_on(
        self,
        bench: Bench,
        unbroken: tuple[State, str, int],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        error: Exception,
    ) -> None:
        save: Callable[..., None] = torch.save

        def full(value: Any, path: Any, *more: Any, **options: Any) -> None:
            if f"checkpoint-{2 * unbroken[2]}" in str(path):
                raise error
            save(value, path, *more, **options)

        monkeypatch.setattr(torch, "save", full)
        with pytest.raises(HeadwiseError, match=rf"The checkpoint .*checkpoint-{2 * unbroken[2]}"):
            bench.run(tmp_path)
        monkeypatch.undo()
        steps = Steps()
        assert_equal(state_of(bench.run(tmp_path, steps=steps)[0]), unbroken[0])
        assert steps.seen[0] == unbroken[2] + 1


def test_bfloat16_only_where_it_is_native_or_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        bfloat16("bfloat16", "cpu")
        and not bfloat16("float32", "cpu")
        and not bfloat16("auto", "mps")
    )
    for native in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda native=native: native)
        monkeypatch.setattr(
            torch.cuda,
            "is_bf16_supported",
            lambda including_emulation=True, native=native: including_emulation or native,
        )
        assert bfloat16("auto", "cpu") is bfloat16("auto", "cuda") is native


class TestHalfPrecision:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_it_trains_as_in_float32_and_keeps_its_type(
        self, bench: Bench, tmp_path: Path, dtype: torch.dtype
    ) -> None:
        """Every weight moves as it does in float32, up to the rounding at the start and at the end."""
        trained = {}
        for kind in (dtype, torch.float32):
            model = bench.model().to(dtype).to(kind)
            model.final_logits_bias = (
                model.final_logits_bias.float()
            )  # as T5 keeps some of its weights
            work = tmp_path / str(kind)
            train_model(
                model,
                bench.tokenizer,
                discover(model),
                TrainingSetup(bench.data, bench.dev, RECIPE, work, 5),
                keep=3,
            )
            average(model, work, 2)
            trained[kind] = model
        half, whole = trained[dtype], trained[torch.float32]
        assert half.final_logits_bias.dtype == torch.float32
        assert {p.dtype for p in half.parameters()} == {dtype}
        for name, tensor in whole.named_parameters():
            assert torch.equal(
                half.get_parameter(name), tensor.to(half.get_parameter(name).dtype)
            ), name


class TestDevice:
    """Arguments for machines with GPUs, on one without."""

    @pytest.fixture
    def two_gpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
        yield
        monkeypatch.undo()
        AcceleratorState._reset_state(reset_partial_state=True)

    @pytest.mark.parametrize("device", ["cuda:0", "cuda:1", "cpu"])
    def test_a_process_trains_on_the_device_of_its_model_alone(
        self, bench: Bench, tmp_path: Path, two_gpus: None, device: str
    ) -> None:
        recipe = RECIPE.model_copy(update={"dtype": "float32"})
        arguments = training_arguments(
            TrainingSetup(bench.data, bench.dev, recipe, tmp_path), 2, torch.device(device)
        )
        assert arguments.n_gpu <= 1
        assert arguments.device == torch.device(device) == Accelerator(cpu=device == "cpu").device
        assert arguments.train_batch_size == arguments.per_device_train_batch_size


def test_a_training_in_bfloat16_learns(bench: Bench, tmp_path: Path) -> None:
    before = bench.dev_loss(bench.model())
    recipe = RECIPE.model_copy(update={"dtype": "bfloat16", "epochs": 2})
    model, _ = bench.run(tmp_path, recipe)
    assert bench.dev_loss(model) < before
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_progress_names_epoch_and_best_dev_loss(bench: Bench, tmp_path: Path) -> None:
    message: list[tuple[float, str]] = []
    bench.run(tmp_path, progress=lambda share, text: message.append((share, text)))
    assert message[0][1].startswith("update 1 of ") and "loss" not in message[0][1]
    assert message[-1][0] == 1.0 and ", loss " in message[-1][1]
    assert [share for share, _ in message] == sorted(share for share, _ in message)


def test_the_schedules_a_plan_may_name_exist(bench: Bench, tmp_path: Path) -> None:
    for schedule in ("constant_with_warmup", "linear", "cosine"):
        with pytest.raises(Crash):
            bench.run(tmp_path, RECIPE.model_copy(update={"schedule": schedule}), Steps(1))


def test_numbers_that_are_none_are_refused() -> None:
    for name in ("learning_rate", "clip", "weight_decay"):
        for value in (math.inf, math.nan):
            with pytest.raises(HeadwiseError, match=name):
                Training(**{name: value})
    with pytest.raises(HeadwiseError, match="length_penalty"):
        Search(length_penalty=math.nan)
    with pytest.raises(HeadwiseError, match="temperature"):
        Gates(temperature=math.inf)


def test_the_dev_loss_is_that_of_a_token(bench: Bench) -> None:
    """From the model's own logits, without padding."""
    model = bench.model().eval()
    total = torch.zeros(())
    count = 0
    padded = False
    for batch in bench.dev.once(model, 1260):
        labels = batch.pop("labels")
        del batch["rows"]
        with torch.no_grad():
            logits = model(**batch).logits
        total += torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        count += int((labels != IGNORED).sum())
        padded = padded or count < labels.numel()
    assert padded
    assert bench.dev_loss(model) == pytest.approx(float(total) / count, rel=1e-5)
