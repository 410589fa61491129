"""``Transfer`` of tokens on their way to experts, or back: by NCCL's collectives, or in two levels.

In two levels a token leaves for a node once, to the GPU there with the sender's own number, which passes it on over
NVLink to those that have its experts (github deepseek-ai/DeepEP, README.md). Both levels work at the same time, so that
the slower decides, after what it takes to get started.
"""

from __future__ import annotations

from shardsim.cost.collectives import collective_transfer, uplink_load
from shardsim.cost.protocols import capacities, least_trusted
from shardsim.errors import InputError, Problem
from shardsim.values.exchange import ExchangeVolumes
from shardsim.values.hardware import Cluster, ExchangeConstants, FabricConstants, GroupShape
from shardsim.values.num import any_of, larger, smaller, where
from shardsim.values.operators import CollectiveKind, Direction
from shardsim.values.training import Dispatcher
from shardsim.values.transfer import Transfer

_COLLECTIVE: dict[tuple[Dispatcher, Direction], CollectiveKind] = {
    ("alltoall", "dispatch"): "all_to_all",
    ("alltoall", "combine"): "all_to_all",
    ("allgather", "dispatch"): "all_gather",
    ("allgather", "combine"): "reduce_scatter",
}


def exchange_transfer(
    volumes: ExchangeVolumes,
    dispatcher: Dispatcher,
    direction: Direction,
    shape: GroupShape,
    cluster: Cluster,
    fabric: FabricConstants,
) -> Transfer:
    """Transfer of an exchange of tokens with experts.

    Parameters
    ----------
    volumes : ExchangeVolumes
        What the busiest rank sends or receives.
    dispatcher : {"alltoall", "allgather", "deepep", "hybridep"}
    direction : {"dispatch", "combine"}
    shape : GroupShape
        Of the expert-parallel group.
    cluster : Cluster
    fabric : FabricConstants

    Returns
    -------
    Transfer
        Nothing for a group of one.

    Raises
    ------
    InputError
        The fabric's profile has no constants of this dispatcher.
    """
    kind = _COLLECTIVE.get((dispatcher, direction))
    if kind is not None:
        return collective_transfer(kind, volumes.whole, shape, cluster, fabric)
    constants = exchange_constants(dispatcher, fabric)
    together, across = shape.ranks > 1, shape.domains > 1
    load = uplink_load("all_to_all", shape, cluster)
    return Transfer(
        latency=where(together, constants.latency, 0.0),
        wire={"nvlink": where(together, volumes.near, 0.0), "nic": where(across, volumes.far, 0.0)},
        rate={
            "nvlink": constants.near_share * cluster.nvlink.bandwidth,
            "nic": smaller(constants.far_share, 1.0 / larger(load, 1.0)) * cluster.nic_bandwidth_per_gpu,
        },
        algorithm=dispatcher,
        provenance=least_trusted(
            constants.provenance["near_share"], *([constants.provenance["far_share"]] if any_of(across) else [])
        ),
        capacity=capacities(cluster.nic_bandwidth_per_gpu, cluster, load),
    )


def exchange_constants(dispatcher: str, fabric: FabricConstants) -> ExchangeConstants:
    """Constants of a two-level dispatcher on a fabric.

    Parameters
    ----------
    dispatcher : {"deepep", "hybridep"}
    fabric : FabricConstants

    Returns
    -------
    ExchangeConstants

    Raises
    ------
    InputError
        The fabric's profile has none.
    """
    if dispatcher not in fabric.exchange:
        what = f"the fabric profile {fabric.name} has no constants of the dispatcher {dispatcher}"
        raise InputError(
            Problem(what, "layout.dispatcher", f"one of {', '.join(('alltoall', 'allgather', *fabric.exchange))}")
        )
    return fabric.exchange[dispatcher]
