"""Classifiers on labelled text: the loss is their own, gates and greedy removal keep the head that the task needs."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from tokenizers import normalizers
from typer.testing import CliRunner

import headwise as hw
from headwise.core.options import Gates, Greedy, TopK, Training
from headwise.core.statistics import unseen_share
from headwise.faces import cli
from headwise.models.tasks.objective import predict, sentence_losses
from headwise.models.token_rows import IGNORED
from headwise.models.training.labelled import Labelled
from headwise.models.training.loss import dev_loss, loss_forward
from headwise.models.training.trainer import Gated, TrainingSetup, train_model
from models.attention.families import FAMILIES, GPT, GROUPED, STACK, build
from models.training.letters import END, LETTERS, PAD, START, letters
from study.studies import measured_in

IDS = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END, "vocab_size": 32}
NAMES = {
    "label2id": {"vowel": 0, "consonant": 1, "none": 2},
    "id2label": {0: "vowel", 1: "consonant", 2: "none"},
}
CLASSIFIERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForSequenceClassification", STACK),
    "distilbert": ("DistilBertForSequenceClassification", FAMILIES["distilbert"][1]),
    "gpt2": ("GPT2ForSequenceClassification", GPT),
    "llama": ("LlamaForSequenceClassification", GROUPED),
}
FAST: dict[str, Any] = {"epochs": 2, "gate_learning_rate": 2.0, "warmup": 1}
SMALL = Training(batch_tokens=48, dtype="float32")
NEEDED = 1  # the only head of the four that does something


def classifier(family: str = "bert", **changes: Any) -> hw.Model:
    name, shape = CLASSIFIERS[family]
    return hw.Model(
        build(name, **{**shape, **IDS, **NAMES, **changes}), letters(), f"tiny {family}"
    )


def drawn(count: int, seed: int = 0) -> hw.LabelledText:
    """Texts of 2 to 9 letters with any label."""
    random_ = random.Random(seed)
    texts = (" ".join(random_.choices(LETTERS, k=random_.randint(2, 9))) for _ in range(count))
    return hw.LabelledText.from_rows([(text, random_.randrange(3)) for text in texts])


def task(count: int, seed: int) -> hw.LabelledText:
    """Which of two letters is in the text."""
    random_, rows = random.Random(seed), []
    for _ in range(count):
        label = random_.randrange(2)
        others = random_.choices(LETTERS[2:], k=random_.randint(1, 7))
        others.insert(random_.randint(0, len(others)), LETTERS[label])
        rows.append((" ".join(others), ("vowel", "consonant")[label]))
    return hw.LabelledText.from_rows(rows)


def accuracy(model: hw.Model, text: hw.LabelledText) -> float:
    table = hw.evaluate(model, text).table.set_index("measure")
    assert table.low["accuracy"] < table.value["accuracy"] <= 100 and table.high["accuracy"] <= 100
    return float(table.value["accuracy"])


def test_models_that_leave_out_other_texts_are_not_compared() -> None:
    """Each leaves out one of three texts, but not the same."""
    models = [classifier(max_position_embeddings=12) for _ in range(2)]
    models[1].tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace("a ", ""), normalizers.Replace("b", "b b b b")]
    )
    text = hw.LabelledText.from_rows([("a " * 12 + "c", 0), ("b b b", 1), ("c d", 2)])
    assert [len(Labelled(text, model.tokenizer, model.hf, 12)) for model in models] == [2, 2]
    with pytest.raises(hw.HeadwiseError, match="reads other sentences of the text"):
        hw.evaluate(models, text)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> hw.Model:
    """A model that learned the task with one of its four heads; the outputs of the others are zero."""
    torch.set_num_threads(1)
    model = classifier(num_hidden_layers=1)
    (site,), only = model.heads.sites, torch.eye(4)[NEEDED]
    recipe = Training(
        epochs=10,
        batch_tokens=256,
        learning_rate=1e-2,
        warmup=10,
        label_smoothing=0.0,
        dtype="float32",
    )
    data, dev = (model.task.training_data(task(*how), 256) for how in ((600, 1), (60, 2)))
    training = TrainingSetup(data, dev, recipe, tmp_path_factory.mktemp("trained"))
    train_model(model.hf, model.tokenizer, model.discovery, training, Gated({site: lambda: only}))
    with torch.no_grad():
        out = model.hf.get_submodule("bert.encoder.layer.0.attention.output.dense").weight
        out[:, [i for i in range(32) if i // 8 != NEEDED]] = 0.0
    return model


class TestLoss:
    @pytest.mark.parametrize("family", CLASSIFIERS)
    def test_it_is_the_model_s_own(self, family: str) -> None:
        """For scores, for training and for the dev loss, whatever the padding."""
        model, text = classifier(family), drawn(20)
        config = model.hf.config.to_dict()
        alone = []
        for sentence, label in text:
            ids = torch.tensor([model.tokenizer(sentence)["input_ids"]])
            with torch.no_grad():
                alone.append(float(model.hf(input_ids=ids, labels=torch.tensor([int(label)])).loss))
        model.hf.config.problem_type = config["problem_type"]
        scored = dict[int, float]()
        for batch in model.task.batches(text):
            with torch.no_grad():
                losses = sentence_losses(predict(model.hf, batch), batch["labels"])
            scored |= dict(zip(batch["rows"].tolist(), losses.tolist(), strict=True))
        assert [scored[place] for place in range(20)] == pytest.approx(alone, rel=1e-4)
        data = model.task.training_data(text, 64)
        with loss_forward(model.hf):
            assert dev_loss(model.hf, data, 64) == pytest.approx(sum(alone) / 20, rel=1e-4)
        assert model.hf.config.to_dict() == config

    @pytest.mark.parametrize("family", CLASSIFIERS)
    def test_an_empty_row_of_a_batch_asks_for_nothing(self, family: str) -> None:
        model = classifier(family)
        data = model.task.training_data(drawn(7), 30)
        sampler = data.sampler(30, 1, 1)
        collate = data.collator(model.hf, sampler)
        some, more = (collate(data.__getitems__(rows)) for rows in ([0, 1, 2], [0, 1, 2, -1, -1]))
        assert (more["labels"][3:] == IGNORED).all() and more["attention_mask"].any(1).all()
        with loss_forward(model.hf), torch.no_grad():
            assert float(model.hf(**more, smoothing=0.1)) == pytest.approx(
                float(model.hf(**some, smoothing=0.1)), rel=1e-4
            )

    @pytest.mark.parametrize(
        ("family", "changes", "reason"),
        [
            ("llama", {"pad_token_id": None}, "needs a pad_token_id"),
        ],
    )
    def test_another_loss_is_refused(
        self, family: str, changes: dict[str, Any], reason: str
    ) -> None:
        model = classifier(family, **changes)
        for use in (
            lambda: hw.score(model, drawn(10)),
            lambda: hw.prune(model, drawn(30), Gates(penalty=1.0, **FAST), training=SMALL),
        ):
            with pytest.raises(hw.HeadwiseError, match=reason):
                use()

    @pytest.mark.parametrize(
        ("family", "changes"),
        [
            ("bert", {"label2id": None, "id2label": None, "num_labels": 1}),
            ("bert", {"problem_type": "multi_label_classification"}),
            ("gpt2", {"problem_type": "regression"}),
        ],
    )
    def test_numbers_and_several_classes_are_not_measured(
        self, family: str, changes: dict[str, Any]
    ) -> None:
        """A cross-encoder, a reward model, a classifier of topics: statistics of attention, no accuracy."""
        model = classifier(family, **changes)
        lines = ["a b c", "b c d e", "c a", "d e f g"] * 15
        rows = hw.LabelledText.from_rows([(line, "0.5") for line in lines])
        found = hw.score(model, lines, ["entropy"]).of("entropy")
        expected = []
        model.hf.set_attn_implementation("eager")
        for line in lines:
            read = model.tokenizer(line, return_tensors="pt")
            with torch.no_grad():
                weights = model.hf(**read, output_attentions=True).attentions[0][0, :, 1:-1]
            expected.append(torch.special.entr(weights).sum(-1))
        model.hf.set_attn_implementation("sdpa")
        plain = torch.cat(expected, 1).mean(1)
        assert [found[head] for head in [*model.heads][: len(plain)]] == pytest.approx(
            plain.tolist(), rel=1e-4
        )
        for use in (
            lambda: hw.evaluate(model, lines),
            lambda: hw.prune(model, lines, Greedy(keep=2)),
            lambda: hw.score(model, [{**read, "labels": torch.ones(1, 3)}], ["gradient"]),
            lambda: hw.score(model, rows, ["gradient"]),
        ):
            with pytest.raises(
                hw.HeadwiseError, match=r"does not measure|without a loss|needs one-sided text"
            ):
                use()

    def test_a_model_that_changes_its_loss_is_refused(self) -> None:
        model = classifier()
        forward = model.hf.forward

        def weighted(**inputs: Any) -> Any:
            found = forward(**inputs)
            if found.loss is not None:
                found.loss = 2 * found.loss
            return found

        model.hf.forward = weighted
        with pytest.raises(hw.HeadwiseError, match="does not predict one class of several"):
            hw.score(model, drawn(10))


class TestLabels:
    def test_names_or_numbers(self) -> None:
        model = classifier()
        for labels in (["none", "vowel"], ["2", "0"]):
            data = Labelled(
                hw.LabelledText.from_rows(zip("ab", labels, strict=True)),
                model.tokenizer,
                model.hf,
                20,
            )
            assert data.labels == [[2], [0]]

    @pytest.mark.parametrize("labels", [["vowel", "verb"], ["vowel", "1"], ["0", "3"]])
    def test_a_label_that_is_no_class(self, labels: list[str]) -> None:
        text = hw.LabelledText.from_rows(zip("ab", labels, strict=True))
        with pytest.raises(hw.HeadwiseError, match=r"no class of .* \(vowel, consonant, none\)"):
            hw.score(classifier(), text)

    def test_long_texts_are_counted(self) -> None:
        text = hw.LabelledText.from_rows([("a b", 0), (" ".join(LETTERS), 1)])
        assert hw.score(classifier(max_position_embeddings=10), text).signature["dropped"] == 1

    @pytest.mark.parametrize(
        "text", [hw.Text.from_lines(["a"]), hw.ParallelText.from_pairs([("a", "b")])]
    )
    def test_text_of_another_sort(self, text: Any) -> None:
        with pytest.raises(hw.HeadwiseError, match="needs labelled text"):
            hw.score(classifier(), text)

    def test_a_model_that_does_not_classify(self) -> None:
        language_model = hw.Model(build("GPT2LMHeadModel", **GPT), letters(), "gpt2")
        with pytest.raises(hw.HeadwiseError, match="needs one-sided text"):
            hw.score(language_model, drawn(4))


class TestScores:
    @pytest.mark.parametrize("family", CLASSIFIERS)
    def test_every_usual_measure(self, family: str) -> None:
        scores = hw.score(classifier(family), drawn(20), judge=True)
        table = scores.table
        assert set(table.measure) == {"confidence", "gradient", "ablation.zero"}
        assert table.value.notna().all()
        assert scores.curves is not None and len(scores.curves)

    def test_relevance_is_refused(self) -> None:
        with pytest.raises(hw.HeadwiseError, match="not at classes"):
            hw.score(classifier(), drawn(9), ["lrp"])

    def test_the_needed_head_is_found(self, trained: hw.Model) -> None:
        table = hw.score(trained, task(40, 3)).table
        for measure in ("gradient", "ablation.zero"):
            assert table[table.measure == measure].set_index("head").value.idxmax() == NEEDED


class TestPruning:
    @pytest.mark.parametrize("family", CLASSIFIERS)
    @pytest.mark.parametrize("train", ["gates", "all", "lora"])
    def test_gates_meet_a_count_and_leave_the_model_as_it_was(
        self, family: str, train: Literal["gates", "all", "lora"]
    ) -> None:
        if train == "lora":
            pytest.importorskip("peft", reason="peft is not installed (headwise[lora])")
        model = classifier(family)
        before = {name: tensor.clone() for name, tensor in model.hf.state_dict().items()}
        with warnings.catch_warnings(action="ignore"):  # gates of so few updates do not settle
            options = Gates(keep=4, train=train, **FAST)
            small = hw.prune(model, drawn(40), options, training=SMALL)
        assert small.heads.total == 4
        after = model.hf.state_dict()
        assert after.keys() == before.keys()
        assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())

    @pytest.mark.parametrize("method", ["top-k", "greedy"])
    def test_other_methods(self, method: Any) -> None:
        for family in ("bert", "llama"):
            model = classifier(family)
            with warnings.catch_warnings(action="ignore"):
                if method == "top-k":
                    options = TopK(keep=4, **FAST)
                    small = hw.prune(model, drawn(40), options, training=SMALL)
                else:
                    small = hw.prune(model, drawn(40), Greedy(keep=4))
            assert small.heads.total == 4

    @pytest.mark.parametrize(
        "options",
        [
            Gates(penalty=0.01, train="gates", epochs=8, warmup=1, gate_learning_rate=0.1),
            TopK(keep=1, train="gates", epochs=8, warmup=1, gate_learning_rate=0.1),
        ],
        ids=["gates", "top-k"],
    )
    def test_gates_keep_the_needed_head_and_the_accuracy(
        self, trained: hw.Model, options: Gates | TopK
    ) -> None:
        how = Training(batch_tokens=128, dtype="float32")
        dev = task(100, 5)
        whole = accuracy(trained, dev)
        small = hw.prune(trained, task(300, 4), options, dev=dev, training=how)
        assert whole > 95 and small.heads.total == 1 and accuracy(small, dev) == whole

    def test_a_budget_of_accuracy(self, trained: hw.Model) -> None:
        """Three heads do nothing; without the fourth the classes are guessed."""
        dev = task(100, 5)
        small = hw.prune(trained, task(40, 4), Greedy(max_drop=1, step=0.25), dev=dev)
        assert small.heads.total == 1
        table = hw.evaluate([trained, small], dev).table
        change = table[table.reference != ""].iloc[0]
        # a score interval: nobody knows of texts that were not asked
        reach = 100 * unseen_share(100)
        assert (change.value, change.p) == (0, 1)
        assert (change.low, change.high) == pytest.approx((-reach, reach))


class TestFiles:
    def write(self, folder: Path, name: str, text: str) -> Path:
        (folder / name).write_text(text, encoding="utf-8")
        return folder / name

    def test_the_same_text_in_every_format(self, tmp_path: Path) -> None:
        rows = [('He said "no", twice', "vowel"), ("b", "1")]
        objects = [{"text": rows[0][0], "label": "vowel"}, {"label": 1, "text": "b"}]
        files = [
            self.write(
                tmp_path,
                "a.csv",
                'id,label,text\n7,vowel,"He said ""no"", \ntwice"\n8,1,b\n9,,blank\n',
            ),
            self.write(tmp_path, "a.tsv", 'text\tlabel\nHe said "no", twice\tvowel\nb\t1\n'),
            self.write(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in objects)),
        ]
        texts = [hw.LabelledText.open(file) for file in files]
        assert all([*text] == rows and text.fingerprint == texts[0].fingerprint for text in texts)
        assert texts[0].blank == 1 and texts[1][1] == ("b", "1")

    @pytest.mark.parametrize(
        ("name", "content", "reason"),
        [
            ("a.txt", "x\n", "columns text and label"),
            ("a.csv", "sentence,label\nb,1\n", "no 'text': it has sentence, label"),
            ("a.tsv", "text\tlabel\nb\n", "Line 2 .* another number of columns"),
            ("a.csv", "text,label\nb,1,2\n", "another number of columns"),
            ("a.csv", "text;label\nb, c;1\n", "separated by semicolons"),
            ("a.csv", 'text,label\n"b,1\n', "is no line of a table"),
            ("a.jsonl", '{"text": "a", "label": 1.5}\n', "no text under 'label' but float"),
            ("a.jsonl", '{"text": "a", "label": true}\n', "no text under 'label' but bool"),
            ("a.csv", "text,label\n", "there are none"),
        ],
    )
    def test_what_cannot_be_read(
        self, tmp_path: Path, name: str, content: str, reason: str
    ) -> None:
        with pytest.raises(hw.HeadwiseError, match=reason):
            hw.LabelledText.open(self.write(tmp_path, name, content))

    def test_a_data_set(self, tmp_path: Path) -> None:
        self.write(
            tmp_path,
            "train.jsonl",
            '{"sentence": "a b", "label": 2}\n{"sentence": "c", "label": 0}\n',
        )
        text = hw.LabelledText.open(f"datasets:{tmp_path}?text=sentence")
        assert [*text] == [("a b", "2"), ("c", "0")]
        with pytest.raises(
            hw.HeadwiseError, match=r"in .* is not an option: there are text, label, split, config"
        ):
            hw.LabelledText.open("datasets:x?source=a")


class TestCommands:
    @pytest.fixture
    def folder(self, trained: hw.Model, tmp_path: Path) -> Path:
        for name, text in {"train": task(60, 6), "dev": task(40, 7)}.items():
            lines = "".join(f"{label}\t{line}\n" for line, label in text)
            (tmp_path / f"{name}.tsv").write_text(f"label\ttext\n{lines}")
        trained.save(tmp_path / "model")
        return tmp_path

    def call(self, *words: object) -> str:
        result = CliRunner().invoke(cli.app, [str(word) for word in words])
        if result.exception is not None:
            raise result.exception
        return result.stdout

    def test_score_prune_and_evaluate(self, folder: Path) -> None:
        labelled = "--text", folder / "dev.tsv"
        scores = self.call(
            "score", folder / "model", *labelled, "--out", folder / "scores"
        ).splitlines()[-1]
        assert "ablation.zero" in Path(scores).read_text()
        place = self.call(
            "prune",
            folder / "model",
            "--text",
            folder / "train.tsv",
            "--dev",
            folder / "dev.tsv",
            "--keep",
            1,
            "--out",
            folder / "pruned",
        ).splitlines()[-1]
        assert hw.load(place).heads.total == 1
        assert ("dev", "accuracy", "full") in measured_in(folder / "pruned")
        assert (folder / "pruned/report.html").is_file()
        table = self.call(
            "evaluate", folder / "model", place, *labelled, "--out", folder / "quality"
        ).splitlines()[-1]
        assert "accuracy" in Path(table).read_text()

    @pytest.mark.parametrize(
        ("words", "reason"),
        [
            (["--keep", "1", "--text", "LICENSE"], "Labelled text is one file, but 2 were given"),
        ],
    )
    def test_refusals(self, folder: Path, words: list[str], reason: str) -> None:
        with pytest.raises(hw.HeadwiseError, match=reason):
            self.call(
                "prune",
                folder / "model",
                "--text",
                folder / "train.tsv",
                *words,
                "--out",
                folder / "no",
            )
        assert not (folder / "no" / "pruned").exists()
