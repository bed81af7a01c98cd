"""A model and its folder: what is saved is what is loaded, whole or as it was; what is broken is said in one line."""

from __future__ import annotations

import io
import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, MarianMTModel, PreTrainedTokenizerBase

from attention.families import batch, build, output, tiny
from headwise.errors import HeadwiseError
from headwise.heads import Head, HeadMask, Site
from headwise.model import LAYOUT, WEIGHTS, Model, load
from headwise.translation.build import Architecture
from headwise.translation.build import build as architecture
from headwise.translation.subwords import learn_subwords

SENTENCES = ["the red bird sees a small house", "a bird", "the house the bird sees"]
FACTORIES = ["tiny_marian", "tiny_m2m100"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return learn_subwords(SENTENCES, 50)


@pytest.fixture
def translator(tiny_marian: Callable[..., MarianMTModel], tokenizer: PreTrainedTokenizerBase) -> Model:
    return Model(tiny_marian(), tokenizer, "tiny")


def cut(model: Model) -> HeadMask:
    """Uneven layers, one empty layer of each kind."""
    gone = [head for head in model.heads if head.layer == 0 or head.head == len(head.kind) % 4]
    return HeadMask.full(model.heads).without(gone)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_pruned_model_comes_back_and_translates_the_same(
    factory: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = Model(request.getfixturevalue(factory)(), tokenizer, "tiny")
    small = model.remove(cut(model))
    again = load(small.save(tmp_path / "small"))
    assert again.layout == small.layout == cut(model)
    assert again.heads == small.heads and again.heads.query["cross"] == (0, 3)
    assert again.parameters == small.parameters < model.parameters
    inputs = batch(small.hf)
    assert torch.equal(output(again.hf, inputs), output(small.hf, inputs))
    translated = small.translate(SENTENCES, beam=4)
    assert again.translate(SENTENCES, beam=4) == translated != model.translate(SENTENCES, beam=4)


@pytest.mark.parametrize("family", ["marian", "m2m100", "bart", "bert", "distilbert", "llama", "qwen3", "gemma2"])
@pytest.mark.parametrize("empty", [False, True], ids=["uneven", "no-head-left"])
def test_every_family_comes_back_from_its_folder(family: str, empty: bool, tmp_path: Path) -> None:
    model = Model(tiny(family), None, family)
    small = model.remove(HeadMask(model.heads, frozenset()) if empty else cut(model))
    again = load(small.save(tmp_path / "small"))
    assert type(again.hf) is type(model.hf) and again.tokenizer is None
    assert again.layout == small.layout and again.heads == small.heads
    assert torch.equal(output(again.hf, batch(model.hf)), output(small.hf, batch(model.hf)))


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_embeddings_that_are_not_shared_come_back(
    norm: Any, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    shape = Architecture(norm=norm, encoder_layers=2, decoder_layers=2, heads=4, width=32, feedforward=64)
    model = Model(architecture(shape, tokenizer, seed=0), tokenizer, norm)
    inputs = {name: tensor % len(tokenizer) for name, tensor in batch(model.hf).items()}
    for before in (model, model.remove(cut(model))):
        again = load(before.save(tmp_path / "model"))
        assert again.parameters == before.parameters
        assert torch.equal(output(again.hf, inputs), output(before.hf, inputs))


@pytest.mark.parametrize("family", ["marian", "m2m100", "t5", "bert", "albert", "gpt2", "llama"])
def test_a_whole_model_s_folder_is_anyone_s_to_load(family: str, tmp_path: Path) -> None:
    model = Model(tiny(family), None, family)
    folder = model.save(tmp_path / "whole")
    again = load(folder)
    assert not (folder / LAYOUT).exists() and type(again.hf) is type(model.hf)
    assert again.layout is None and again.heads == model.heads
    inputs = batch(model.hf)
    assert torch.equal(output(again.hf, inputs), output(model.hf, inputs))
    if model.hf.can_generate():
        auto = AutoModelForSeq2SeqLM if model.hf.config.is_encoder_decoder else AutoModelForCausalLM
        assert torch.equal(output(auto.from_pretrained(folder), inputs), output(model.hf, inputs))


@pytest.mark.parametrize("pruned", [False, True], ids=["whole", "pruned"])
def test_type_of_the_weights_and_search_settings_come_back(translator: Model, pruned: bool, tmp_path: Path) -> None:
    translator.hf.bfloat16()
    translator.hf.generation_config.update(num_beams=3, max_length=17, length_penalty=0.4, bad_words_ids=[[7]])
    model = translator.remove(cut(translator)) if pruned else translator
    again = load(model.save(tmp_path / "model"))
    assert again.hf.dtype == torch.bfloat16
    settings = again.hf.generation_config
    assert (settings.num_beams, settings.max_length, settings.length_penalty) == (3, 17, 0.4)
    assert settings.bad_words_ids == [[7]]


@pytest.mark.parametrize("family", ["marian", "llama"])
def test_a_model_pruned_twice_keeps_one_layout(family: str, tmp_path: Path) -> None:
    model = Model(tiny(family), None, family)
    kind = model.heads.kinds[-1]
    once = model.remove(HeadMask.full(model.heads).without([Head(kind, 0, 1), Head(kind, 1, 0)]))
    once = load(once.save(tmp_path / "once"))
    assert once.heads.query[kind] == (3, 3)
    twice = once.remove(HeadMask.full(once.heads).without([Head(kind, 0, 1), Head(kind, 1, 2)]))
    at_once = [Head(kind, 0, 1), Head(kind, 0, 2), Head(kind, 1, 0), Head(kind, 1, 3)]
    assert twice.layout == HeadMask.full(model.heads).without(at_once)
    again = load(twice.save(tmp_path / "twice"))
    assert again.layout == twice.layout and again.heads == twice.heads
    direct = model.remove(HeadMask.full(model.heads).without(at_once))
    assert direct.heads == twice.heads
    for other in (again, direct):
        assert torch.equal(output(other.hf, batch(model.hf)), output(twice.hf, batch(model.hf)))


def test_grouped_heads_pruned_twice_fit_the_layout(tmp_path: Path) -> None:
    """The first cut gives every head its own copy of the keys; the second could share them again."""
    model = Model(tiny("llama"), None, "llama")
    for second in ([2], [0], [1, 2], [0, 1], [0, 1, 2]):
        once = model.remove(HeadMask.full(model.heads).without([Head("decoder-self", 0, 1)]))
        assert once.heads.key_value["decoder-self"] == (3, 2)
        twice = once.remove(HeadMask.full(once.heads).without(Head("decoder-self", 0, head) for head in second))
        again = load(twice.save(tmp_path / "twice"))
        assert again.heads == twice.heads
        assert torch.equal(output(again.hf, batch(model.hf)), output(twice.hf, batch(model.hf)))


def test_a_pruned_partial_map_comes_back(tmp_path: Path) -> None:
    sizes = {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    hf = build("LongT5ForConditionalGeneration", **sizes, decoder_start_token_id=0)
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
    folder = translator.save(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "code.Own", "AutoModelForSeq2SeqLM": "code.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').write('yes')\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\ny\n"))
    with pytest.raises(HeadwiseError, match="code of its own"):
        load(folder)
    assert not (tmp_path / "ran").exists()


def test_a_model_shows_what_it_is(translator: Model) -> None:
    text = repr(translator)
    assert text.startswith(f"Model('{translator.name}', MarianMTModel, {translator.heads.total} heads: encoder-self ")
    assert text.endswith(f", {translator.parameters:,} parameters)") and "cross" in translator._repr_html_()


def test_saving_replaces_a_model(translator: Model, tmp_path: Path) -> None:
    small = translator.remove(cut(translator))
    folder = small.save(tmp_path / "model")
    assert (folder / LAYOUT).exists()
    translator.save(folder)
    assert not (folder / LAYOUT).exists() and load(folder).heads == translator.heads
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_saving_never_replaces_anything_else(translator: Model, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    checkpoint = translator.save(tmp_path / "checkpoint")
    (checkpoint / "pytorch_model.bin").write_bytes(b"mine")
    study = translator.save(tmp_path / "study")
    (study / "runs").mkdir()
    others = {"notes": "thesis.txt", "file": "file", "checkpoint": "pytorch_model.bin", "study": "runs"}
    for name, other in others.items():
        with pytest.raises(HeadwiseError, match=rf"other files \({other}\): choose an empty or new folder\.$"):
            translator.save(tmp_path / name)
    assert (tmp_path / "notes" / "thesis.txt").read_text() == (tmp_path / "file").read_text() == "mine"
    assert (checkpoint / "pytorch_model.bin").exists() and (study / "runs").exists()
    (tmp_path / "empty").mkdir()
    assert load(translator.save(tmp_path / "empty")).heads == translator.heads


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file can grow beyond 20,000 bytes: the weights do not fit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_old_folder(translator: Model, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    old = files(translator.save(tmp_path / "model"))
    small = translator.remove(cut(translator))
    request.getfixturevalue("full_disk")
    for folder in ("model", "new"):
        with pytest.raises(HeadwiseError, match=rf"{folder} could not be written \(.*\): choose") as refusal:
            small.save(tmp_path / folder)
        assert "\n" not in str(refusal.value)
    assert files(tmp_path / "model") == old
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("step", [(HeadMask, "save"), (Path, "rename")], ids=["last-file", "renaming"])
@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt(), RuntimeError("x")])
def test_any_error_while_writing_leaves_the_old_folder(
    step: tuple[Any, str], problem: BaseException, translator: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, whole_step = files(translator.save(tmp_path / "model")), getattr(*step)
    small = translator.remove(cut(translator))

    def fail(self: Any, path: Path) -> Any:
        if isinstance(self, HeadMask) or self.name.endswith(".partial"):
            raise problem
        return whole_step(self, path)

    monkeypatch.setattr(*step, fail)
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
    refused("no such model", "is not a local folder, and not a complete model that transformers can load")
    refused(tmp_path, "has no config.json. Give a model's folder or the folder of a finished study")
    (tmp_path / "config.json").write_text("{")
    refused(tmp_path, "is a folder, but not a complete model that transformers can load")
    (tmp_path / "config.json").write_text('{"model_type": "abacus"}')
    refused(tmp_path, "abacus")


@pytest.mark.parametrize("spec", ["./gone", "../gone", "/gone/model", "~/gone", "runs/gone/model", "gone/", "no/such/"])
def test_a_folder_that_is_not_there_is_looked_for_nowhere_else(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.model.AutoConfig", SimpleNamespace(from_pretrained=lambda _: pytest.fail("asked")))
    refused(spec, "there is no such folder. Give a model's folder, the folder of a finished study, or a hub id")


@pytest.mark.parametrize("spec", ["gpt2", "Helsinki-NLP/opus-mt-en-de", "google/flan-t5-base"])
def test_a_hub_id_is_no_path(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("headwise.model.PretrainedConfig", SimpleNamespace(get_config_dict=asked.append))
    with pytest.raises(HeadwiseError, match="is not a local folder"):
        load(spec)
    assert asked == [spec]


def fixed(model: Model) -> set[str]:
    return {name for name, parameter in model.hf.named_parameters() if not parameter.requires_grad}


def test_what_a_model_does_not_train_it_does_not_train_after_loading(translator: Model, tmp_path: Path) -> None:
    """Sinusoidal positions: a trained change to them would neither be saved nor loaded."""
    positions = {f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}
    whole = load(translator.save(tmp_path / "whole"))
    assert fixed(translator) == fixed(whole) == positions
    small = whole.remove(cut(whole))
    again = load(small.save(tmp_path / "small"))
    assert fixed(small) == fixed(again) == positions
    assert fixed(load(Model(tiny("bart"), None, "tiny").save(tmp_path / "bart"))) == set()


def change(folder: Path, name: str, tensor: Tensor | None) -> None:
    weights = load_file(folder / WEIGHTS)
    del weights[name]
    save_file(weights | ({} if tensor is None else {name: tensor}), folder / WEIGHTS, {"format": "pt"})


def test_a_broken_whole_model_is_said(translator: Model, tmp_path: Path) -> None:
    folder, name = translator.save(tmp_path / "model"), "model.encoder.layers.1.self_attn.k_proj.weight"
    change(folder, name, torch.zeros(5, 5))
    refused(folder, "is a folder, but not a complete model")
    translator.save(folder)
    change(folder, name, None)
    refused(folder, rf"lacks weights of its attention layers \({name}\): they would be random")
    for file, content in ((WEIGHTS, b"\0" * 100), (WEIGHTS, b""), ("tokenizer.json", b"{}")):
        (translator.save(folder) / file).write_bytes(content)
        refused(folder, "is a folder, but not a complete model")


def test_a_broken_pruned_model_is_said(translator: Model, tmp_path: Path) -> None:
    small, folder = translator.remove(cut(translator)), tmp_path / "small"
    name = "model.encoder.layers.1.self_attn.k_proj.weight"
    for tensor in (torch.zeros(32, 32), None):
        change(small.save(folder), name, tensor)
        refused(folder, "do not fit its layout: .*k_proj.weight")
    (small.save(folder) / WEIGHTS).write_bytes(b"\0" * 100)
    refused(folder, "do not fit its layout")
    (small.save(folder) / WEIGHTS).unlink()
    refused(folder, "do not fit its layout")
    (small.save(folder) / LAYOUT).write_text("[")
    refused(folder, "layout of kept heads: it is not one")
    config = json.loads((small.save(folder) / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["AbacusModel"]}))
    refused(folder, "was pruned from a AbacusModel, which this version of transformers does not have")
    (small.save(folder) / "config.json").write_text(json.dumps({**config, "encoder_layers": 3}))
    refused(folder, r"encoder-self 4\+4, .* but this one has encoder-self 4\+4\+4")
    mask = HeadMask.read(small.save(folder) / LAYOUT)
    mask.without([Head("cross", 1, mask.of(Site("cross", 1))[0])]).save(folder / LAYOUT)
    refused(folder, "do not fit its layout")
    (small.save(folder) / "config.json").unlink()
    refused(folder, r"has no config\.json")
