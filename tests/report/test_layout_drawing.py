"""What a layout's drawing shows, before it is drawn."""

from __future__ import annotations

import numpy as np
import pytest

from shardsim.program.resolve import resolve
from shardsim.program.traffic import Traffic
from shardsim.report.layout_drawing import _by_axis, _members, _title
from shardsim.report.traffic import groups_of_traffic
from shardsim.schema.run import RunRequest
from shardsim.values.training import TrainingRun


@pytest.fixture(scope="module")
def run() -> TrainingRun:
    return resolve(
        RunRequest.model_validate(
            {
                "model": "llama-2-7b",
                "cluster": "dgx-h100",
                "framework": "megatron-core",
                "gpus": 64,
                "layout": {"tp": 2, "pp": 2, "cp": 2},
                "batch": {"global": 64, "micro": 1, "seq": 4096},
            }
        )
    )


def test_a_strip_colours_the_group_of_the_first_gpu_and_the_next(run: TrainingRun) -> None:
    """TP pairs are neighbours; ranks 0 and 2 are a CP pair, 1 and 3 the next; 32 GPUs are a stage."""
    assert _members(run, "tp")[:6].tolist() == [0, 0, 1, 1, 2, 2]
    assert _members(run, "cp")[:6].tolist() == [0, 1, 0, 1, 2, 2]
    same = _members(run, "dp_cp")
    assert (len(same), np.count_nonzero(same == 0), np.count_nonzero(same == 1)) == (32, 16, 16)


def test_gradients_go_between_all_that_hold_the_same_parameters(run: TrainingRun) -> None:
    lies = groups_of_traffic(run)
    assert _title("dp", lies["dp"]) == "DP, the same parameters: 4 groups of 16 on 4 nodes, 1 leaf"
    assert _title("tp", lies["tp"]) == "TP, a layer's parts: 32 groups of 2 on 1 node, 1 leaf"


def test_bars_add_up_to_what_is_sent() -> None:
    gib = 2.0**30
    rows = [
        Traffic(stage, "ep", what, {"nvlink": 4 * gib, "nic": 3 * gib, "leaf": gib}, 1, 0.5, ("deepep",))
        for stage in (0, 1) for what in ("dispatch", "combine")
    ]  # fmt: skip
    sent, alone = _by_axis(rows)
    assert sent == {"ep": {"nvlink": 8.0, "nic": 4.0, "leaf": 2.0}}
    assert alone == {"ep": 1.0}
