"""Products in parts beside the communication of sequence parallelism: work, bytes and what stays exposed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardsim.program.chunks import SPLITS, in_parts
from shardsim.program.overlap import Priced
from shardsim.values.num import Num
from shardsim.values.operators import Collective, Elementwise, Gemm, Operator
from shardsim.values.program import Task
from shardsim.values.provenance import Provenance
from shardsim.values.transfer import Transfer

SOURCE = Provenance("assumed", "test")
ROWS = 64.0


def pricing(row: float, byte: float, wave: float = 0.0) -> Any:
    """Seconds of a row of a product, of a byte on the wire, and of starting a product."""

    def price(operator: Operator) -> Task:
        if isinstance(operator, Collective):
            transfer = Transfer(0.0, {"nvlink": operator.size * byte}, {"nvlink": 1.0}, "ring", SOURCE)
            return Task(operator.name, "tp", "tp", transfer.seconds, transfer=transfer, host=1.0)
        if isinstance(operator, Gemm):
            return Task(operator.name, "compute", "gemm", wave + row * operator.m, flop=operator.flop, host=1.0)
        assert isinstance(operator, Elementwise)
        return Task(operator.name, "compute", "memory-bound", 0.0 * operator.bytes_moved, host=1.0)

    return price


GATHER, SCATTER = Collective("in", "all_gather", "tp", 1.0), Collective("out", "reduce_scatter", "tp", 1.0)
PRODUCT = Gemm("product", ROWS, 8, 8)


def parts_of(operators: tuple[Operator, ...], how: Any, ranks: Num, price: Any) -> tuple[Priced, ...]:
    return in_parts([(operator, price(operator)) for operator in operators], how, ranks, price)


def makespan(pairs: tuple[Priced, ...]) -> float:
    now, stream, ends = 0.0, 0.0, list[float]()
    for _, task in pairs:
        begin = max([now, stream if task.stream == "tp" else 0.0, *(ends[waited] for waited in task.waits)])
        ends.append(begin + float(task.seconds))
        if task.stream == "tp":
            stream = ends[-1]
        if task.blocking:
            now = ends[-1]
    return max(now, stream)


def total(pairs: tuple[Priced, ...], what: str) -> Any:
    return sum(getattr(task, what) for _, task in pairs)


@pytest.mark.parametrize(("row", "byte"), [(1.0, 12.0), (1.0, 480.0), (0.0, 24.0)])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_gathering_shows_what_is_longer_than_the_products_beside_it(ranks: int, row: float, byte: float) -> None:
    """t parts of g seconds beside t - 1 steps of s seconds: g + (t - 1) max(g, s)."""
    found = parts_of((GATHER, PRODUCT), "ring", ranks, pricing(row, byte))
    part, step = row * ROWS / ranks, byte / (ranks - 1)
    assert makespan(found) == pytest.approx(part + (ranks - 1) * max(part, step))
    assert len(found) == ranks + ranks - 1


@pytest.mark.parametrize(("row", "byte"), [(1.0, 12.0), (1.0, 480.0)])
def test_a_scattering_in_four_shows_its_last_part(row: float, byte: float) -> None:
    """c parts, each followed by a scattering of s seconds: g + (c - 1) max(g, s) + s."""
    found = parts_of((PRODUCT, SCATTER), "userbuffers", 8, pricing(row, byte))
    part, step = row * ROWS / SPLITS, byte / SPLITS
    assert makespan(found) == pytest.approx(part + (SPLITS - 1) * max(part, step) + step)


def test_a_scattering_around_the_ring_hides_behind_a_ranks_own_part() -> None:
    found = parts_of((PRODUCT, SCATTER), "ring", 4, pricing(1.0, 12.0))
    assert makespan(found) == pytest.approx(ROWS)
    last = found[-1]
    assert isinstance(last[0], Elementwise)
    assert last[0].bytes_moved == pytest.approx(1.0 + 1.0 / 4)  # four parts read, one written
    assert last[1].waits == (len(found) - 3,)


def test_the_product_of_own_tokens_runs_beside_the_gathering() -> None:
    found = parts_of((GATHER, PRODUCT), "own_shard", 4, pricing(1.0, 12.0))
    assert [float(task.seconds) for _, task in found] == [12.0, 16.0, 48.0]
    assert makespan(found) == ROWS
    assert makespan(parts_of((GATHER, PRODUCT), "own_shard", 4, pricing(1.0, 20.0))) == 20.0 + 48.0


@pytest.mark.parametrize(
    ("operators", "how", "slowing"),
    [
        ((GATHER, PRODUCT), "own_shard", True),
        ((GATHER, PRODUCT), "ring", False),
        ((PRODUCT, SCATTER), "ring", False),
        ((PRODUCT, SCATTER), "userbuffers", True),
    ],
)
def test_steps_of_the_ring_take_no_multiprocessors_and_collectives_do(
    operators: tuple[Operator, ...], how: Any, slowing: bool
) -> None:
    found = parts_of(operators, how, 4, pricing(1.0, 12.0))
    assert {task.slows for _, task in found if not task.blocking} == {slowing}


@pytest.mark.parametrize("how", ["own_shard", "ring", "userbuffers"])
@pytest.mark.parametrize("operators", [(GATHER, PRODUCT), (PRODUCT, SCATTER)])
def test_parts_do_the_whole_work_and_move_all_bytes(how: Any, operators: tuple[Operator, ...]) -> None:
    price = pricing(1.0, 12.0)
    found = parts_of(operators, how, 8, price)
    assert total(found, "flop") == pytest.approx(PRODUCT.flop)
    moved = sum(task.transfer.wire["nvlink"] for _, task in found if task.transfer is not None)
    assert moved == pytest.approx(12.0)
    assert sum(task.seconds for _, task in found if task.stream == "tp") == pytest.approx(12.0)


def test_every_part_pays_for_its_own_waves() -> None:
    found = parts_of((GATHER, PRODUCT), "ring", 8, pricing(1.0, 0.0, wave=2.0))
    assert sum(task.seconds for _, task in found if task.stream == "compute") == pytest.approx(ROWS + 8 * 2.0)


@pytest.mark.parametrize("how", ["own_shard", "ring", "userbuffers"])
@pytest.mark.parametrize("operators", [(GATHER, PRODUCT), (PRODUCT, SCATTER)])
def test_layouts_of_several_degrees_at_once_give_what_each_gives_alone(
    how: Any, operators: tuple[Operator, ...]
) -> None:
    """The parts that some layouts have and others do not take no time, no bytes and no launch."""
    price, degrees = pricing(1.0, 12.0, wave=0.5), np.array([2.0, 4.0, 8.0])
    together = parts_of(operators, how, degrees, price)
    for index, ranks in enumerate(degrees):
        alone = parts_of(operators, how, float(ranks), price)
        for what in ("seconds", "flop", "host"):
            mine = total(together, what)
            value = mine[index] if isinstance(mine, np.ndarray) else mine
            assert value == pytest.approx(float(total(alone, what)), rel=1e-12)
        picked = tuple(
            (operator, Task(task.name, task.stream, task.category, float(np.broadcast_to(task.seconds, 3)[index]),
                            blocking=task.blocking, waits=task.waits))
            for operator, task in together
        )  # fmt: skip
        assert makespan(picked) == pytest.approx(makespan(alone), rel=1e-12)


def test_a_layout_of_one_rank_among_others_multiplies_at_once() -> None:
    price, degrees = pricing(1.0, 0.0, wave=0.5), np.array([1.0, 4.0])
    for how in ("own_shard", "ring", "userbuffers"):
        found = parts_of((PRODUCT, SCATTER), how, degrees, price)
        assert total(found, "seconds")[0] == pytest.approx(ROWS + 0.5) if how != "own_shard" else True
        gathered = parts_of((GATHER, PRODUCT), how, degrees, price)
        assert total(gathered, "seconds")[0] == pytest.approx(ROWS + 0.5)


def test_what_is_no_neighbour_of_a_product_stays_whole() -> None:
    between = Elementwise("norm", "layernorm", 1.0)
    regathered = Collective("again", "all_gather", "tp", 1.0, "wgrad")
    summed = Collective("sum", "all_reduce", "tp", 1.0)
    for operators in ((GATHER, between, PRODUCT), (regathered, PRODUCT), (PRODUCT, summed)):
        assert len(parts_of(operators, "ring", 8, pricing(1.0, 1.0))) == len(operators)
    assert len(parts_of((GATHER, PRODUCT, SCATTER), "none", 8, pricing(1.0, 1.0))) == 3


@pytest.mark.parametrize(("how", "launches"), [("ring", 13), ("userbuffers", 12)])
def test_the_host_issues_all_parts_but_the_first_from_one_call(how: Any, launches: int) -> None:
    """Two products with a module of their own (1 s each); what comes from the loop inside takes 1 ms."""
    operators = (GATHER, PRODUCT, PRODUCT, SCATTER)
    priced = [(operator, pricing(0.0, 1.0)(operator)) for operator in operators]
    found = in_parts(priced, how, 4.0, pricing(0.0, 1.0), 1e-3)
    modules = sum(float(task.host) == 1.0 for _, task in found)
    assert total(found, "host") == pytest.approx(modules + 1e-3 * launches)
    assert modules == (2 if how == "ring" else 3)
