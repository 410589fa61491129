"""Small programs built by hand, and the three engines."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardsim.engine.closed import closed_form
from shardsim.engine.des import simulate
from shardsim.engine.listing import listing
from shardsim.values.program import Block, Pass, PipelineSchedule, Program, Task, passes_of
from shardsim.values.provenance import Provenance
from shardsim.values.results import Execution
from shardsim.values.transfer import Transfer
from shardsim.workload.schedules import make_schedule

ENGINES = {"closed": closed_form, "listing": listing, "des": simulate}


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest) -> Callable[[Program], Execution]:
    return ENGINES[request.param]


def _transfer(seconds):
    return Transfer(latency=seconds, wire={}, rate={}, algorithm="direct", provenance=Provenance("assumed", "test"))


@pytest.fixture
def transfer():
    return _transfer


def _task(seconds, name="kernel", *, stream="compute", category="gemm", **more):
    return Task(name=name, stream=stream, category=category, seconds=seconds, **more)


@pytest.fixture
def task():
    return _task


def gpipe_orders(p, m):
    return tuple(tuple(Pass(kind, i) for kind in "FB" for i in range(m)) for _ in range(p))


def one_f_one_b_orders(p, m):
    """Warm-up of p - stage - 1 forward passes, then one of each in turn."""
    orders = []
    for stage in range(p):
        warm = min(m, p - stage - 1)
        order = [Pass("F", i) for i in range(warm)]
        for i in range(m - warm):
            order += [Pass("F", warm + i), Pass("B", i)]
        orders.append(tuple(order + [Pass("B", i) for i in range(m - warm, m)]))
    return tuple(orders)


def interleaved_orders(p, m, v):
    """Groups of p micro-batches go through one chunk after the other; facts C.2 has the warm-up."""
    forward = [(group + i, chunk) for group in range(0, m, p) for chunk in range(v) for i in range(min(p, m - group))]
    backward = [(i, v - 1 - chunk) for i, chunk in forward]
    orders = []
    for stage in range(p):
        warm = min(m * v, (p - stage - 1) * 2 + (v - 1) * p)
        order = [Pass("F", *item) for item in forward[:warm]]
        for index in range(m * v - warm):
            order += [Pass("F", *forward[warm + index]), Pass("B", *backward[index])]
        orders.append(tuple(order + [Pass("B", *item) for item in backward[m * v - warm :]]))
    return tuple(orders)


def _schedule(name, p, m, v=1):
    """Those whose orders are short enough to be written twice are written here, apart from the code under test."""
    known = {
        "gpipe": lambda: gpipe_orders(p, m),
        "1f1b": lambda: one_f_one_b_orders(p, m),
        "interleaved": lambda: interleaved_orders(p, m, v),
    }
    if name not in known:
        return make_schedule(name, p, m, v)
    orders = known[name]()
    virtual = tuple((stage, chunk) for chunk in range(v) for stage in range(p))
    return PipelineSchedule(name=name, orders=orders, chains=(virtual,), microbatches=m)


@pytest.fixture
def schedule():
    return _schedule


def _pipeline(
    schedule, forward=1.0, backward=2.0, comm=0.0, *, tasks=1, last=None, epilogue=(), members=None,
    input_gradient=1.0, weight_gradient=1.0, pair=3.0,
):  # fmt: skip
    """Passes of one kind take the same seconds everywhere, in ``tasks`` equal kernels; so do pairs."""

    def block(kind, seconds):
        return Block(kind, tuple(_task(seconds / tasks, f"{kind}{number}", flop=1.0) for number in range(tasks)))

    lasting = {"F": forward, "B": backward}
    if {part.kind for order in schedule.orders for part in passes_of(order)} & {"I", "W"}:
        lasting |= {"I": input_gradient, "W": weight_gradient}
    places = schedule.places
    return Program(
        schedule=schedule,
        blocks={(s, kind, c): block(kind, seconds) for s, c in places for kind, seconds in lasting.items()},
        last_blocks={} if last is None else {(s, "B", c): Block("last B", last) for s, c in places},
        epilogues=tuple(Block("epilogue", tuple(epilogue)) for _ in schedule.orders),
        messages={(stage, kind, chunk): _transfer(comm) for stage, chunk in places for kind in "FB"},
        multiplicity=1,
        rendezvous_members=members or {},
        pairs={(s, c, other): block("F&B", pair) for s, c in places for stage, other in places if stage == s},
    )


@pytest.fixture
def pipeline():
    return _pipeline
