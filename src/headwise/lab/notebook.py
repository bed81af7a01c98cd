"""The lab in a notebook: the same page as a widget. The kernel answers one question at a time, between cells, so that
no cell ever computes with a head switched off.
"""

from __future__ import annotations

import graphlib
import json
import re
from collections.abc import Mapping
from importlib import resources
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from headwise.data.treebank import Treebank
from headwise.errors import HeadwiseError
from headwise.lab.files import page_files, theme
from headwise.lab.questions import Lab
from headwise.lab.server import SECONDS, sentence
from headwise.lab.turns import Work
from headwise.model import Model

if TYPE_CHECKING:
    from anywidget import AnyWidget

IMPORT = re.compile(r'^import \{ ([^}]+) \} from "\./([\w./-]+)";$', re.MULTILINE)
DECLARED = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
LISTED = re.compile(r"export\{([^}]+)\};?")


def lab(
    model: Model | str | PathLike[str], text: str = "", treebank: Treebank | None = None
) -> AnyWidget:
    """The lab as a widget for Jupyter, marimo, VS Code and Colab: heads are watched and switched off there.

    model: as `headwise lab` takes it, or a loaded one; a study's folder brings its scores, roles and pruned model.
    text: the sentence at the start. treebank: sentences to pick, whose trees are drawn. `.state` of the widget is what
    stands after # in the address of `headwise lab`: it can be read and set. Raises HeadwiseError where anywidget is not
    installed (`headwise[notebook]`).
    """
    if not isinstance(model, Model | str | PathLike):
        raise HeadwiseError(
            f"The lab was given {str(model)[:100]!r}: give a model of hw.load(…), or a folder."
        )
    if find_spec("anywidget") is None:
        raise HeadwiseError(
            "The lab in a notebook needs anywidget: pip install 'headwise[notebook]'."
        )
    import anywidget
    import traitlets

    class Widget(anywidget.AnyWidget):
        _esm = joined("notebook.js", "widget")
        _css = theme(".headwise-lab") + page_files()["lab.css"][0].decode()
        state = traitlets.Unicode("").tag(sync=True)

    made, widget = (
        Lab.open(model, treebank=treebank),
        Widget(state=urlencode({"text": text} if text else {})),
    )
    widget.on_msg(lambda shown, asked, buffers: answer(made, shown, asked))
    return widget


def answer(made: Lab, widget: Any, asked: Mapping[str, Any]) -> None:
    """Answer a question {id, name, question} with {id, answer} or {id, error}, and on the way {id, progress, note}."""
    number, name = asked.get("id"), str(asked.get("name"))
    work = Work(SECONDS.get(name, SECONDS["look"]))
    work.start()
    try:
        found = made.answer(
            name,
            asked.get("question") or {},
            work,
            lambda share, note: widget.send({"id": number, "progress": share, "note": note}),
        )
        said = {"answer": json.loads(json.dumps(found, allow_nan=False))}
    except KeyboardInterrupt:  # the notebook's own stop button
        said = {"error": "Stopped."}
    except Exception as error:
        said = {"error": sentence(error)}
    widget.send({"id": number, **said})


def joined(entry: str, name: str) -> str:
    """The modules of the page that `entry` needs as one module, whose default is what `entry` exports as `name`: a
    widget is one file. Knows the forms that the page is written in, and raises ValueError for any other."""
    folder = Path(str(resources.files("headwise.lab") / "page"))
    bodies, needs, waiting = dict[str, str](), dict[str, set[str]](), [entry]
    while waiting:
        place = waiting.pop()
        if place in bodies:
            continue
        source = (folder / place).read_text(encoding="utf-8")
        needs[place] = {found[1] for found in IMPORT.findall(source)}
        waiting += needs[place]
        listed = [
            pair.split(" as ") for names in LISTED.findall(source) for pair in names.split(",")
        ]
        given = [f"{pair[-1]}: {pair[0]}" for pair in listed] + DECLARED.findall(source)
        source = IMPORT.sub(
            lambda found: f"const {{ {found[1]} }} = modules[{json.dumps(found[2])}];", source
        )
        source = DECLARED.sub("", LISTED.sub("", source))
        if re.search(r"^(import|export)\b", source, re.MULTILINE):
            raise ValueError(f"{place} imports or exports in a form that cannot be joined.")
        bodies[place] = (
            f"modules[{json.dumps(place)}] = (() => {{\n{source}\nreturn {{ {', '.join(given)} }};\n}})();\n"
        )
    order = graphlib.TopologicalSorter(needs).static_order()
    text = "".join(bodies[place] for place in order)
    return f"const modules = {{}};\n{text}export default modules[{json.dumps(entry)}].{name};\n"
