"""Which kinds of attention and which decoder layers hold on (Voita et al. 2019, figures 9 and 10), beside the paper's.

In shares, so that models of other sizes can be compared: of all heads, how many are gone; of a kind or of a layer, how
many are left. Only where heads of several kinds were pruned together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import altair as alt

from headwise.heads import KINDS, Kind, Site
from headwise.report.figure import Figure, Panel, rows
from headwise.report.run import Run
from headwise.report.setting import Series, series
from headwise.report.wording import KIND_NAMES, listed, percent, sentence

# Encoder / decoder / cross heads left of 48 each, EN-RU; read from the author's figure 9.
PAPER_KINDS = {
    "WMT": "48/48/48 34/47/47 24/40/39 15/33/33 14/31/30 13/30/28 13/27/28 12/21/25 11/21/24 11/20/22 11/19/21 "
    "10/16/20 8/13/15 5/9/12",
    "OpenSubtitles": "48/48/48 27/31/46 24/26/43 20/23/42 19/22/38 17/21/35 16/20/32 13/17/31 12/15/26 11/13/25 "
    "9/11/22 6/9/13",
}
# Heads left in the decoder's layers 1+2 / 3+4 / 5+6, of 16 each, EN-RU WMT; figure 10.
PAPER_LAYERS: Mapping[Kind, str] = {
    "decoder-self": "16/16/16 16/16/15 16/15/9 13/13/7 12/12/7 11/12/7 10/11/6 10/9/2 8/9/4 8/8/4 8/8/3 8/7/1 7/5/1 "
    "6/3/0",
    "cross": "16/16/16 15/16/16 7/16/16 6/11/16 6/11/13 5/10/13 5/10/13 5/10/10 5/10/9 5/8/9 5/8/8 5/7/8 4/5/6 4/3/5",
}
THIRDS = ("lowest third", "middle third", "highest third")
SHAPES = ("circle", "square", "triangle-up", "diamond")
Left = dict[str, tuple[int, int]]  # of each kind or layer: heads left, and heads there were


def heads_by_kind(run: Run) -> Figure | None:
    """Share of each kind's heads left against the share of all heads pruned; None where no two kinds were pruned."""
    ours = [
        (line, {s.name: _kinds_left(run, line, s.name) for s in line.settings if s.name in run.layouts})
        for line in _joint(run)
    ]
    if not ours:
        return None
    panels = [_panel(list(found.values()), line.label, "kind") for line, found in ours]
    paper = {name: [_paper(row, KINDS) for row in text.split()] for name, text in PAPER_KINDS.items()}
    panels += [_panel(found, f"Voita et al. 2019, EN-RU {name}", "kind") for name, found in paper.items()]
    return Figure(
        name="heads-by-kind",
        title="Heads left by kind of attention",
        note="share of the heads of each kind that is left · beside it the paper's two models of 48 heads a kind",
        caption="All kinds were pruned together, and no number was given for any kind. "
        + " ".join(_order(*one) for one in ours)
        + " In the paper's models the encoder gives up most of its heads, and cross-attention keeps most.",
        panels=panels,
        columns=3,
    )  # fmt: skip


def decoder_layers(run: Run) -> Figure | None:
    """Share of the heads left in each decoder layer or third of them, a panel a kind; None where no two kinds were."""
    panels = list[Panel]()
    names = set[str]()
    for line in _joint(run):
        for kind in ("decoder-self", "cross"):
            if kind in line.settings[0].kinds:
                found = [_layers_left(run, s.name, kind) for s in line.settings if s.name in run.layouts]
                panels.append(_panel(found, f"{sentence(KIND_NAMES[kind])} · {line.label}", "layer"))
                names |= set(found[0])
    if not panels:
        return None
    for kind, text in PAPER_LAYERS.items() if names == set(THIRDS) else ():
        found = [_paper(row, THIRDS) for row in text.split()]
        panels.append(_panel(found, f"{sentence(KIND_NAMES[kind])} · Voita et al. 2019, EN-RU WMT", "layer"))
    return Figure(
        name="decoder-layers",
        title="Heads left by decoder layer",
        note="share of the heads that is left in each layer, against the share of that kind that is pruned"
        + (" · below: the paper's model of 6 layers" if names == set(THIRDS) else ""),
        caption=(
            "Heads of the decoder's own attention and of cross-attention, layer by layer; the darker the line (on dark "
            "paper: the lighter), the higher the layer. In the paper the decoder's own attention survives low in the "
            "stack, cross-attention high: low layers act as a language model, high ones look at the source."
        ),
        panels=panels,
        columns=2,
    )


