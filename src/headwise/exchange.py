"""Files of other tools: circuits of EAP-IG and MIB (read and written), patterns of DuoAttention (written).

A circuit is JSON: `cfg` (n_layers, n_heads, parallel_attn_mlp, d_model), `nodes` by name (`input`, `a0.h1`, `m0`,
`logits`), each with `in_graph` and perhaps `score`, and `edges`. Written circuits are those of nodes: `edges` is empty,
and nodes other than heads have no score, so that EAP-IG's `apply_topn(level="node")` keeps them and adds the edges.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import HeadwiseError
from headwise.folders import refuse_other_files, write_file, write_results
from headwise.heads import NODE, Head, HeadMap, HeadMask, Kind, score_table
from headwise.importance.measures import facts

if TYPE_CHECKING:
    import pandas as pd

    from headwise.model import Model

OTHERS = re.compile(r"input|logits|m[0-9]{1,6}")
PARALLEL = (
    "codegen",
    "cohere",
    "cohere2",
    "gptj",
    "phi",
)  # whose attention and feed-forward layer read the same input
PATTERN, SIZES = "full_attention_heads.tsv", "config.json"


def write_circuit(
    path: str | Path,
    model: Model,
    mask: HeadMask | None = None,
    scores: pd.DataFrame | None = None,
    measure: str | None = None,
) -> None:
    """Write the heads of a mask, or all heads, with the values of a measure, as a circuit of nodes. A file of this name is
    replaced.

    mask: over the heads of the model, or of the whole model that a pruned one came from; of a pruned model its layout
    by default. scores: the table of `hw.score`; without it nodes have no scores. measure: which; the table's only one by
    default. Raises HeadwiseError for models with several kinds of heads, or layers with different numbers of them.
    """
    mask = mask or model.layout or HeadMask.full(model.heads)
    kind, counts = one_stack(mask.heads)
    if len({*counts}) > 1:
        raise HeadwiseError(
            f"A circuit has one number of heads for all layers, but {model.name} has {'+'.join(map(str, counts))}: "
            "give a mask over the heads of the whole model."
        )
    config: Any = model.hf.config.get_text_config()
    parallel = config.model_type in PARALLEL or any(
        getattr(config, name, False) for name in ("use_parallel_residual", "parallel_attn")
    )
    values: dict[Head, float] = {}
    if scores is not None:
        values, name, high = values_of(scores, mask.heads, measure)
        if not high:
            raise HeadwiseError(
                f"A circuit has the heads with the largest scores, but the lower {name}, the more important a head: "
                "choose another measure."
            )
    nodes: dict[str, dict[str, Any]] = {"input": {"in_graph": True}}
    for layer, count in enumerate(counts):
        for head in (Head(kind, layer, number) for number in range(count)):
            score = {"score": values[head]} if head in values else {}
            nodes[f"a{layer}.h{head.head}"] = {"in_graph": head in mask.kept, **score}
        nodes[f"m{layer}"] = {"in_graph": True}
    nodes["logits"] = {"in_graph": True}
    facts = {
        "n_layers": len(counts),
        "n_heads": counts[0],
        "parallel_attn_mlp": parallel,
        "d_model": config.hidden_size,
    }
    write_file(Path(path), json.dumps({"cfg": facts, "nodes": nodes, "edges": {}}) + "\n")


def read_circuit(path: str | Path, heads: HeadMap) -> tuple[HeadMask, pd.DataFrame]:
    """The heads that a circuit keeps, and a table of scores (measure `circuit`; no rows where it has none).

    heads: of the model. Edges are not read: a file of edges says in its nodes which heads they use. Raises
    HeadwiseError, with the file's name, for what is no circuit, or one of another model.
    """
    kind, counts = one_stack(heads)
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        facts, nodes = content["cfg"], content["nodes"]
        size = facts["n_layers"], facts["n_heads"]
        given = {
            str(name): node if isinstance(node, dict) else {"in_graph": node}
            for name, node in nodes.items()
        }
        kept, rows = list[Head](), list[dict[str, Any]]()
        for name, node in given.items():
            if type(node["in_graph"]) is not bool:
                raise HeadwiseError(
                    f"in_graph of {name} is {node['in_graph']!r}, not true or false"
                )
            if found := NODE.fullmatch(name):
                head = Head(kind, int(found[2]), int(found[4]))
                if head not in heads:
                    raise HeadwiseError(f"it has a node {name}, but the model has no head {head}")
                kept += [head] if node["in_graph"] else []
                score = float(node.get("score", math.nan))
                rows += (
                    []
                    if math.isnan(score)
                    else [{**head._asdict(), "measure": "circuit", "value": score}]
                )
            elif not OTHERS.fullmatch(name):
                raise HeadwiseError(f"{name[:50]} is no node: there is input, a0.h1, m0 and logits")
        if (
            size != (len(counts), max(counts))
            or sum(bool(NODE.fullmatch(name)) for name in given) != heads.total
        ):
            raise HeadwiseError(
                f"it is of {size[0]} layers of {size[1]} heads, the model has {len(counts)} of {max(counts)} "
                f"({heads.total} in all)"
            )
    except HeadwiseError as error:
        raise HeadwiseError(f"{path} cannot be used as a circuit: {error}.") from None
    except OSError as error:
        raise HeadwiseError(
            f"{path} cannot be read as a circuit: it cannot be opened ({error.strerror})."
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HeadwiseError(
            f"{path} cannot be read as a circuit: it is not one ({type(error).__name__}: {str(error)[:100]})."
        ) from None
    return HeadMask(heads, frozenset(kept)), score_table(rows)


def write_duo_pattern(
    folder: str | Path,
    heads: HeadMap,
    scores: pd.DataFrame,
    measure: str | None = None,
    sink: int = 64,
    recent: int = 256,
) -> None:
    """Write full_attention_heads.tsv (layers x key/value heads, from 0 to 1) and config.json for DuoAttention: the
    higher a key/value head, the sooner it keeps its whole cache; the others keep `sink` first and `recent` last tokens.

    A key/value head is worth the sum of its query heads, as for pruning by `group`; values are scaled so that the
    smallest is 0 and the largest 1, and turned round for measures whose low values are important. Raises HeadwiseError
    for layers with different numbers of key/value heads, and for a folder with files that headwise did not write.
    """
    kind, counts = one_stack(heads)
    groups, place = heads.key_value[kind], Path(folder)
    if len({*groups}) > 1 or not groups[0]:
        raise HeadwiseError(
            "A pattern of DuoAttention has equally many key/value heads in every layer, here "
            f"{'+'.join(map(str, groups))}."
        )
    if sink < 0 or recent < 1:
        raise HeadwiseError(
            f"sink={sink} and recent={recent} were given: give at least 0 and at least 1 tokens."
        )
    refuse_other_files(place, [PATTERN, SIZES])
    values, _, high = values_of(scores, heads, measure)
    sign = 1 if high else -1
    rows = [
        [
            sign
            * sum(
                values[Head(kind, layer, head)]
                for head in range(group * share, (group + 1) * share)
            )
            for group in range(groups[layer])
        ]
        for layer, share in ((layer, count // groups[layer]) for layer, count in enumerate(counts))
    ]
    least, most = min(map(min, rows)), max(map(max, rows))
    scaled = [
        [(value - least) / (most - least) if most > least else 1.0 for value in row] for row in rows
    ]
    contents = {
        PATTERN: "".join("\t".join(f"{value:.6f}" for value in row) + "\n" for row in scaled),
        SIZES: json.dumps({"sink_size": sink, "recent_size": recent}) + "\n",
    }
    write_results(place, contents, [PATTERN, SIZES])


def one_stack(heads: HeadMap) -> tuple[Kind, tuple[int, ...]]:
    """The only kind of heads, and their numbers by layer."""
    if len(heads.kinds) != 1:
        raise HeadwiseError(
            f"This file is for models with one kind of heads, not with {', '.join(heads.kinds) or 'none'}."
        )
    return heads.kinds[0], heads.query[heads.kinds[0]]


def values_of(
    scores: pd.DataFrame, heads: HeadMap, measure: str | None
) -> tuple[dict[Head, float], str, bool]:
    """Every head's value by a measure of a table (its only one by default), its name, and whether high values are
    important."""
    measures = list(dict.fromkeys(scores["measure"]))
    if measure is None and len(measures) == 1:
        (measure,) = measures
    if measure is None or measure not in measures:
        asked = f"'{measure}' was asked for" if measure else "no measure was named"
        raise HeadwiseError(
            f"{asked.capitalize()}, but the table has {', '.join(measures) or 'none'}: name one of them."
        )
    rows = scores[scores["measure"] == measure]
    columns = (rows[name].tolist() for name in ("kind", "layer", "head", "value"))
    found = {
        Head(kind, layer, head): value for kind, layer, head, value in zip(*columns, strict=True)
    }
    if {*found} != {*heads} or not all(math.isfinite(value) for value in found.values()):
        raise HeadwiseError(
            f"The table has {measure} of {len(found)} heads, the model has {heads.total}, or a value is no number: "
            "score all heads of this model."
        )
    return found, measure, facts(measure).sign == 1
