"""Send a model to the Hugging Face hub: only files that headwise wrote, with a card made from the run.

`push` shows what would be sent, and sends it only when asked. A file goes along only where the SHA256SUMS of its folder
has it; what else lies in the folder is named and stays behind.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub as hub
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from headwise.core.errors import HeadwiseError, called_as
from headwise.core.folders import (
    MODEL,
    SUMS,
    Folder,
    as_path,
    below,
    checked_name,
    digest,
    manifest,
    sha256,
    to_sums,
    write_text,
)
from headwise.core.layout import HeadMask
from headwise.faces.report.format import size
from headwise.models.attention.head_counts import config_has_heads
from headwise.models.model_files import (
    CARD,
    FROM_ORIGINAL,
    MODEL_FILES,
    NOTE,
    NOTE_ON_SENTENCES,
    PRUNED_MODULE,
    README,
    refuse_damage,
)

if TYPE_CHECKING:
    from headwise.faces.report.models import ModelRow
    from headwise.faces.report.run_folder import RunContents

OF_HUB = (".gitattributes",)  # files that the hub makes
# What the card keeps of the base model's card.
KEPT_FACTS = (
    "language",
    "license",
    "license_name",
    "license_link",
    "pipeline_tag",
    "datasets",
)
FILES_NAMED = 5  # names of files left out


@dataclass(frozen=True)
class Upload:
    """What would be sent to a repository. `str` shows it, `send` sends it, `write` writes it to a folder.

    items: the files. card: the model card. notes: what to know before. there: the repository as it is; None where there
    is none, or where the hub could not be asked, for the reason `trouble`.
    """

    repo: str
    items: tuple[hub.CommitOperationAdd, ...]
    card: str
    notes: tuple[str, ...]
    there: hub.ModelInfo | None
    trouble: str
    public: bool

    def __str__(self) -> str:
        width = max(len(item.path_in_repo) for item in self.items)
        total = size(sum(item.upload_info.size for item in self.items))
        made = f"is not there: it will be made, {'public' if self.public else 'private'}"
        state = self.trouble or ("is there" if self.there else made)
        lines = [f"To {self.repo}, which {state}: {len(self.items)} files, {total}"]
        replaced = names_there(self.there)
        for item in self.items:
            name = item.path_in_repo
            content = item.path_or_fileobj
            source = f"from {content}" if isinstance(content, str) else "made now"
            # Where the hub was not asked nobody knows.
            fate = "" if self.trouble else "REPLACES" if name in replaced else "new"
            lines.append(f"  {name:{width}}  {size(item.upload_info.size):>10}  {fate:8}  {source}")
        card = [f"  {line}".rstrip() for line in self.card.splitlines()]
        return "\n".join([*lines, *self.notes, "The card:", *card])

    def send(self) -> str:
        """Make the repository, if it is not there, and send everything as one commit. Returns the address."""
        if hub.get_token() is None:
            raise HeadwiseError(
                f"Nothing was sent to {self.repo}: there is no token of the hub. Log in with `hf auth login`, or set "
                "HF_TOKEN."
            )
        if self.trouble:
            raise HeadwiseError(
                f"Nothing was sent to {self.repo}, which {self.trouble}: try again."
            )
        with asking(f"Nothing was sent to {self.repo}"):
            api = hub.HfApi()
            if self.there is None:
                api.create_repo(self.repo, private=not self.public)
            api.create_commit(
                self.repo,
                self.items,
                commit_message="Upload by headwise",
                # Else files that somebody sent after the look would be replaced unseen.
                parent_commit=self.there.sha if self.there else None,
            )
        with asking(f"What was sent to {self.repo} could not be checked"):
            # The hub leaves out what a .gitignore of the repository names, without an error.
            there = api.list_repo_files(self.repo)
        lost = {item.path_in_repo for item in self.items} - {*there}
        if lost:
            raise HeadwiseError(
                f"{self.repo} did not take {name_some_files(sorted(lost))}: has it a .gitignore?"
            )
        return f"{api.endpoint}/{self.repo}"

    def write(self, folder: Path) -> Path:
        """Write all files to a new or empty folder in place of the hub."""
        with Folder(folder).new() as unfinished:
            for item in self.items:
                file = unfinished / item.path_in_repo
                file.parent.mkdir(parents=True, exist_ok=True)
                with item.as_file() as content, file.open("wb") as target:
                    shutil.copyfileobj(content, target)
        return folder


@called_as("hw.push('my-folder', 'owner/name')")
def push(
    model: str | PathLike[str],
    repo: str,
    exports: Sequence[str | PathLike[str]] = (),
    base_model: str | None = None,
    public: bool = False,
    yes: bool = False,
) -> Upload:
    """What would be sent to the hub; it is sent only with `yes`.

    model: the folder of a model that headwise saved, or of a finished study, for its chosen model. repo: `owner/name`;
    where it is not there it is made, private unless `public`. exports: folders written by `export`; each is put beside
    the model under its own name. base_model: the hub id of the model that this one was made from, where the study does
    not say it. The token is huggingface_hub's own (`hf auth login` or HF_TOKEN). Raises HeadwiseError for a folder that
    headwise did not write or that was changed, for a wrong name, and where the hub refuses.
    """
    refuse_name(repo)
    if base_model is not None:
        refuse_name(base_model)
    if not isinstance(model, str | PathLike):
        raise HeadwiseError(
            f"push sends folders, but was given a {type(model).__name__}: save it first, then push."
        )
    folder, run, row = locate_model(Path(model))
    refuse_damage(folder)
    names = [name for name in Folder(folder).files if below(folder, name).is_file()]
    refuse_linked_files(folder, [*names, README, SUMS])
    if not names:
        raise HeadwiseError(
            f"{folder} has no {SUMS}, so nothing says which of its files are the model: save it with "
            "hw.load(…).save(…), and push that folder."
        )
    base_model, notes = base_of(run, base_model)
    notes += left_out(folder, names)
    card = card_of(folder, repo, run, row, base_model, readme_in(folder))
    content: dict[str, Path | bytes] = {name: below(folder, name) for name in names}
    content[README] = card.encode()
    items = items_of(content)
    sent_files = manifest(content)  # the card is another one than in the folder
    items += items_of({SUMS: to_sums(MODEL, sent_files).encode()})
    for export in map(as_path, exports):
        taken = {item.path_in_repo.partition("/")[0] for item in items}
        export_files, export_notes = export_items(export, taken)
        items += export_files
        notes += export_notes
    # Asked last: everything that can be wrong here is said without the net.
    there, trouble = repository(repo)
    sent = {item.path_in_repo for item in items}
    others = [name for name in names_there(there) if name not in sent and name not in OF_HUB]
    if mixed := [name for name in others if "/" not in name and MODEL_FILES.fullmatch(name)]:
        raise HeadwiseError(
            f"{repo} has files of another model that would stay beside this one ({', '.join(mixed[:3])}): choose "
            "another repository, or delete them there."
        )
    if public and there is not None:
        notes.append(f"{repo} is there already, so public changes nothing: set it on the hub.")
    if others:
        notes.append(f"Stays in {repo} as it is: {name_some_files(others)}.")
    items.sort(key=lambda item: item.path_in_repo)
    upload = Upload(repo, tuple(items), card, tuple(notes), there, trouble, public)
    if yes:
        upload.send()
    return upload


def items_of(content: Mapping[str, Path | bytes]) -> list[hub.CommitOperationAdd]:
    """Files to send, by their names in the repository: where each is, or what it says."""
    return [hub.CommitOperationAdd(name, each) for name, each in content.items()]


def write_cards(study: Path) -> None:
    """Put the model card into the folder of every pruned model of a finished study. A README that is neither as `save`
    wrote it nor an earlier card stays as it is."""
    from headwise.faces.report.models import model_rows
    from headwise.faces.report.run_folder import read_run

    run = read_run(study)
    base_model, _ = base_of(run, None)
    for row in model_rows(run.model_table):
        folder = below(study / "pruned", row["setting"])
        if not (folder / "config.json").is_file():
            continue
        readme = folder / README
        text = readme_in(folder)
        is_there = readme.is_file()
        # Untouched since `save` wrote it: nobody's own words are lost.
        as_saved = is_there and sha256(readme) in Folder(folder).files.get(README, ())
        if is_there and not as_saved and not is_our_card(text):
            continue
        card = card_of(folder, str(folder), run, row, base_model, text)
        signed = f"{card}{mark_of(card)}"
        if signed != text:
            write_text(readme, signed)


def readme_in(folder: Path) -> str:
    """The text of a folder's README; empty without one."""
    readme = folder / README
    return readme.read_text(encoding="utf-8", errors="replace") if readme.is_file() else ""


