"""Data sets as class folders of image files, with optional train/test and sites; lists, never decodes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fkd_common.errors import DataError
from fkd_shards.arrays import checked_classes
from fkd_shards.pictures import FilePictures
from fkd_shards.source import Source, Split

_SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pnm")
)
_TRAIN, _TEST = "train", "test"


@dataclass(frozen=True)
class _Tree:
    """Image files under one folder, in sorted order, with each one's class and (where there are any) site."""

    files: tuple[Path, ...]
    classes: tuple[str, ...]
    sites: tuple[str, ...] | None
    class_names: frozenset[str]


def read_folder(root: Path) -> Source:
    """Open ``root/[train|test/][site/]class/**/image``; classes are sorted by name.

    A folder under ``root`` (or ``root/train``) that holds images itself is a class; where all of them hold
    only folders, they are sites.

    Raises:
        DataError: No images, class and site folders mixed, or a test class unknown in training.
    """
    tops = {folder.name for folder in _folders(root)}
    if _TRAIN not in tops or (not tops <= {_TRAIN, _TEST} and _holds_images(root / _TRAIN)):
        tree = _scan(root)
        classes = checked_classes(sorted(tree.class_names), str(root))
        return Source(classes, _split(root, tree, classes))
    if not tops <= {_TRAIN, _TEST}:
        odd = ", ".join(sorted(tops - {_TRAIN, _TEST}))
        raise DataError(
            f"{root}: only train/ and test/ expected side by side, found also {odd}: move or merge them"
        )
    tree = _scan(root / _TRAIN)
    classes = checked_classes(sorted(tree.class_names), str(root))
    train = _split(root, tree, classes)
    if _TEST not in tops:
        return Source(classes, train)
    test_tree = _scan(root / _TEST)
    unknown = sorted(test_tree.class_names - set(classes))
    if unknown:
        raise DataError(
            f"{root / _TEST}: unknown class folder {', '.join(map(repr, unknown))}; "
            f"the known classes, from train/, are {', '.join(classes)}"
        )
    return Source(classes, train, _split(root, test_tree, classes))


def _split(root: Path, tree: _Tree, classes: tuple[str, ...]) -> Split:
    position = {name: index for index, name in enumerate(classes)}
    labels = np.array([position[name] for name in tree.classes], dtype=np.int64)
    sites = None if tree.sites is None else np.array(tree.sites, dtype=np.str_)
    return Split(FilePictures(root, tree.files), labels, sites)


def _scan(root: Path) -> _Tree:
    folders = _folders(root)
    flat = [folder for folder in folders if _holds_images(folder)]
    nested = [folder for folder in folders if folder not in flat and _folders(folder)]
    if flat and nested:
        raise DataError(
            f"{root}: class folders with images expected, but {nested[0].name}/ holds only folders while "
            f"{flat[0].name}/ holds images: use either class/image or site/class/image throughout"
        )
    if nested:
        places = [(site.name, folder) for site in nested for folder in _folders(site)]
    else:
        places = [("", folder) for folder in folders]
    found = [(path, folder.name, site) for site, folder in places for path in image_files(folder)]
    if not found:
        raise DataError(
            f"{root}: no images found: expected class folders with files ending in {_suffix_list()}"
        )
    files, classes, sites = zip(*found, strict=True)
    return _Tree(files, classes, sites if nested else None, frozenset(folder.name for _, folder in places))


def _suffix_list() -> str:
    return ", ".join(sorted(_SUFFIXES))


def _folders(root: Path) -> list[Path]:
    try:
        entries = sorted(root.iterdir())
    except OSError as error:
        raise DataError(f"folder {root} cannot be read: {error.strerror or error}") from error
    return [entry for entry in entries if entry.is_dir() and not _hidden(entry.name)]


def _holds_images(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(_is_image(entry.name) for entry in entries)
    except OSError as error:
        raise DataError(f"folder {folder} cannot be read: {error.strerror or error}") from error


def image_files(folder: Path) -> list[Path]:
    """All image files below a folder, by their names' endings, in sorted order; hidden ones are left out."""
    found: list[Path] = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not _hidden(name))
        found.extend(Path(parent, name) for name in sorted(names) if _is_image(name))
    return found


def _is_image(name: str) -> bool:
    return not _hidden(name) and os.path.splitext(name)[1].lower() in _SUFFIXES  # noqa: PTH122 - millions of names


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"
