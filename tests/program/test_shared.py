"""Shared experts beside tokens on their way."""

from __future__ import annotations

from shardsim.program.shared import beside_exchange
from shardsim.values.operators import Collective, Gemm, TokenExchange
from shardsim.values.program import Task


def exchange(name):
    return TokenExchange(name, name, 4096, 8, 2, 4096, 2.0), Task(name, "ep", "ep", 3.0)


def product(name):
    return Gemm(name, 1, 1, 1), Task(name, "compute", "gemm", 1.0)


def gather(name):
    return Collective(name, "all_gather", "tp", 1.0), Task(name, "tp", "tp", 1.0)


def issued(*pairs):
    return [(task.name, task.blocking, task.waits) for _, task in beside_exchange(pairs)]


def test_the_first_that_needs_the_tokens_waits_for_them():
    assert issued(
        product("router"),
        exchange("dispatch"),
        gather("shared gather"),
        product("shared up"),
        product("experts up"),
        exchange("combine"),
        product("shared down"),
        product("unpermute"),
    ) == [
        ("router", True, ()),
        ("dispatch", False, ()),
        ("shared gather", True, ()),
        ("shared up", True, ()),
        ("experts up", True, (1,)),
        ("combine", False, ()),
        ("shared down", True, ()),
        ("unpermute", True, (5,)),
    ]


def test_nothing_changes_where_shared_experts_stand_by_themselves():
    pairs = (product("shared up"), product("router"), exchange("dispatch"), product("experts up"), exchange("combine"))
    assert beside_exchange(pairs) == pairs


def test_an_exchange_that_nothing_would_wait_for_stays_as_it_is():
    pairs = (exchange("combine"), product("shared down"))
    assert beside_exchange(pairs) == pairs


def test_waits_for_other_things_stay():
    operator, task = product("experts up")
    waiting = (operator, Task(task.name, task.stream, task.category, task.seconds, waits=(0,)))
    found = issued(product("router"), exchange("dispatch"), product("shared up"), waiting)
    assert found[-1] == ("experts up", True, (0, 1))
