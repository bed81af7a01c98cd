"""The common vocabulary: kinds of attention, a head's address, the map of a model's heads, a mask.

Heads are counted from 0 and written `kind/layer/head`: `encoder-self/0/3`, `decoder-self/5/7`, `cross/2/0`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast, get_args

from headwise.core.errors import HeadwiseError, did_you_mean, made_as, shown_value

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["encoder-self", "decoder-self", "cross"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MOST_HEADS = 100_000  # heads of a model: a file that says more is damaged
ADDRESS = re.compile(f"({'|'.join(KINDS)})/([0-9]{{1,6}})/([0-9]{{1,6}})")
# Names in circuits (EAP-IG, MIB) and in papers. The empty group takes the place of HOOK's third.
NODE = re.compile(r"(a|[Ll]|self/|)([0-9]{1,6})()(?:\.?[hH]|[./-])([0-9]{1,6})")
# Hooks of TransformerLens, with the names of version 4: all query heads of a layer, or one of them.
HOOK = re.compile(
    r"(blocks|encoder|decoder)\.([0-9]{1,6})\.(attn|cross_attn)\."
    r"(?:hook_(?:q|z|result|pattern|attn_scores)|q\.hook_out|o\.hook_in)"
    r"(?:\[(?:\.\.\.|:(?:, ?:)*), ?([0-9]{1,6})(?:, ?:)*\])?"
)
HOOKED: dict[str, Kind] = {
    "encoder.attn": "encoder-self",
    "decoder.attn": "decoder-self",
    "decoder.cross_attn": "cross",
}
NO_HEAD = (
    "{} names no head: write 'decoder-self/0/3' or ('decoder-self', 0, 3), or give rows of a table, or several of "
    "these."
)
Row = dict[str, Any]  # of a table, by column
Named: TypeAlias = Any  # heads as somebody names them (`HeadMap.named`)


@made_as("hw.Head('decoder-self', 0, 1), or the name as it is, 'L0H1', where heads are named")
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
        found = ADDRESS.fullmatch(text)
        if not found:
            raise HeadwiseError(
                f"'{text}' is not a head: write kind/layer/head, for example encoder-self/0/3, "
                f"with a kind of {', '.join(KINDS)}{did_you_mean(text.partition('/')[0], KINDS)}."
            )
        return cls(cast(Kind, found[1]), int(found[2]), int(found[3]))


def head_of(row: Mapping[Any, Any], prefix: str = "") -> Head:
    """The head that a row of a table is about; with the prefix `other_`, the second one of a pair."""
    return Head(row[f"{prefix}kind"], int(row[f"{prefix}layer"]), int(row[f"{prefix}head"]))


def as_rows(given: Any) -> Any:
    """A table of pandas or polars as rows by column, a column of theirs or of NumPy as a list; anything else as it is."""
    if hasattr(given, "to_dicts"):
        return given.to_dicts()  # of polars
    if hasattr(given, "columns") and hasattr(given, "to_dict"):
        # Of pandas, which would keep the last of two columns of one name.
        names = [str(name) for name in given.columns]
        if twice := {name for name in names if names.count(name) > 1}:
            raise HeadwiseError(f"The table has two columns '{min(twice)}': rename one of them.")
        given = given.astype(object)
        return given.where(given.notna(), None).to_dict("records")
    if hasattr(given, "fillna"):
        given = given.astype(object).fillna("")  # a missing sentence is blank
    for name in ("to_list", "tolist"):
        if hasattr(given, name):
            return getattr(given, name)()
    return given


def named_heads(table: pd.DataFrame) -> pd.DataFrame:
    """A table with each head in one column, `head`, as `cross/0/5`; of pairs the second one in `other`."""
    names = {}
    for prefix, column in (("", "head"), ("other_", "other")):
        address = [f"{prefix}{part}" for part in Head._fields]
        if {*address} <= {*table.columns}:
            rows = table[address].itertuples(index=False, name=None)
            names[column] = [str(Head(*row)) for row in rows]
    return table.assign(**names)


class Site(NamedTuple):
    """One attention layer: a kind and a layer number."""

    kind: Kind
    layer: int

    def __str__(self) -> str:
        return f"{self.kind} layer {self.layer}"


@dataclass(frozen=True)
class HeadMap:
    """How many heads every attention layer has.

    `query[kind][layer]`, and `key_value[kind][layer]` where key/value heads are fewer (grouped queries). Raises
    HeadwiseError for counts that no model has.
    """

    query: Mapping[Kind, tuple[int, ...]]
    key_value: Mapping[Kind, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Kinds in one order, however a file lists them: heads are numbered by it.
        query = {kind: tuple(self.query[kind]) for kind in KINDS if kind in self.query}
        object.__setattr__(self, "query", query)
        groups = {kind: tuple(self.key_value.get(kind, self.query[kind])) for kind in self.query}
        object.__setattr__(self, "key_value", groups)
        counts = [count for layers in (*self.query.values(), *groups.values()) for count in layers]
        if wrong := [count for count in counts if type(count) is not int or count < 0]:
            raise HeadwiseError(
                f"A number of heads is {wrong[0]!r}: it must be a whole number of at least 0."
            )
        if self.total > MOST_HEADS:
            raise HeadwiseError(
                f"There are more than {MOST_HEADS:,} heads ({describe(self)}): no model has so many."
            )
        for kind, layers in self.query.items():
            if len(groups[kind]) != len(layers):
                raise HeadwiseError(
                    f"There are {len(layers)} {kind} layers, but key/value heads of {len(groups[kind])}."
                )

    @classmethod
    def smallest(cls, heads: Iterable[Head]) -> HeadMap:
        """The smallest map that has some heads."""
        counts: dict[Kind, list[int]] = {}
        for kind, layer, head in heads:
            layers = counts.setdefault(kind, [])
            layers += [0] * (layer + 1 - len(layers))
            layers[layer] = max(layers[layer], head + 1)
        return cls({kind: tuple(layers) for kind, layers in counts.items()})

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(self.query)

    @property
    def sites(self) -> tuple[Site, ...]:
        return tuple(
            Site(kind, layer) for kind in self.query for layer in range(len(self.query[kind]))
        )

    @property
    def total(self) -> int:
        return sum(sum(counts) for counts in self.query.values())

    def count(self, site: Site) -> int:
        return self.query[site.kind][site.layer]

    def __hash__(self) -> int:
        # Mappings have no hash, so the dataclass cannot make one.
        return hash(tuple(self.query.items()))

    def __repr__(self) -> str:
        return f"HeadMap({self.total} heads: {describe(self)})"

    def __len__(self) -> int:
        return self.total

    def __getitem__(self, index: int | str) -> Head:
        """A head by its number, or by a name that `named` knows."""
        if isinstance(index, str):
            one, *others = self.named(index)
            if others:
                raise HeadwiseError(
                    f"'{index}' names {1 + len(others)} heads: write heads.named('{index}')."
                )
            return one
        heads: list[Head] = [*self]
        return heads[index]

    def __iter__(self) -> Iterator[Head]:
        return (
            Head(kind, layer, head)
            for kind, layer in self.sites
            for head in range(self.query[kind][layer])
        )

    def __contains__(self, head: object) -> bool:
        return (
            isinstance(head, Head)
            and type(head.layer) is type(head.head) is int  # True and 1.0 equal 1
            and 0 <= head.layer < len(self.query.get(head.kind, ()))
            and 0 <= head.head < self.query[head.kind][head.layer]
        )

    def named(self, given: Named) -> tuple[Head, ...]:
        """The heads that somebody means.

        given: a name: `kind/layer/head`; `L3H5`, `3.5`, `3-5` or `self/3/5` as in papers; `a3.h5` as in circuits; or a
        hook of TransformerLens on query heads, such as `blocks.3.attn.hook_z[..., 5]`, `blocks.3.attn.o.hook_in` or
        `decoder.3.cross_attn.hook_z[..., 5]`, without `[...]` for the whole layer. Or (kind, layer, head); (layer,
        head); a row of a table, or the table; or several of these. Where no kind is said, the model must have only one.
        Raises HeadwiseError for what names no head, and heads that the model does not have.
        """
        if isinstance(given, str):
            return self._of_name(given)
        index = getattr(given, "index", ())
        if not callable(index) and "head" in index:  # a row of pandas
            given = given.to_dict()
        row = as_rows(given._asdict() if hasattr(given, "_asdict") else given)
        if isinstance(row, Mapping):
            if {*Head._fields} <= row.keys():
                return self._of_address([row["kind"], row["layer"], row["head"]])
            # `top` of a result has names.
            row = [row["head"]] if "head" in row else self._of_layers(row)
        if not isinstance(row, Iterable):
            raise HeadwiseError(NO_HEAD.format(shown_value(given)))
        parts = list(row)
        if 2 <= len(parts) <= 3 and isinstance(parts[-1], Integral):
            return self._of_address(parts)
        return tuple(head for part in parts for head in self.named(part))

    def _of_layers(self, heads: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
        """(layer, head) of the heads of each layer, {0: [1, 3]}, as transformers 4 had them."""
        pairs = []
        for layer, numbers in heads.items():
            if not isinstance(numbers, Iterable) or isinstance(numbers, str):
                raise HeadwiseError(NO_HEAD.format(shown_value(heads)))
            pairs += [(layer, number) for number in numbers]
        return pairs

    def _of_address(self, parts: Sequence[Any]) -> tuple[Head, ...]:
        """The head of (kind, layer, head) or (layer, head)."""
        *kind, layer, head = parts
        named = all(isinstance(each, str) for each in kind)
        if not (named and isinstance(layer, Integral) and isinstance(head, Integral)):
            raise HeadwiseError(NO_HEAD.format(shown_value(tuple(parts))))
        one = Head(kind[0] if kind else self._only_kind(tuple(parts)), int(layer), int(head))
        if one not in self:
            raise HeadwiseError(f"{one} is none of this model's heads ({describe(self)}).")
        return (one,)

    def _only_kind(self, given: object) -> Kind:
        """The kind that nobody needs to say."""
        if len(self.query) != 1:
            raise HeadwiseError(
                f"{given!r} names no kind of head, and this model has {', '.join(self.query)}: write kind/layer/head."
            )
        return next(iter(self.query))

    def _of_name(self, name: str) -> tuple[Head, ...]:
        found = NODE.fullmatch(name) or HOOK.fullmatch(name)
        if found is None:
            heads: tuple[Head, ...] = (Head.parse(name),)
        else:
            stack, layer, part, head = found.groups()
            unnamed = found.re is NODE or (stack == "blocks" and part == "attn")
            kind = self._only_kind(name) if unnamed else HOOKED.get(f"{stack}.{part}")
            every = [one for one in self if (one.kind, one.layer) == (kind, int(layer))]
            heads = tuple(one for one in every if head is None or one.head == int(head))
        if not heads or any(one not in self for one in heads):
            raise HeadwiseError(f"'{name}' is none of this model's heads ({describe(self)}).")
        return heads

    def only(self, kinds: Kind | Iterable[Kind]) -> HeadMap:
        """The map restricted to a kind, or some. Raises HeadwiseError for a kind that the model does not have."""
        kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
        for kind in kinds:
            if kind not in self.query:
                has = ", ".join(self.query)
                raise HeadwiseError(
                    f"Heads of kind '{kind}' were asked for{did_you_mean(kind, self.query)}, but this model has only "
                    f"{has}."
                )
        query = {kind: counts for kind, counts in self.query.items() if kind in kinds}
        return HeadMap(query, {kind: self.key_value[kind] for kind in query})

    def to_json(self) -> dict[str, Any]:
        return {
            "query": {kind: list(counts) for kind, counts in self.query.items()},
            "key_value": {kind: list(counts) for kind, counts in self.key_value.items()},
        }


def describe(heads: HeadMap) -> str:
    """The map in words: `encoder-self 8+8+8, cross 8+8+8`."""
    return ", ".join(f"{kind} {'+'.join(map(str, counts))}" for kind, counts in heads.query.items())
