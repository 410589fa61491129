"""Communication beside computation: what waits for what, and how two passes share a stage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardsim.program.overlap import behind_products, joined, paired
from shardsim.values.operators import Collective, Elementwise, Gemm, GradientRole, Operator
from shardsim.values.program import Task
from shardsim.values.provenance import Provenance
from shardsim.values.transfer import Transfer

SOURCE = Provenance("assumed", "test")


def compute(name: str, seconds: float = 1.0) -> Task:
    return Task(name, "compute", "gemm", seconds)


def message(name: str, seconds: float = 1.0, stream: str = "tp") -> Task:
    transfer = Transfer(seconds, {}, {}, "ring", SOURCE)
    return Task(name, stream, stream, seconds, transfer=transfer)


def makespan(tasks: tuple[Task, ...]) -> float:
    """A device that runs blocking tasks one after another and others on streams of their own."""
    now, ends, streams = 0.0, [0.0] * len(tasks), dict[str, float]()
    for index, task in enumerate(tasks):
        begin = max([now, streams.get(task.stream, 0.0), *(ends[waited] for waited in task.waits)])
        ends[index] = begin + float(task.seconds)
        if task.blocking:
            now = ends[index]
        else:
            streams[task.stream] = ends[index]
    return max([now, *streams.values()])


def product(name: str, role: GradientRole = "forward") -> Gemm:
    return Gemm(name, 1, 1, 1, role=role)


def collective(kind: Any, role: GradientRole) -> Collective:
    return Collective(kind, kind, "tp", 1.0, role)


def priced(*operators: Operator) -> tuple[tuple[Operator, Task], ...]:
    return tuple(
        (operator, message(operator.name) if isinstance(operator, Collective) else compute(operator.name))
        for operator in operators
    )


COLUMN = priced(
    collective("all_gather", "wgrad"),
    product("input", "dgrad"),
    collective("reduce_scatter", "dgrad"),
    Elementwise("transposed", "transpose", 1.0, role="wgrad"),
    product("weight", "wgrad"),
    Elementwise("norm weight", "layernorm", 1.0, role="wgrad"),
)
"""A column-parallel projection backward, with the norm before it."""


def test_waits_move_along_when_tasks_are_joined() -> None:
    pair = (replace(message("gather"), blocking=False), replace(compute("wgrad"), waits=(0,)))
    assert [task.waits for task in joined(pair, pair, pair)] == [(), (0,), (), (2,), (), (4,)]


def test_a_gathering_hides_behind_the_input_gradient_and_a_sum_behind_the_weight_gradient() -> None:
    tasks = behind_products(COLUMN, sums=True)
    assert [task.blocking for task in tasks] == [False, True, False, True, True, True]
    assert [task.waits for task in tasks] == [(), (), (), (0,), (), (2,)]
    assert makespan(tasks) == 4.0


def test_a_sum_holds_everything_up_where_the_framework_does_not_hide_it() -> None:
    tasks = behind_products(COLUMN, sums=False)
    assert [task.blocking for task in tasks] == [False, True, True, True, True, True]
    assert makespan(tasks) == 5.0


def test_a_sum_hides_behind_all_weight_gradients_that_follow_it() -> None:
    several = (*COLUMN[:5], *priced(product("another weight", "wgrad")), COLUMN[5])
    assert [task.waits for task in behind_products(several, sums=True)][5:] == [(), (2,)]


def test_what_needs_a_sum_waits_for_it_though_no_weight_gradient_stands_between() -> None:
    tasks = behind_products(priced(collective("all_reduce", "dgrad"), product("next", "dgrad")), sums=True)
    assert [task.waits for task in tasks] == [(), (0,)]


def test_a_sum_with_nothing_behind_it_holds_the_pass_up() -> None:
    tasks = behind_products(priced(product("input", "dgrad"), collective("all_reduce", "dgrad")), sums=True)
    assert all(task.blocking for task in tasks)


# ---- pairs --------------------------------------------------------------------------------------------------------

FORWARD = (compute("attention"), message("dispatch"), compute("mlp"), message("combine"), compute("add"))
BACKWARD = tuple(replace(task, name=f"{task.name} back") for task in FORWARD)


def test_each_strand_computes_while_the_other_communicates() -> None:
    """Ten units of work in two strands of three computations: only what nothing is left to hide shows."""
    tasks = paired(FORWARD, BACKWARD)
    assert sum(task.seconds for task in tasks if task.stream == "compute") == 6.0
    assert makespan(FORWARD) + makespan(BACKWARD) == 10.0
    assert makespan(tasks) == 6.0


def test_a_strand_keeps_its_order_and_waits_for_its_own_communication_only() -> None:
    tasks = paired(FORWARD, BACKWARD)
    names = [task.name for task in tasks]
    for strand in (FORWARD, BACKWARD):
        own = [task.name for task in strand]
        assert [name for name in names if name in own] == own
    assert tasks[names.index("mlp")].waits == (names.index("dispatch"),)
    assert tasks[names.index("mlp back")].waits == (names.index("dispatch back"),)


def test_the_backward_strand_goes_first_and_both_take_turns() -> None:
    names = [task.name for task in paired(FORWARD, BACKWARD)]
    assert names == [
        "attention back", "dispatch back", "attention", "dispatch", "mlp back", "combine back", "mlp", "combine",
        "add back", "add",
    ]  # fmt: skip


def test_a_message_that_a_strand_hides_by_itself_needs_no_work_of_the_other() -> None:
    """The sum of an input gradient runs beside the weight gradient of its own strand; the next turn is the other's."""
    own = (replace(message("sum"), blocking=False), compute("weight"), replace(compute("norm"), waits=(0,)))
    names = [task.name for task in paired(FORWARD, (compute("input"), *own, message("gather"), compute("next")))]
    assert names.index("dispatch") < names.index("norm") < names.index("mlp") < names.index("next")


