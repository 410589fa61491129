"""What is not as it should be on a machine, as a user gives it: slow nodes, degraded links, ranks in odd places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from shardsim.schema.base import Bandwidth, Share, StrictModel
from shardsim.values.conditions import Conditions


def _number(text: object) -> int:
    if isinstance(text, int) and not isinstance(text, bool) and text >= 0:
        return text
    if isinstance(text, str) and text.strip().isdecimal():
        return int(text)
    raise ValueError(f"{text!r} is not a number of a node or GPU; write it like 5")


def _adapter(text: object) -> tuple[int, int]:
    node, slash, adapter = str(text).partition("/")
    if isinstance(text, str) and slash and node.strip().isdecimal() and adapter.strip().isdecimal():
        return int(node), int(adapter)
    raise ValueError(f"{text!r} is not an adapter; write node and adapter like 2/0")


def _keyed(key: Callable[[object], Any]) -> BeforeValidator:
    def keys(value: object) -> object:
        if not isinstance(value, dict):
            return value
        read = [(key(name), name, number) for name, number in value.items()]
        _once([one for one, _, _ in read])
        for _, name, number in read:
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise ValueError(f"{name}: {number!r} is not a number")
        return {one: number for one, _, number in read}

    return BeforeValidator(keys, json_schema_input_type=dict[str, float])


def _once(named: list[Any]) -> None:
    twice = [one for one in dict.fromkeys(named) if named.count(one) > 1]
    if twice:
        raise ValueError(f"{', '.join(map(_written, twice))} named twice; keep one")


def _written(one: Any) -> str:
    return "/".join(map(str, one)) if isinstance(one, tuple) else str(one)


def _each(read: Callable[[object], Any], *, once: bool = False) -> BeforeValidator:
    def items(value: object) -> object:
        if not isinstance(value, list | tuple):
            return value
        found = [read(item) for item in value]
        if once:
            _once(found)
        return tuple(found)

    return BeforeValidator(items, json_schema_input_type=list[str])


def _pair(value: object) -> tuple[int, int]:
    parts = value.split(",") if isinstance(value, str) else value
    if isinstance(parts, list | tuple) and len(parts) == 2:
        return _number(parts[0]), _number(parts[1])
    raise ValueError(f"{value!r} is not two ranks; write them like 7,8")


def _apart(pairs: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    for one, other in pairs:
        if one == other:
            raise ValueError(f"rank {one} cannot change places with itself")
    _once([rank for pair in pairs for rank in pair])
    return pairs


Factor = Annotated[float, Field(ge=1.0, le=1000.0)]
"""How many times as long; what is faster than it should be gains nothing."""


class ConditionsRequest(StrictModel):
    """State of the machine; what is left out is as it should be. GPUs and nodes are counted from 0."""

    slow_nodes: Annotated[dict[int, Factor], _keyed(_number)] = Field(
        default_factory=dict, description="how many times as long computation takes on a node: {5: 1.1}"
    )
    slow_gpus: Annotated[dict[int, Factor], _keyed(_number)] = Field(
        default_factory=dict, description="the same of single GPUs: {17: 1.2}"
    )
    slow_hosts: Annotated[dict[int, Factor], _keyed(_number)] = Field(
        default_factory=dict, description="how many times as long the host of a node takes to launch work: {3: 2}"
    )
    dead_nics: Annotated[tuple[tuple[int, int], ...], _each(_adapter, once=True)] = Field(
        default=(), description="node and adapter, whose traffic takes the next one of the node: [2/0]"
    )
    slow_nics: Annotated[dict[tuple[int, int], Share], _keyed(_adapter)] = Field(
        default_factory=dict, description="share of an adapter's bandwidth that is left: {2/0: 0.5}"
    )
    slow_nvlinks: Annotated[dict[int, Share], _keyed(_number)] = Field(
        default_factory=dict, description="share of a GPU's NVLink bandwidth that is left: {17: 0.5}"
    )
    swap_ranks: Annotated[tuple[tuple[int, int], ...], _each(_pair), AfterValidator(_apart)] = Field(
        default=(), description="ranks that sit in each other's places: [[7, 8]]"
    )
    speed_spread: float = Field(
        default=0.0, ge=0.0, le=0.3, description="standard deviation of the devices' speeds, over their mean"
    )
    jitter: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="scale of what computation takes longer at random, pass by pass, over what it takes",
    )
    seed: int = Field(default=0, ge=0, description="of both")
    ecmp_imbalance: float = Field(
        default=1.0, ge=1.0, description="what the fullest up-link of a leaf carries, over the mean"
    )
    flow_limit: Bandwidth | None = Field(
        default=None, gt=0.0, description="what one transfer of a rank gets through its adapter at most"
    )


def conditions_of(asked: ConditionsRequest) -> Conditions:
    """Turn what was asked for into a value.

    Parameters
    ----------
    asked : ConditionsRequest

    Returns
    -------
    Conditions
    """
    return Conditions(
        slow_nodes=asked.slow_nodes,
        slow_gpus=asked.slow_gpus,
        slow_hosts=asked.slow_hosts,
        dead_nics=asked.dead_nics,
        slow_nics=asked.slow_nics,
        slow_nvlinks=asked.slow_nvlinks,
        swaps=asked.swap_ranks,
        spread=asked.speed_spread,
        jitter=asked.jitter,
        seed=asked.seed,
        ecmp_imbalance=asked.ecmp_imbalance,
        flow_limit=float("inf") if asked.flow_limit is None else asked.flow_limit,
    )
