"""The words everything else is said in: kinds, a head's address, the map of a model's heads, a mask, a table of scores.

Heads are counted from 0 and written `kind/layer/head`: `encoder-self/0/3`, `decoder-self/5/7`, `cross/2/0`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import pandas as pd

from headwise.errors import HeadwiseError

Kind = Literal["encoder-self", "decoder-self", "cross"]
KINDS: tuple[Kind, ...] = get_args(Kind)
COLUMNS = ("kind", "layer", "head", "measure", "value", "low", "high", "n", "baseline")


class Head(NamedTuple):
    """The address of one head."""

    kind: Kind
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.kind}/{self.layer}/{self.head}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read `kind/layer/head`."""
        kind, _, rest = text.partition("/")
        layer, _, head = rest.partition("/")
        if kind not in KINDS or not layer.isdecimal() or not head.isdecimal():
            raise HeadwiseError(
                f"'{text}' is no head: write kind/layer/head, for example encoder-self/0/3, "
                f"with a kind of {', '.join(KINDS)}."
            )
        return cls(kind, int(layer), int(head))


class Site(NamedTuple):
    """One attention layer: a kind and a layer number."""

    kind: Kind
    layer: int


@dataclass(frozen=True)
class HeadMap:
    """How many heads every attention layer has.

    `query[kind][layer]`, and `key_value[kind][layer]` where key/value heads are fewer (grouped queries).
    """

    query: Mapping[Kind, tuple[int, ...]]
    key_value: Mapping[Kind, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "query", {kind: tuple(self.query[kind]) for kind in KINDS if kind in self.query})
        groups = {kind: tuple(self.key_value.get(kind, self.query[kind])) for kind in self.query}
        object.__setattr__(self, "key_value", groups)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(self.query)

    @property
    def sites(self) -> tuple[Site, ...]:
        return tuple(Site(kind, layer) for kind in self.query for layer in range(len(self.query[kind])))

    @property
    def total(self) -> int:
        return sum(sum(counts) for counts in self.query.values())

    def count(self, site: Site) -> int:
        return self.query[site.kind][site.layer]

    def __iter__(self) -> Iterator[Head]:
        return (Head(kind, layer, head) for kind, layer in self.sites for head in range(self.query[kind][layer]))

    def __contains__(self, head: object) -> bool:
        return (
            isinstance(head, Head)
            and 0 <= head.layer < len(self.query.get(head.kind, ()))
            and 0 <= head.head < self.query[head.kind][head.layer]
        )

    def only(self, kinds: Iterable[Kind]) -> HeadMap:
        """The map restricted to some kinds; a kind the model does not have is refused."""
        kinds = tuple(kinds)
        for kind in kinds:
            if kind not in self.query:
                has = ", ".join(self.query)
                raise HeadwiseError(f"Heads of kind '{kind}' were asked for, but this model has only {has}.")
        query = {kind: counts for kind, counts in self.query.items() if kind in kinds}
        return HeadMap(query, {kind: self.key_value[kind] for kind in query})

    def to_json(self) -> dict[str, Any]:
        return {
            "query": {kind: list(counts) for kind, counts in self.query.items()},
            "key_value": {kind: list(counts) for kind, counts in self.key_value.items()},
        }


