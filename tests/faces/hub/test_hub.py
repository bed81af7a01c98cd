"""`push`: what is shown, what is sent, the card, and what is refused, against a hub on the loopback address."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import constants
from stub import Hub, serving
from typer.testing import CliRunner

import headwise as hw
from faces.report.made import make_run
from headwise.core.errors import HeadwiseError
from headwise.core.folders import EXPORT, MODEL, Folder, files_in, manifest, sha256, to_sums
from headwise.core.layout import HeadMask
from headwise.faces import cli
from headwise.models.model import Model

REPO = "me/small"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub for this process: what huggingface_hub reads from the environment when it is imported is set again."""
    with serving() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        yield server


@pytest.fixture
def small(tiny_marian: Any, tmp_path: Path) -> Path:
    """The folder of a pruned model with an empty layer."""
    whole = Model(tiny_marian(), None, "whole")
    kept = frozenset(head for head in whole.heads if head.layer != 1 and head.head > 0)
    return whole.only(HeadMask(whole.heads, kept)).save(tmp_path / "small")


def test_nothing_is_sent_unless_asked(hub: Hub, small: Path) -> None:
    (small / "secrets.env").write_text("TOKEN=1")
    shown = str(hw.push(small, REPO))
    assert not hub.written and not hub.files
    assert "private" in shown and "model.safetensors" in shown and "secrets.env" in shown
    assert "kB" in shown and "| 1 | 0 of 4 | 0 of 4 | 0 of 4 |" in shown


def test_a_model_is_sent_and_loads_again(hub: Hub, small: Path) -> None:
    (small / "secrets.env").write_text("TOKEN=1")
    hw.push(small, REPO, base_model="them/whole", yes=True)
    sent = hub.files[REPO]
    assert hub.private[REPO] and hub.tokens == {"Bearer hf_secret"}
    assert "secrets.env" not in sent
    assert sent["model.safetensors"] == (small / "model.safetensors").read_bytes()
    card = sent["README.md"].decode()
    front = yaml.safe_load(card.split("---\n")[1])
    assert front["base_model"] == "them/whole" and front["base_model_relation"] == "finetune"
    assert front["library_name"] == "headwise" and "pruned" in front["tags"]
    assert f'hw.load("{REPO}")' in card