def mark_of(card: str) -> str:
    """The last line of a card in a folder, by which a later one may take its place."""
    return f"{CARD}{digest(card)} -->\n"


def is_our_card(text: str) -> bool:
    """Whether a text is a card as `write_cards` wrote it."""
    card, mark, _ = text.rpartition(CARD)
    return bool(mark) and text == f"{card}{mark_of(card)}"


def refuse_name(repo: str) -> None:
    """Raise HeadwiseError for what can be no repository of the hub."""
    try:
        validate_repo_id(repo)
        # huggingface_hub also takes names without an owner, which nobody can make.
        good = repo.count("/") == 1
    except HFValidationError:
        good = False
    if not good:
        raise HeadwiseError(
            f"'{repo}' is no repository of the hub: give owner/name, of letters, digits, '-', '_', '.'."
        )


def locate_model(place: Path) -> tuple[Path, RunContents | None, ModelRow | None]:
    """The folder of a model; and the run that it is from and its row there, where it is from one."""
    from headwise.faces.report.models import model_rows
    from headwise.faces.report.run_folder import read_run, refuse_grid

    Folder(place)  # refuses what can be no folder
    refuse_grid(place)
    folder = place
    if (place / "run.json").is_file():
        chosen = read_run(place).chosen_folder
        if chosen is None:
            raise HeadwiseError(
                f"The study in {place} chose no smaller model: push one of {place}/pruned/."
            )
        folder = chosen
        refuse_linked_files(place, [f"pruned/{folder.name}"])
    if not (folder / "config.json").is_file():
        raise HeadwiseError(
            f"{folder} has no config.json: give the folder of a model, or of a finished study."
        )
    # STUDY/pruned/NAME
    home = folder.absolute().parent.parent
    if folder.absolute().parent.name != "pruned" or not (home / "run.json").is_file():
        return folder, None, None
    run = read_run(home)
    rows = [row for row in model_rows(run.model_table) if row["setting"] == folder.name]
    return folder, run, rows[0] if rows else None


