"""Collectives by any of their spellings."""

from __future__ import annotations

import pytest

from shardsim.errors import InputError
from shardsim.schema.collectives import COLLECTIVES, collective_name


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("allreduce", "all_reduce"),
        ("AllGather", "all_gather"),
        ("reduce-scatter", "reduce_scatter"),
        ("alltoall_perf", "all_to_all"),
        ("sendrecv", "send_recv"),
        ("ncclBroadcast", "broadcast"),
        *zip(COLLECTIVES, COLLECTIVES, strict=True),
    ],
)
def test_spellings_of_libraries_are_known(spelling, name):
    assert collective_name(spelling) == name


def test_what_is_not_modelled_is_refused_with_near_names():
    with pytest.raises(InputError, match=r"'reduce' is not modelled .did you mean all_reduce or reduce_scatter"):
        collective_name("reduce")
