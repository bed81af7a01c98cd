"""Write the Python reference: every public name of headwise, with its signature, docstring and public methods.

    python tools/api_reference.py [FILE]        (default: docs/reference/api.md)

The text is that of the docstrings. A name's home is the module that `headwise/__init__.py` imports it from for type
checkers, so that names which are loaded on first use have their full signature.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import headwise

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "api.md"
COLUMNS = 100
HEADER = """# Python reference

Written from the docstrings by `make docs`. Import headwise as `import headwise as hw`.
"""


class Plain:
    """An annotation or a default that prints as a reader writes it: no quotes, no module, no address in memory."""

    def __init__(self, value: Any) -> None:
        text = value if isinstance(value, str) else inspect.formatannotation(value)
        if inspect.isfunction(value):
            text = value.__name__.replace("<lambda>", "...")
        text = re.sub(r"ForwardRef\('([^']+)'\)", r"\1", text)
        self.text = re.sub(r"\b[a-z_]\w*(?:\.[a-z_]\w*)*\.(?=[A-Z])", "", text)

    def __repr__(self) -> str:
        return self.text


def homes() -> dict[str, str]:
    """The module of every name that `headwise/__init__.py` imports."""
    tree = ast.parse(Path(headwise.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in imports
        for alias in node.names
    }


def find(name: str) -> Any:
    module, _, own = homes()[name].rpartition(".")
    return getattr(import_module(module), own)


def readable(parameter: inspect.Parameter) -> inspect.Parameter:
    if parameter.annotation is not inspect.Parameter.empty:
        parameter = parameter.replace(annotation=Plain(parameter.annotation))
    return (
        parameter.replace(default=Plain(parameter.default))
        if inspect.isfunction(parameter.default)
        else parameter
    )


def signature(name: str, item: Any) -> str:
    """The call as Python, one parameter a line when it is long."""
    try:
        found = inspect.signature(item)
    except ValueError:  # an exception class that keeps object's constructor
        return name
    plain = [
        readable(parameter)
        for parameter in found.parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    result = found.return_annotation
    result = (
        inspect.Signature.empty
        if result is inspect.Signature.empty or inspect.isclass(item)
        else Plain(result)
    )
    short = f"{name}{inspect.Signature(plain, return_annotation=result)}"
    if len(short) <= COLUMNS:
        return short
    stars = [parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in plain]
    lines = [str(parameter) for parameter in plain]
    if True in stars and not any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in plain):
        lines.insert(stars.index(True), "*")
    end = "" if result is inspect.Signature.empty else f" -> {result}"
    return f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + f"){end}"


def members(item: type) -> list[tuple[str, Any]]:
    """Public methods and properties of a class that headwise defines, in the order of the source."""
    found: dict[str, Any] = {}
    for base in reversed(item.__mro__):
        if base.__module__.startswith("headwise"):
            found |= {
                name: member for name, member in vars(base).items() if not name.startswith("_")
            }
    kinds = (classmethod, staticmethod, property, cached_property)
    return [
        (name, member)
        for name, member in found.items()
        if inspect.isfunction(member) or isinstance(member, kinds)
    ]


def listed_parameters(doc: str, names: list[str]) -> str:
    """A docstring with what it says of each parameter (`name: …`, one after another in a paragraph) as a list.

    What it raises comes after the list.
    """
    one = "|".join(map(re.escape, names))
    begins = re.compile(rf"(?:^|(?<=[.)] ))(?=(?:{one})(?:, (?:{one}))*: )")
    paragraphs = []
    for paragraph in doc.split("\n\n"):
        text = " ".join(paragraph.split())
        first, *items = begins.split(text)
        if not names or not items or re.search(r"\n[ *|-]", paragraph):
            paragraphs.append(paragraph)
            continue
        last, raises, error = items[-1].partition("Raises ")
        items[-1] = last
        lines = [re.sub(r"^([\w, ]+):", r"- **\1**:", item.strip()) for item in items]
        paragraphs += [first.strip(), "\n".join(lines), raises + error]
    return "\n\n".join(filter(None, paragraphs))


def parameter_names(item: Any) -> list[str]:
    """What a function or a class takes."""
    try:
        return list(inspect.signature(item).parameters)
    except (TypeError, ValueError):
        return []


def entry(level: str, name: str, item: Any) -> str:
    inner = getattr(item, "__func__", item)
    call = signature(name, inner) if callable(inner) else name
    doc = listed_parameters(inspect.getdoc(inner) or "", parameter_names(inner))
    doc = re.sub(r"docs/([\w/-]+\.md)", r"[docs/\1](../\1)", doc)
    return f"{level} {name}\n\n```python\n{call}\n```\n" + (f"\n{doc}\n" if doc else "")


def entries(name: str) -> list[str]:
    """The entry of a public name, and those of its members when it is a class."""
    item = find(name)
    inner = members(item) if inspect.isclass(item) else []
    return [
        entry("##", name, item),
        *(entry("###", f"{name}.{own}", member) for own, member in inner),
    ]


def main() -> None:
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    page.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(
        [HEADER, *(one for name in headwise.__all__ if name in homes() for one in entries(name))]
    )
    page.write_text(text, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