def test_a_sent_model_loads_from_the_hub(hub: Hub, small: Path, tmp_path: Path) -> None:
    hw.push(small, REPO, yes=True)
    hub.files[REPO]["gguf/model.gguf"] = b"not for torch"
    code = f"import headwise as hw; m = hw.load({REPO!r}); print(m.name, m.heads.total, m.source)"
    made = subprocess.run(
        [sys.executable, "-c", code],
        env=elsewhere(hub, tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    name, heads, source = made.stdout.split()
    assert name == REPO and int(heads) == hw.load(small).heads.total
    assert not (Path(source) / "gguf").exists()


def elsewhere(hub: Hub, home: Path) -> dict[str, str]:
    """The environment of another process that uses this hub."""
    own = {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(home / "hf"),
        "HF_HUB_DISABLE_XET": "1",
    }
    return {**os.environ, **own, "NO_PROXY": "127.0.0.1"}


def test_files_that_would_be_replaced_or_stay_are_named(hub: Hub, small: Path) -> None:
    hw.push(small, REPO, yes=True)
    hub.files[REPO] |= {
        "config.json": b"{}",
        "notes.md": b"mine",
        "onnx/model.onnx": b"an older export",
    }
    upload = hw.push(small, REPO)
    lines = {line.split()[0]: line for line in str(upload).splitlines() if line.strip()}
    assert "REPLACES" in lines["config.json"] and "REPLACES" in lines["model.safetensors"]
    assert "notes.md" in str(upload)
    hub.files[REPO]["notes.md"] = b"changed meanwhile"
    with pytest.raises(HeadwiseError, match="changed since it was looked at"):
        upload.send()
    hw.push(small, REPO, yes=True)
    assert hub.files[REPO]["config.json"] == (small / "config.json").read_bytes()
    assert hub.files[REPO]["notes.md"] == b"changed meanwhile"


def test_a_repository_with_another_model_is_refused(hub: Hub, small: Path) -> None:
    hub.files[REPO] = {"pytorch_model.bin": b"weights"}
    with pytest.raises(HeadwiseError, match=r"another model.*pytorch_model\.bin"):
        hw.push(small, REPO, yes=True)
    assert not hub.written


def test_exports_go_along_under_their_names(hub: Hub, small: Path, tmp_path: Path) -> None:
    (tmp_path / "pt2").mkdir()
    (tmp_path / "pt2" / "model.pt2").write_bytes(b"a program")
    Folder(tmp_path / "pt2", EXPORT).note(manifest(files_in(tmp_path / "pt2")))
    (tmp_path / "pt2" / "mine.txt").write_text("mine")
    shown = str(hw.push(small, REPO, [tmp_path / "pt2"], yes=True))
    assert {"pt2/model.pt2", "pt2/SHA256SUMS"} <= hub.files[REPO].keys()
    assert "mine.txt" in shown and "pt2/mine.txt" not in hub.files[REPO]
    (tmp_path / "pt2" / "model.pt2").write_bytes(b"other")
    with pytest.raises(HeadwiseError, match="damaged"):
        hw.push(small, REPO, [tmp_path / "pt2"])
    (tmp_path / "other").mkdir()
    with pytest.raises(HeadwiseError, match="no folder that headwise export wrote"):
        hw.push(small, REPO, [tmp_path / "other"])


def test_the_files_can_be_written_to_a_folder_instead(
    hub: Hub, small: Path, tmp_path: Path
) -> None:
    assert call("push", small, REPO, "--dry-run", "--out", tmp_path / "look").endswith(
        f"{tmp_path}/look\n"
    )
    assert hw.load(tmp_path / "look").heads.total == hw.load(small).heads.total
    listed = Folder(tmp_path / "look").files
    assert Folder(tmp_path / "look").damage() == []
    assert "README.md" in listed and not hub.written


def test_the_command_sends_only_when_told(hub: Hub, small: Path) -> None:
    assert call("push", small, REPO).splitlines()[-1].startswith("Nothing was sent")
    assert not hub.written
    assert call("push", small, REPO, "--yes", "--quiet") == f"{hub.url}/{REPO}\n"
    assert "config.json" in hub.files[REPO]


@pytest.mark.parametrize(("answer", "sent"), [(b"\n", False), (b"y\n", True)])
def test_on_a_terminal_the_answer_decides(
    hub: Hub,
    small: Path,
    answer: bytes,
    sent: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    monkeypatch.setattr(sys, "argv", ["headwise", "push", str(small), REPO])
    with os.fdopen(theirs) as terminal, pytest.raises(SystemExit) as ended:
        monkeypatch.setattr(sys, "stdin", terminal)
        cli.main()
    os.close(ours)
    assert not ended.value.code and (REPO in hub.files) == sent
    assert ("Nothing was sent" in capsys.readouterr().out) != sent


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_refusal_is_one_sentence(hub: Hub, small: Path, status: int) -> None:
    hub.refused = status
    with pytest.raises(HeadwiseError, match=f"Nothing was sent to {REPO}") as caught:
        hw.push(small, REPO, yes=True)
    assert "\n" not in str(caught.value) and "hf_secret" not in str(caught.value)


def test_a_file_that_the_hub_ignores_is_no_success(hub: Hub, small: Path) -> None:
    hub.ignored = {"config.json"}
    with pytest.raises(HeadwiseError, match=r"did not take config\.json"):
        hw.push(small, REPO, yes=True)


def test_without_a_token_or_a_hub_it_is_shown_and_not_sent(
    hub: Hub, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = hw.push(small, REPO)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(HeadwiseError, match="no token"):
        upload.send()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in str(hw.push(small, REPO))
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_secret")
    with pytest.raises(HeadwiseError, match="HF_HUB_OFFLINE is set"):
        hw.push(small, REPO, yes=True)
    assert not hub.written


@pytest.mark.parametrize(
    "name", ["small", "me/small/two", "me/sm all", "../small", "me/small.git", ""]
)
def test_wrong_names_are_refused(small: Path, name: str) -> None:
    with pytest.raises(HeadwiseError, match="no repository of the hub"):
        hw.push(small, name)


def test_folders_that_headwise_did_not_write_are_refused(
    hub: Hub, small: Path, tmp_path: Path
) -> None:
    with pytest.raises(HeadwiseError, match=r"no config\.json"):
        hw.push(tmp_path, REPO)
    with pytest.raises(HeadwiseError, match="save it first"):
        hw.push(hw.load(small), REPO)  # type: ignore[arg-type]
    config = small / "config.json"
    before = config.read_text()
    config.write_text(before.replace("{", "{ ", 1))
    with pytest.raises(HeadwiseError, match=r"config\.json has changed"):
        hw.push(small, REPO)
    config.write_text(before)
    (small / "SHA256SUMS").unlink()
    with pytest.raises(HeadwiseError, match="SHA256SUMS is missing"):
        hw.push(small, REPO)
    config.write_text(before.replace('"headwise_sums": true,', ""))
    with pytest.raises(HeadwiseError, match="no SHA256SUMS"):
        hw.push(small, REPO)


def test_the_folder_of_an_engine_is_refused(hub: Hub, small: Path) -> None:
    """CTranslate2 writes a config.json that names no model."""
    config = small / "config.json"
    config.write_text(json.dumps({"bos_token": "<s>"}))
    (small / "SHA256SUMS").write_text(to_sums(EXPORT, manifest({"config.json": config})))
    with pytest.raises(HeadwiseError, match="has no configuration that transformers can load"):
        hw.push(small, REPO)


def test_what_the_base_model_says_of_licence_and_itself_stays(hub: Hub, small: Path) -> None:
    text = (small / "README.md").read_text()
    front = "---\nlicense: apache-2.0\nlanguage: [en, fr]\nbase_model: x/y\nmodel-index: 3\ntags: [old]\n---\n"
    (small / "README.md").write_text(f"{front}# Whole\n\nTrained on *letters*.\n{text}")
    card = hw.push(small, REPO).card
    facts = yaml.safe_load(card.split("---\n")[1])
    assert (
        facts["license"] == "apache-2.0"
        and facts["language"] == ["en", "fr"]
        and "old" in facts["tags"]
    )
    assert "base_model" not in facts and "model-index" not in facts
    assert "Trained on *letters*." in card and "FOLDER" not in card
    (small / "README.md").write_text("---\na: [\n---\n")
    with pytest.raises(HeadwiseError, match=r"README\.md"):
        hw.push(small, REPO)


def call(*words: object) -> str:
    result = CliRunner().invoke(cli.app, [str(word) for word in words])
    if result.exception is not None:
        raise result.exception
    return result.stdout


@pytest.mark.parametrize("place", ["notes.md", "README.md", "more"])
def test_a_link_is_not_followed(hub: Hub, small: Path, tmp_path: Path, place: str) -> None:
    """Neither of a file that the record names, nor of a folder, nor of the words about a model."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "key.md").write_text("a secret")
    listed = {**Folder(small).files}
    if place == "more":
        (small / "more").symlink_to(private)
        listed["more/key.md"] = [sha256(private / "key.md")]
    else:
        (small / place).unlink(missing_ok=True)
        (small / place).symlink_to(private / "key.md")
        listed[place] = [sha256(private / "key.md")]
    Folder(small, MODEL).note(listed)
    with pytest.raises(HeadwiseError, match=f"{place} is a link to .*, so it is not sent"):
        hw.push(small, REPO, yes=True)
    assert not hub.written


def test_words_that_are_not_the_models_card_are_checked_like_all_files(
    hub: Hub, small: Path
) -> None:
    (small / "notes.md").write_text("as written")
    listed = {**Folder(small).files, "notes.md": [sha256(small / "notes.md")]}
    Folder(small, MODEL).note(listed)
    hw.push(small, REPO)
    (small / "notes.md").write_text("a secret")
    with pytest.raises(HeadwiseError, match=r"notes\.md has changed"):
        hw.push(small, REPO)


def test_the_preview_names_the_path_of_every_file(hub: Hub, small: Path) -> None:
    upload = hw.push(small, REPO)
    lines = str(upload).splitlines()
    for item in upload.items:
        (line,) = (line for line in lines if line.split()[:1] == [item.path_in_repo])
        where = (
            "made now"
            if isinstance(item.path_or_fileobj, bytes)
            else f"from {item.path_or_fileobj}"
        )
        assert line.endswith(where)
    assert f"from {small / 'config.json'}" in str(upload)


@pytest.mark.parametrize("chosen", ["../../secretmodel", "/secretmodel", ".", ".hidden"])
def test_a_choice_of_another_hand_leads_to_no_other_model(
    hub: Hub, small: Path, tmp_path: Path, chosen: str
) -> None:
    small.rename(tmp_path / "secretmodel")
    run = tmp_path / "runs" / "run"
    (run / "pruned").mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"chosen": chosen}))
    with pytest.raises(HeadwiseError, match=r"run\.json has the name "):
        hw.push(run, REPO, yes=True)
    linked = make_run(tmp_path / "runs" / "linked")
    (linked / "pruned").mkdir(exist_ok=True)
    (linked / "pruned" / "lambda-0.05").symlink_to(tmp_path / "secretmodel")
    with pytest.raises(HeadwiseError, match=r"lambda-0\.05 is a link to "):
        hw.push(linked, REPO, yes=True)
    assert not hub.written
