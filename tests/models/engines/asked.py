"""What tests ask of engines, in a process of its own each time; questions and answers are JSON."""

from __future__ import annotations

import json
import urllib.request
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from headwise.models.engines.native import KEPT, apart


def llama_cpp(file: Path, *questions: tuple[str, dict[str, Any]]) -> list[Any]:
    """Answers of llama.cpp's server to (address, body)."""
    return apart(f"{__name__}:served", str(file), questions)


def served(file: str, questions: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.port = file, 256, 1, 0
    params.cpuparams.n_threads, params.warmup, params.verbosity = 1, False, -1
    # A cache in half precision decides near ties.
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    KEPT.append(server)
    answers = []
    for address, body in questions:
        request = urllib.request.Request(
            server.listening_address + address,
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        answers.append(json.loads(urllib.request.urlopen(request).read()))
    return answers


def ctranslate2(sort: str, folder: Path, *calls: tuple[str, list[Any], dict[str, Any]]) -> Any:
    """What the methods of a model in CTranslate2 return: (method, arguments, options). sort: its class there."""
    return apart(f"{__name__}:translated", sort, str(folder), calls)


def translated(
    sort: str, folder: str, calls: list[tuple[str, list[Any], dict[str, Any]]]
) -> list[Any]:
    import ctranslate2

    model = attrgetter(sort)(ctranslate2)(folder, compute_type="float32", intra_threads=1)
    returned = []
    for method, given, options in calls:
        if sort == "models.Whisper":
            heard = np.array(given[0], np.float32)
            given = [ctranslate2.StorageView.from_array(heard), *given[1:]]
        got = getattr(model, method)(*given, **options)
        returned.append(
            [plain(each) for each in got] if isinstance(got, list) else np.array(got).tolist()
        )
    return returned


def plain(result: Any) -> dict[str, Any]:
    """The fields of a result of CTranslate2."""
    fields = ("log_probs", "hypotheses", "attention", "sequences_ids", "alignments")
    return {name: getattr(result, name) for name in fields if hasattr(result, name)}


def onnxruntime(file: Path, ids: list[int], count: int, never: int) -> tuple[list[int], list[Any]]:
    """The most probable next tokens but one, by a language model with a past, and its attention weights at each step."""
    made, weights = apart(f"{__name__}:generated", str(file), ids, count, never)
    return made, [np.array(each) for each in weights]


def generated(file: str, ids: list[int], count: int, never: int) -> tuple[list[int], list[Any]]:
    from onnxruntime import InferenceSession

    session = InferenceSession(file)
    states = [one for one in session.get_inputs() if one.name.startswith("past")]
    past = {one.name: np.zeros((1, one.shape[1], 0, one.shape[3]), np.float32) for one in states}
    new, made, seen = ids, [], []
    for _ in range(count):
        mask = np.ones((1, len(ids) + len(made)), np.int64)
        inputs = {"input_ids": np.array([new]), "attention_mask": mask, **past}
        logits, *states, weights = session.run(None, inputs)
        seen.append(weights.tolist())
        logits[0, -1, never] = -np.inf
        made.append(int(logits[0, -1].argmax()))
        new, past = made[-1:], dict(zip(past, states, strict=True))
    return made, seen
