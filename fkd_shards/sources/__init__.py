"""Which reader opens which source: one line per format; the reading itself is in the modules beside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fkd_common.errors import DataError, UsageError
from fkd_shards.source import Source
from fkd_shards.sources.binaries import is_fashion_mnist, is_stl10, read_fashion_mnist, read_stl10
from fkd_shards.sources.cifar import CIFAR10, CIFAR100, is_cifar, read_cifar
from fkd_shards.sources.folder import read_folder
from fkd_shards.sources.npz import read_npz

_READERS: dict[str, Callable[[Path], Source]] = {
    "npz": read_npz,
    "folder": read_folder,
    "cifar10": lambda path: read_cifar(path, CIFAR10),
    "cifar100": lambda path: read_cifar(path, CIFAR100),
    "stl10": read_stl10,
    "fashion-mnist": read_fashion_mnist,
}

SOURCE_KINDS = tuple(_READERS)


def open_source(spec: str) -> Source:
    """Open ``digits``, ``KIND:PATH`` or a bare path whose format is guessed.

    Args:
        spec: For instance ``cifar10:/data``, ``npz:pathmnist.npz`` or ``/data/photos``.

    Raises:
        UsageError: The kind is unknown.
        DataError: Nothing lies there, or it cannot be used.
    """
    if spec == "digits":
        from fkd_shards.sources.digits import read_digits

        return read_digits()
    kind, colon, rest = spec.partition(":")
    if not colon or (kind not in _READERS and Path(spec).exists()):
        path = _existing(Path(spec))
        return _READERS[_guess(path)](path)
    if kind not in _READERS:
        raise UsageError(
            f"source kind {kind!r} is unknown: use digits, {', '.join(f'{k}:PATH' for k in _READERS)}"
        )
    return _READERS[kind](_existing(Path(rest)))


def _existing(path: Path) -> Path:
    path = path.expanduser()
    if not path.exists():
        raise DataError(f"no data at {path.absolute()}: give an existing file or folder, or `digits`")
    return path


def _guess(path: Path) -> str:
    if path.is_file():
        if path.suffix == ".npz":
            return "npz"
        raise DataError(f"{path}: an .npz file or a folder expected")
    if is_cifar(path, CIFAR10):
        return "cifar10"
    if is_cifar(path, CIFAR100):
        return "cifar100"
    if is_stl10(path):
        return "stl10"
    return "fashion-mnist" if is_fashion_mnist(path) else "folder"