@dataclass(frozen=True)
class HeadMask:
    """Which heads of a map are kept. Its JSON form is the layout file beside every pruned model (docs/layout.md)."""

    heads: HeadMap
    kept: frozenset[Head]

    def __post_init__(self) -> None:
        for head in self.kept:
            if head not in self.heads:
                raise HeadwiseError(
                    f"The layout keeps {head}, but this model has no such head ({describe(self.heads)})."
                )

    @classmethod
    def full(cls, heads: HeadMap) -> HeadMask:
        return cls(heads, frozenset(heads))

    def __len__(self) -> int:
        return len(self.kept)

    def without(self, heads: Iterable[Head]) -> HeadMask:
        """The mask with some heads less; a head the model does not have is refused."""
        gone = frozenset(heads)
        for head in gone:
            if head not in self.heads:
                raise HeadwiseError(f"{head} was to go, but this model has no such head ({describe(self.heads)}).")
        return HeadMask(self.heads, self.kept - gone)

    def of(self, site: Site) -> list[int]:
        """The kept head numbers of one layer, ascending."""
        return [h for h in range(self.heads.count(site)) if Head(*site, h) in self.kept]

    def count(self, kind: Kind) -> int:
        return sum(head.kind == kind for head in self.kept)

    def to_json(self) -> dict[str, Any]:
        kept: dict[Kind, list[list[int]]] = {kind: [] for kind in self.heads.kinds}
        for site in self.heads.sites:
            kept[site.kind].append(self.of(site))
        heads = self.heads.to_json()
        return {
            "format": "headwise-layout",
            "version": 1,
            "heads": heads["query"],
            "key_value_heads": heads["key_value"],
            "kept": kept,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HeadMask:
        if data.get("format") != "headwise-layout" or data.get("version") != 1:
            found = f"{data.get('format')} {data.get('version')}"
            raise HeadwiseError(
                f"A headwise-layout of version 1 was expected, found {found}: "
                "write it again with this version of headwise."
            )
        heads = HeadMap(data["heads"], data.get("key_value_heads", {}))
        for kind, counts in heads.query.items():
            told = len(data["kept"][kind])
            if told != len(counts):
                raise HeadwiseError(f"The layout has {len(counts)} {kind} layers, but says of {told} what they keep.")
        rows = [(kind, layer, row) for kind, layers in data["kept"].items() for layer, row in enumerate(layers)]
        return cls(heads, frozenset(Head(kind, layer, head) for kind, layer, row in rows for head in row))

    def save(self, path: Path) -> None:
        write_text(path, json.dumps(self.to_json(), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> HeadMask:
        """Read a layout file. Raises HeadwiseError, with the file's name, for one that is not whole."""
        asked = f"{path} was to be read as a layout of kept heads, but"
        try:
            return cls.from_json(json.loads(path.read_text(encoding="utf-8")))
        except HeadwiseError as error:
            raise HeadwiseError(f"{path} cannot be used: {error}") from None
        except OSError as error:
            raise HeadwiseError(f"{asked} it cannot be opened ({error.strerror}).") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise HeadwiseError(f"{asked} it is none ({type(error).__name__}: {error}).") from None


def describe(heads: HeadMap) -> str:
    """The map in words: `encoder-self 8+8+8, cross 8+8+8`."""
    return ", ".join(f"{kind} {'+'.join(map(str, counts))}" for kind, counts in heads.query.items())


def score_table(rows: Sequence[Mapping[str, Any]], signature: Mapping[str, Any]) -> pd.DataFrame:
    """A tidy table of scores, one row a head and measure, columns COLUMNS; `attrs["signature"]`: how it was made."""
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    table.attrs["signature"] = dict(signature)
    return table


def save_scores(table: pd.DataFrame, path: Path) -> None:
    """Write a table of scores as CSV, and its signature beside it as JSON."""
    write_text(path, table.to_csv(index=False, float_format="%.6g"))
    write_text(path.with_suffix(".json"), json.dumps(table.attrs["signature"], indent=1) + "\n")


def read_scores(path: Path, heads: HeadMap | None = None) -> pd.DataFrame:
    """A table that `save_scores` wrote, with its signature in `attrs["signature"]`. heads: the model's, as it is now.

    Raises HeadwiseError when the signature is missing, columns are, or the scores are of other heads than `heads`.
    """
    file = path
    try:
        table = pd.read_csv(file)
        file = path.with_suffix(".json")
        signature = json.loads(file.read_text(encoding="utf-8"))
        scored = HeadMap(signature["heads"]["query"], signature["heads"]["key_value"])
    except OSError as error:
        raise HeadwiseError(
            f"The scores in {path} were to be read, but {file} cannot be opened ({error.strerror}): "
            "a table of scores and the signature beside it belong together."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HeadwiseError(
            f"{path} was to be read as a table of scores with its signature beside it, but {file} is not that "
            f"({type(error).__name__}: {error}): score the model again."
        ) from None
    if missing := [column for column in COLUMNS if column not in table]:
        raise HeadwiseError(f"{path} is no table of scores: it lacks the columns {', '.join(missing)}.")
    now = scored if heads is None else heads
    told = {Head(*address) for address in table[["kind", "layer", "head"]].itertuples(index=False, name=None)}
    if scored != now or not all(head in now for head in told):
        raise HeadwiseError(
            f"{path} has scores of other heads ({describe(scored)}) than the model has now ({describe(now)}): "
            "score the model again."
        )
    table.attrs["signature"] = signature
    return table


def write_text(path: Path, text: str) -> None:
    """Write a file so that it is either whole or not there: beside, then renamed."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that it is either whole or not there: beside, then renamed."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(content)
        beside.replace(path)
    except OSError as error:
        raise HeadwiseError(
            f"{path} could not be written ({error.strerror}): choose another --out or make room."
        ) from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()
