"""Measured collective times as arrays: what every fit and every comparison of collectives works on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardsim.topology.blocks import block_shape
from shardsim.values.hardware import Cluster, GroupShape

Array = NDArray[np.float64]
Labels = NDArray[np.str_]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Points:
    """Measured times, one for each entry of all arrays, shape (points,).

    Parameters
    ----------
    kind : ndarray of str
        Collective, as in :class:`shardsim.values.operators.Collective`, or ``send_recv``.
    size : ndarray of float
        The whole buffer, as nccl-tests counts it [bytes].
    seconds : ndarray of float
        [s].
    dtype : ndarray of str
    nodes, gpus_per_node : ndarray of float
        (-).
    nic_per_gpu : ndarray of float
        Adapter bandwidth that falls to one GPU, per direction [bytes/s]; NaN where not known.
    device : ndarray of str
        Name of the GPU, as the measurement has it.
    origin : ndarray of str
        Where the row comes from: the cluster or the log.
    """

    kind: Labels
    size: Array
    seconds: Array
    dtype: Labels
    nodes: Array
    gpus_per_node: Array
    nic_per_gpu: Array
    device: Labels
    origin: Labels

    def __len__(self) -> int:
        """Points."""
        return len(self.size)

    def where(self, mask: Mask | NDArray[np.int64]) -> Points:
        """Take some of the points."""
        return Points(*(getattr(self, column.name)[mask] for column in fields(self)))

    @property
    def ranks(self) -> Array:
        """Members of each group (-)."""
        return self.nodes * self.gpus_per_node

    def shape(self, cluster: Cluster) -> GroupShape:
        """How the groups lie, block by block, on a cluster, with their own adapters where they are known."""
        nic = np.where(np.isfinite(self.nic_per_gpu), self.nic_per_gpu, cluster.nic_bandwidth_per_gpu)
        return block_shape(cluster, self.gpus_per_node, self.nodes, nic)


def points(rows: Sequence[dict[str, Any]]) -> Points:
    """Points from rows with one entry for each column of :class:`Points`."""

    def column(name: str) -> NDArray[Any]:
        kind: type = str if name in ("kind", "dtype", "device", "origin") else float
        return np.array([row[name] for row in rows], dtype=kind)

    return Points(*(column(one.name) for one in fields(Points)))


def joined(parts: Sequence[Points]) -> Points:
    """All points of several sets."""
    return Points(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(Points)))
