"""What LightGBM is told by teacher and residual learners alike, and how several fits share threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, TypeVar

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from fkd_client.progress import Progress
from fkd_common.config import RunConfig

BoosterParameters = dict[str, int | float | bool | str]

_T = TypeVar("_T")


class _StoppedFitError(Exception):
    """The others have failed, or the program ends: what this fit would give is not wanted any more."""


@dataclass(frozen=True)
class SideBySide:
    """Threads shared by independent fits: on a client's few thousand samples several trees grow faster than one."""

    fits: int
    """How many there are."""
    threads: int
    """What they may use together."""
    aside: bool = False
    """Whether even fits one after the other are made beside the caller's thread, which Ctrl-C can end meanwhile."""

    @property
    def at_once(self) -> int:
        """Fits at work at the same time."""
        return max(1, min(self.fits, self.threads))

    @property
    def threads_each(self) -> int:
        """Threads of one fit."""
        return max(1, self.threads // self.at_once)

    def run(self, fit: Callable[[int, Progress], _T], progress: Progress) -> list[_T]:
        """The results of all fits, in order.

        Args:
            fit: does the fit of that number and tells its own progress, often: only then can it be stopped.
            progress: told the progress of all together, from any of their threads but never from two at a time.
        """
        done, lock, stop = [0.0] * self.fits, threading.Lock(), threading.Event()

        def fitted(number: int) -> _T:
            def told(fraction: float, what: str) -> None:
                if stop.is_set():
                    raise _StoppedFitError
                with lock:
                    done[number] = fraction
                    progress(sum(done) / self.fits, what)

            return fit(number, told)

        if self.at_once == 1 and not self.aside:
            return [fitted(number) for number in range(self.fits)]
        with ThreadPoolExecutor(self.at_once) as pool:
            try:
                futures = [pool.submit(fitted, number) for number in range(self.fits)]
                wait(futures, return_when=FIRST_EXCEPTION)
                failed = [future for future in futures if future.done() and future.exception() is not None]
                return [future.result() for future in failed or futures]
            except BaseException:
                stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def common_parameters(config: RunConfig, threads: int, seed: int) -> BoosterParameters:
    """Binning, sampling and determinism of every booster.

    Args:
        config: the run configuration.
        threads: threads of LightGBM; its result does not depend on them.
        seed: seed of feature sampling.
    """
    return {
        "min_data_in_leaf": config.teacher_min_leaf,
        "feature_fraction": config.teacher_feature_fraction,
        "max_bin": config.max_bin,
        "feature_pre_filter": False,  # a tiny shard would otherwise lose every feature at binning
        "force_col_wise": True,
        "enable_bundle": False,  # embeddings are dense: the trees are the same in four fifths of the time
        "deterministic": True,
        "num_threads": threads,
        "seed": seed,
        "verbosity": -1,
    }


class BinnedEmbeddings:
    """Embeddings in LightGBM's bins, made once for a site's teacher, its folds and all residual learners.

    Not to be shared between threads: who uses them gives them its own labels.
    """

    def __init__(self, h: NDArray[np.float32], config: RunConfig, threads: int, seed: int) -> None:
        """Nothing is binned yet: of (n, d) embeddings."""
        self._h = h
        self._parameters = common_parameters(config, threads, seed)
        self._dataset: lgb.Dataset | None = None

    def with_labels(self, labels: NDArray[Any]) -> lgb.Dataset:
        """The data set, of these (n,) labels until others are set."""
        if self._dataset is None:
            dataset = lgb.Dataset(self._h, params=dict(self._parameters), free_raw_data=False)
            self._dataset = dataset.construct()
        self._dataset.set_label(labels)
        return self._dataset
