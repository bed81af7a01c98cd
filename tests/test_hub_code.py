"""No code comes from the hub: a configuration that names an attention function of the hub, with the package that would
fetch it installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import MarianMTModel

FAKE = '''
"""Stands for the package that fetches kernels from the hub: it only notes what is asked of it."""
import os, pathlib

class Anything:
    def __init__(self, *args, **kwargs): pass
    def __call__(self, *args, **kwargs): return args[0] if args else self
    def __getattr__(self, name): return Anything()

def get_kernel(name, *args, **kwargs):
    pathlib.Path(os.environ["TRACE"]).write_text(str(name))
    raise RuntimeError(f"{name} would be fetched and imported")

def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    return Anything
'''
LOAD = """
import json, os, pathlib, sys
import transformers
import headwise as hw
from headwise.models.loading import task_class

fetched = {}
for how in (hw.load, task_class, transformers.MarianMTModel.from_pretrained):
    for folder in sys.argv[1:]:
        trace = pathlib.Path(os.environ["TRACE"])
        try:
            how(folder)
        except Exception as error:
            if how != transformers.MarianMTModel.from_pretrained:
                raise
        fetched.setdefault(how.__name__, []).append(trace.exists())
        trace.unlink(missing_ok=True)
print(json.dumps(fetched))
"""


@pytest.fixture
def with_kernels(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which `kernels` is installed, as transformers wants it."""
    from transformers.utils import import_utils

    version = import_utils.KERNELS_MIN_VERSION
    package = tmp_path / "packages"
    (package / "kernels").mkdir(parents=True)
    (package / "kernels" / "__init__.py").write_text(FAKE)
    facts = package / f"kernels-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kernels\nVersion: {version}\n")
    paths = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "TRACE": str(tmp_path / "trace"),
        "USE_HUB_KERNELS": "YES",
    }


def test_a_configuration_fetches_no_attention_function_from_the_hub(
    tiny_marian: Callable[..., MarianMTModel], with_kernels: dict[str, str], tmp_path: Path
) -> None:
    folders = []
    names = ("them/kernel", "flash_attention_2", "kernels-community/x@y:z")
    for number, name in enumerate(names):
        folder = tmp_path / f"model{number}"
        tiny_marian().save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "_attn_implementation": name}))
        folders.append(str(folder))
    words = [sys.executable, "-c", LOAD, *folders]
    done = subprocess.run(words, env=with_kernels, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    fetched = json.loads(done.stdout)
    # transformers alone would fetch all of them
    assert fetched == {
        "load": [False] * 3,
        "task_class": [False] * 3,
        "from_pretrained": [True] * 3,
    }
