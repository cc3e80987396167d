"""What came from the coordinator, unpacked and held against what the run expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fkd_common.errors import DataError, InvalidUploadError
from fkd_common.method.student_layout import TensorSpec
from fkd_common.tensors import Tensors, check_schema


def checked(what: str, unpacked: Callable[[], Tensors], layout: Mapping[str, TensorSpec]) -> Tensors:
    """Unpacked tensors of a layout.

    Args:
        what: What they are, for a message.
        unpacked: Unpacks them.
        layout: What they must look like.

    Raises:
        DataError: They are not that: naming what was expected and what came.
    """
    try:
        tensors = unpacked()
        check_schema(tensors, layout)
    except InvalidUploadError as error:
        raise DataError(f"the coordinator's {what} cannot be used: {error}") from error
    return tensors
