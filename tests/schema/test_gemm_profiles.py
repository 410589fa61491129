"""Profiles of matrix products: what a file must hold, every problem at once, and a grid that is no look-up table."""

from __future__ import annotations

import pytest
import yaml

from shardsim.errors import InputError
from shardsim.schema.catalog import find
from shardsim.schema.kernels import load_kernel_profile


@pytest.fixture
def content():
    return yaml.safe_load(find("gemm-profile", "v100-sxm").read_text(encoding="utf-8"))


def load(content, folder):
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return load_kernel_profile("v100-sxm", changes={"kernels.gemm": str(path)})


def residual(m, planes):
    grid = {"m": m, "n": [256, 1024], "k": [256, 512], "log_ratio": planes}
    return {"value": grid, "basis": "fitted", "source": "measured by ourselves"}


def test_a_residual_grid_is_read_as_logarithms_of_its_shape(content, tmp_path):
    content["fp16"]["residual"] = residual([1, 64], [[[0.1, 0.2], [0.3, 0.4]]] * 2)
    own = load(content, tmp_path).gemm["fp16"].residual
    assert own is not None
    assert (own.log2_m, own.log2_n, own.log2_k) == ((0.0, 6.0), (8.0, 10.0), (8.0, 9.0))
    assert own.log_ratio[0] == ((0.1, 0.2), (0.3, 0.4))


def test_everything_wrong_with_a_grid_and_missing_tiles_is_told_at_once(content, tmp_path):
    content["fp16"]["residual"] = residual(list(range(51, 0, -1)), [[[0.1, 0.2]]] * 51)
    del content["fp16"]["tile"]["efficiency"]["64x128"]
    with pytest.raises(InputError) as caught:
        load(content, tmp_path)
    text = "\n".join(str(problem) for problem in caught.value.problems)
    for said in ("'64x128' is missing", "not 51 x 2 x 2 numbers", "m does not rise", "204 numbers correct"):
        assert said in text


def test_alignment_shares_are_read_best_alignment_first(content, tmp_path):
    shares = load(content, tmp_path).gemm["fp16"].alignment
    assert [share.least for share in shares] == [64, 16, 1]
    assert shares[-1].worst == pytest.approx(0.347)


def test_devices_that_were_not_measured_take_an_assumed_profile():
    assert "h800-sxm" not in load_kernel_profile("h100-sxm").measured_on["gemm"]
