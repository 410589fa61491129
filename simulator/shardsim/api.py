"""The Python interface: what the command line does, returning objects.

>>> import shardsim
>>> prediction = shardsim.simulate(model="megatron-8.3b", cluster="dgx-2h", gpus=8, tp=8, micro_batch=8,
...                                global_batch=8, seq=1024)
>>> 0.1 < prediction.mfu < 0.5
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardsim.engine.predict import Detail, EngineName, predict
from shardsim.program.resolve import resolve
from shardsim.schema.run import RunRequest, load_run, nested, request_from_mapping
from shardsim.search.scaling import Grow, Mode, scaling_study
from shardsim.validate.table import ValidationTable
from shardsim.values.results import Prediction
from shardsim.values.scaling import ScalingTable


def simulate(
    run: str | Path | Mapping[str, Any] | None = None,
    *,
    engine: EngineName = "des",
    detail: Detail = "stages",
    timeline: bool = False,
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
    request = _request(run, keys)
    return predict(resolve(request, _paths(data)), engine=engine, detail=detail, timeline=timeline)
