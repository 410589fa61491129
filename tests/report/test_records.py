"""The JSON of a prediction: stable keys, finite numbers, the same bytes each time."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shardsim.errors import ShardsimError
from shardsim.report.records import prediction_record, record_json
from shardsim.values.results import Prediction, WaterfallStep

PROMISED = {
    "iteration_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "hfu",
    "bubble_fraction",
    "exposed_s",
    "memory_gib",
    "fits",
    "engine",
    "events",
    "warnings",
}


def test_every_promised_key_is_there(prediction: Prediction) -> None:
    assert prediction_record(prediction).keys() >= PROMISED


def test_the_schema_changes_only_on_purpose(prediction: Prediction) -> None:
    """Adding a key extends this list; losing one or changing its meaning needs a new schema number."""
    record = prediction_record(prediction)
    assert list(record) == [
        "schema",
        "run",
        "engine",
        "events",
        "iteration_s",
        "error_band",
        "tokens_per_s",
        "tokens_per_s_per_gpu",
        "tflops_per_gpu",
        "mfu",
        "hfu",
        "peak_tflops",
        "peak_name",
        "model_flop",
        "hardware_flop",
        "bubble_fraction",
        "exposed_s",
        "waterfall",
        "stages",
        "memory_gib",
        "memory_peak_gib",
        "memory_capacity_gib",
        "memory_worst_stage",
        "fits",
        "costs",
        "warnings",
    ]
    assert record["schema"] == "shardsim.prediction/1"


def test_every_axis_is_named_even_when_nothing_is_exposed(prediction: Prediction) -> None:
    assert prediction_record(prediction)["exposed_s"] == {"tp": 0.23, "pp": 0.0, "dp": 0.05, "cp": 0.0, "ep": 0.0}


def test_memory_is_by_stage_and_item_in_gib(prediction: Prediction) -> None:
    record = prediction_record(prediction)
    assert record["memory_gib"]["0"] == {"weights": 20.0, "optimizer": 40.0, "activations": 12.5, "logits": 0.0}
    assert record["memory_gib"]["1"]["activations"] == 6.25
    assert record["memory_peak_gib"] == 72.5 == sum(record["memory_gib"]["0"].values())
    assert record["memory_worst_stage"] == 0
    assert record["fits"] is True


def test_rates_are_in_teraflops_and_the_peak_is_named(prediction: Prediction) -> None:
    record = prediction_record(prediction)
    assert record["peak_tflops"] == 312.0
    assert record["peak_name"] == "a100-sxm-80gb dense bf16"
    assert record["tflops_per_gpu"] == pytest.approx(record["mfu"] * 312.0, rel=1e-12)


def test_the_waterfall_sums_to_the_peak(prediction: Prediction) -> None:
    record = prediction_record(prediction)
    lost = sum(step["tflops_lost"] for step in record["waterfall"])
    assert lost + record["tflops_per_gpu"] == pytest.approx(record["peak_tflops"], rel=1e-12)


def test_the_run_is_described_with_what_was_derived(prediction: Prediction) -> None:
    run = prediction_record(prediction)["run"]
    assert run["gpus"] == 32
    assert run["layout"]["dp"] == 4
    assert run["batch"]["micro_batches"] == 8
    assert run["cluster"]["nvlink_gb_per_s"] == 300.0


def test_a_record_survives_json_unchanged_so_it_is_plain_data(prediction: Prediction) -> None:
    record = prediction_record(prediction)
    assert json.loads(record_json(record)) == record
    assert _types(record) <= {"dict", "list", "str", "int", "float", "bool", "NoneType"}


def test_numpy_numbers_become_plain_ones(prediction: Prediction) -> None:
    odd = replace(prediction, iteration_s=np.float64(2.0), mfu=np.float32(0.5))
    assert type(prediction_record(odd)["iteration_s"]) is float
    assert type(prediction_record(odd)["mfu"]) is float


def test_the_same_prediction_gives_the_same_bytes(prediction: Prediction) -> None:
    assert record_json(prediction_record(prediction)) == record_json(prediction_record(replace(prediction)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), np.float64("-inf")])
def test_a_figure_that_is_no_number_is_refused_by_name(prediction: Prediction, bad: float) -> None:
    with pytest.raises(ShardsimError, match=r"waterfall\[0\]\.seconds"):
        prediction_record(replace(prediction, waterfall=(WaterfallStep("x", bad, 1.0),)))


def _types(value: Any) -> set[str]:
    found = {type(value).__name__}
    if isinstance(value, dict):
        return found.union(*map(_types, value.values()), *map(_types, value))
    return found.union(*map(_types, value)) if isinstance(value, list) else found
