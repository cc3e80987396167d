"""Which candidate a federated vote publishes, from pooled counts of right answers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping


def elected(correct: Mapping[str, float], samples: float, preferred: str) -> str:
    """The preferred candidate, unless the one with the most right answers is better by more than a standard error.

    All candidates are compared on the same few samples that sites hold out, and of several that are nearly alike the
    luckiest has the most right answers. So the preferred is kept while the best count c of n is no more than its
    own standard error √(c(1 - c/n)) above (Breiman et al., Classification and Regression Trees, 1984, 3.4.3).

    Args:
        correct: right answers by candidate, simplest first.
        samples: validation samples n they are out of.
        preferred: the candidate to prefer, where it is one.

    Returns:
        Its name, or that of the candidate with the most right answers, the first of equals.
    """
    best = max(correct, key=correct.__getitem__)
    if preferred not in correct:
        return best
    count = correct[best]
    error = math.sqrt(max(0.0, count * (1.0 - count / samples)))
    return preferred if count - correct[preferred] <= error else best
