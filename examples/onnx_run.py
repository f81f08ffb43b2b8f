"""Run an exported policy and an exported forecast with numpy and onnxruntime alone; no torch is imported.

nsde export pusht --output pusht-onnx
nsde export runs/pumps --output pumps-onnx
python examples/onnx_run.py pusht-onnx pumps-onnx
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime


def load(folder, name="plan"):
    """The session of a graph, and its part of the contract."""
    contract = json.loads((Path(folder) / "contract.json").read_text())
    graph = contract["graphs"][name]
    data = (Path(folder) / graph["file"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == graph["sha256"], "the file is not that of the contract"
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]), graph, contract


def draw(folder, batch, given, rng):
    """Roll out `batch` rows: `given` arrays by name, noise by the contract's layout."""
    session, graph, contract = load(folder)
    for port in graph["inputs"]:
        shape = (batch, *port["shape"][1:])
        if port["name"] in graph["noise"]:
            uniform = port["meaning"].startswith("uniform")
            given[port["name"]] = rng.random(shape) if uniform else rng.standard_normal(shape)
        given[port["name"]] = np.broadcast_to(given[port["name"]], shape).astype(port["dtype"])
    return session.run(None, given)[0], contract


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    policy, forecast = sys.argv[1:]
    _, graph, contract = load(policy)
    seen = rng.uniform(100, 400, (1, 1, graph["inputs"][0]["shape"][2]))  # an episode begins: it was so before, too
    before = seen[0][:, contract["policy"]["config"]["first_action"]]
    plan, contract = draw(policy, 1, {"observations": seen, "previous_action": before}, rng)
    print("plan", plan.shape, "within", contract["policy"]["limits"], plan[0, 0].round(1))
    start = load(forecast)[2]["model"]["units"]["mean"]  # a table's last row, or here its mean
    paths, contract = draw(forecast, 200, {"history": np.array(start)}, rng)
    print("forecast", paths.shape, "5 % to 95 %", np.quantile(paths[:, -1], [0.05, 0.95], axis=0).round(3).tolist())
    assert "torch" not in sys.modules
