"""One forward and backward pair of four layers of DeepSeek-V3 on H800, kernel by kernel.

Published by DeepSeek as a trace (github deepseek-ai/profile-data, train.json): EP 64, TP 1, 4096 tokens, balanced
routing, no pipeline messages. How much longer exchanges take beside products (``beside_compute`` of the fabric profile)
is fitted to this trace; the rest is not.
"""

from __future__ import annotations

import pytest

from shardsim.engine.listing import listing
from shardsim.program.build import build
from shardsim.program.resolve import resolve
from shardsim.schema.run import RunRequest
from shardsim.values.program import Block, Pair, Pass, PipelineSchedule, Program

EMPTY = Block("nothing", ())


@pytest.fixture(scope="module")
def program() -> Program:
    layout = {"pp": 16, "ep": 64, "schedule": "dualpipe", "stage_layers": (*(4,) * 15, 1)}
    batch = {"global": 4096, "micro": 1, "seq": 4096}
    asked = {"model": "deepseek-v3", "cluster": "hgx-h800", "framework": "deepseek", "gpus": 2048}
    return build(resolve(RunRequest.model_validate(asked | {"layout": layout, "batch": batch})))


@pytest.fixture(scope="module")
def pair(program: Program) -> Block:
    return program.pairs[7, 0, 1]


def microseconds(pair: Block, name: str) -> float:
    """Of each kernel of that name; four layers have one each."""
    found = [float(task.seconds) * 1e6 for task in pair.tasks if task.name == name]
    assert len(found) == 4
    return found[0]


@pytest.mark.parametrize(
    ("name", "measured", "within"),
    [
        ("dispatch", 3876, 0.12),
        ("dispatch gradients", 3876, 0.12),
        ("combine", 6181, 0.15),
        ("combine gradients", 6181, 0.15),
        ("attention", 1237, 0.05),
        ("attention backward", 3779, 0.06),
    ],
)
def test_kernels_of_the_pair(pair: Block, name: str, measured: float, within: float) -> None:
    assert microseconds(pair, name) == pytest.approx(measured, rel=within)


def test_grouped_products_beside_exchanges(program: Program, pair: Block) -> None:
    """16 of them, without those of weights, 22.9 ms on the 112 of 132 multiprocessors that exchanges leave."""
    names = ("experts up", "experts down", "experts up dgrad", "experts down dgrad")
    alone = 4 * sum(microseconds(pair, name) for name in names) / 1e3
    assert program.overlap_slowdown == pytest.approx(20 / 132)
    assert alone / (1 - float(program.overlap_slowdown)) == pytest.approx(22.9, rel=0.12)


def test_the_pair_hides_its_exchanges_and_is_a_tenth_too_fast(program: Program, pair: Block) -> None:
    """129.0 ms measured, of which 124.3 ms have a kernel on the compute stream; 116 ms here, all of it computation.

    Their products keep to 112 multiprocessors also while nothing travels (all grids of the trace are that large), which
    would be 3 ms more; the kernels that go before their exchanges, and wait for other ranks, are not modelled.
    """
    order = (Pass("F", 0), Pair(Pass("F", 1), Pass("B", 0)), Pass("B", 1))
    alone = Program(
        schedule=PipelineSchedule("own", (order,), (((0, 0),),), 2),
        blocks={(0, "F", 0): EMPTY, (0, "B", 0): EMPTY},
        last_blocks={},
        epilogues=(EMPTY,),
        messages={},
        multiplicity=1,
        rendezvous_members={},
        overlap_slowdown=program.overlap_slowdown,
        pairs={(0, 0, 0): pair},
    )
    ran = listing(alone)
    assert ran.iteration_s == pytest.approx(0.1290, rel=0.12)
    assert ran.stages[0].seconds.get("ep", 0.0) < 0.05 * float(ran.iteration_s)


def test_kernels_come_in_the_order_of_the_trace(pair: Block) -> None:
    """Combine backward, attention, MLP backward, dispatch, dispatch backward, MLP weights, MLP, attention backward.

    A combine's backward pass dispatches gradients, and a dispatch's combines them.
    """
    # The host issues a dispatch before the MLP of the other pass, beside which it travels, and a combine likewise.
    shown = [
        "dispatch gradients", "attention", "dispatch", "experts up dgrad", "combine gradients", "experts up wgrad",
        "experts up", "combine", "attention backward",
    ]  # fmt: skip
    assert [task.name for task in pair.tasks if task.name in shown][: len(shown)] == shown
