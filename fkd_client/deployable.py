"""The published model as one network: raw images in, scores and probabilities out; reads and writes nothing.

The project scores in two steps: embeddings, which are cached, and the model on top, whose corrections are numpy
in float64. Here both are one float32 graph of operations that other runtimes know too.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fkd_client.extractor import Extractor, load_extractor
from fkd_client.global_model import GlobalModel, Published
from fkd_client.student_network import student_of
from fkd_common.choices import MomentFeatures
from fkd_common.exported_file import ExportHeader, ModelFiles
from fkd_common.method.residuals import Standardiser
from fkd_common.model_file import decode_model


class _Correction(nn.Module):
    """S → S + λ_res·ΔS, with ΔS linear in the standardised embedding and, before it, in hidden activations."""

    mean: Tensor
    std: Tensor
    weight: Tensor
    offset: Tensor

    def __init__(
        self,
        standardiser: Standardiser,
        weight: NDArray[np.float64],
        offset: NDArray[np.float64],
        *,
        layers: slice,
        centred: bool,
    ) -> None:
        """Fix the function.

        Args:
            standardiser: Of the anchor embeddings.
            weight: (p, C), scaled by λ_res.
            offset: (C,), scaled by λ_res.
            layers: The hidden layers whose activations are features.
            centred: Whether scores lose their mean over classes first.
        """
        super().__init__()
        constants = {"mean": standardiser.mean, "std": standardiser.std, "weight": weight, "offset": offset}
        for name, value in constants.items():
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))
        self.layers = layers
        self.centred = centred

    def forward(self, scores: Tensor, hidden: list[Tensor], h: Tensor) -> Tensor:
        features = torch.cat([*hidden[self.layers], (h - self.mean) / self.std], dim=1)
        if self.centred:
            scores = scores - scores.mean(dim=1, keepdim=True)
        return scores + features @ self.weight + self.offset


class DeployableModel(nn.Module):
    """The published candidate of a model behind its extractor; in evaluation mode."""

    scale: Tensor
    shift: Tensor

    def __init__(self, extractor: Extractor, model: GlobalModel) -> None:
        """Join the two.

        Args:
            extractor: The one whose embeddings the model takes.
            model: The global model; its published candidate is the one that is scored.
        """
        super().__init__()
        mean, std = (
            torch.tensor(values).view(1, 3, 1, 1) for values in (extractor.spec.mean, extractor.spec.std)
        )
        # As fkd_client.embedding.preprocess: the same two roundings in the same order.
        self.register_buffer("scale", 1.0 / (255.0 * std))
        self.register_buffer("shift", mean / std)
        self.trunk = extractor.trunk
        self.student = student_of(model.state, model.config)
        self.correction = _correction_of(model)
        self.requires_grad_(False)
        self.eval()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and probabilities, each (n, C) float32, of (n, 3, s, s) uint8 images."""
        h = self.trunk(images.to(torch.float32) * self.scale - self.shift)
        hidden = self.student.hidden(h)
        scores = self.student.output(hidden[-1])
        if self.correction is not None:
            scores = self.correction(scores, hidden, h)
        return scores, torch.softmax(scores, dim=1)


_LAYERS = {
    MomentFeatures.HIDDEN: slice(None),
    MomentFeatures.LAST: slice(-1, None),
    MomentFeatures.EMBEDDING: slice(0),
}


def _correction_of(model: GlobalModel) -> _Correction | None:
    """The correction of the candidate that a model publishes; the student has none."""
    scale = model.config.lambda_res
    if model.published is Published.ANCHORS and model.anchors is not None:
        found = model.anchors
        weight, offset = scale * found.coefficients, scale * found.intercept
        return _Correction(found.standardiser, weight, offset, layers=slice(0), centred=False)
    if model.published is Published.MOMENTS and model.moments is not None:
        V = scale * model.moments.V
        layers = _LAYERS[model.moments.features]
        # The last row belongs to the constant in z = [φ(h); h̄; 1].
        return _Correction(model.moments.standardiser, V[:-1], V[-1], layers=layers, centred=True)
    return None


def deployable(files: ModelFiles) -> DeployableModel:
    """The network of a model and its extractor.

    Raises:
        DataError: One of the two is damaged.
    """
    return DeployableModel(load_extractor(files.extractor), GlobalModel.of(decode_model(files.model)))


def example_images(header: ExportHeader) -> Tensor:
    """Images to follow the network with: two, because a batch of one would be taken for a constant."""
    return torch.zeros(2, 3, header.image_size, header.image_size, dtype=torch.uint8)