def _joint(run: Run) -> list[Series]:
    """Lines of settings with layouts that several kinds had a part in: of gates, and without any of greedy orders.

    A wanted count for each kind decides by itself what is left of it, so such settings are no finding and left out.
    """
    free = [
        s
        for s in run.pruned
        if s.name in run.layouts and len(s.kinds) > 1 and not isinstance(s.asked.get("value"), Mapping)
    ]
    lines = [line for line in series(free) if not line.random]
    return [line for line in lines if line.learned] or lines


def _kinds_left(run: Run, line: Series, name: str) -> Left:
    mask = run.layouts[name]
    kinds = [kind for kind in KINDS if kind in line.settings[0].kinds]
    return {kind: (mask.count(kind), sum(mask.heads.query[kind])) for kind in kinds}


def _layers_left(run: Run, name: str, kind: Kind) -> Left:
    """By thirds of the layers, lowest first, where three divides their number; else layer by layer."""
    mask = run.layouts[name]
    counts = mask.heads.query[kind]
    left = [len(mask.of(Site(kind, layer))) for layer in range(len(counts))]
    if len(counts) % 3:
        return {f"layer {layer}": pair for layer, pair in enumerate(zip(left, counts, strict=True))}
    size = len(counts) // 3
    parts = [slice(i * size, (i + 1) * size) for i in range(3)]
    return {third: (sum(left[part]), sum(counts[part])) for third, part in zip(THIRDS, parts, strict=True)}


def _paper(row: str, names: Sequence[str]) -> Left:
    """A model of the paper: 16 heads in a third of its layers, 48 of a kind."""
    total = 16 if names == THIRDS else 48
    return {name: (int(left), total) for name, left in zip(names, row.split("/"), strict=True)}


def _order(line: Series, found: Mapping[str, Left]) -> str:
    """What is left of each kind on average, the least first."""
    shares = {
        kind: fmean(left[kind][0] / left[kind][1] for left in found.values()) for kind in next(iter(found.values()))
    }
    ranked = sorted(shares, key=lambda kind: shares[kind])
    told = listed([f"{KIND_NAMES[kind]} {percent(shares[kind])}" for kind in ranked])
    if len(found) == 1:
        return f"In the one setting of {line.label} there are left: {told}."
    return f"Over the {len(found)} settings of {line.label} there are left, on average: {told}."


def _panel(found: Sequence[Left], title: str, what: str) -> Panel:
    cells = list(_cells(found))
    names = list(dict.fromkeys(cell["name"] for cell in cells))
    x = alt.X("gone:Q", title="heads pruned (%)", scale=alt.Scale(domain=[0, 100]), axis=alt.Axis(grid=False))
    y = alt.Y("left:Q", title="heads left (%)", scale=alt.Scale(domain=[0, 100]), axis=alt.Axis(tickCount=4))
    legend = alt.Legend(orient="bottom", title=None, columns=1 if what == "kind" else 3, symbolOpacity=1, labelLimit=0)
    if what == "kind":
        colour = alt.Color("name:N", scale=alt.Scale(domain=list(KINDS), range="category"), legend=legend)
        shape = alt.Scale(domain=list(KINDS), range=list(SHAPES[:3]))
    else:
        colour = alt.Color("name:O", sort=names, scale=alt.Scale(domain=names, range="ordinal"), legend=legend)
        shape = alt.Scale(
            domain=names, range=(["circle", "square", "triangle-up", "diamond"] * len(names))[: len(names)]
        )
    told = [alt.Tooltip("name:N", title=what), alt.Tooltip("told:N", title="heads left")]
    base = alt.Chart(rows(cells)).encode(x=x, y=y, color=colour, tooltip=told)
    marks = [
        base.mark_line(strokeWidth=2, strokeJoin="round").encode(order=alt.Order("gone:Q")),
        base.mark_point(filled=True, size=60, opacity=1).encode(shape=alt.Shape("name:N", scale=shape, legend=legend)),
    ]
    chart = alt.layer(*marks).properties(height=220, description=f"Heads left by {what}, {title}")
    return Panel(chart, title, width=300 if what == "kind" else 400, narrowest=150 if what == "kind" else 230)


def _cells(found: Sequence[Left]) -> Iterator[dict[str, Any]]:
    """A mark for each kind or layer of each model, and of the whole one."""
    whole = {name: (total, total) for name, (_, total) in found[0].items()}
    for model in (whole, *found):
        left, total = (sum(pair[i] for pair in model.values()) for i in (0, 1))
        for name, (count, of) in model.items():
            yield {
                "name": name,
                "gone": round(100 * (1 - left / total), 2),
                "left": round(100 * count / of, 2),
                "told": f"{count} of {of}",
            }
