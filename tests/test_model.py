"""A model and its folder: what is saved is what is loaded, whole or as it was; what is broken is said in one line."""

from __future__ import annotations

import hashlib
import io
import json
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    MarianMTModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from headwise.core.errors import HeadwiseError
from headwise.core.folders import MODEL, SUMS, to_sums
from headwise.core.heads import KINDS, Head, Site
from headwise.core.layout import HeadMask
from headwise.core.options import Architecture
from headwise.data.text import ParallelText
from headwise.models.attention.configuration import start_token
from headwise.models.loading import load
from headwise.models.model import Model
from headwise.models.model_files import MARK, WEIGHTS
from headwise.models.tasks.objective import predict
from headwise.models.training.loss import loss_forward
from headwise.models.training.tokenizer import learn_subwords
from headwise.models.training.translation_model import build_model as architecture
from models.attention.families import STACK, T5, batch, build, output, tiny

SENTENCES = ["the red bird sees a small house", "a bird", "the house the bird sees"]
FACTORIES = ["tiny_marian", "tiny_m2m100"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return learn_subwords(SENTENCES, 50)


@pytest.fixture
def translator(
    tiny_marian: Callable[..., MarianMTModel], tokenizer: PreTrainedTokenizerBase
) -> Model:
    return Model(tiny_marian(), tokenizer, "tiny")


def cut(model: Model) -> HeadMask:
    """Uneven layers, one empty layer of each kind."""
    gone = [head for head in model.heads if head.layer == 0 or head.head == len(head.kind) % 4]
    return HeadMask.full(model.heads).without(gone)


def layout_in(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text()).get("headwise_layout")


def tampered(folder: Path, *gone: str, **changes: Any) -> Path:
    """A model's folder as other programs write it, without the list of sums, and with another configuration."""
    config = json.loads((folder / "config.json").read_text())
    for name in (MARK, *gone):
        config.pop(name, None)
    (folder / "config.json").write_text(json.dumps(config | changes))
    (folder / SUMS).unlink(missing_ok=True)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def same(one: Model, other: Model, vocabulary: int = 50) -> None:
    """The two have the same heads, and answer alike."""
    assert one.layout == other.layout and one.heads == other.heads
    assert one.parameters == other.parameters and type(one.hf) is type(other.hf)
    inputs = {name: tensor % vocabulary for name, tensor in batch(other.hf).items()}
    assert torch.equal(output(one.hf, inputs), output(other.hf, inputs))


def comes_back(model: Model, folder: Path, vocabulary: int = 50) -> Model:
    """The model as it is loaded from a folder that it was saved to."""
    again = load(model.save(folder))
    same(again, model, vocabulary)
    return again


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_pruned_model_comes_back_and_translates_the_same(
    factory: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = Model(request.getfixturevalue(factory)(), tokenizer, "tiny")
    small = model.only(cut(model))
    again = comes_back(small, tmp_path / "small")
    assert again.layout == cut(model) and again.heads.query["cross"] == (0, 3)
    assert small.parameters < model.parameters
    translated = small.translate(SENTENCES, beam=4)
    assert again.translate(SENTENCES, beam=4) == translated != model.translate(SENTENCES, beam=4)


@pytest.mark.parametrize(
    "family", ["marian", "m2m100", "bart", "bert", "distilbert", "llama", "qwen3", "gemma2"]
)
@pytest.mark.parametrize("empty", [False, True], ids=["uneven", "no-head-left"])
def test_every_family_comes_back_from_its_folder(family: str, empty: bool, tmp_path: Path) -> None:
    model = Model(tiny(family), None, family)
    small = model.only(HeadMask(model.heads, frozenset()) if empty else cut(model))
    assert comes_back(small, tmp_path / "small").tokenizer is None


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_embeddings_that_are_not_shared_come_back(
    norm: Any, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    shape = Architecture(
        norm=norm, encoder_layers=2, decoder_layers=2, heads=4, width=32, feedforward=64
    )
    model = Model(architecture(shape, tokenizer, seed=0), tokenizer, norm)
    for before in (model, model.only(cut(model))):
        comes_back(before, tmp_path / "model", len(tokenizer))


@pytest.mark.parametrize("family", ["marian", "m2m100", "t5", "bert", "albert", "gpt2", "llama"])
def test_a_whole_model_s_folder_is_anyone_s_to_load(family: str, tmp_path: Path) -> None:
    model, folder = Model(tiny(family), None, family), tmp_path / "whole"
    assert comes_back(model, folder).layout is None and not layout_in(folder)
    if model.hf.can_generate():
        auto = AutoModelForSeq2SeqLM if model.hf.config.is_encoder_decoder else AutoModelForCausalLM
        same(Model(auto.from_pretrained(folder), None, family), model)


@pytest.mark.parametrize("pruned", [False, True], ids=["whole", "pruned"])
def test_type_of_the_weights_and_search_settings_come_back(
    translator: Model, pruned: bool, tmp_path: Path
) -> None:
    translator.hf.bfloat16()
    search = {"num_beams": 3, "max_length": 17, "length_penalty": 0.4, "bad_words_ids": [[7]]}
    translator.hf.generation_config.update(**search)
    model = translator.only(cut(translator)) if pruned else translator
    again = load(model.save(tmp_path / "model"))
    assert again.hf.dtype == torch.bfloat16
    assert search.items() <= again.hf.generation_config.to_dict().items()


@pytest.mark.parametrize("family", ["marian", "llama"])
def test_a_model_pruned_twice_keeps_one_layout(family: str, tmp_path: Path) -> None:
    model = Model(tiny(family), None, family)
    kind = model.heads.kinds[-1]
    first = HeadMask.full(model.heads).without([Head(kind, 0, 1), Head(kind, 1, 0)])
    once = comes_back(model.only(first, grow=True), tmp_path / "once")
    assert once.heads.query[kind] == (3, 3)
    twice = once.without([Head(kind, 0, 1), Head(kind, 1, 2)])
    at_once = [Head(kind, 0, 1), Head(kind, 0, 2), Head(kind, 1, 0), Head(kind, 1, 3)]
    assert twice.layout == HeadMask.full(model.heads).without(at_once)
    comes_back(twice, tmp_path / "twice")
    same(model.without(at_once, grow=True), twice)


def test_grouped_heads_pruned_twice_fit_the_layout(tmp_path: Path) -> None:
    """The first cut gives every head its own copy of the keys; the second could share them again."""
    model = Model(tiny("llama"), None, "llama")
    for second in ([2], [0], [1, 2], [0, 1], [0, 1, 2]):
        first = HeadMask.full(model.heads).without([Head("decoder-self", 0, 1)])
        once = model.only(first, grow=True)
        assert once.heads.key_value["decoder-self"] == (3, 2)
        gone = [Head("decoder-self", 0, head) for head in second]
        comes_back(once.without(gone), tmp_path / "twice")


def test_a_pruned_partial_map_comes_back(tmp_path: Path) -> None:
    hf = build("LongT5ForConditionalGeneration", **T5)
    with pytest.raises(HeadwiseError, match="allow_partial"):
        Model(hf, None, "longt5")
    model = Model(hf, None, "longt5", allow_partial=True)
    folder = model.save(tmp_path / "longt5")
    with pytest.raises(HeadwiseError, match="allow_partial"):
        load(folder)
    assert load(folder, allow_partial=True).heads == model.heads


def test_the_model_of_a_study_is_found_in_its_folder(translator: Model, tmp_path: Path) -> None:
    translator.save(tmp_path / "run" / "model")
    assert load(tmp_path / "run").heads == translator.heads


def test_translating_needs_a_translator_and_a_tokenizer(translator: Model) -> None:
    with pytest.raises(HeadwiseError, match=r"^bert is a BertModel, which does not translate"):
        Model(tiny("bert"), None, "bert").translate(["a"])
    translator.tokenizer = None
    with pytest.raises(HeadwiseError, match=r"^tiny has no tokenizer"):
        translator.translate(["a"])


def test_one_string_is_no_list_of_sentences(translator: Model) -> None:
    with pytest.raises(HeadwiseError, match="one string"):
        translator.translate("Hello.")


def test_code_that_comes_with_a_model_is_never_run(
    translator: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is asked, whatever is on standard input; the code leaves no trace."""
    own = {"AutoConfig": "code.Own", "AutoModelForSeq2SeqLM": "code.Own"}
    folder = tampered(translator.save(tmp_path / "model"), model_type="own", auto_map=own)
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').write('yes')\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\ny\n"))
    with pytest.raises(HeadwiseError, match="code of its own"):
        load(folder)
    assert not (tmp_path / "ran").exists()


def test_a_model_shows_what_it_is(translator: Model) -> None:
    text = repr(translator)
    assert text.startswith(f"Model('{translator.name}', MarianMTModel, ")
    assert text.endswith(f", {translator.parameters:,} parameters)")
    assert "cross" in translator._repr_html_()


def test_saving_replaces_a_model(translator: Model, tmp_path: Path) -> None:
    small = translator.only(cut(translator))
    folder = small.save(tmp_path / "model")
    assert layout_in(folder)
    translator.save(folder)
    assert not layout_in(folder) and load(folder).heads == translator.heads
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_who_may_read_the_configuration_may_read_the_weights(
    translator: Model, tmp_path: Path
) -> None:
    saved = translator.save(tmp_path / "model")
    modes = {file.stat().st_mode for file in saved.iterdir()}
    assert len(modes) == 1


def test_saving_keeps_what_it_did_not_write(translator: Model, tmp_path: Path) -> None:
    folder = translator.save(tmp_path / "model")
    mine = dict.fromkeys(("train.py", "notes.txt", "README.md"), "mine")
    mine |= dict.fromkeys(("results.json", "1_Pooling/config.json"), "{}")
    (folder / "1_Pooling").mkdir()
    for name, text in mine.items():
        (folder / name).write_text(text)
    small = translator.only(cut(translator))
    for model in (small, translator, small):
        assert load(model.save(folder)).heads == model.heads
        assert {name: (folder / name).read_text() for name in mine} == mine
    assert "README.md" not in (folder / SUMS).read_text()


def test_saving_never_replaces_a_model_that_it_did_not_write(
    translator: Model, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(HeadwiseError, match="could not be written"):
        translator.save(tmp_path / "file")
    edited = translator.save(tmp_path / "edited")
    (edited / "generation_config.json").write_text('{"num_beams": 2}')
    translator.hf.save_pretrained(tmp_path / "other")
    translator.save(tmp_path / "bin")
    (tmp_path / "bin" / "pytorch_model.bin").write_bytes(b"mine")
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "vocab.json").write_text("{}")
    for name in ("edited", "other", "bin", "words"):
        before = files(tmp_path / name)
        with pytest.raises(
            HeadwiseError, match=rf"{name}/.* is in the way: headwise did not write it"
        ):
            translator.save(tmp_path / name)
        assert files(tmp_path / name) == before
    (tmp_path / "empty").mkdir()
    assert load(translator.save(tmp_path / "empty")).heads == translator.heads


def test_a_list_of_sums_names_nothing_outside_its_folder(translator: Model, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    folder = translator.save(tmp_path / "model")
    digest = hashlib.sha256(b"mine").hexdigest()
    for name in ("../victim", str(tmp_path / "victim"), "", "."):
        (folder / SUMS).write_text(to_sums(MODEL, {name: [digest]}))
        for use in (load, translator.save):
            with pytest.raises(HeadwiseError, match="SHA256SUMS is damaged"):
                use(folder)
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.parametrize("step", range(8))
def test_killed_while_files_are_replaced(
    step: int, translator: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two renames: the old model, or a folder that is refused; the next save mends it."""
    small, moved = translator.only(cut(translator)), list[Path]()
    folder = translator.save(tmp_path / "model")
    old = files(folder)
    rename = Path.replace

    def killed(self: Path, path: Path) -> Any:
        if len(moved) == step:
            raise KeyboardInterrupt
        moved.append(self)
        return rename(self, path)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        small.save(folder)
    monkeypatch.undo()
    if step == 0:
        assert files(folder) == old
    else:
        refused(folder, "is damaged")
    assert load(small.save(folder)).heads == small.heads
    translator.save(folder)
    assert files(folder) == old


def test_a_model_of_sentence_transformers_stays_one(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    model = Model(tiny("bert"), tokenizer, "bert")
    given = tmp_path / "given"
    model.hf.save_pretrained(given)
    tokenizer.save_pretrained(given)
    (given / "1_Pooling").mkdir()
    (given / "1_Pooling" / "config.json").write_text('{"word_embedding_dimension": 32}')
    paths = ("", "1_Pooling", "../../etc", ".")
    parts = [{"idx": at, "path": path} for at, path in enumerate(paths)]
    (given / "modules.json").write_text(json.dumps(parts))
    others = {"README.md": "---\nlicense: mit\n---\n# Mine", "LICENSE": "MIT"}
    others |= {"results.json": "{}", "optimizer.pt": "x"}
    for name, text in others.items():
        (given / name).write_text(text)
    whole = load(given)
    small = whole.without([Head("encoder-self", 0, 1)])
    again = load(small.save(tmp_path / "small")).save(tmp_path / "again")
    for saved in (whole.save(tmp_path / "whole"), again):
        assert (saved / "1_Pooling" / "config.json").exists() and (saved / "modules.json").exists()
        assert (saved / "LICENSE").read_text() == "MIT"
        assert (saved / "README.md").read_text().startswith("---\nlicense")
        assert not (saved / "results.json").exists() and not (saved / "optimizer.pt").exists()
        assert load(saved).tokenizer is not None
    assert (tmp_path / "again" / "README.md").read_text().count("hw.load") == 1
    assert "hw.load" not in (tmp_path / "whole" / "README.md").read_text()
    (given / "modules.json").write_text("[1]")
    with pytest.raises(HeadwiseError, match="is no list of modules"):
        whole.save(tmp_path / "new")


def test_links_out_of_a_models_folder_are_not_copied(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    """What they lead to may be private. The hub's cache is made of links to `blobs`, which are copied."""
    given = tmp_path / "models--me--bert" / "snapshots" / "1a2b"
    Model(tiny("bert"), tokenizer, "bert").save(given)
    (given / "1_Pooling").mkdir()
    (given / "modules.json").write_text('[{"idx": 0, "path": "1_Pooling"}]')
    (tmp_path / "secret").write_text("private")
    for name in ("LICENSE", "1_Pooling/config.json"):
        (given / name).symlink_to(tmp_path / "secret")
    blob = tmp_path / "models--me--bert" / "blobs" / "3c4d"
    blob.parent.mkdir()
    blob.write_bytes(b"# caf\xe9\n")  # no UTF-8
    (given / "README.md").symlink_to(blob)
    whole = load(given)
    small = whole.without([Head("encoder-self", 0, 1)])
    with pytest.warns(UserWarning, match="LICENSE is a link to .*secret"):
        saved = small.save(tmp_path / "small")
    assert not any(b"private" in path.read_bytes() for path in saved.rglob("*") if path.is_file())
    assert (saved / "README.md").read_bytes().startswith(b"# caf\xe9\n")
    assert not (saved / "README.md").is_symlink()


@pytest.mark.parametrize("family", ["bart", "gpt_neox"])
def test_a_pruned_model_that_transformers_saved_is_loaded(family: str, tmp_path: Path) -> None:
    """The weights of the second have other names on the hub."""
    model = Model(tiny(family), None, family)
    small = model.only(cut(model))
    small.hf.save_pretrained(tmp_path / "theirs")
    same(load(tmp_path / "theirs"), small)


@pytest.mark.parametrize("name", ["T5ForConditionalGeneration", "UMT5ForConditionalGeneration"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_tensor_keeps_its_type(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """transformers keeps some weights of T5 in float32."""
    build(name, **T5).to(dtype).save_pretrained(tmp_path / "half")
    model = load(tmp_path / "half")
    types = {tensor.dtype for tensor in model.hf.parameters()}
    assert len(types) == (2 if dtype == torch.float16 else 1)
    small = model.only(cut(model))
    again = comes_back(small, tmp_path / "small").hf.state_dict()
    for key, tensor in small.hf.state_dict().items():
        assert again[key].dtype == tensor.dtype, key


@pytest.mark.parametrize(
    "name",
    [
        f"BertFor{task}"
        for task in ("SequenceClassification", "TokenClassification", "QuestionAnswering")
    ],
)
def test_a_classifier_keeps_its_head(name: str, tmp_path: Path) -> None:
    hf = build(name, **STACK)
    hf.save_pretrained(tmp_path / "theirs")
    model = load(tmp_path / "theirs")
    assert type(model.hf) is type(hf)
    for saved in (model, model.only(cut(model))):
        comes_back(saved, tmp_path / "ours")
    assert torch.equal(output(model.hf, batch(hf)), output(hf, batch(hf)))
    if name == "BertForQuestionAnswering":  # logits of where an answer starts and ends
        with pytest.raises(HeadwiseError, match=f"{name} predicts no words"):
            predict(model.hf, batch(hf))
    with pytest.raises(HeadwiseError, match="does not translate"):
        model.translate(["a"])


def test_weights_without_a_place_are_an_error(tmp_path: Path) -> None:
    build("BertForSequenceClassification", **STACK).save_pretrained(tmp_path / "model")
    reasons = {
        "BertModel": r"no place \(classifier.bias, classifier.weight\)",
        "BertForMaskedLM": "lacks weights .*cls.predictions",
    }
    for name in ("NoSuchModel", "AutoModel", "GPT2LMHeadModel", "pipeline"):
        reasons[name] = f"is said to be a {name} of type bert"
    for name, reason in reasons.items():
        refused(tampered(tmp_path / "model", architectures=[name]), reason)
    refused(tampered(tmp_path / "model", architectures=None), "BertModel has no place")


def test_the_pooler_of_a_masked_model_is_left_out_with_a_warning(tmp_path: Path) -> None:
    """Files of BERT have the weights of its other task, too."""
    build("BertForPreTraining", **STACK).save_pretrained(tmp_path / "model")
    with pytest.warns(UserWarning, match="no place for bert.pooler"):
        model = load(tampered(tmp_path / "model", architectures=["BertForMaskedLM"]))
    assert type(model.hf).__name__ == "BertForMaskedLM"


@pytest.mark.parametrize("family", ["marian", "t5"])
def test_the_start_token_may_stand_in_the_generation_settings_alone(
    family: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    folder = Model(tiny(family), tokenizer, family).save(tmp_path / "model")
    place = tampered(folder, "decoder_start_token_id") / "generation_config.json"
    settings = json.loads(place.read_text())
    place.write_text(json.dumps(settings | {"decoder_start_token_id": 3}))
    model = load(folder)
    assert start_token(model.hf) == 3
    with loss_forward(model.hf):
        (prepared,) = model.task.batches(ParallelText.from_pairs([("a", "b")]))
    assert prepared["decoder_input_ids"][0, 0] == 3
    for wrong in (10**6, -1, 1.5):
        model.hf.generation_config.decoder_start_token_id = wrong
        with pytest.raises(HeadwiseError, match=f"decoder_start_token_id of this .* is {wrong}"):
            start_token(model.hf)


def test_two_start_tokens_are_said(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    """transformers writes by one and computes its loss by the other; so both numbers are right, of different targets."""
    folder = Model(tiny("marian"), tokenizer, "marian").save(tmp_path / "model")
    place = tampered(folder, decoder_start_token_id=4)
    settings = json.loads((place / "generation_config.json").read_text())
    (place / "generation_config.json").write_text(
        json.dumps(settings | {"decoder_start_token_id": 3})
    )
    with pytest.warns(UserWarning, match=r"token 3 by its generation_config.* 4 by its config"):
        model = load(place)
    assert start_token(model.hf) == 3


def test_options_of_the_search_that_are_none(translator: Model) -> None:
    for options in ({"max_length": 8}, {"beam": 0}, {"length_penalty": float("nan")}):
        with pytest.raises(HeadwiseError, match=f"^Search: .*{next(iter(options))}"):
            translator.translate(["a"], **options)


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file can grow beyond 20,000 bytes: the weights do not fit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_old_folder(
    translator: Model, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    old = files(translator.save(tmp_path / "model"))
    small = translator.only(cut(translator))
    request.getfixturevalue("full_disk")
    for folder in ("model", "new"):
        with pytest.raises(HeadwiseError, match=rf"{folder} could not be written") as refusal:
            small.save(tmp_path / folder)
        assert "\n" not in str(refusal.value)
    assert files(tmp_path / "model") == old
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    "step",
    [(PreTrainedTokenizerFast, "save_pretrained"), (Path, "replace")],
    ids=["writing", "renaming"],
)
@pytest.mark.parametrize(
    "problem", [OSError(28, "No space left on device"), KeyboardInterrupt(), RuntimeError("x")]
)
def test_any_error_while_writing_leaves_the_old_folder(
    step: tuple[Any, str],
    problem: BaseException,
    translator: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = files(translator.save(tmp_path / "model"))
    small = translator.only(cut(translator))

    monkeypatch.setattr(*step, Mock(side_effect=problem))
    with pytest.raises(HeadwiseError if isinstance(problem, OSError) else type(problem)):
        small.save(tmp_path / "model")
    assert files(tmp_path / "model") == old
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_that_cannot_be_made(translator: Model, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadwiseError, match=r"could not be written .* choose another --out"):
        translator.save(tmp_path / "file" / "model")


def refused(spec: str | Path, reason: str) -> None:
    with pytest.raises(HeadwiseError, match=reason) as refusal:
        load(spec)
    assert str(spec) in str(refusal.value) and "\n" not in str(refusal.value)


def test_what_is_not_there_or_no_model_is_said(tmp_path: Path) -> None:
    refused("no such model", "not a local folder, and not a complete model")
    refused(tmp_path, "has no config.json, and no .npz or .bin of Marian. Give a model's folder")
    (tmp_path / "config.json").write_text("{")
    refused(tmp_path, "is a folder, but not a complete model that transformers can load")
    (tmp_path / "config.json").write_text('{"model_type": "abacus"}')
    refused(tmp_path, "abacus")
    (tmp_path / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\nsize 3\n"
    )
    refused(tmp_path, "is a pointer of git-lfs, not the file itself")


@pytest.mark.parametrize(
    ("file", "spec", "reason"),
    [
        (
            "small.gguf",
            "small.gguf",
            "It is a file: give the folder of the model, or that from which",
        ),
        ("config.json", "config.json", "It is a file: give the folder that it lies in"),
        ("mine/config.json", ".", "It holds folders of models: give one, such as .*mine"),
        ("mine/config.json", "./mien", "did you mean '.*/mine'"),
        ("plan.toml", ".", "It holds a study that has no model yet"),
        ("adapter_config.json", ".", "It holds an adapter of PEFT: merge it"),
        (
            "checkpoint-9/config.json",
            ".",
            "checkpoints of a Trainer: give one, such as .*checkpoint-9",
        ),
        ("snapshots/0a/config.json", ".", "copies of the hub: give one, such as .*snapshots/0a"),
    ],
)
def test_what_to_give_instead_is_said(file: str, spec: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("{}")
    refused(tmp_path / spec, reason)


def test_a_folder_below_home_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(
        HeadwiseError, match=r"^~/gone cannot be loaded .* there is no folder /.*/gone"
    ):
        load("~/gone")
    (tmp_path / "here").mkdir()
    with pytest.raises(HeadwiseError, match=r"^~/here cannot be loaded .* no config.json"):
        load("~/here")


@pytest.mark.parametrize(
    "spec", ["./gone", "../gone", "/gone/model", "~/gone", "runs/gone/model", "gone/", "no/such/"]
)
def test_a_folder_that_is_not_there_is_looked_for_nowhere_else(
    spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = SimpleNamespace(from_pretrained=lambda _: pytest.fail("asked"))
    monkeypatch.setattr("headwise.models.loading.AutoConfig", asked)
    refused(spec, "there is no folder .* Give a model's folder")


@pytest.mark.parametrize("spec", ["gpt2", "Helsinki-NLP/opus-mt-en-de", "google/flan-t5-base"])
def test_a_hub_id_is_no_path(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    hub = SimpleNamespace(get_config_dict=asked.append)
    monkeypatch.setattr("headwise.models.loading.PretrainedConfig", hub)
    with pytest.raises(HeadwiseError, match="is not a local folder"):
        load(spec)
    assert asked == [spec]


def fixed(model: Model) -> set[str]:
    return {name for name, parameter in model.hf.named_parameters() if not parameter.requires_grad}


def test_what_a_model_does_not_train_it_does_not_train_after_loading(
    translator: Model, tmp_path: Path
) -> None:
    """Sinusoidal positions: a trained change to them would neither be saved nor loaded."""
    positions = {f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}
    whole = load(translator.save(tmp_path / "whole"))
    assert fixed(translator) == fixed(whole) == positions
    small = whole.only(cut(whole))
    again = load(small.save(tmp_path / "small"))
    assert fixed(small) == fixed(again) == positions
    assert fixed(load(Model(tiny("bart"), None, "tiny").save(tmp_path / "bart"))) == set()


def change(folder: Path, name: str, tensor: Tensor | None) -> Path:
    weights = load_file(folder / WEIGHTS)
    del weights[name]
    if tensor is not None:
        weights[name] = tensor
    save_file(weights, folder / WEIGHTS, {"format": "pt"})
    return folder


KEYS = "model.encoder.layers.1.self_attn.k_proj.weight"


def test_a_broken_whole_model_is_said(translator: Model, tmp_path: Path) -> None:
    folder = tampered(translator.save(tmp_path / "model"))
    before = files(folder)
    for tensor, reason in (
        (torch.zeros(5, 5), "do not fit its layout: some have other sizes"),
        (None, rf"lacks weights of its MarianMTModel \({KEYS}\): they would be random"),
        (torch.full((32, 32), torch.nan), f"is damaged: weights in {KEYS} are not finite numbers"),
    ):
        refused(change(folder, KEYS, tensor), reason)
        (folder / WEIGHTS).write_bytes(before[WEIGHTS])
    incomplete = "is a folder, but not a complete model"
    broken = {
        WEIGHTS: ([b"\0" * 100, b""], incomplete),
        "tokenizer.json": ([b"{}"], "transformers reads no tokenizer in"),
        "generation_config.json": ([b"{", b"[]", b""], incomplete),
    }
    for name, (contents, reason) in broken.items():
        for content in contents:
            (folder / name).write_bytes(content)
            refused(folder, reason)
        (folder / name).write_bytes(before[name])
    assert load(folder).heads == translator.heads


def test_a_broken_pruned_model_is_said(translator: Model, tmp_path: Path) -> None:
    small = translator.only(cut(translator))
    folder = tampered(small.save(tmp_path / "small"))
    before = files(folder)
    for tensor in (torch.zeros(32, 32), None):
        refused(change(folder, KEYS, tensor), "do not fit its layout: .*k_proj.weight")
        (folder / WEIGHTS).write_bytes(before[WEIGHTS])
    (folder / WEIGHTS).write_bytes(b"\0" * 100)
    refused(folder, "do not fit its layout")
    (folder / WEIGHTS).unlink()
    refused(folder, "do not fit its layout")
    (folder / WEIGHTS).write_bytes(before[WEIGHTS])
    less = small.layout.without([Head("cross", 1, small.layout.of(Site("cross", 1))[0])])
    refused(tampered(folder, headwise_layout=less.to_json()), "do not fit its layout")


LAYOUTS = {
    "a text": "[",
    "a list": [1],
    "another version": {"format": "headwise-layout", "version": 2},
    "many heads": {"heads": {"encoder-self": [10**8]}},
    "many layers": {"heads": {"encoder-self": [1] * 10**5}},
    "negative heads": {"heads": {"encoder-self": [-8, 4]}},
    "half a head": {"heads": {"encoder-self": [1.5, 4]}},
    "half a kept head": {"kept": {kind: [[1.5], []] for kind in KINDS}},
}


@pytest.mark.parametrize("what", LAYOUTS)
def test_a_layout_that_is_none_is_refused_at_once(
    translator: Model, tmp_path: Path, what: str
) -> None:
    folder = translator.only(cut(translator)).save(tmp_path / "small")
    given: Any = LAYOUTS[what]
    whole = layout_in(folder) | given if isinstance(given, dict) else given
    begun = time.perf_counter()
    refused(tampered(folder, headwise_layout=whole), "layout")
    assert time.perf_counter() - begun < 3


CONFIGS = {
    "encoder_layers": (10**6, -1, 2.5, 3),
    "encoder_attention_heads": (0, 10**8, -4, 1.5),
    "vocab_size": (10**10, -1),
    "d_model": (10**10, 0),
    "architectures": (["AbacusModel"], "Marian", 5, None),
    "encoder_ffn_dim": (10**11,),
}


@pytest.mark.parametrize("pruned", [False, True], ids=["whole", "pruned"])
@pytest.mark.parametrize("name", CONFIGS)
def test_untrusted_numbers_are_refused_before_anything_is_built(
    translator: Model, tmp_path: Path, pruned: bool, name: str
) -> None:
    folder = (translator.only(cut(translator)) if pruned else translator).save(tmp_path / "model")
    for value in CONFIGS[name]:
        if (name, value, pruned) == ("architectures", None, False):
            continue  # the auto class is right for a whole translation model
        begun = time.perf_counter()
        with pytest.raises(HeadwiseError) as refusal:
            load(tampered(folder, **{name: value}))
        assert "\n" not in str(refusal.value)
        assert time.perf_counter() - begun < 3, value


def test_deep_nesting_and_long_numbers_are_refused(translator: Model, tmp_path: Path) -> None:
    folder = tampered(translator.save(tmp_path / "model"))
    text = (folder / "config.json").read_text().rstrip().removesuffix("}")
    for value in ("[" * 10**5, "[" * 10**5 + "]" * 10**5, "9" * 5000):
        for name in ("headwise_layout", "encoder_layers"):
            (folder / "config.json").write_text(f'{text}, "{name}": {value}}}')
            refused(folder, ".")


def test_too_little_memory_is_said(
    translator: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = translator.save(tmp_path / "model")
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")):
        monkeypatch.setattr(MarianMTModel, "from_pretrained", Mock(side_effect=error))
        refused(folder, "there is not enough memory")


def test_the_words_of_another_model_are_refused(translator: Model, tmp_path: Path) -> None:
    translator.tokenizer = learn_subwords([" ".join(chr(65 + i) * 2 for i in range(60))], 120)
    refused(translator.save(tmp_path / "model"), "words, the model 50: it is another model's")


@pytest.mark.parametrize("pruned", [False, True], ids=["whole", "pruned"])
def test_every_damaged_file_is_noticed(translator: Model, pruned: bool, tmp_path: Path) -> None:
    """Cut short, one bit flipped, or deleted: refused, whatever the file."""
    folder = (translator.only(cut(translator)) if pruned else translator).save(tmp_path / "model")
    for name, content in files(folder).items():
        place = len(content) // 2
        flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        for damage in (content[:place], flipped, None):
            (folder / name).unlink()
            if damage is not None:
                (folder / name).write_bytes(damage)
            if name not in ("README.md", SUMS):
                refused(folder, name)
            elif name == SUMS:
                refused(folder, "SHA256SUMS is missing" if damage is None else "is damaged")
            else:
                assert load(folder).heads
        (folder / name).write_bytes(content)
    listed = (folder / SUMS).read_text()
    for place in range(0, len(listed), 11):  # one digit, anywhere, also in the line of a README
        digit = "1" if listed[place] == "0" else "0"
        (folder / SUMS).write_text(listed[:place] + digit + listed[place + 1 :])
        refused(folder, SUMS)
    for gone in range(1, listed.count("\n")):  # a line
        lines = listed.splitlines(keepends=True)
        (folder / SUMS).write_text("".join(lines[:gone] + lines[gone + 1 :]))
        refused(folder, SUMS)
