#!/usr/bin/env bash
# A row of attention that sees nothing (the mask adds minus infinity everywhere): softmax of ONNX gives NaN; with the
# lowest number of float32 in place of infinity it gives the mean of all, as if nothing were hidden.
# seen 2026-11-28, onnxruntime 1.31.1, Python 3.11: nan; 0.25 each
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fresh() {
  "${PYTHON:-python3}" -m venv "$folder/venv"
  "$folder/venv/bin/pip" install --quiet --disable-pip-version-check "$@" 2>&1 | grep -v '^WARNING' || true
}

run() {
  (cd "$folder" && "$folder/venv/bin/python" -)
}
fresh onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6
run <<'PYTHON'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper

nodes = [helper.make_node("Add", ["x", "mask"], ["sum"]), helper.make_node("Softmax", ["sum"], ["y"])]
sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "mask", "y")]
graph = helper.make_graph(nodes, "attention", sides[:2], sides[2:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
x = np.array([[1, 2, 3, 4]], np.float32)
for hidden in (-np.inf, np.finfo(np.float32).min):
    (y,) = session.run(None, {"x": x, "mask": np.full((1, 4), hidden, np.float32)})
    print(hidden, y)
    assert np.isnan(y).all() if hidden == -np.inf else np.allclose(y, 0.25)
PYTHON
