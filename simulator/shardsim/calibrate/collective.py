"""Fit latency and bandwidth of a ring on one class of link to measured collective times."""

from __future__ import annotations

from collections.abc import Mapping

from shardsim.calibrate.fit import Array, Constant, Fit, fit_times
from shardsim.cost.algorithms import RING_PASSES
from shardsim.cost.protocols import achieved_bandwidth
from shardsim.values.hardware import LinkConstants
from shardsim.values.operators import CollectiveKind
from shardsim.values.provenance import Provenance

LINK_CONSTANTS = (
    Constant("efficiency", 0.8, 0.05, 2.0),
    Constant("base_latency", 1e-5, 1e-7, 1e-3),
    Constant("step_latency", 2e-6, 1e-8, 1e-4),
    Constant("half_bandwidth", 1e5, 1.0, 1e8),
)
"""Share of the datasheet bandwidth (-), latencies [s], chunk at half bandwidth [bytes]."""

_FITTED = Provenance("fitted", "this fit")


def fit_link(kind: CollectiveKind, ranks: Array, size: Array, seconds: Array, bandwidth: float) -> Fit:
    """Fit the constants of one link class to a collective inside it.

    Parameters
    ----------
    kind : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"}
    ranks : ndarray of float
        Members of the group (-), shape (points,).
    size : ndarray of float
        The whole buffer, as nccl-tests counts it [bytes], shape (points,).
    seconds : ndarray of float
        Measured times [s], shape (points,).
    bandwidth : float
        Datasheet bandwidth of the link per direction [bytes/s].

    Returns
    -------
    Fit
        Constants named as in a fabric profile.
    """
    passes = RING_PASSES[kind]
    steps = passes * (ranks - 1.0)
    chunk = size / ranks

    def times(constants: Mapping[str, float]) -> Array:
        link = LinkConstants({"default": constants["efficiency"]}, 0.0, 0.0, constants["half_bandwidth"], _FITTED)
        rate = achieved_bandwidth(bandwidth, kind, chunk, link)
        found: Array = constants["base_latency"] + steps * constants["step_latency"] + steps * chunk / rate
        return found

    return fit_times(times, seconds, LINK_CONSTANTS)
