"""Mistakes that users make: each ends in words that say what was found and what to do, and leaves no file behind."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import save_file

import headwise as hw
from headwise.core.folders import Folder
from models.tasks.askers import asker, embedder, sentences
from models.tasks.test_classifiers import classifier

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n"
TREE = "1\tAnna\tAnna\tPROPN\t_\t_\t0\troot\t_\t_\n\n"

# What is typed in a folder with the files of `shop`; what the answer says, in this order.
MISTAKES = [
    # Not the model's folder
    ("score lfs --text a.txt", "pointer of git-lfs … git lfs pull"),
    (
        "score ./trainer --text a.txt",
        "checkpoints of a Trainer: give one, such as trainer/checkpoint-5",
    ),
    (
        "score ./cache/models--a--b --text a.txt",
        "copies of the hub: give one, such as … snapshots/0a",
    ),
    ("score ./adapter --text a.txt", "an adapter of PEFT: merge it"),
    ("score ./models --text a.txt", "folders of models: give one, such as models/"),
    ("score ./started --text a.txt", "a study that has no model yet: run it to its end"),
    (
        "score ./graph --text a.txt",
        "an export for another program: give the model that it was made from",
    ),
    ("score ./graph/model.onnx --text a.txt", "It is a file: give the folder of the model"),
    (
        "score lm/model.safetensors --text a.txt",
        "It is a file: give the folder that it lies in, lm",
    ),
    ("score ./lm2 --text a.txt", "no folder lm2 (did you mean './lm'?) … Give a model's folder"),
    ("score '~/lm' --text a.txt", "~/lm cannot be loaded … no folder / … Give"),
    ("score a.txt --text lm", "It is a file: give the folder of the model"),
    ("score weightless --text a.txt", "no file named model.safetensors … Copy or save it again"),
    ("score torn --text a.txt", "header … Copy or save it again"),
    ("score headless --text a.txt", "num_attention_heads = 0 … correct config.json"),
    ("score wordless --text a.txt", "has no tokenizer beside its weights: save one there"),
    ("score classless --text a.txt", "PreTrainedModel … correct architectures in its config.json"),
    # Not the text
    ("score lm", "No text was given: name it with --text"),
    ("score lm --text b.txt", "There is no file 'b.txt'"),
    ("score lm --text aa.txt", "There is no file 'aa.txt' (did you mean 'a.txt'?)"),
    ("score lm --text lfs.txt", "pointer of git-lfs … git lfs pull"),
    ("score lm --text empty.txt", "'empty.txt' is empty: a text file needs at least one line"),
    ("score lm --text blank.txt", "No sentences in 'blank.txt': all 2 are blank"),
    ("score lm --text paper.pdf", "is not UTF-8 … give plain text in UTF-8"),
    ("score lm --text trees.conllu", "is a treebank … --treebank"),
    ("score lm --text pairs.tsv", "has no 'text': it has … Give a table with 'text'"),
    ("score lm --text .", "is a folder, not a file: name one file"),
    ("score mt --text a.txt --text a.txt", "as source and as target: give the file of each side"),
    (
        "score mt --text a.txt --text short.txt",
        "has 24 lines but 'short.txt' has 3: parallel files need",
    ),
    (
        "score mt --text a.txt --text a.txt --text a.txt",
        "--text was given 3 times: a text is one file, or",
    ),
    (
        "score labels --text a.txt",
        "not clear: give one file ending in .tsv, .csv or .jsonl with the columns text",
    ),
    (
        "evaluate vectors --text pairs.tsv",
        "has no 'sentence1': it has … Give a table with 'sentence1'",
    ),
    ("translate mt --text pairs.tsv", "is a table … give a file with sentences alone"),
    ("roles lm --treebank a.txt", "has 1 columns: a row of CoNLL-U has 10"),
    ("roles mt", "none were given: name a file in CoNLL-U"),
    (
        "align mt --text pairs.tsv --links links.txt",
        "links for 1 sentence pairs, but 24 pairs: give a line each",
    ),
    ("align lm --text pairs.tsv", "say how it is asked to translate, such as --prompt"),
    # Models that do not go together, or cannot do that
    (
        "evaluate lm mt --text a.txt",
        "a causal language model and mt is a translation model … evaluate each",
    ),
    ("evaluate lm --text a.txt --beam 3", "writes no translations: leave it (--beam"),
    ("translate lm --text a.txt", "does not translate: give an encoder-decoder"),
    (
        "align masked --text pairs.tsv",
        "does not translate: give an encoder-decoder or a language model",
    ),
    ("export masked --to ct2", "cannot be exported to ct2"),
    ("check small --original mt", "small was not pruned from mt"),
    (
        "check smal --original lm",
        "There is no smal to check (did you mean './small'?): correct its path",
    ),
    ("check ./trainer", "checkpoints of a Trainer: give one"),
    # Words and numbers
    ("scores lm --text a.txt", "No such command 'scores' … 'score'"),
    ("score lm --text a.txt --mesure gradient", "No such option: --mesure … --measure"),
    (
        "score lm --text a.txt --measure gradiant",
        "'gradiant' is unknown (did you mean 'gradient'?)",
    ),
    ("score lm --text a.txt --measure gradient,lrp", "is unknown: name one at a time"),
    ("score lm --text a.txt --device gpu", "gpu … give auto, cpu, cuda or mps"),
    ("score lm --text a.txt --dtype half", "half was asked for: give float32"),
    (
        "score lm --text a.txt --time soon",
        "'soon' does not fit: give a number and a unit, such as 90s",
    ),
    (
        "score lm --text a.txt --out a.txt",
        "a.txt could not be written (Not a directory): choose another --out",
    ),
    (
        "score lm --text a.txt --out mt",
        "In mt there is something else … choose a new or empty folder",
    ),
    (
        "prune lm --text a.txt --keep 50",
        "50 heads cannot be kept: there are 8 … --kinds. Give a number",
    ),
    ("prune lm --text a.txt --keep 150%", "--keep … neither a number of heads nor a share"),
    (
        "prune mt --text pairs.tsv --kinds encoder",
        "--kinds: 'encoder' … (did you mean 'encoder-self'?)",
    ),
    ("prune lm --text a.txt --method gate", "'gate' is not one of 'gates', 'top-k', 'greedy'"),
    (
        "prune lm --text a.txt --method greedy --penalty 1",
        "--penalty means nothing with --method greedy",
    ),
    (
        "prune lm --text a.txt --max-drop=-5",
        "--max-drop: -5.0 does not fit: give a number of at least 0",
    ),
    ("prune lm --text a.txt --set pruning.epoch=3", "unknown key … (did you mean 'epochs'?)"),
    ("export lm --to llama.cpp", "'llama.cpp' is unknown; there is … gguf (llama.cpp)"),
    (
        "export lm --to onnx --attention decoder-self/9/9",
        "none of this model's heads (decoder-self 4+4)",
    ),
    ("push lm myrepo --dry-run", "give owner/name"),
    ("data get multi3k", "(did you mean 'multi30k'?)"),
    # Runs
    ("report lm", "without a study, scores or roles: give the --out folder"),
    ("run ./lm", "is a folder: give the path of a TOML file"),
    ("run a.txt", "not valid TOML"),
    ("run plan.toml --only prunning", "(did you mean 'prune'?), but the stages are"),
]


def save(model: hw.Model, folder: Path, **changes: object) -> None:
    """As other programs save a model, with changes of its configuration."""
    model.hf.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and texts, right and wrong ones."""
    shop = tmp_path_factory.mktemp("shop")
    lm = asker("gpt2")
    for name, model in {
        "lm": lm,
        "mt": asker(),
        "masked": asker("bert"),
        "vectors": embedder(),
        "labels": classifier(),
    }.items():
        save(model, shop / name)
    lm.without(["decoder-self/0/0"]).save(shop / "small")
    save(lm, shop / "headless", n_head=0)
    save(lm, shop / "classless", architectures=["PreTrainedModel"])
    for name in ("trainer/checkpoint-5", "cache/models--a--b/snapshots/0a", "models/mine"):
        shutil.copytree(shop / "lm", shop / name)
    for name in ("lfs", "weightless", "torn"):
        shutil.copytree(shop / "lm", shop / name)
    (shop / "lfs" / "model.safetensors").write_text(POINTER)
    (shop / "weightless" / "model.safetensors").unlink()
    weights = shop / "torn" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:999])
    shutil.copytree(shop / "lm", shop / "wordless", ignore=shutil.ignore_patterns("token*"))
    (shop / "adapter").mkdir()
    (shop / "adapter" / "adapter_config.json").write_text("{}")
    save_file({}, shop / "adapter" / "adapter_model.safetensors")
    (shop / "started").mkdir()
    (shop / "started" / "plan.toml").write_text("")
    with Folder(shop / "graph", "export").new() as folder:
        (folder / "model.onnx").write_bytes(b"graph")

    lines = sentences(24, 0)
    others = sentences(24, 1)
    for name, content in {
        "a.txt": "\n".join(lines),
        "short.txt": "a\nb\nc",
        "pairs.tsv": "\n".join(map("\t".join, zip(lines, others, strict=True))),
        "lfs.txt": POINTER,
        "blank.txt": "\n ",
        "trees.conllu": TREE,
        "links.txt": "0-0",
        "plan.toml": "[data.embedded]\ntrain = 20\ndev = 5\ntest = 5",
    }.items():
        (shop / name).write_text(content + "\n")
    (shop / "empty.txt").write_text("")
    (shop / "paper.pdf").write_bytes(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    return shop


def test_there_are_sixty_or_more() -> None:
    assert len({words for words, _ in MISTAKES}) == len(MISTAKES) >= 60


@pytest.mark.parametrize(("words", "answer"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_answered(
    words: str,
    answer: str,
    shop: Path,
    call: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(shop)
    monkeypatch.setenv("COLUMNS", "300")
    before = {path for path in shop.rglob("*") if path.is_file()}
    status, out, err = call(*shlex.split(words.replace(";", "\\;")))
    assert status in (1, 2) and "Traceback" not in err and "mistake in headwise" not in err, err
    said = " ".join((out + err).split())
    place = 0
    for part in answer.split(" … "):
        assert part in said[place:], said
        place = said.index(part, place) + len(part)
    assert {path for path in shop.rglob("*") if path.is_file()} == before
