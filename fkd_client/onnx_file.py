"""A model with its extractor as an ONNX model; needs torch and the extra `export`, writes nothing."""

from __future__ import annotations

from typing import Any

import onnx
import onnxscript  # noqa: F401  # torch's exporter needs it: noticed here, before the work
import torch

from fkd_client.deployable import deployable, example_images
from fkd_common.exported_file import EXPORT_KEY, ModelFiles

OPSET = 20
"""The first with GELU as one operation."""


def as_onnx(files: ModelFiles) -> bytes:
    """The model, for any batch size; the description is its metadata property ``fkd.export``.

    Raises:
        DataError: Model or extractor are damaged.
    """
    program = torch.onnx.export(
        deployable(files),
        (example_images(files.header),),
        dynamo=True,
        opset_version=OPSET,
        input_names=["images"],
        output_names=["scores", "probabilities"],
        dynamic_shapes=({0: torch.export.Dim("N")},),
        external_data=False,
        verbose=False,
    )
    assert program is not None
    proto: onnx.ModelProto = program.model_proto
    _forget_where_it_was_made(proto)
    proto.producer_name, proto.producer_version = "fkd", files.header.fkd_version
    proto.doc_string = f"Image classifier of the federated run {files.header.run_id}"
    onnx.helper.set_model_props(proto, {EXPORT_KEY: files.header.model_dump_json()})
    onnx.checker.check_model(proto, full_check=True)
    return proto.SerializeToString()


def _forget_where_it_was_made(proto: onnx.ModelProto) -> None:
    """Remove torch's notes for debugging: they name files and lines of this machine."""
    graph = proto.graph
    parts: tuple[Any, ...] = (
        graph,
        *graph.node,
        *graph.input,
        *graph.output,
        *graph.initializer,
        *graph.value_info,
    )
    for part in parts:
        del part.metadata_props[:]
        part.doc_string = ""
