"""Processes that a sweep runs in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Executor


@contextlib.contextmanager
def processes(workers: int) -> Iterator[Executor | None]:
    """Provide worker processes for a sweep.

    They start afresh rather than as copies of this process, so that nothing depends on what happened here before.

    Parameters
    ----------
    workers : int
        Processes (-).

    Yields
    ------
    Executor or None
        None for a single worker: the sweep then runs in this process.
    """
    if workers == 1:
        yield None
        return
    import multiprocessing  # noqa: PLC0415  # most sweeps run in this process
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415

    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor
