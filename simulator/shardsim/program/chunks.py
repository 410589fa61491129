"""Products in parts, each beside the communication of the next: how a layer hides what sequence parallelism moves.

A gathering in front of a product, or a scattering behind one, is taken apart together with it. The parts of the product
are products of their own: fewer rows, and so their own tiles and waves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeGuard

import numpy as np

from shardsim.program.overlap import Priced
from shardsim.values.num import Num, where
from shardsim.values.operators import Collective, Elementwise, Gemm, Operator
from shardsim.values.program import Task
from shardsim.values.training import TensorOverlap

SPLITS = 4
"""Parts of a product that scatters with userbuffers (github NVIDIA/TransformerEngine,
transformer_engine/pytorch/module/base.py, num_splits of the pipeline method)."""

Price = Callable[[Operator], Task]


def in_parts(
    pairs: Sequence[Priced], how: TensorOverlap, ranks: Num, price: Price, launch: Num = 0.0
) -> tuple[Priced, ...]:
    """Take gatherings and scatterings apart with the products that they stand beside.

    Parameters
    ----------
    pairs : sequence of (Operator, Task)
        Of one layer and pass, in order of issue; none of them waits.
    how : {"none", "own_shard", "ring", "userbuffers"}
        ``own_shard``: the product of a rank's own tokens runs beside the gathering, the rest after it. ``ring``: every
        shard that arrives is multiplied while the next one is on its way, and a product's parts leave for their ranks
        one by one, to be summed there at the end. ``userbuffers``: gathers like ``ring``, and scatters a product in
        four parts, each by a collective of its own.
    ranks : Num
        Tensor-parallel degree t (-).
    price : callable
        Makes the task of an operator.
    launch : Num
        The host's time to issue a kernel or a copy from within a call under way [s]: all parts but the first, and the
        steps of a ring, come from the loop of one call, not each from a module of its own.

    Returns
    -------
    tuple of (Operator, Task)
        The same work and bytes. In ``t`` parts of ``x`` seconds, beside ``t - 1`` steps of ``y`` seconds, a gathering
        and its product take ``x + (t - 1) max(x, y)``; with a scattering of ``y`` behind each of ``c`` parts, they take
        ``x + (c - 1) max(x, y) + y``.

    Notes
    -----
    github NVIDIA/TransformerEngine, transformer_engine/pytorch/module/base.py, initialize_ub (methods ring_exchange and
    pipeline); github pytorch/pytorch, torch/distributed/_symmetric_memory (``ring``); github huggingface/nanotron,
    parallel/tensor_parallel/functional.py (``own_shard``). Steps of the ring run on copy engines (PyTorch) or on one
    multiprocessor (Transformer Engine, num_sm), and slow nothing. That each takes its share of the whole gathering's
    latency and time is assumed.
    """
    if how == "none":
        return tuple(pairs)
    parts = _Parts(how, ranks, price, launch)
    made: list[Priced] = []
    index = 0
    while index < len(pairs):
        here = pairs[index]
        following = pairs[index + 1] if index + 1 < len(pairs) else None
        found = None if following is None else parts.of(here, following, len(made))
        made += [here] if found is None else found
        index += 1 if found is None else 2
    return tuple(made)


class _Parts:
    def __init__(self, how: TensorOverlap, ranks: Num, price: Price, launch: Num) -> None:
        self.how, self.ranks, self.price, self.launch = how, ranks, price, launch
        self.several = where(ranks > 1, 1.0, 0.0)

    def of(self, first: Priced, second: Priced, start: int) -> list[Priced] | None:
        """Two neighbours in parts, the first of which will be task number ``start``; None where they stay whole."""
        (before, moving), (after, following) = first, second
        if _gathers(before) and isinstance(after, Gemm):
            return self._gathered(before, moving, after, start)
        if isinstance(before, Gemm) and _scatters(after) and self.how != "own_shard":
            return self._scattered(before, after, following, start)
        return None

    def _gathered(self, gather: Collective, whole: Task, product: Gemm, start: int) -> list[Priced]:
        if self.how == "own_shard":
            own = self._product(product, product.m / self.ranks)
            rest, task = self._product(product, product.m * where(self.ranks > 1, 1.0 - 1.0 / self.ranks, 1.0))
            return [
                (gather, replace(whole, blocking=False)),
                own,
                (rest, replace(_times(task, self.several), host=self.launch * self.several, waits=(start,))),
            ]
        steps = [(gather, step) for step in self._steps(whole)]
        own, *others = self._in(self.ranks, product)
        arrived = [(part, replace(task, waits=(start + step,))) for step, (part, task) in enumerate(others)]
        return [*steps, own, *arrived]

    def _scattered(self, product: Gemm, scatter: Collective, whole: Task, start: int) -> list[Priced]:
        made: list[Priced] = []
        if self.how == "userbuffers":
            count = where(self.ranks > 1, float(SPLITS), 1.0)
            part = replace(scatter, size=scatter.size / count)
            task = replace(self.price(part), category=whole.category)
            products = self._in(count, product)
            for number, piece in enumerate(products):
                blocking = number == len(products) - 1  # queued behind the others, it is the last to end
                there = _there(number, count)
                host = task.host if number == 0 else self.launch * there
                made += [piece, (part, replace(_times(task, there), host=host, blocking=blocking))]
            return made
        *others, own = self._in(self.ranks, product)
        for piece, step in zip(others, self._steps(whole), strict=True):
            made += [piece, (scatter, step)]
        # Each rank's part of every rank's tokens lies there by then, to be read once and summed.
        size = (self.ranks + 1.0) * scatter.size / self.ranks
        total = Elementwise(f"{scatter.name} sum", "add", size)
        summed = _times(self.price(total), self.several)
        summed = replace(summed, host=self.launch * self.several, waits=(start + len(made) - 1,))
        return [*made, own, (total, summed)]

    def _product(self, product: Gemm, rows: Num) -> Priced:
        part = replace(product, m=rows)
        return part, self.price(part)

    def _in(self, count: Num, product: Gemm) -> list[Priced]:
        """A product in ``count`` parts; where layouts differ in that, the surplus parts of some take no time."""
        part, task = self._product(product, product.m / count)
        others = replace(task, host=self.launch)
        return [(part, _times(others if number else task, _there(number, count))) for number in range(_most(count))]

    def _steps(self, whole: Task) -> Iterator[Task]:
        """A collective as one message after another, by copy engines or a single multiprocessor; none blocks."""
        share = 1.0 / where(self.ranks > 1, self.ranks - 1.0, 1.0)
        for number in range(1, _most(self.ranks)):
            there = _there(number, self.ranks)
            yield replace(_times(whole, share * there), host=self.launch * there, blocking=False, slows=False)


def _most(count: Num) -> int:
    return int(np.max(count))


def _there(number: int, count: Num) -> Num:
    return where(count > number, 1.0, 0.0)


def _times(task: Task, share: Num) -> Task:
    """A share of a task."""
    transfer = task.transfer
    if transfer is not None:
        wire = {link: size * share for link, size in transfer.wire.items()}
        transfer = replace(transfer, latency=transfer.latency * share, wire=wire)
    return replace(
        task, seconds=task.seconds * share, flop=task.flop * share, host=task.host * share, transfer=transfer
    )


def _gathers(operator: Operator) -> TypeGuard[Collective]:
    return _moves(operator, "all_gather") and operator.role != "wgrad"


def _scatters(operator: Operator) -> TypeGuard[Collective]:
    return _moves(operator, "reduce_scatter") and operator.role == "forward"


def _moves(operator: Operator, kind: str) -> TypeGuard[Collective]:
    return isinstance(operator, Collective) and operator.axis == "tp" and operator.kind == kind
