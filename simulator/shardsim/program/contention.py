"""Which links several kinds of transfers of a stage may use at once, so that they have to be simulated as flows."""

from __future__ import annotations

from collections.abc import Mapping

from shardsim.program.coalesce import blocks_by_stage, side_streams
from shardsim.values.num import any_of
from shardsim.values.program import Block, Program
from shardsim.values.transfer import Transfer

LINK_CLASSES = ("nvlink", "nic", "leaf")
"""Classes of links on which transfers can meet."""


def contested_links(program: Program) -> tuple[Mapping[int, frozenset[str]], frozenset[str]]:
    """Find the link classes that transfers from several sources use.

    A source is a side stream, the blocking tasks of the stage, or its messages, of which several may be under way.

    Parameters
    ----------
    program : Program

    Returns
    -------
    contested : mapping of int to frozenset of str
        By stage, classes of :data:`LINK_CLASSES`.
    crossed : frozenset of str
        Classes that messages use: on the others a stage's transfers meet its own alone.
    """
    side = side_streams(program)
    sources: dict[tuple[int, str], set[str]] = {}
    used: dict[int, frozenset[tuple[str, str]]] = {}
    for stage, block in blocks_by_stage(program):
        if id(block) not in used:
            used[id(block)] = _uses(block)
        for stream, link in used[id(block)]:
            sources.setdefault((stage, link), set()).add(stream if stream in side[stage] else "")
    crossed = frozenset(link for transfer in program.messages.values() for link in link_classes(transfer))
    found: dict[int, frozenset[str]] = {}
    for stage in range(program.schedule.stages):
        met = {link for link in LINK_CLASSES if len(sources.get((stage, link), ())) > 1}
        found[stage] = frozenset(met) | crossed
    return found, crossed


def link_classes(transfer: Transfer) -> frozenset[str]:
    """Classes of links that a transfer uses.

    >>> from shardsim.values.provenance import Provenance
    >>> wire, rate = {"nvlink": 0.0, "nic": 8.0}, {"nvlink": 9.0, "nic": 2.0}
    >>> sorted(link_classes(Transfer(0.0, wire, rate, "ring", Provenance("assumed", ""), rate)))
    ['nic']
    """
    return frozenset(link for link in LINK_CLASSES if any_of(transfer.uses(link)))


def _uses(block: Block) -> frozenset[tuple[str, str]]:
    kinds = {(id(task.transfer), task.stream): task for task in block.tasks if task.transfer is not None}
    return frozenset(
        (task.stream, link) for task in kinds.values() if task.transfer for link in link_classes(task.transfer)
    )
