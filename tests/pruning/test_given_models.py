"""A given model is pruned by what harms least: the encoder of a translation model learns the states of the whole one's;
others train gates on frozen weights, then their weights without dropout, at a rate with which the dev loss falls; and
harm is said."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

import headwise as hw
from headwise.core.options import Gates, Training
from headwise.core.progress import Progress
from headwise.core.qualities import AGREEMENT
from headwise.models.decoding.bleu import translation_answers
from headwise.models.tasks import translation
from headwise.models.training import trainer
from headwise.models.training.dropout import dropout_of
from headwise.models.training.loss import lost_states
from headwise.models.training.trainer import TokenTrainer, TrainingSetup, train_model
from headwise.pruning import fine_tuning, harm
from headwise.pruning.fine_tuning import loss_on_dev, tune
from headwise.pruning.gate_training import GateSchedule
from headwise.pruning.with_gates import prune_by_training
from headwise.study.plan import GateSweep, make_plan
from headwise.study.run_context import InMemory, RunContext
from headwise.study.variants import Variant
from headwise.study.watches import SHORT, doubts_of, length_ratio
from models.tasks.askers import asker, lines, pairs

FAST: dict[str, Any] = {"keep": 3, "epochs": 2, "gate_learning_rate": 2.0, "warmup": 1}
EMBEDDED: dict[str, Any] = {"data": {"embedded": {}}}
SMALL = Training(batch_tokens=48, dtype="float32")

pytestmark = pytest.mark.filterwarnings(
    "ignore:The gates had not settled", "ignore:The expected count"
)


def pruned(model: hw.Model, **options: Any) -> hw.Model:
    return hw.prune(model, pairs(40), Gates(**{**FAST, **options}), dev=pairs(6, 9), training=SMALL)


def states(model: hw.Model) -> list[torch.Tensor]:
    return [*model.hf.state_dict().values()]


def equal(one: hw.Model, other: hw.Model) -> bool:
    return all(map(torch.equal, states(one), states(other)))


def test_gates_are_trained_before_the_weights() -> None:
    """The heads are those of frozen weights; then the weights change."""
    small = pruned(asker(), train="apart")
    frozen = pruned(asker(), train="gates", epochs=1)
    assert small.layout == frozen.layout and not equal(small, frozen)


def test_nothing_drops_out() -> None:
    """Unless all weights are asked for at once."""
    dropping, whole = asker(dropout=0.5), asker(dropout=0.0)
    assert (dropout_of(dropping.hf), dropout_of(whole.hf)) == (0.5, 0.0)
    for way in ("distil", "apart"):
        assert equal(pruned(dropping, train=way), pruned(whole, train=way))
    assert not equal(pruned(dropping, train="all"), pruned(whole, train="all"))


def test_a_rate_with_which_the_dev_loss_rises_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def predicting(**options: Any) -> hw.Model:
        how = Gates(**{**FAST, **options})
        return hw.prune(asker("gpt2"), lines(40), how, dev=lines(6, 9), training=SMALL)

    frozen = predicting(train="gates", epochs=1)
    monkeypatch.setattr(fine_tuning, "SHARES", (1.0, 0.5))
    assert equal(predicting(learning_rate=50.0), frozen), "none of them is"
    monkeypatch.setattr(fine_tuning, "SHARES", (1.0, 1e-4))
    slower = predicting(learning_rate=50.0)
    monkeypatch.setattr(fine_tuning, "SHARES", (1.0,))
    assert equal(slower, predicting(learning_rate=5e-3)) and not equal(slower, frozen)


def test_which_model_a_plan_trains_how() -> None:
    def how(plan: dict[str, Any], family: str = "marian") -> str | None:
        memory = InMemory(asker(family), {}) if "model" in plan else None
        run = RunContext(make_plan(plan), Path(), Progress(quiet=True), memory=memory)
        sweep = run.sweep(Variant("one", 0, "gates"))
        assert isinstance(sweep, GateSweep)
        return sweep.train

    assert how(EMBEDDED) == "all"
    given = {**EMBEDDED, "model": "some/model"}
    assert how({**given, "pruning": {"keep": [3]}}) == "distil"
    assert how(given) == "apart", "λ is in nats"
    assert how({**given, "pruning": {"train": "gates"}}) == "gates"
    for kinds in (["cross"], ["encoder-self", "cross"]):
        assert how({**given, "pruning": {"keep": [3], "kinds": kinds}}) == "apart"
    assert how({**given, "pruning": {"keep": [3], "kinds": ["decoder-self"]}}, "gpt2") == "apart"
    assert how({**given, "pruning": {"keep": [3], "kinds": ["encoder-self"]}}, "bert") == "apart", (
        "no decoder"
    )
    with pytest.raises(hw.HeadwiseError, match="settle would change nothing"):
        pruned(asker(), kinds=["cross"], settle=0.2)
    with pytest.raises(hw.HeadwiseError, match="settle would change nothing"):
        how({**given, "pruning": {"penalty": [0.1], "settle": 0.2}})


class TestDistillation:
    def test_only_sources_are_read(self) -> None:
        """Targets of the same lengths give the same model, and the decoder is as it was."""
        given = asker()
        small = hw.prune(given, pairs(40), Gates(**FAST), dev=pairs(6, 9), training=SMALL)
        others = hw.ParallelText.from_pairs((source, target[::-1]) for source, target in pairs(40))
        again = hw.prune(given, others, Gates(**FAST), dev=pairs(6, 9), training=SMALL)
        assert equal(small, again)
        before, after = given.hf.get_decoder(), small.hf.get_decoder()
        assert all(map(torch.equal, before.parameters(), after.parameters()))

    def test_what_is_missed_of_the_states(self) -> None:
        """A slow twin: the sum of squares of what differs, over that around the mean of every number."""
        whole, other = asker(), asker().without(["encoder-self/0/1"])
        words = torch.tensor([[5, 6, 7, 1], [8, 9, 1, 0]])
        mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
        inputs = {"input_ids": words, "attention_mask": mask, "decoder_input_ids": words}
        encoder = whole.hf.get_encoder()
        assert float(lost_states(whole.hf, encoder, inputs)) == 0.0
        found = lost_states(other.hf, encoder, inputs)
        rows = []
        for model in (whole, other):
            hidden = model.hf.get_encoder()(input_ids=words, attention_mask=mask).last_hidden_state
            rows.append(torch.cat([hidden[0], hidden[1, :3]]))
        wanted, got = rows
        around = (wanted - wanted.mean(0)).square().sum()
        torch.testing.assert_close(found, (wanted - got).square().sum() / around)

    def test_states_are_read_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """For all epochs, and as they would be read each time; a text whose states are too many is read each time."""
        given, how = asker(), hw.Greedy(keep=3, measure="random", train="distil", epochs=3)
        encoder = given.hf.get_encoder()
        read: list[int] = []
        encoder.register_forward_pre_hook(
            lambda _, args, named: read.append(int(named["attention_mask"].sum())), with_kwargs=True
        )

        def tokens() -> tuple[int, hw.Model]:
            read.clear()
            small = hw.prune(given, pairs(40), how, dev=pairs(6, 9), training=SMALL)
            return sum(read), small

        once, small = tokens()
        monkeypatch.setattr(trainer, "KEPT_STATES", 0)
        often, again = tokens()
        text = sum(len(given.tokenizer(source).input_ids) for source, _ in pairs(40))
        assert often - once == 2 * text
        others = dict(again.hf.named_parameters())
        for name, one in small.hf.named_parameters():
            # The softmax takes no notice of a key's bias, so its gradient is rounding, which Adam makes large.
            if not name.endswith("k_proj.bias"):
                torch.testing.assert_close(one, others[name], atol=1e-4, rtol=0)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_the_same_weights_miss_nothing(self, dtype: torch.dtype, tmp_path: Path) -> None:
        """Half precision rounds both alike, so that nothing is learnt of it."""
        model = asker(dropout=0.0)
        model.hf.to(dtype)
        data = model.task.training_data(pairs(40), 48)
        same = model.only(hw.HeadMask.full(model.heads))
        recipe = SMALL.model_copy(update={"epochs": 2, "learning_rate": 1e-12})
        run = TrainingSetup(data, data, recipe, tmp_path, whole=model.hf.get_encoder())
        train_model(same.hf, same.tokenizer, same.discovery, run)
        log = pd.read_csv(tmp_path / "log.csv")
        losses = log.value[log.measure == "loss"]
        assert len(losses) and losses.max() < 1e-9
        assert model.hf.dtype == same.hf.dtype == dtype

    def test_tokens_that_are_all_alike(self) -> None:
        """Of blank sources, say, which have no variance."""
        whole, other = asker(), asker().without(["encoder-self/0/1"])
        inputs = {"input_ids": torch.full((2, 1), 1), "attention_mask": torch.ones(2, 1).long()}
        missed = lost_states(other.hf, whole.hf.get_encoder(), inputs)
        assert missed.isfinite() and missed > 0

    def test_one_sided_text_is_not_translated(
        self,
        monkeypatch: pytest.MonkeyPatch,
        call: Callable[..., tuple[int, str, str]],
        tmp_path: Path,
    ) -> None:
        """What is learnt are states, so that dev alone needs targets; an order of heads needs them."""
        translated: list[int] = []
        own = translation.own_translations

        def counted(hf: Any, tokenizer: Any, name: str, text: hw.Text, *more: Any) -> Any:
            translated.append(len(text))
            return own(hf, tokenizer, name, text, *more)

        monkeypatch.setattr(translation, "own_translations", counted)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        given, text, dev = asker(), lines(40), lines(12, 9)
        hw.prune(given, text, Gates(**FAST), dev=dev, training=SMALL)
        assert translated == [12]
        given.save(tmp_path / "given")
        for name, some in {"text": text, "dev": dev}.items():
            (tmp_path / name).write_text("".join(f"{line}\n" for line in some))
        translated.clear()
        words: list[Any] = ["prune", tmp_path / "given", "--text", tmp_path / "text", "--keep", "3"]
        words += ["--dev", tmp_path / "dev", "--epochs", "1", "--batch-tokens", "48"]
        words += ["--train", "distil"]
        status, _, said = call(*words, "--out", tmp_path / "run")
        assert status == 0 and {*translated} == {12}, said
        greedy = hw.Greedy(keep=3, measure="gradient", train="distil", epochs=1, warmup=1)
        hw.prune(given, text, greedy, dev=dev, training=SMALL)
        assert 40 in translated

    def test_the_states_come_nearer(self) -> None:
        """With heads gone, training brings the encoder back towards what it was."""
        given = asker()
        kinds: dict[str, Any] = {"kinds": ["encoder-self"], "keep": 2, "measure": "weight-norm"}
        cut = hw.prune(given, pairs(40), hw.Greedy(**kinds), dev=pairs(6, 9))
        how = hw.Greedy(**kinds, train="distil", epochs=6, warmup=1)
        trained = hw.prune(given, pairs(40), how, dev=pairs(6, 9), training=SMALL)
        assert trained.layout == cut.layout
        (batch,) = given.task.training_data(pairs(6, 9), 200).once(given.hf, 200)
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        encoder = given.hf.get_encoder()
        before, after = (float(lost_states(each.hf, encoder, inputs)) for each in (cut, trained))
        assert after < 0.9 * before

    def test_the_whole_model_has_nothing_to_learn(self, tmp_path: Path) -> None:
        model = asker()
        data = model.task.training_data(pairs(40), 48)
        run = TrainingSetup(data, data, SMALL, tmp_path)
        how = Gates(**FAST, train="distil", kinds=["encoder-self"])
        done = tune(model, run, how, ("encoder-self",), hw.HeadMask.full(model.heads))
        assert equal(done.model, model) and done.cost["updates"] == 0

    def test_a_killed_run_goes_on_to_the_same_model(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """The encoder that is learnt from is the given one, not that of the checkpoint."""

        def run(work: str) -> hw.Model:
            texts: dict[str, Any] = {"text": pairs(40), "dev": pairs(6, 9)}
            how = Gates(**{**FAST, "epochs": 3})
            return hw.prune(asker(), options=how, **texts, training=SMALL, work=tmp_path / work)

        def die(self: Any, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.epoch and state.epoch > 2:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(GateSchedule, "on_step_end", die, raising=False)
            run("killed")
        assert any((tmp_path / "killed").rglob("checkpoint-*"))

        updates: list[int] = []
        step = TokenTrainer.training_step

        def counted(self: Any, *given: Any, **named: Any) -> Any:
            updates.append(self.state.global_step)
            return step(self, *given, **named)

        monkeypatch.setattr(TokenTrainer, "training_step", counted)
        resumed = run("killed")
        after = len(updates)
        assert equal(resumed, run("whole"))
        assert 0 < after < len(updates) - after, "what was trained is not trained again"

    @pytest.mark.parametrize(
        ("family", "kind"),
        [("marian", "cross"), ("gpt2", "decoder-self"), ("bert", "encoder-self")],
    )
    def test_other_heads_are_refused(self, family: str, kind: Any) -> None:
        model = asker(family)
        text: Any = pairs(20) if family == "marian" else lines(20)
        with pytest.raises(hw.HeadwiseError, match="distil"):
            hw.prune(model, text, Gates(keep=3, kinds=[kind], train="distil"))


def test_the_rate_is_gentle_unless_it_is_named() -> None:
    assert Gates(keep=3).learning_rate == 3e-4
    assert Gates(keep=3, train="apart").learning_rate == 1e-4
    assert Gates(keep=3).with_train("apart").learning_rate == 1e-4
    assert Gates(keep=3, learning_rate=0.1).with_train("apart").learning_rate == 0.1
    assert Gates(keep=3).with_train("distil").learning_rate == 1e-3
    assert hw.Greedy(keep=3, train="distil").learning_rate == 1e-3
    for pruning in ({"keep": [3]}, {"penalty": [0.1]}, {"keep": [3], "learning_rate": 1e-5}):
        plan = make_plan({**EMBEDDED, "model": "some/model", "pruning": pruning})
        again = make_plan(tomllib.loads(plan.to_toml()))
        for way in ("apart", "distil"):
            one, other = plan.pruning[0], again.pruning[0]
            assert one.with_train(way).learning_rate == other.with_train(way).learning_rate


def test_the_epochs_are_shared() -> None:
    for epochs, shares in {8: (4, 4), 5: (3, 2), 1: (1, 1)}.items():
        apart = Gates(keep=3, epochs=epochs, train="apart")
        assert (apart.of_gates.epochs, apart.of_weights.epochs) == shares
        together = Gates(keep=3, epochs=epochs, train="all")
        assert together.of_gates == together.of_weights == together


def test_how_much_a_model_writes() -> None:
    references = ["a b c d", "e f"]
    full = translation_answers([["a b c d", "e f"]], references)
    assert length_ratio(translation_answers([["a b", "e"]], references), full) == 0.5 < SHORT


def test_training_that_does_harm_is_said(
    call: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """With its likely causes: of equal further training that is worse than the model before."""
    asker("gpt2", resid_pdrop=0.3).save(tmp_path / "given")
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines(120)))
    words: list[Any] = ["prune", tmp_path / "given", "--text", tmp_path / "text", "--keep", "7"]
    words += ["--train", "all", "--learning-rate", "0.9", "--warmup", "0", "--epochs", "1"]
    words += ["--batch-tokens", "48", "--set", "pruning.compare=[]", "--out", tmp_path / "run"]
    status, _, said = call(*words)
    assert status == 0, said
    (line,) = [line for line in said.splitlines() if "training itself does harm" in line][:1]
    assert "dropout of 0.3" in line and "learning_rate of 0.9" in line and "words here" in line
    assert "does harm so far" in said[: said.index(line)], "while it trains"


class TestHarmIsSaidEarly:
    @pytest.fixture(autouse=True)
    def at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(harm, "SOON", 0.0)

    def training(self, model: hw.Model, folder: Path) -> tuple[TrainingSetup, list[str]]:
        """A training, and the list that it says sentences to."""
        data, dev = (model.task.training_data(text, 48) for text in (lines(40), lines(6, 9)))
        said: list[str] = []
        return TrainingSetup(data, dev, SMALL, folder, say=said.append), said

    def said(self, folder: Path, **options: Any) -> list[str]:
        """What the control `fine-tuned` says while it trains."""
        model = asker("gpt2", resid_pdrop=0.3)
        training, said = self.training(model, folder)
        how = Gates(**{**FAST, "epochs": 4, **options})
        tune(model, training, how, ("decoder-self",), hw.HeadMask.full(model.heads))
        return said

    def test_with_the_causes_once_and_before_the_first_epoch_ends(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # a clock that stands still: on a busy machine the first look may come after the epoch
        monkeypatch.setattr(harm, "time", SimpleNamespace(monotonic=lambda: 0.0))
        monkeypatch.setattr(harm, "SOON", 0.0)
        (line,) = self.said(tmp_path, train="all", learning_rate=1.5)
        updates = int(line.split()[1])
        assert updates < 7, "of the first epoch"
        assert "dropout of 0.3" in line and "rate of 1.5" in line

    def test_dropout_is_no_cause_where_nothing_drops_out(self, tmp_path: Path) -> None:
        first, *_ = self.said(tmp_path, train="apart", learning_rate=50.0)
        assert "dropout" not in first and "rate of 50" in first

    def said_beside_gates(self, folder: Path, **options: Any) -> tuple[list[str], float]:
        """What a run says that trains gates together with all weights; its dev loss, times that before."""
        model = asker("gpt2", resid_pdrop=0.3)
        training, said = self.training(model, folder)
        before = loss_on_dev(model, training)
        how = Gates(**{**FAST, "train": "all", "kinds": ["decoder-self"], **options})
        return said, prune_by_training(model, training, how).loss / before

    def test_beside_gates(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(harm, "time", SimpleNamespace(monotonic=lambda: 0.0))
        monkeypatch.setattr(harm, "SOON", 0.0)
        (line,), _ = self.said_beside_gates(tmp_path, learning_rate=1.5)
        assert "dropout of 0.3" in line and "rate of 1.5" in line

    def test_a_gate_that_closes_is_no_harm(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """The loss rises because heads go, and the weights hardly move."""
        monkeypatch.setattr(harm, "WORSE", 1.002)
        said, change = self.said_beside_gates(tmp_path, learning_rate=1e-9, keep=1)
        assert change > harm.WORSE and not said

    def test_nothing_is_said_of_training_that_helps(self, tmp_path: Path) -> None:
        assert not self.said(tmp_path, train="apart", learning_rate=5e-3)


def test_short_sentences_are_the_likeliest_cause_but_dropout() -> None:
    def causes(lengths: list[int], train: str) -> list[str]:
        found = harm.likely_causes(asker(dropout=0.5).hf, train, 0.1, lengths, [9], "words")
        return [cause.split(" (")[0] for cause in found]

    dropout, rate = "the dropout of 0.5 in its configuration", "the learning_rate of 0.1"
    assert causes([5, 5, 30], "all") == [
        dropout,
        "training sentences shorter than those of dev",
        rate,
    ]
    assert causes([6, 6, 30], "apart") == [rate, "sentences unlike those that it learned from"]


@pytest.mark.parametrize(("after", "warned"), [(0.5, False), (1.5, True)])
def test_agreement_alone_is_no_harm(after: float, warned: bool) -> None:
    """Agreement with the model's own translations begins at 100, so that any training lowers it."""
    control = Variant("fine-tuned", "control.fine-tuned", 0, control="fine-tuned")
    run: Any = SimpleNamespace(
        quality_on=lambda split: AGREEMENT,
        full=asker(),
        sweep=lambda variant: SimpleNamespace(train="apart", learning_rate=1e-4),
        text=lambda split: lines(3),
    )
    trained = {"loss_before": 1.0, "loss_after": after}
    found = list(doubts_of(run, control, {}, {"full": (-7.8, -9.1, -6.6)}, lambda: trained))
    assert bool(found) is warned
