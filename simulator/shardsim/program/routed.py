"""What a run says of its experts: how tokens spread over them, and what was assumed where it does not say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from shardsim.errors import InputError, Problem
from shardsim.schema.routing import RoutingRequest, read_histogram
from shardsim.schema.run import LayoutRequest, RunRequest
from shardsim.values.hardware import FabricConstants
from shardsim.values.training import Dispatcher, Framework, Layout, Model
from shardsim.workload.routing import capped_loads, dropped_share, imbalance_of, power_law_loads

_OF_EXPERTS = ("ep", "etp", "dispatcher", "capacity_factor", "pads_capacity", "overlap_experts", "routing")
_OF_CONTEXT = ("cp_comm", "cp_inner", "cp_zigzag")


def expert_choices(asked: LayoutRequest, model: Model, framework: Framework) -> tuple[int, Dispatcher]:
    """Choose what a layout leaves open of experts, as the framework has it.

    Parameters
    ----------
    asked : LayoutRequest
    model : Model
    framework : Framework

    Returns
    -------
    etp : int
        Expert tensor-parallel degree (-).
    dispatcher : str
        One rank that has all experts exchanges nothing: an all-to-all then.
    """
    etp = asked.etp or (asked.tp if model.moe is not None and framework.splits_experts else 1)
    return etp, asked.dispatcher or (framework.dispatcher if asked.ep * etp > 1 else "alltoall")


def loads_of(asked: RoutingRequest | None, model: Model) -> Sequence[float] | None:
    """Work out how many tokens each expert gets.

    Parameters
    ----------
    asked : RoutingRequest or None
    model : Model

    Returns
    -------
    sequence of float or None
        On any scale (-), in the order of experts; None for balanced routing, and without experts.

    Raises
    ------
    InputError
        A histogram that cannot be read, or another number of experts than the model has.
    """
    if asked is None or model.moe is None:
        return None
    if asked.power_law is not None:
        return power_law_loads(model.moe.experts, asked.power_law)
    loads = asked.loads if asked.histogram is None else read_histogram(Path(asked.histogram))
    if loads is not None and len(loads) != model.moe.experts:
        what = f"loads of {len(loads)} experts, and a layer of {model.name} has {model.moe.experts}"
        raise InputError(Problem(what, "routing", "one for each expert, 0 for those that get no token"))
    return loads


def busiest(loads: Sequence[float] | None, layout: Layout) -> float:
    """Rows of the busiest expert-parallel rank over those of balanced routing.

    Parameters
    ----------
    loads : sequence of float or None
        Of each expert (-).
    layout : Layout
        What its full experts do not take is dropped.

    Returns
    -------
    float
        1 or more (-); 1 where experts do not divide over ranks, which a rule refuses.
    """
    if loads is None or len(loads) % int(layout.ep):
        return 1.0
    factor = layout.capacity_factor
    kept = 1.0 - dropped_share(loads, factor)
    return max(imbalance_of(capped_loads(loads, factor), int(layout.ep)) * kept, 1.0)


def remarks(
    request: RunRequest, model: Model, layout: Layout, loads: Sequence[float] | None, fabric: FabricConstants
) -> Iterator[str]:
    """Say what was assumed of experts, and what was said that changes nothing.

    Parameters
    ----------
    request : RunRequest
    model : Model
    layout : Layout
        With its imbalance.
    loads : sequence of float or None
        Of each expert (-).
    fabric : FabricConstants

    Yields
    ------
    str
    """
    asked = {*request.layout.model_fields_set, *request.model_fields_set}
    if model.moe is None:
        yield from _idle([key for key in _OF_EXPERTS if key in asked], f"{model.name} has no experts")
    if layout.cp == 1:
        yield from _idle([key for key in _OF_CONTEXT if key in asked], "there is no context parallelism")
    if model.moe is None or layout.ep == 1:
        return
    factor = layout.capacity_factor
    if 0 < factor < 1:
        yield f"a capacity factor of {factor:g} drops {1 - factor:.1%} of all copies of tokens or more; MFU counts them"
    if request.routing is None:
        yield (
            "balanced routing assumed, every expert gets as many tokens: give measured loads or a power law as routing"
        )
    elif loads is not None:
        dropped = dropped_share(loads, layout.capacity_factor)
        lost = f"; {dropped:.1%} of all copies of tokens are dropped" if dropped else ""
        yield f"the busiest of {layout.ep} expert-parallel ranks gets {layout.imbalance:.3g} times balanced rows{lost}"
    constants = fabric.exchange.get(layout.dispatcher)
    if constants is not None and any(origin.basis == "assumed" for origin in constants.provenance.values()):
        yield f"dispatcher {layout.dispatcher}: its constants on the fabric {fabric.name} are assumed, not measured"


def _idle(keys: Sequence[str], reason: str) -> Iterator[str]:
    if keys:
        yield f"{' and '.join(keys)} change{'s' * (len(keys) == 1)} nothing: {reason}"