def refuse_linked_files(folder: Path, names: Sequence[str]) -> None:
    """Raise HeadwiseError where the way from a folder to one of its files goes over a link: what would be sent might
    lie anywhere."""
    for name in names:
        path = below(folder, name)
        while path != folder:
            if path.is_symlink():
                raise HeadwiseError(
                    f"{path} is a link to {path.readlink()}, so it is not sent: copy the file to the place of the link."
                )
            path = path.parent


def base_of(run: RunContents | None, given: str | None) -> tuple[str | None, list[str]]:
    """The hub id of the base model: as given, or as the study names it; and a note where it is not known."""
    planned: Any = None
    if run is not None:
        planned = run.planned.get("model")
        if given is None and not isinstance(planned, str):
            return None, []  # trained from random weights
    if given is None and isinstance(planned, str):
        # A folder in a folder looks like owner/name.
        is_hub_id = planned.count("/") == 1 and not Path(planned).exists()
        given = planned if is_hub_id else None
    if given:
        return given, []
    return given, ["The card names no base model: say which it is with --base-model OWNER/NAME."]


def left_out(folder: Path, names: Sequence[str]) -> list[str]:
    """A note on the files of a folder that are not sent."""
    others = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_dir() and name not in {*names, SUMS}:
            others.append(name)
    if not others:
        return []
    return [
        f"Not sent from {folder}, because headwise did not write it: {name_some_files(others)}."
    ]


def name_some_files(names: Sequence[str]) -> str:
    more = f" and {len(names) - FILES_NAMED} more" if len(names) > FILES_NAMED else ""
    return ", ".join(names[:FILES_NAMED]) + more


def export_items(folder: Path, taken: set[str]) -> tuple[list[hub.CommitOperationAdd], list[str]]:
    """The files of an exported folder, below its own name, and a note on what else is there."""
    names = [*Folder(folder).files]
    if not names:
        raise HeadwiseError(
            f"{folder} has no {SUMS}, so it is no folder that headwise export wrote: export again."
        )
    refuse_damage(folder, free=())
    name = checked_name(folder.absolute().name, "--export")
    # A folder of the repository would hold files of two exports.
    if name in taken:
        raise HeadwiseError(
            f"{name} is in the repository twice: give {folder} another name, such as onnx."
        )
    names.append(SUMS)
    refuse_linked_files(folder, names)
    items = items_of({f"{name}/{file}": below(folder, file) for file in names})
    return items, left_out(folder, names)


