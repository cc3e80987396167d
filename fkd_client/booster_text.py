"""Whether a LightGBM model's text is whole: LightGBM ends the process over one that is not, and is not asked then."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_TREES_END = "end of trees"
_END = "end of parameters"


def check_booster_text(text: str, num_classes: int, num_features: int) -> None:
    """Refuse a text that LightGBM could not read, or whose trees it could not walk.

    Args:
        text: What ``Booster.model_to_string`` gave.
        num_classes: Trees per boosting round.
        num_features: Columns of the embeddings.

    Raises:
        ValueError: Saying what is wrong.
    """
    header, found, _ = text.partition("\n\n")
    if not header.startswith("tree\n") or not found:
        raise ValueError("no LightGBM model")
    told = _fields(header)
    wanted = {
        "num_class": num_classes,
        "num_tree_per_iteration": num_classes,
        "max_feature_idx": num_features - 1,
    }
    for name, value in wanted.items():
        if _number(told, name) != value:
            raise ValueError(f"{name} is not {value}")
    start = len(header) + len(found)
    sizes = [int(size) for size in told["tree_sizes"].split()] if "tree_sizes" in told else []
    if len(sizes) % num_classes:
        raise ValueError("a boosting round lacks trees")
    for number, size in enumerate(sizes):
        tree = text[start : start + size]
        if len(tree) != size or not tree.startswith(f"Tree={number}\n") or not tree.endswith("\n"):
            raise ValueError(f"tree {number} is not whole")
        _check_tree(_fields(tree), num_features)
        start += size
    if not text.startswith(_TREES_END, start) or _END not in text[start:]:
        raise ValueError("the text has no end")


def _check_tree(tree: dict[str, str], num_features: int) -> None:
    leaves = _number(tree, "num_leaves")
    if leaves < 1 or _number(tree, "num_cat") != 0 or _number(tree, "is_linear") != 0:
        raise ValueError("not a tree of numerical splits")
    for name, length in (("leaf_value", leaves), ("threshold", leaves - 1)):
        if not np.isfinite(_values(tree, name, length, np.float64)).all():
            raise ValueError(f"{name} is not finite")
    features = _values(tree, "split_feature", leaves - 1, np.int64)
    _values(tree, "decision_type", leaves - 1, np.int64)
    if leaves > 1 and not (features.min() >= 0 and features.max() < num_features):
        raise ValueError("a split of no column")
    parents = np.arange(leaves - 1)
    for name in ("left_child", "right_child"):
        children = _values(tree, name, leaves - 1, np.int64)
        is_leaf = (children < 0) & (children >= -leaves)
        is_split = (children > parents) & (children < leaves - 1)  # a child is made after its parent
        if not (is_leaf | is_split).all():
            raise ValueError(f"{name} leads nowhere")


def _fields(lines: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in lines.splitlines())
    return {name: value for name, equals, value in pairs if equals}


def _number(fields: dict[str, str], name: str) -> int:
    return int(fields.get(name, ""))


def _values(fields: dict[str, str], name: str, length: int, dtype: type) -> NDArray[Any]:
    values: NDArray[Any] = np.array(fields.get(name, "").split(), dtype)
    if len(values) != length:
        raise ValueError(f"{name} has {len(values)} values, not {length}")
    return values
