"""The student S_φ as a torch module, and its state as numpy arrays; never trained here.

No weight is drawn: they come from a state, so that torch's global generator, shared by all threads of a
process, stays untouched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from fkd_common.choices import Norm
from fkd_common.config import RunConfig
from fkd_common.errors import FkdError

State = dict[str, NDArray[Any]]


def drop(x: Tensor, p: float, generator: torch.Generator) -> Tensor:
    """Dropout with an explicit generator: each value is 0 with probability `p`, else scaled by 1/(1−p).

    One 64-bit draw serves four values, so `p` is rounded to 1/65536; a draw per value costs 15 % of a step.
    """
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
    words.random_(-(1 << 63), None, generator=generator)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    return x * (bits >= round(p * 65536) - 32768).to(x.dtype).mul_(1.0 / (1.0 - p))


class _Layer(nn.Module):
    """Linear → norm → GELU; its names are those of the layout."""

    def __init__(self, width_in: int, width: int, norm: Norm) -> None:
        super().__init__()
        # On the meta device nothing is drawn from the global generator; weights come from a state.
        self.linear = nn.Linear(width_in, width, device="meta")
        kind = nn.BatchNorm1d if norm is Norm.BATCH else nn.LayerNorm
        self.norm: nn.Module = kind(width, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(self.norm(self.linear(x)))


class Student(nn.Module):
    """[Linear → BatchNorm or LayerNorm → GELU → Dropout] per hidden layer, then Linear.

    Without weights until :meth:`load_state` has run.
    """

    def __init__(self, d: int, num_classes: int, config: RunConfig) -> None:
        super().__init__()
        widths = (d, *config.hidden)
        self.dropout = config.dropout
        self.layers = nn.ModuleList(
            _Layer(a, b, config.norm) for a, b in zip(widths, config.hidden, strict=False)
        )
        self.output = nn.Linear(widths[-1], num_classes, device="meta")

    def forward(self, h: Tensor, dropout: torch.Generator | None = None) -> Tensor:
        """Logits (n, C) of (n, d) embeddings; `dropout` gives the masks, None drops nothing."""
        for layer, p in zip(self.layers, self.dropout, strict=True):
            h = layer(h)
            if dropout is not None and p > 0:
                h = drop(h, p, dropout)
        logits: Tensor = self.output(h)
        return logits

    def hidden(self, h: Tensor) -> list[Tensor]:
        """Activations after each hidden layer's GELU, without dropout."""
        activations = []
        for layer in self.layers:
            h = layer(h)
            activations.append(h)
        return activations

    def load_state(self, state: Mapping[str, NDArray[Any]], device: torch.device | str = "cpu") -> Student:
        """Take over a copy of `state`, placed on `device`.

        Raises:
            FkdError: names or shapes are not those of this student.
        """
        expected = {name: tuple(tensor.shape) for name, tensor in self.state_dict().items()}
        found = {name: tuple(array.shape) for name, array in state.items()}
        if expected != found:
            wrong = sorted(
                name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
            )
            raise FkdError(f"the student state does not fit the run configuration: {', '.join(wrong)}")
        tensors = {name: torch.tensor(array, device=device) for name, array in state.items()}
        self.load_state_dict(tensors, assign=True)
        return self

    def dump_state(self) -> State:
        """The state as numpy arrays of their own."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.state_dict().items()}


def student_of(
    state: Mapping[str, NDArray[Any]], config: RunConfig, device: torch.device | str = "cpu"
) -> Student:
    """The student of a state, in eval mode."""
    if "layers.0.linear.weight" not in state or "output.weight" not in state:
        raise FkdError("the student state does not fit the run configuration: it has no first or last layer")
    d, num_classes = state["layers.0.linear.weight"].shape[1], state["output.weight"].shape[0]
    return Student(d, num_classes, config).load_state(state, device).eval()
