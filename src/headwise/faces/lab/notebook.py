"""The lab in a notebook: the same page as a widget. The kernel answers one question at a time,
between cells, so that no cell ever computes with a head switched off.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from os import PathLike
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from headwise.core.errors import HeadwiseError, called_as, shown_value
from headwise.data.treebank import Treebank, TreeFiles
from headwise.faces.lab.assets import asset_files, one_module, theme
from headwise.faces.lab.server import answer_text, cancel_of
from headwise.faces.lab.session import Session
from headwise.models.loading import AnyModel

if TYPE_CHECKING:
    from anywidget import AnyWidget


@called_as("hw.lab(model, 'A sentence.')")
def lab(
    model: AnyModel,
    text: str = "",
    treebank: Treebank | TreeFiles | None = None,
    audio: str | PathLike[str] | None = None,
) -> AnyWidget:
    """The lab as a widget for Jupyter, marimo, VS Code and Colab: every head's attention, and heads
    to switch off.

    model: as `headwise lab` takes it, or a loaded one; a study, its folder or what `hw.Run` made of
    it, brings its scores, roles and pruned model. text: the sentence at the start. treebank:
    sentences to pick, whose trees are drawn; or its file. audio: of a speech model, the table of
    its recordings. `.state` of the widget is what stands after # in the address of `headwise lab`:
    it can be read and set. Raises HeadwiseError where anywidget is not installed
    (`headwise[notebook]`).
    """
    if not isinstance(text, str):
        raise HeadwiseError(f"The lab starts on {shown_value(text)}: give one sentence, a string.")
    if find_spec("anywidget") is None:
        raise HeadwiseError(
            "The lab in a notebook needs anywidget: pip install 'headwise[notebook]'."
        )
    import anywidget
    import traitlets

    class Widget(anywidget.AnyWidget):
        _esm = one_module("notebook.js", "widget")
        _css = theme(".headwise-lab") + asset_files()["lab.css"][0].decode()
        state = traitlets.Unicode("").tag(sync=True)

    session = Session.open(model, treebank=treebank, audio=audio)
    widget = Widget(state=urlencode({"text": text} if text else {}))
    widget.on_msg(lambda shown, message, buffers: reply(session, shown, message))
    return widget


def reply(session: Session, widget: Any, message: Mapping[str, Any]) -> None:
    """Answer a message {id, name, question} with {id, answer} or {id, error}, and before that {id,
    progress, note}."""
    number = message.get("id")
    name = str(message.get("name"))

    def progress(share: float, note: str) -> None:
        widget.send({"id": number, "progress": share, "note": note})

    question = message.get("question") or {}
    try:
        content = json.loads(answer_text(session, name, question, cancel_of(name), progress))
    except KeyboardInterrupt:  # the notebook's own stop button
        content = {"error": "Stopped."}
    widget.send({"id": number, **content})
