"""The hospitals' images: handwritten digits standing in for them, as PNG files; nothing here is a medical image.

Each hospital sees mostly the classes of its departments, and a few of all others, as hospitals do.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

DEPARTMENTS = {"north": (0, 1, 2, 3), "east": (4, 5, 6), "south": (7, 8, 9)}
"""Classes that a hospital sees most of."""
OWN_SHARE = 0.85
"""Of the images of a hospital's own classes, how many it has; the others are shared out among the others."""
PUBLIC = 400
"""Images that anybody may see: the coordinator's."""
SIDE = 128


def write_images(public: Path, hospitals: dict[str, Path], seed: int = 0) -> dict[str, int]:
    """Write a folder of class folders for the coordinator, and one for every hospital.

    Args:
        public: The coordinator's.
        hospitals: Those of the hospitals, by name.
        seed: Decides who gets which image, and the noise.

    Returns:
        How many images each hospital got.
    """
    random = np.random.default_rng(seed)
    digits = load_digits()
    order = random.permutation(len(digits.target))
    counts = dict.fromkeys(hospitals, 0)
    for place, index in enumerate(order):
        label = int(digits.target[index])
        folder = public
        if place >= PUBLIC:
            name = _hospital_of(label, random)
            folder, counts[name] = hospitals[name], counts[name] + 1
        path = folder / str(label) / f"{index:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(_picture(digits.images[index], random)).save(path)
    return counts


def _hospital_of(label: int, random: np.random.Generator) -> str:
    own = next(name for name, classes in DEPARTMENTS.items() if label in classes)
    others = [name for name in DEPARTMENTS if name != own]
    return own if random.random() < OWN_SHARE else str(random.choice(others))


def _picture(digit: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.uint8]:
    """An 8×8 digit with values 0 … 16, enlarged, with a sensor's noise: what crosses a wire could not be made small."""
    small = Image.fromarray((digit * 15).astype(np.uint8))
    large = np.asarray(small.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.float64)
    return np.clip(large + random.normal(0, 6, large.shape), 0, 255).astype(np.uint8)
