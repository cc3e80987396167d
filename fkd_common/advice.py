"""What a person who mistyped a word may have meant; decides nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "", *, cutoff: float = 0.6) -> str:
    """`did you mean X?` for the known word that is most like this one.

    Args:
        word: As it was given.
        known: The words there are.
        otherwise: The advice where none is alike.
        cutoff: How alike, from 0 to 1, a word must be to be meant.
    """
    meant = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"did you mean {meant[0]}?" if meant else otherwise
