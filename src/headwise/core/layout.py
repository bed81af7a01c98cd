"""A layout: which heads of a map are kept, and its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from headwise.core.errors import HeadwiseError, made_as, shown_value
from headwise.core.folders import as_path, write_text
from headwise.core.grid import HeadGrid
from headwise.core.heads import Head, HeadMap, Kind, Named, Site, describe


@made_as("hw.HeadMask.full(model.heads).without(['L0H1'])")
@dataclass(frozen=True)
class HeadMask:
    """Which heads of a map are kept. Its JSON form is the layout of every pruned model (docs/layout.md)."""

    heads: HeadMap
    kept: frozenset[Head]

    def __post_init__(self) -> None:
        refuse_other_maps(self.heads)
        for head in self.kept:
            if head not in self.heads:
                raise HeadwiseError(
                    f"The layout keeps {head}, but this model has no such head ({describe(self.heads)})."
                )

    @classmethod
    def full(cls, heads: HeadMap) -> HeadMask:
        """All heads of a map. Raises HeadwiseError for anything else, such as a model."""
        refuse_other_maps(heads)
        return cls(heads, frozenset(heads))

    def __repr__(self) -> str:
        kept = {
            kind: "+".join(str(len(self.of(Site(kind, layer)))) for layer in range(len(counts)))
            for kind, counts in self.heads.query.items()
        }
        layers = ", ".join(f"{kind} {counts}" for kind, counts in kept.items())
        return f"HeadMask({len(self)} of {self.heads.total} heads: {layers})"

    def grid(self, title: str = "") -> HeadGrid:
        """A picture of the heads that are kept."""
        return HeadGrid(self.heads, title, f"{len(self)} of {self.heads.total}", kept=self.kept)

    def _repr_html_(self) -> str:
        return HeadGrid(self.heads, repr(self), kept=self.kept).html()

    def __len__(self) -> int:
        return len(self.kept)

    def without(self, heads: Named) -> HeadMask:
        """The mask without some heads, as `HeadMap.named` knows them. Raises HeadwiseError for a head that the model does
        not have."""
        return HeadMask(self.heads, self.kept - {*self.heads.named(heads)})

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
            listed = len(data["kept"][kind])
            if listed != len(counts):
                raise HeadwiseError(
                    f"The layout has {len(counts)} {kind} layers, but lists kept heads of {listed}."
                )
        # One row a layer: the numbers of the heads that it keeps.
        rows = [
            (kind, layer, row)
            for kind, layers in data["kept"].items()
            for layer, row in enumerate(layers)
        ]
        kept = [Head(kind, layer, head) for kind, layer, row in rows for head in row]
        if wrong := [head.head for head in kept if type(head.head) is not int]:
            raise HeadwiseError(f"The layout keeps the head {wrong[0]!r}: heads are whole numbers.")
        mask = cls(heads, frozenset(kept))
        # Twice in the file is once in the set.
        if len(mask) < len(kept):
            raise HeadwiseError("The layout lists a kept head twice.")
        return mask

    def save(self, path: str | PathLike[str]) -> None:
        """Write the layout to a file, in place of one of that name."""
        write_text(as_path(path), json.dumps(self.to_json(), indent=1) + "\n")

    @classmethod
    def read(cls, path: str | PathLike[str]) -> HeadMask:
        """Read a layout file. Raises HeadwiseError, with the file's name, for an incomplete one."""
        path = as_path(path)
        failed = f"{path} cannot be read as a layout of kept heads:"
        try:
            return cls.from_json(json.loads(path.read_text(encoding="utf-8")))
        except HeadwiseError as error:
            raise HeadwiseError(f"{path} cannot be used: {error}") from None
        except OSError as error:
            raise HeadwiseError(f"{failed} it cannot be opened ({error.strerror}).") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise HeadwiseError(
                f"{failed} it is not one ({type(error).__name__}: {error})."
            ) from None


def key_value_heads(served_by: list[int], origin: list[int]) -> tuple[list[int], int]:
    """Which key/value heads stay, and how many query heads share each.

    Groups stay shared where all remaining groups keep equally many heads; otherwise each kept head gets its own copy.
    served_by: for every kept query head, its key/value head. origin: for every key/value head, the head of the original
    model that it is (a copy of).
    """
    # By their first number: copies of one head are one group.
    groups = [origin[head] for head in served_by]
    shares = {groups.count(group) for group in groups}
    if len(shares) == 1:
        # One head of each group, the first of its copies.
        return [served_by[groups.index(group)] for group in dict.fromkeys(groups)], shares.pop()
    # Groups of different sizes: grouped attention cannot express them, so each query head gets a copy.
    return served_by, 1


def refuse_other_maps(heads: Any) -> None:
    """Raise HeadwiseError for anything in place of a map of heads, such as a model."""
    if not isinstance(heads, HeadMap):
        raise HeadwiseError(
            f"{shown_value(heads)} was given in place of a map of heads: give model.heads."
        )
