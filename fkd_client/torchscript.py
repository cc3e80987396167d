"""A model with its extractor as a TorchScript archive; needs torch, writes nothing.

PyTorch has deprecated TorchScript in favour of ``torch.export`` and still ships it: its C++ and mobile runtimes are
in use, and whoever asks for this format has one of them.
"""

from __future__ import annotations

import io
import warnings

import torch

from fkd_client.deployable import deployable, example_images
from fkd_common.exported_file import EXPORT_KEY, ModelFiles


def as_torchscript(files: ModelFiles) -> bytes:
    """The archive; the description is its extra file ``fkd.export``.

    Raises:
        DataError: Model or extractor are damaged.
    """
    model, stream = deployable(files), io.BytesIO()
    described = {EXPORT_KEY: files.header.model_dump_json()}
    with warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning):  # what it is depends on torch's release
            warnings.filterwarnings("ignore", r"`torch\.jit\.\w+` is deprecated", category)
        traced = torch.jit.trace(model, (example_images(files.header),))  # type: ignore[no-untyped-call]
        torch.jit.save(traced, stream, _extra_files=described)
    return stream.getvalue()
