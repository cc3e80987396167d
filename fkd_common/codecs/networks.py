"""Which of a method's tensors a run's codecs pack: the networks that it declares, by what packs FKD-RTM's students.

A group of the state that holds a network travels, and is kept, as :func:`~fkd_common.codecs.student.pack_model` packs
it, so that everybody computes with the same values. An upload's tensors of the network that sites train travel as
their difference to it. Whatever else there is goes beside them as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fkd_common.choices import NETWORK_CODECS, ModelCodec, UpdateCodec
from fkd_common.codecs.student import pack_model, pack_update, unpack_model, unpack_update
from fkd_common.exchange_method import ExchangeMethod, Layout
from fkd_common.tensors import Tensors

_BESIDE = "beside/"
"""Before the name of a tensor that is not packed; no packed part has a slash in its name."""


@dataclass(frozen=True)
class NetworkCodecs:
    """The networks of a run, and how they are packed."""

    networks: Mapping[str, Layout]
    """By the group of the state that holds them."""
    trained: str
    """The group that sites train."""
    update: UpdateCodec
    model: ModelCodec

    @classmethod
    def of(cls, method: ExchangeMethod) -> Self:
        """As a method declares them and its run says."""
        config = method.config
        return cls(method.coded_networks(), method.trained_group, config.update_codec, config.model_codec)

    @property
    def codes_uploads(self) -> bool:
        """Whether an upload is a difference to what the site received."""
        return self.update is not UpdateCodec.FP32

    def of_no_use(self) -> tuple[str, ...]:
        """Keys of the run that would change nothing."""
        if not self.networks:
            return NETWORK_CODECS
        return () if self.trained in self.networks else ("update_codec",)

    def pack_group(self, group: str, tensors: Tensors) -> Mapping[str, NDArray[Any]]:
        """A group of the state, for everybody."""
        coded = self._of_group(group)
        if not coded:
            return tensors
        return {**pack_model(_only(coded, tensors), self.model), **_beside(tensors, coded)}

    def unpack_group(self, group: str, packed: Tensors) -> Tensors:
        """The group that everybody computes with, the coordinator too.

        Raises:
            InvalidUploadError: It was packed otherwise.
        """
        coded = self._of_group(group)
        if not coded:
            return packed
        parts, beside = _apart(packed, self.networks[group], coded)
        return {**unpack_model(parts, coded, self.model), **beside}

    def pack_upload(
        self, tensors: Tensors, start: Tensors, layout: Layout, rng: np.random.Generator
    ) -> Mapping[str, NDArray[Any]]:
        """What a site uploads.

        Args:
            tensors: Finite, of the layout.
            start: The trained group, as it came.
            layout: Of the upload.
            rng: Of :func:`~fkd_common.codecs.student.rounding`.
        """
        coded = self._of_upload(layout)
        if not coded:
            return tensors
        packed = pack_update(_only(coded, tensors), start, self.update, rng)
        return {**packed, **_beside(tensors, coded)}

    def unpack_upload(self, packed: Tensors, start: Tensors, layout: Layout) -> Tensors:
        """What a site uploaded, nearly; where nothing is coded as it came, unchecked.

        Args:
            packed: As it came.
            start: The trained group, as the site got it.
            layout: Of the upload.

        Raises:
            InvalidUploadError: It was packed otherwise.
        """
        coded = self._of_upload(layout)
        if not coded:
            return packed
        parts, beside = _apart(packed, layout, coded)
        return {**unpack_update(parts, start, coded, self.update), **beside}

    def _of_group(self, group: str) -> Layout:
        """What of a group is coded."""
        return {} if self.model is ModelCodec.FP32 else _codable(self.networks.get(group, {}))

    def _of_upload(self, layout: Layout) -> Layout:
        """What of an upload is coded: a method may have sites send a part of what they train, and other things."""
        if not self.codes_uploads:
            return {}
        trained = self.networks.get(self.trained, {})
        return _codable({name: spec for name, spec in layout.items() if trained.get(name) == spec})


def _codable(layout: Layout) -> Layout:
    """Floats, and the counters of BatchNorm; nothing where there is no matrix."""
    coded = {
        name: spec
        for name, spec in layout.items()
        if (spec.dtype == "float32" and math.prod(spec.shape) > 0)
        or (spec.dtype == "int64" and spec.shape == ())
    }
    return coded if any(len(spec.shape) > 1 for spec in coded.values()) else {}


def _only(coded: Layout, tensors: Tensors) -> Tensors:
    return {name: tensors[name] for name in coded}


def _beside(tensors: Tensors, coded: Layout) -> Tensors:
    return {f"{_BESIDE}{name}": array for name, array in tensors.items() if name not in coded}


def _apart(packed: Tensors, layout: Layout, coded: Layout) -> tuple[Tensors, Tensors]:
    """Packed parts, and by their own names the tensors beside them; what is in neither stays among the parts."""
    parts = dict(packed)
    names = [name for name in layout if name not in coded and f"{_BESIDE}{name}" in parts]
    return parts, {name: parts.pop(f"{_BESIDE}{name}") for name in names}