def card_of(
    folder: Path,
    address: str,
    run: RunContents | None,
    row: ModelRow | None,
    base_model: str | None,
    text: str,
) -> str:
    """The model card. address: by which the model is loaded. text: the README of the folder, whose metadata on licence
    and language and whose own words stay, below ours."""
    from transformers import AutoConfig

    from headwise.faces.report.model_card import card_sections, kept_table
    from headwise.faces.report.summary import verdict_sentences
    from headwise.models.loading import end_of_sentence

    try:
        config = AutoConfig.from_pretrained(folder)
    except Exception as error:  # of transformers, about the user's file
        raise HeadwiseError(
            f"{folder} has no configuration that transformers can load: {end_of_sentence(error)}"
        ) from error
    kept = getattr(config, "headwise_layout", None)
    layout = HeadMask.from_json(kept) if kept else None
    is_stock = layout is None or config_has_heads(config, layout)
    try:
        before = hub.ModelCard(text, ignore_metadata_errors=True)
    except Exception as error:  # of yaml and huggingface_hub, about the user's file
        raise HeadwiseError(
            f"The metadata of {README} cannot be read: {' '.join(str(error).split())[:300]}"
        ) from None
    # Those of the original stay: they say what the model is for.
    tags = [*(before.data.get("tags") or []), "headwise"]
    if layout:
        tags += ["pruned", "attention-head-pruning"]
    facts = hub.ModelCardData(
        **{name: before.data.get(name) for name in KEPT_FACTS},
        library_name="transformers" if is_stock else "headwise",
        tags=list(dict.fromkeys(tags)),
        base_model=base_model,
        base_model_relation="finetune" if base_model else None,  # of the hub's words the nearest
    )
    paragraphs = [f"# {address.rpartition('/')[2]}"]
    if run is not None and row is not None:
        paragraphs.append(" ".join(verdict_sentences(run, row)))
    elif layout is not None:
        paragraphs.append(
            f"{len(layout)} of {layout.heads.total} attention heads are left. These files do not say what it cost to "
            "remove the others."
        )
    if layout is not None:
        how = LOAD_STOCK if is_stock else LOAD
        named = str((config.architectures or [""])[0])
        # A configuration of somebody else must not write code into the card.
        name = named if named.isidentifier() else "AutoModel"
        paragraphs.append(how.format(address=address, name=name))
        listed = folder / "modules.json"
        if listed.is_file() and PRUNED_MODULE in listed.read_text(encoding="utf-8"):
            paragraphs.append(NOTE_ON_SENTENCES.strip().replace("FOLDER", address))
        paragraphs += ["## What was kept", kept_table(layout)]
    if run is not None and row is not None:
        for title, body in card_sections(run, row):
            paragraphs += [f"## {title}", body]
    own = before.text
    if is_our_card(text):
        # From our own earlier card only the words of the original stay, not the old numbers.
        _, _, own = own.rpartition(CARD)[0].partition(FROM_ORIGINAL)
    for note in (NOTE, NOTE_ON_SENTENCES):
        own = own.replace(note.strip(), "")
    own = own.strip()
    # A single line is only the title.
    if len(own.splitlines()) > 1:
        paragraphs += ["---", FROM_ORIGINAL, own]
    return f"---\n{facts.to_yaml()}\n---\n\n" + "\n\n".join(paragraphs) + "\n"


LOAD = """Attention heads were removed by headwise, layer by layer, so `from_pretrained` of transformers refuses the
shapes. Load it like this:

```python
import headwise as hw

model = hw.load("{address}").hf  # an ordinary model of transformers in everything else
```"""

LOAD_STOCK = """Attention heads were removed by headwise, equally many of every layer, so transformers loads the model:

```python
from transformers import {name}

model = {name}.from_pretrained("{address}")
```"""


def repository(repo: str) -> tuple[hub.ModelInfo | None, str]:
    """What a repository has by now, None where there is none; and why the hub could not be asked."""
    try:
        return hub.HfApi().model_info(repo), ""
    # So the hub also answers for a private one that this token may not see.
    except RepositoryNotFoundError:
        return None, ""
    except Exception as error:
        return None, f"could not be looked at: {why_hub_failed(error)}"


def names_there(there: hub.ModelInfo | None) -> list[str]:
    """The names of the files in a repository."""
    return [sibling.rfilename for sibling in (there and there.siblings) or []]


@contextmanager
def asking(what: str) -> Iterator[None]:
    """Turn what the hub and the way to it raise into one sentence that begins with `what`."""
    try:
        yield
    except Exception as error:  # of huggingface_hub, httpx, hf_xet, or the file system
        raise HeadwiseError(f"{what}: {why_hub_failed(error)}.") from error


def why_hub_failed(error: Exception) -> str:
    """Why the hub did not do something."""
    text = " ".join(f"{type(error).__name__} {error}".split())[:200]
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    if not isinstance(error, HfHubHTTPError):
        return f"the hub could not be reached ({text})"
    reasons = {
        401: "the hub does not know this token",
        403: "the token has no right to write there",
        409: "there is such a repository already",
        412: "it has changed since it was looked at",
    }
    return reasons.get(error.response.status_code, f"the hub refused ({text})")
