"""Several iterations, loading and saving: for the screen, and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardsim.engine.iterations import iterations_of
from shardsim.units import format_size, format_time
from shardsim.values.iterations import CheckpointCost
from shardsim.values.results import Prediction

if TYPE_CHECKING:
    from rich.text import Text


def tells_iterations(prediction: Prediction) -> bool:
    """Whether anything is to be said: several iterations, batches that are loaded, or checkpoints.

    Parameters
    ----------
    prediction : Prediction

    Returns
    -------
    bool
    """
    run = prediction.run
    return bool(prediction.execution.ends) or run.loading is not None or run.checkpoint is not None


def iterations_record(prediction: Prediction) -> dict[str, Any]:
    """Put iterations, loading and checkpoints into a record.

    Parameters
    ----------
    prediction : Prediction

    Returns
    -------
    dict
        ``iterations``, or nothing where there is nothing to say. Times in seconds, sizes in bytes.
    """
    if not tells_iterations(prediction):
        return {}
    found = iterations_of(prediction)
    cost = found.checkpoint
    record = {
        "count": found.count,
        "first_s": found.first_s,
        "steady_s": found.steady_s,
        "loading_s": found.loading_s,
        "data_exposed_s": found.data_exposed_s,
        "checkpoint": None
        if cost is None
        else {
            "bytes": cost.bytes,
            "rank_bytes": cost.rank_bytes,
            "write_s": cost.write_s,
            "copy_s": cost.copy_s,
            "exposed_s": cost.exposed_s,
            "every": cost.every,
            "per_iteration_s": cost.per_iteration_s,
            "share": cost.per_iteration_s / found.with_checkpoints_s,
        },
        "with_checkpoints_s": found.with_checkpoints_s,
    }
    return {"iterations": record}


def iterations_text(prediction: Prediction) -> list[Text]:
    """Say how the first iteration differs, and what loading and checkpoints cost.

    Parameters
    ----------
    prediction : Prediction

    Returns
    -------
    list of Text
        Lines; none where there is nothing to say.
    """
    from rich.text import Text  # noqa: PLC0415  # what prints JSON needs none of it

    if not tells_iterations(prediction):
        return []
    found = iterations_of(prediction)
    lines: list[Text] = []
    if found.count > 1:
        said = f"first {format_time(found.first_s)}, then {format_time(found.steady_s)} each"
        lines.append(Text(f"{said}; mean of {found.count}: {format_time(prediction.iteration_s)}"))
    if prediction.run.loading is not None:
        shown = "hidden" if found.data_exposed_s <= 0 else f"{format_time(found.data_exposed_s)} of it shows"
        lines.append(Text(f"a batch takes {format_time(found.loading_s)} to prepare: {shown}"))
    if found.checkpoint is not None:
        cost = found.checkpoint
        lines.append(Text(_checkpoint(cost, asynchronous=_asynchronous(prediction))))
        share = cost.per_iteration_s / found.with_checkpoints_s
        lines.append(
            Text(
                f"with checkpoints {format_time(found.with_checkpoints_s)} an iteration, {share:.2%} of it for them",
                "bold",
            )
        )
    return lines


def _asynchronous(prediction: Prediction) -> bool:
    return prediction.run.checkpoint is not None and prediction.run.checkpoint.asynchronous


def _checkpoint(cost: CheckpointCost, *, asynchronous: bool) -> str:
    size = f"a checkpoint of {format_size(cost.bytes)} every {cost.every:,} iteration{'s' * (cost.every != 1)}"
    if not asynchronous:
        return f"{size} stops training for {format_time(cost.exposed_s)}"
    how = f"copied in {format_time(cost.copy_s)}, written in {format_time(cost.write_s)} behind training"
    return f"{size} stops training for {format_time(cost.exposed_s)}: {how}"
