"""Classes of ranks that did not do the same, and who waited for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardsim.units import format_time
from shardsim.values.conditions import Conditions
from shardsim.values.results import LaneAccount, Prediction, Wait

if TYPE_CHECKING:
    from rich.text import Text

_MOST = 64
"""Classes, and waits, that a record lists at most: the slowest and the longest."""

_LINES = 6


def lanes_record(prediction: Prediction) -> dict[str, Any]:
    """Put conditions, classes of ranks and their waits into a record.

    Parameters
    ----------
    prediction : Prediction

    Returns
    -------
    dict
        ``usual_s`` and ``cost_s`` of the conditions, where there are any; ``lanes`` and ``waited`` where ranks of one
        stage differ: with so many that they are not all listed, ``lanes_in_all`` says how many there are.
    """
    execution = prediction.execution
    record: dict[str, Any] = {}
    if prediction.usual_s is not None:
        record["conditions"] = {
            "told": told(prediction.run.conditions),
            "usual_s": prediction.usual_s,
            "cost_s": prediction.iteration_s - prediction.usual_s,
        }
    if len(execution.lanes) > len(execution.stages):
        latest = sorted(range(len(execution.lanes)), key=lambda index: -execution.lanes[index].end)[:_MOST]
        record["lanes_in_all"] = len(execution.lanes)
        record["lanes"] = [_lane(index, execution.lanes[index]) for index in sorted(latest)]
        record["waited"] = [
            {"waiting": wait.waiting, "late": wait.late, "at": wait.at, "seconds": wait.seconds}
            for wait in _longest(execution.waited)
        ]
    return record


def told(conditions: Conditions) -> list[str]:
    """Write conditions for people, one sentence each.

    >>> told(Conditions(slow_nodes={5: 1.1}, dead_nics=((2, 0),)))
    ['node 5 computes 1.1 times as long', 'adapter 0 of node 2 is dead']
    """
    said = [f"node {node} computes {times:g} times as long" for node, times in conditions.slow_nodes.items()]
    said += [f"GPU {gpu} computes {times:g} times as long" for gpu, times in conditions.slow_gpus.items()]
    said += [
        f"the host of node {node} launches {times:g} times slower" for node, times in conditions.slow_hosts.items()
    ]
    said += [f"adapter {nic} of node {node} is dead" for node, nic in conditions.dead_nics]
    said += [
        f"adapter {nic} of node {node} has {share:.0%} left" for (node, nic), share in conditions.slow_nics.items()
    ]
    said += [f"NVLink of GPU {gpu} has {share:.0%} left" for gpu, share in conditions.slow_nvlinks.items()]
    said += [f"ranks {one} and {other} sit in each other's places" for one, other in conditions.swaps]
    seeded = f"seed {conditions.seed}"
    said += [f"speeds of devices spread by {conditions.spread:.2%}, {seeded}"] if conditions.spread else []
    said += [f"passes jitter by {conditions.jitter:.2%}, {seeded}"] if conditions.jitter else []
    if conditions.ecmp_imbalance != 1.0:
        said.append(f"the fullest up-link carries {conditions.ecmp_imbalance:g} times the mean")
    if conditions.flow_limit != float("inf"):
        said.append(f"one transfer gets {conditions.flow_limit / 1e9:g} GB/s through an adapter")
    return said


def conditions_text(prediction: Prediction) -> list[Text]:
    """Say what conditions cost, and who waited for whom.

    Parameters
    ----------
    prediction : Prediction
        With conditions.

    Returns
    -------
    list of Text
        Lines.
    """
    from rich.text import Text  # noqa: PLC0415  # what prints JSON needs none of it

    usual = prediction.usual_s or prediction.iteration_s
    cost = prediction.iteration_s - usual
    said = told(prediction.run.conditions)
    more = len(said) - _LINES
    lines = [Text(line) for line in said[:_LINES]] + ([Text(f"and {more} more")] if more > 0 else [])
    lines.append(Text(f"cost {format_time(cost)} of {format_time(usual)} an iteration ({cost / usual:+.1%})", "bold"))
    lanes = prediction.execution.lanes
    if len(lanes) > len(prediction.execution.stages):
        waited = [wait for wait in _longest(prediction.execution.waited) if wait.at == "group"][:_LINES]
        lines.append(Text(f"{len(lanes):,} classes of ranks" + ("; who waited longest in groups:" if waited else "")))
        lines += [
            Text(f"  {format_time(wait.seconds)}: {_who(lanes[wait.waiting])} for {_who(lanes[wait.late])}")
            for wait in waited
        ]
    return lines


def _longest(waited: tuple[Wait, ...]) -> list[Wait]:
    return sorted(waited, key=lambda wait: (-wait.seconds, wait.waiting, wait.late))[:_MOST]


def _who(account: LaneAccount) -> str:
    lane = account.lane
    name = (
        f" that {lane.name}" if lane.name.startswith(("computes", "launches")) else f" ({lane.name})" * bool(lane.name)
    )
    return f"{lane.ranks:,} rank{'s' * (lane.ranks != 1)} of stage {lane.stage}{name}"


def _lane(index: int, account: LaneAccount) -> dict[str, Any]:
    lane = account.lane
    return {
        "lane": index,
        "stage": lane.stage,
        "ranks": lane.ranks,
        "name": lane.name,
        "column": lane.column,
        "end_s": account.end,
        "seconds": dict(account.seconds),
    }
