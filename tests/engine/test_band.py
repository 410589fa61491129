"""The error band of a prediction: that of the validated runs most like it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardsim.engine.band import error_band
from shardsim.engine.predict import predict
from shardsim.errors import InputError
from shardsim.program.resolve import resolve
from shardsim.schema.bands import FILE, load_bands
from shardsim.schema.run import nested, request_from_mapping
from shardsim.values.bands import ValidatedGroup

RANGES = {"gpus": (8, 64), "seq": (2048, 8192), "micro_batch": (1, 4), "hidden": (4096, 8192), "tp": (1, 8)}


def _group(**keys: object) -> ValidatedGroup:
    own = {"framework": "", "generation": "", "kind": "", "rows": 20, "models": 3, "sources": 2, "low": 0.9}
    own |= {"high": 1.2, "median": 0.05, "p90": 0.15, "ranges": RANGES, "precisions": ("bf16",)}
    return ValidatedGroup(**{**own, **keys})


EXACT = _group(framework="megatron-core", generation="h100-sxm", kind="dense")
DEVICE = _group(generation="h100-sxm", kind="dense", low=0.8)
DENSE = _group(kind="dense", low=0.7)
ALL = _group(low=0.6)


def _run(**changes: object):
    keys = {"model": "llama-2-7b", "cluster": "dgx-h100", "framework": "megatron-core", "gpus": 8, "micro_batch": 1}
    keys |= {"global_batch": 8, "seq": 4096}
    return resolve(request_from_mapping(nested(keys | changes)))


def _band(groups: tuple[ValidatedGroup, ...], **changes: object):
    return error_band(replace(_run(**changes), validated=groups), 10.0)


def test_the_runs_most_alike_give_the_band() -> None:
    band = _band((EXACT, DEVICE, DENSE, ALL))
    assert (band.low_s, band.high_s) == (9.0, 12.0)
    assert band.group is EXACT
    assert band.extrapolates == ()


def test_runs_less_alike_are_taken_where_there_are_no_others_and_it_is_said() -> None:
    band = _band((EXACT, DEVICE, DENSE, ALL), framework="fsdp")
    assert band.group is DEVICE
    assert "fewer than ten validated runs on h100-sxm under fsdp: the widest band of all is taken" in band.extrapolates
    assert (band.low_s, band.high_s) == (6.0, 12.0)
    band = _band((EXACT, DEVICE, DENSE, ALL), cluster="dgx-b200")
    assert band.group is DENSE
    assert any("validated runs of this kind on b200-sxm: the widest" in one for one in band.extrapolates)
    assert (band.low_s, band.high_s) == (6.0, 12.0)
    assert _band(()) is None


def test_what_lies_beyond_the_validated_runs_is_named() -> None:
    band = _band((EXACT,), gpus=1024, global_batch=1024, precision="fp8")
    said = " ".join(band.extrapolates)
    assert "GPUs 1,024: validated runs like it have 8 to 64" in said
    assert "fp8-delayed: validated runs like it are in bf16" in said
    assert "tokens a sequence" not in said


def test_conditions_and_changed_figures_were_in_no_validated_run() -> None:
    assert any("figures of the machine" in one for one in _band((EXACT,), set={"device.power": "500 W"}).extrapolates)
    assert any("constants of the stack" in one for one in _band((EXACT,), set={"stack.products": 1.5}).extrapolates)
    assert any("conditions are set" in one for one in _band((EXACT,), conditions={"slow_nodes": {0: 1.2}}).extrapolates)


def test_shipped_bands_are_wide_enough_for_runs_that_come_out_as_predicted_and_read_once() -> None:
    groups = load_bands()
    assert groups
    assert groups[-1].keys == 0
    assert all(group.low <= 1.0 <= group.high and group.rows >= 10 for group in groups)
    assert [group.keys for group in groups] == sorted((group.keys for group in groups), reverse=True)
    assert load_bands() is groups


def test_a_prediction_carries_its_band() -> None:
    prediction = predict(_run(), engine="listing")
    assert prediction.band is not None
    assert prediction.band.low_s <= prediction.iteration_s <= prediction.band.high_s


def test_a_users_own_bands_take_the_place_of_the_shipped_ones_and_are_checked(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.parent.mkdir(parents=True)
    path.write_text("source: ours\ngroups: []\n", encoding="utf-8")
    assert load_bands([tmp_path]) == ()
    path.write_text("source: ours\ngroups: [{rows: 3, low: -1}]\n", encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_bands([tmp_path])
    assert "low" in str(caught.value)
    assert "models" in str(caught.value)
