"""Scaling studies over a made-up machine whose times can be worked out by hand."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.errors import InputError
from shardsim.report.scaling import COLUMNS, scaling_csv, scaling_frame, scaling_json, scaling_records
from shardsim.schema.run import RunRequest, request_from_mapping
from shardsim.search.scaling import scaling_study
from shardsim.validate.evaluate import Priced, Refused
from shardsim.values.scaling import MeasuredPoint

FLOP_PER_SEQUENCE = 1e15
PARAMETERS = {"small": 1.0, "medium": 2.0, "large": 4.0, "huge": 8.0}


def price(run: Mapping[str, Any], **_options: object) -> Priced | Refused:
    """100 TFLOP/s a GPU, less 1 % for every doubling of TP and 2 % for every doubling of DP."""
    layout = run.get("layout", {})
    tp, pp, cp = layout.get("tp", 1), layout.get("pp", 1), layout.get("cp", 1)
    dp = run["gpus"] // (tp * pp * cp)
    if tp == 16:
        return Refused("heads 24 do not divide by tp 16")
    flop = FLOP_PER_SEQUENCE * run["batch"]["global"] * PARAMETERS[run["model"]]
    rate = 100e12 * (1 - 0.01 * (tp.bit_length() - 1) - 0.02 * (dp.bit_length() - 1))
    seconds = flop / (rate * run["gpus"])
    return Priced(
        model=run["model"],
        cluster=run["cluster"],
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        vpp=layout.get("vpp", 1),
        global_batch=run["batch"]["global"],
        micro_batch=run["batch"].get("micro", 1),
        iteration_s=seconds,
        tokens_per_s=run["batch"]["global"] * run["batch"]["seq"] / seconds,
        model_flop=flop,
        flops_per_gpu=rate,
        mfu=rate / 125e12,
        fits=dp < 512,
        warnings=("a warning",),
    )


def request(**changes: Any) -> RunRequest:
    base = {"model": "small", "cluster": "made-up", "batch": {"global": 8, "micro": 8, "seq": 1024}}
    return request_from_mapping(base | changes, "test")


def test_weak_scaling_of_dp_multiplies_the_global_batch_with_the_gpus() -> None:
    table = scaling_study(request(layout={"tp": 2}), [2, 4, 8], "dp", "weak", evaluate=price)
    assert [(p.tp, p.dp, p.global_batch, p.micro_batch) for p in table.points] == [
        (2, 1, 8, 8),
        (2, 2, 16, 8),
        (2, 4, 32, 8),
    ]


def test_the_batch_of_a_run_with_gpus_belongs_to_those_gpus() -> None:
    table = scaling_study(request(gpus=8), [2, 8, 16], "dp", "weak", evaluate=price)
    assert [p.global_batch for p in table.points] == [2, 8, 16]


def test_strong_scaling_changes_nothing_but_the_gpus() -> None:
    table = scaling_study(request(layout={"pp": 2}), [2, 4, 8], "dp", "strong", evaluate=price)
    assert [p.global_batch for p in table.points] == [8, 8, 8]
    assert [(p.pp, p.dp) for p in table.points] == [(2, 1), (2, 2), (2, 4)]


def test_weak_scaling_of_tp_over_several_models_keeps_the_batch() -> None:
    table = scaling_study(request(), [1, 2, 4, 8], "tp", "weak", models=list(PARAMETERS), evaluate=price)
    assert [(p.model, p.tp, p.dp, p.global_batch) for p in table.points] == [
        ("small", 1, 1, 8),
        ("medium", 2, 1, 8),
        ("large", 4, 1, 8),
        ("huge", 8, 1, 8),
    ]
    assert [p.efficiency for p in table.points] == pytest.approx([1.0, 0.99, 0.98, 0.97])


def test_weak_scaling_of_tp_over_one_model_grows_the_batch() -> None:
    table = scaling_study(request(), [1, 4], "tp", "weak", evaluate=price)
    assert [(p.tp, p.global_batch) for p in table.points] == [(1, 8), (4, 32)]


def test_dp_is_kept_beside_a_growing_tp() -> None:
    batch = {"global": 512, "micro": 8, "seq": 1024}
    study = request(layout={"dp": 64}, batch=batch)
    table = scaling_study(study, [64, 128, 256, 512], "tp", models=list(PARAMETERS), evaluate=price)
    assert [(p.tp, p.dp, p.global_batch) for p in table.points] == [
        (1, 64, 512),
        (2, 64, 512),
        (4, 64, 512),
        (8, 64, 512),
    ]


def test_the_title_names_the_degrees_that_stay() -> None:
    table = scaling_study(request(layout={"dp": 64, "pp": 2}), [128, 256], "tp", "strong", evaluate=price)
    assert table.title == "Strong scaling of TP at PP 2, DP 64 on made-up"
    assert scaling_study(request(), [1, 2], evaluate=price).title == "Weak scaling of DP on made-up"


def test_the_dp_of_a_run_file_is_kept_beside_a_growing_tp() -> None:
    table = scaling_study(request(gpus=64, layout={"tp": 2, "pp": 4}), [32, 64], "tp", "strong", evaluate=price)
    assert [(p.tp, p.pp, p.dp) for p in table.points] == [(1, 4, 8), (2, 4, 8)]


def test_growing_pp_takes_the_additional_gpus() -> None:
    table = scaling_study(request(layout={"tp": 2, "dp": 2}), [4, 8, 16], "pp", "strong", evaluate=price)
    assert [(p.tp, p.pp, p.dp) for p in table.points] == [(2, 1, 2), (2, 2, 2), (2, 4, 2)]


def test_efficiency_is_flops_per_gpu_relative_to_the_first_point_and_says_so() -> None:
    table = scaling_study(request(), [1, 2, 4], "dp", evaluate=price)
    assert [p.efficiency for p in table.points] == pytest.approx([1.0, 0.98, 0.96])
    assert table.definition == "model FLOP/s per GPU relative to 1 GPU (100 TFLOP/s)"


def test_a_baseline_sets_the_reference() -> None:
    table = scaling_study(request(), [64, 128], "dp", baseline_flops=200e12, evaluate=price)
    assert [p.efficiency for p in table.points] == pytest.approx([0.88 / 2, 0.86 / 2])
    assert table.definition == "model FLOP/s per GPU relative to the given baseline of 200 TFLOP/s"


@given(gpus=st.lists(st.integers(1, 1024), min_size=1, max_size=8, unique=True).map(sorted))
def test_the_ideal_time_is_the_time_at_the_reference_rate(gpus: list[int]) -> None:
    table = scaling_study(request(), gpus, "dp", "strong", evaluate=price)
    for point in table.points:
        assert point.ideal_iteration_s == pytest.approx(8 * FLOP_PER_SEQUENCE / (table.reference_flops * point.gpus))
        assert point.ideal_iteration_s <= point.iteration_s * (1 + 1e-12)


@given(
    gpus=st.lists(st.integers(1, 64), min_size=1, max_size=6, unique=True).map(sorted),
    grow=st.sampled_from(["tp", "pp", "dp"]),
    mode=st.sampled_from(["weak", "strong"]),
    tp=st.integers(1, 3),
    pp=st.integers(1, 3),
)
def test_every_gpu_count_has_a_point_that_uses_just_those_gpus(
    gpus: list[int], grow: Any, mode: Any, tp: int, pp: int
) -> None:
    table = scaling_study(request(layout={"tp": tp, "pp": pp}), gpus, grow, mode, evaluate=price)
    assert [p.gpus for p in table.points] == gpus
    for point in table.points:
        assert (point.iteration_s is None) == bool(point.reason)
        if not point.reason:
            assert point.tp * point.pp * point.dp * point.cp == point.gpus


def test_points_without_a_valid_layout_are_kept_with_the_reason() -> None:
    table = scaling_study(request(layout={"dp": 2}), [3, 8, 32], "tp", "strong", evaluate=price)
    assert [p.reason for p in table.points] == [
        "3 GPUs are not a multiple of dp 2 = 2",
        "",
        "heads 24 do not divide by tp 16",
    ]
    assert table.definition.startswith("model FLOP/s per GPU relative to 8 GPUs")


def test_work_that_cannot_be_shared_equally_is_a_reason() -> None:
    table = scaling_study(request(batch={"global": 3, "seq": 1024}), [2, 3], "dp", "weak", evaluate=price)
    assert table.points[1].reason == "equal work per GPU would need a global batch of 4.5 sequences"


def test_the_result_does_not_depend_on_the_workers() -> None:
    def slowly(run: Mapping[str, Any], **_options: object) -> Priced | Refused:
        time.sleep(random.random() * 0.01)  # noqa: S311  # order of finishing, not secrecy
        return price(run)

    counts = list(range(1, 33))
    alone = scaling_study(request(), counts, "dp", evaluate=price)
    with ThreadPoolExecutor(5) as executor:
        together = scaling_study(request(), counts, "dp", executor=executor, evaluate=slowly)
    assert together == alone
    assert scaling_csv(together) == scaling_csv(alone)


def test_measured_times_become_efficiencies_relative_to_their_own_first_point() -> None:
    measured = [MeasuredPoint(4, 0.030, None, None, ""), MeasuredPoint(1, 0.100, None, None, "")]
    table = scaling_study(request(), [1, 2, 4], "dp", "strong", measured=measured, evaluate=price)
    assert [(m.gpus, m.efficiency) for m in table.measured] == [(1, 1.0), (4, pytest.approx(0.100 / 0.030 / 4))]


def test_measured_efficiencies_are_taken_as_they_are_and_compared_in_points() -> None:
    measured = [MeasuredPoint(2, None, None, 0.90, "x"), MeasuredPoint(1024, None, None, 0.5, "not in the study")]
    table = scaling_study(request(), [1, 2], "dp", measured=measured, evaluate=price)
    assert [m.gpus for m in table.measured] == [2]
    assert scaling_records(table)[1]["efficiency_difference"] == pytest.approx(0.08)


def test_measured_points_that_are_all_elsewhere_are_warned_about() -> None:
    table = scaling_study(request(), [1, 2], measured=[MeasuredPoint(64, 1.0, None, None, "")], evaluate=price)
    assert table.measured == ()
    assert table.warnings == ("a warning", "none of the measured points is at a GPU count of this study")


def test_several_problems_of_a_study_are_listed_together() -> None:
    with pytest.raises(InputError) as caught:
        scaling_study(request(), [4, 2], "vpp", "sideways", models=["small"], baseline_flops=-1.0, evaluate=price)  # type: ignore[arg-type]
    assert [problem.where for problem in caught.value.problems] == ["gpus", "grow", "mode", "model", "baseline"]


@pytest.mark.parametrize(("grow", "mode"), [("dp", "weak"), ("tp", "strong")])
def test_several_models_make_sense_only_where_the_model_grows(grow: Any, mode: Any) -> None:
    with pytest.raises(InputError, match="several models"):
        scaling_study(request(), [1, 2], grow, mode, models=["small", "medium"], evaluate=price)


def test_csv_and_frame_have_a_row_for_each_point_and_the_same_columns() -> None:
    table = scaling_study(request(layout={"dp": 2}), [3, 8], "tp", "strong", evaluate=price)
    lines = scaling_csv(table).splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert len(lines) == 3
    assert lines[1].startswith("3,small,,,")
    frame = scaling_frame(table)
    assert list(frame.columns) == list(COLUMNS)
    assert frame["tflops_per_gpu"].iloc[1] == pytest.approx(96.0)


def test_json_names_the_definition_of_efficiency() -> None:
    import json

    record = json.loads(scaling_json(scaling_study(request(), [1, 2], "dp", evaluate=price)))
    assert record["schema"] == "shardsim.scaling/1"
    assert record["efficiency"] == "model FLOP/s per GPU relative to 1 GPU (100 TFLOP/s)"
    assert record["reference_tflops"] == 100.0
    assert [p["fits"] for p in record["points"]] == [True, True]
    assert record["warnings"] == ["a warning"]