def test_communication_longer_than_the_other_strands_work_shows_its_rest() -> None:
    slow = (compute("a"), message("m", 5.0), compute("b"))
    assert makespan(paired((compute("c"),), slow)) == pytest.approx(1.0 + 5.0 + 1.0)


def test_what_data_parallelism_queued_stays_queued() -> None:
    queued = replace(message("reduce", stream="dp"), blocking=False)
    tasks = paired(FORWARD, (*BACKWARD, queued))
    assert [task.blocking for task in tasks if task.stream == "dp"] == [False]


def test_waits_that_a_strand_had_already_move_along() -> None:
    strand = (replace(message("gather"), blocking=False), compute("input"), replace(compute("weight"), waits=(0,)))
    tasks = paired(FORWARD, strand)
    names = [task.name for task in tasks]
    assert tasks[names.index("weight")].waits == (names.index("gather"),)


def test_what_is_queued_behind_a_message_of_a_pair_does_not_wait_in_the_place_of_the_computation():
    gather = replace(message("parameters", 0.5, "dp"), blocking=False)
    forward = (compute("embedding"), message("sum"), gather, compute("layer"))
    tasks = paired(forward, (compute("backward"),))
    names = [task.name for task in tasks]
    layer = tasks[names.index("layer")]
    assert names.index("sum") in layer.waits


def test_exchanges_take_longer_beside_computation_and_only_they_do():
    slow = replace(message("dispatch", 2.0, "ep"), transfer=Transfer(0.5, {"nic": 3.0}, {"nic": 2.0}, "deepep", SOURCE))
    tasks = paired((compute("a"), slow, compute("b")), BACKWARD, {"deepep": 1.5})
    by_name = {task.name: task for task in tasks}
    assert by_name["dispatch"].seconds == by_name["dispatch"].transfer.seconds == 3.0
    assert by_name["dispatch"].transfer.wire == {"nic": 3.0}
    assert by_name["dispatch back"].seconds == 1.0


def test_weight_gradients_behind_an_exchange_fill_the_time_it_takes() -> None:
    """The order of DeepSeek's kernels: the other strand's MLP, then what waits for the exchange."""
    backward = (
        compute("mlp back"), replace(message("dispatch back", 2.0, "ep"), blocking=False), compute("mlp weights"),
        replace(compute("attention back"), waits=(1,)),
    )  # fmt: skip
    forward = (compute("attention"), message("dispatch", 1.0, "ep"), compute("mlp"), compute("rest"))
    names = [task.name for task in paired(forward, backward) if task.stream == "compute"]
    assert names == ["mlp back", "mlp weights", "attention", "attention back", "mlp", "rest"]
    assert makespan(paired(forward, backward)) == 6.0
