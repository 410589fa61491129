"""Times of one layer of the GPT of 22 billion parameters on eight A100 (arXiv 2205.05198, Table 4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardsim.engine.listing import listing
from shardsim.program.machine import Machine
from shardsim.program.passes import Passes
from shardsim.program.resolve import resolve
from shardsim.schema.run import nested, request_from_mapping
from shardsim.values.program import Block, Pass, PassKind, PipelineSchedule, Program
from shardsim.workload.stages import ChunkContent

LAYER = ChunkContent(1, embedding=False, head=False)
EMPTY = Block("nothing", ())
ALONE = PipelineSchedule("one pass", ((Pass("F", 0), Pass("B", 0)),), (((0, 0),),), 1)


def milliseconds(kind: PassKind, keys: dict[str, Any]) -> float:
    described = resolve(
        request_from_mapping(
            nested({"model": "megatron-22b", "cluster": "selene", "framework": "megatron-2022", "gpus": 8, "tp": 8,
                    "micro_batch": 4, "global_batch": 4, "seq": 2048, **keys})
        )
    )  # fmt: skip
    segments = Passes(described, Machine(described)).segments(kind, LAYER)
    # The paper times the device: a host that is late is left out.
    tasks = tuple(replace(task, host=0.0) for one in segments if one.part == "layer" for task in one.tasks)
    device, fabric = described.cluster.device, described.profile.fabric
    program = Program(
        schedule=ALONE,
        blocks={(0, "F", 0): Block("layer", tasks), (0, "B", 0): EMPTY},
        last_blocks={},
        epilogues=(EMPTY,),
        messages={},
        multiplicity=1,
        rendezvous_members={},
        overlap_slowdown=fabric.overlap_multiprocessors / device.multiprocessors,
    )
    return 1e3 * float(listing(program).iteration_s)


@pytest.mark.parametrize(
    ("keys", "forward", "backward"),
    [
        ({"recompute": "none"}, 7.7, 11.9),
        ({"recompute": "full"}, 7.7, 19.5),
        ({"recompute": "selective"}, 7.7, 13.2),
    ],
)
def test_a_layers_passes_take_the_published_times(keys: dict[str, Any], forward: float, backward: float) -> None:
    """The backward all-reduce beside the weight gradient, which the paper's code has, is a tenth of these."""
    assert milliseconds("F", keys) == pytest.approx(forward, rel=0.04)
    assert milliseconds("B", keys) == pytest.approx(backward, rel=0.04)


@pytest.mark.parametrize(
    ("keys", "forward", "backward"),
    [({"recompute": "none", "sp": True}, 7.2, 11.8), ({"recompute": "selective", "sp": True}, 7.2, 13.1)],
)
def test_with_sequence_parallelism_the_backward_pass_hides_more_than_was_measured(
    keys: dict[str, Any], forward: float, backward: float
) -> None:
    """Forward as measured; backward 7 to 8 % short, with all beside products that the code has there."""
    assert milliseconds("F", keys) == pytest.approx(forward, rel=0.04)
    assert 0.91 * backward < milliseconds("B", keys) < backward
