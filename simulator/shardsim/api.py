"""The Python interface: what the command line does, returning objects.

>>> import shardsim
>>> prediction = shardsim.simulate(model="megatron-8.3b", cluster="dgx-2h", gpus=8, tp=8, micro_batch=8,
...                                global_batch=8, seq=1024)
>>> 0.1 < prediction.mfu < 0.5
True
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from operator import index
from pathlib import Path
from typing import Any, get_args

from shardsim.engine.predict import Detail, EngineName, predict
from shardsim.errors import InputError, Problem
from shardsim.program.resolve import resolve
from shardsim.schema.run import RunRequest, load_run, merged, nested, request_from_mapping
from shardsim.search.fit import memory_answer
from shardsim.search.scaling import scaling_study
from shardsim.validate.runs import validate_runs as _validate_runs
from shardsim.validate.table import ValidationTable
from shardsim.values.fit import MemoryAnswer
from shardsim.values.results import Prediction
from shardsim.values.scaling import Grow, Mode, ScalingTable


def simulate(
    run: str | Path | Mapping[str, Any] | None = None,
    *,
    engine: EngineName = "des",
    detail: Detail = "stages",
    timeline: bool = False,
    iterations: int = 1,
    data: Sequence[str | Path] = (),
    **keys: Any,
) -> Prediction:
    """Predict one training run.

    Parameters
    ----------
    run : path or mapping, optional
        A RUN.yaml, or its content; ``keys`` replace what it says.
    engine : {"des", "listing", "closed"}
    detail : {"stages", "operators"}
    timeline : bool
        Whether to record every task.
    iterations : int
        How many follow each other (-); times are then their mean.
    data : sequence of path
        Folders with topologies/ and workloads/ of your own.
    **keys
        Keys of a run by the names of the command-line flags: ``model``, ``cluster``, ``gpus``, ``tp``, ``pp``,
        ``vpp``, ``micro_batch``, ``global_batch``, ``seq`` ...

    Returns
    -------
    Prediction

    Raises
    ------
    InputError
        Every problem of the input, together.
    """
    _check_choices(engine, detail, timeline=timeline, iterations=iterations)
    request = _request(run, keys)
    resolved = resolve(request, _paths(data))
    return predict(resolved, engine=engine, detail=detail, timeline=timeline, iterations=iterations)


def memory(
    run: str | Path | Mapping[str, Any] | None = None,
    *,
    advise: bool = True,
    data: Sequence[str | Path] = (),
    **keys: Any,
) -> MemoryAnswer:
    """Say whether one training run fits into memory, and where it does not what would make it fit.

    Parameters
    ----------
    run : path or mapping, optional
        A RUN.yaml, or its content; ``keys`` replace what it says.
    advise : bool
        Whether changes that make it fit are looked for.
    data : sequence of path
    **keys
        As for :func:`simulate`.

    Returns
    -------
    MemoryAnswer

    Raises
    ------
    InputError
        Every problem of the input, together.
    """
    return memory_answer(_request(run, keys), _paths(data), advise=advise)


def scale(
    run: str | Path | Mapping[str, Any] | None = None,
    *,
    gpus: Sequence[int],
    grow: Grow = "dp",
    mode: Mode = "weak",
    models: Sequence[str] | None = None,
    data: Sequence[str | Path] = (),
    **keys: Any,
) -> ScalingTable:
    """Predict one run at several GPU counts.

    Parameters
    ----------
    run : path or mapping, optional
        A RUN.yaml, or its content; ``keys`` replace what it says.
    gpus : sequence of int
        GPU counts, ascending (-).
    grow : {"dp", "tp", "pp", "cp", "ep"}
        Axis that takes the additional GPUs.
    mode : {"weak", "strong"}
    models : sequence of str, optional
        One model for each GPU count.
    data : sequence of path
    **keys
        As for :func:`simulate`.

    Returns
    -------
    ScalingTable

    Raises
    ------
    InputError
        Every problem of the input, together.
    """
    first = {"model": models[0]} if models else {}
    request = _request(run, {**first, **keys})
    return scaling_study(request, _counts(gpus), grow, mode, models, data=_paths(data))


def validate_runs(path: str | Path, *further: str | Path, data: Sequence[str | Path] = ()) -> ValidationTable:
    """Predict every measured run of one CSV file or several and compare.

    Parameters
    ----------
    path, *further : path
        Columns as in ``docs/how-to/validate.md``.
    data : sequence of path

    Returns
    -------
    ValidationTable

    Raises
    ------
    InputError
        Every problem of the file, together.
    """
    return _validate_runs(_paths([path, *further]), _paths(data))


def _check_choices(engine: str, detail: str, *, timeline: bool, iterations: int) -> None:
    problems = [
        Problem(f"{value!r} is no {name}", name, f"one of {', '.join(known)}")
        for name, value, known in (("engine", engine, get_args(EngineName)), ("detail", detail, get_args(Detail)))
        if value not in known
    ]
    if timeline and engine == "closed":
        problems.append(Problem("the closed form has no timeline", "timeline", "use engine 'listing' or 'des'"))
    if iterations < 1:
        problems.append(Problem(f"{iterations} iterations", "iterations", "a whole number, 1 or more"))
    if problems:
        raise InputError(problems)


def _counts(gpus: Sequence[int]) -> tuple[int, ...]:
    try:
        return tuple(index(count) for count in gpus)
    except TypeError:
        raise InputError(Problem(f"{gpus!r} are not GPU counts", "gpus", "a list of whole numbers")) from None


def _request(run: str | Path | Mapping[str, Any] | None, keys: Mapping[str, Any]) -> RunRequest:
    over = nested(keys)
    if run is None:
        return request_from_mapping(over)
    if isinstance(run, Mapping):
        return request_from_mapping(merged(run, over))
    return load_run(Path(run), over)


def _paths(folders: Sequence[str | Path]) -> tuple[Path, ...]:
    return tuple(Path(folder) for folder in folders)


if "IPython" in sys.modules:  # notebooks show predictions as they print, and timelines as tables
    from shardsim.report.frames import register_notebook_formatters

    register_notebook_formatters()
