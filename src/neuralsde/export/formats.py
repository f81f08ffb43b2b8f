"""The two formats: a graph as bytes, and what those bytes give for some inputs in a runtime of their own."""

from __future__ import annotations

import io
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from neuralsde.export.graphs import Graph
from neuralsde.export.simplify import simplify

BATCH = 3  # rows of a trace: one or two might be taken for a size that is always so


def trace(graph: Graph) -> ExportedProgram:
    """The graph with any number of rows."""
    inputs = tuple(graph.random(BATCH, torch.Generator().manual_seed(0)))
    rows = {0: Dim("batch")}
    with torch.no_grad(), quiet():
        module = graph.module.eval()
        first = torch.export.export(module, inputs, dynamic_shapes=_shapes(module, rows, len(inputs)), strict=False)
        merged = simplify(first.module())  # type: ignore[arg-type]
        return torch.export.export(merged, inputs, dynamic_shapes=tuple(rows for _ in inputs), strict=False)


def _shapes(module: Any, rows: dict[int, Any], num: int) -> tuple[Any, ...]:
    """The same for all inputs, in the form of the arguments of `forward`: some by name, then the rest."""
    code = module.forward.__func__.__code__
    named = code.co_argcount - 1
    return (*(rows for _ in range(named)), tuple(rows for _ in range(num - named)))


def to_onnx(graph: Graph, program: ExportedProgram) -> bytes:
    """An ONNX file, weights inside."""
    names = [port.name for port in graph.ports]
    with quiet():
        made = torch.onnx.export(
            program,
            dynamo=True,
            input_names=names,
            output_names=[graph.output.name],
            external_data=False,
            verbose=False,
        )
    assert made is not None
    proto = made.model_proto
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return proto.SerializeToString()


def run_onnx(data: bytes) -> Callable[..., Tensor]:
    """A function of the inputs, by onnxruntime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return lambda *inputs: torch.from_numpy(session.run(None, {n: v.numpy() for n, v in zip(names, inputs)})[0])


def to_pt2(graph: Graph, program: ExportedProgram) -> bytes:
    """A file of `torch.export`."""
    file = io.BytesIO()
    with quiet():
        torch.export.save(program, file)
    return file.getvalue()


def run_pt2(data: bytes) -> Callable[..., Tensor]:
    """A function of the inputs, by torch."""
    with quiet():
        return torch.export.load(io.BytesIO(data)).module()


WRITERS: dict[str, Callable[[Graph, ExportedProgram], bytes]] = {"onnx": to_onnx, "pt2": to_pt2}
RUNNERS: dict[str, Callable[[bytes], Callable[..., Tensor]]] = {"onnx": run_onnx, "pt2": run_pt2}


def largest_error(graph: Graph, run: Callable[..., Tensor], batches: Sequence[int], seed: int) -> tuple[float, float]:
    """How far a runtime is off the eager model on random inputs, in batches of several sizes: see `Graph.error`."""
    rng, worst = torch.Generator().manual_seed(seed), [(0.0, 0.0)]
    with torch.no_grad():
        for batch in batches:
            inputs = graph.random(batch, rng)
            wanted = graph.check(*inputs)
            found = run(*inputs)
            whole = found.shape == wanted.shape and bool(torch.isfinite(found).all())
            worst.append(graph.error(found, wanted) if whole else (math.inf, math.inf))
    return max(each for each, _ in worst), max(each for _, each in worst)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the exporters' remarks to their own developers."""
    names = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "torch.onnx._internal.exporter._registration")
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
