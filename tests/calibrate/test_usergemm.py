"""``shardsim calibrate gemm``: a user's own table of matrix products into a GEMM profile."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from shardsim.calibrate import usergemm
from shardsim.calibrate.usergemm import (
    FEW,
    FEWEST,
    GemmSamples,
    burst_seconds,
    error_of,
    fit_user_gemms,
    flat,
    rows_of,
    usable,
)
from shardsim.calibrate.usergemmfile import user_gemm_yaml
from shardsim.cli.main import main
from shardsim.errors import InputError
from shardsim.schema.hardware import load_device
from shardsim.schema.kernels import DATA_TYPES, load_kernel_profile
from shardsim.schema.sections import section_name
from shardsim.schema.validation import measured_names
from shardsim.validate.gemmtable import SHAPE, read_gemms

DEVICE = load_device("h100-sxm-80gb")
KERNELS = load_kernel_profile(DEVICE.compute_profile)
BASE = KERNELS.gemm["bf16"]
ONES = np.ones


def products(count: int, seed: int = 0) -> GemmSamples:
    """Random products of training, without times."""
    rng = np.random.default_rng(seed)
    m, n, k = (rng.choice([1024, 1536, 2048, 4096, 6144, 8192, 12288], count).astype(float) for _ in range(3))
    m += 64.0 * np.arange(count)  # no two alike
    return GemmSamples(m, n, k, ONES(count), np.full(count, "tn"), ONES(count))


def slow(samples: GemmSamples, factor: float = 1.2, noise: float = 0.02, seed: int = 1) -> GemmSamples:
    """Times of a cluster that is so many times slower than the shipped profile."""
    rng = np.random.default_rng(seed)
    times = burst_seconds(samples, BASE, DEVICE, KERNELS, "bf16") * factor
    return replace(samples, seconds=times * np.exp(noise * rng.standard_normal(len(samples))))


def fitted(samples: GemmSamples) -> usergemm.UserGemmFit:
    (found,), refused = fit_user_gemms({"bf16": samples}, DEVICE, KERNELS)
    assert not refused
    return found


@pytest.mark.parametrize("count", [FEWEST, FEW, 60])
def test_a_slower_cluster_is_found_from_few_products_and_shapes_not_measured_follow(count: int) -> None:
    found = fitted(slow(products(count)))
    others = slow(products(300, seed=7), noise=0.0)
    error = error_of(burst_seconds(others, found.constants, DEVICE, KERNELS, "bf16"), others.seconds)
    assert abs(error.bias) < 0.025
    assert error.p90 < 0.06
    assert error_of(found.before, found.samples.seconds).bias == pytest.approx(1 / 1.2 - 1, abs=0.03)


def test_few_products_fit_the_speed_alone_and_the_fit_says_so() -> None:
    found = fitted(slow(products(FEW - 1), noise=0.0))
    ratio = found.changed[0].fitted / found.changed[0].shipped
    assert ratio == pytest.approx(1.2, rel=0.02)
    efficiencies = [one.shipped / one.fitted for one in found.changed if "efficiency.1" in one.name]
    assert efficiencies == pytest.approx([ratio] * len(efficiencies), rel=1e-9)
    assert any("the speed alone is fitted" in note for note in found.notes)
    assert not any("the speed alone" in note for note in fitted(slow(products(FEW))).notes)


def test_constants_that_rows_do_not_determine_stay_as_shipped() -> None:
    found = fitted(slow(products(40), factor=1.0, noise=0.0))
    shipped, own = flat(BASE), flat(found.constants)
    assert own == pytest.approx(shipped, rel=0.02)
    assert error_of(found.after, found.samples.seconds).p90 < 0.005


def test_a_tenth_of_wild_rows_does_not_move_the_fit() -> None:
    clean = slow(products(60))
    times = clean.seconds.copy()
    times[::10] *= 5.0
    found = fitted(replace(clean, seconds=times))
    assert abs(error_of(found.after, clean.seconds).bias) < 0.03
    assert any("6 products are off by over 50%" in note for note in found.notes)


def test_products_held_out_are_of_pairs_that_the_fit_had_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = slow(products(30))
    seen: list[set[tuple[float, float]]] = []
    original = usergemm._fit

    def spy(rows: GemmSamples, *rest: object) -> object:
        seen.append(set(zip(rows.n.tolist(), rows.k.tolist(), strict=True)))
        return original(rows, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(usergemm, "_fit", spy)
    found = fitted(samples)
    everything, *folds = seen
    assert len(folds) == usergemm.FOLDS
    assert all(fold < everything for fold in folds)
    assert np.isfinite(found.held_out).all()
    assert set.intersection(*folds) == set()


def test_repeats_count_once_with_their_median() -> None:
    one = products(5)
    rows = np.array([0, 1, 2, 3, 4, 0, 0], dtype=np.int64)
    table = replace(one.where(rows), seconds=np.array([1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 2.0]))
    samples, left = usable(table, 1e15)
    assert samples.seconds.tolist() == [2.0, 1.0, 1.0, 1.0, 1.0]
    assert sum(left.values()) == 2


def test_what_is_faster_than_the_device_can_be_is_left_aside() -> None:
    peak = DEVICE.peak_flops["bf16"]
    one = products(6)
    times = one.flop / peak * np.array([2.0, 2.0, 2.0, 2.0, 0.95, 0.5])
    samples, left = usable(replace(one, seconds=times), peak)
    assert len(samples) == 5
    assert [rows for reason, rows in left.items() if "dense peak" in reason] == [1]


def test_too_few_products_are_refused_with_the_number_that_it_takes() -> None:
    with pytest.raises(InputError, match="4 different products of bf16, and a fit needs 5"):
        fit_user_gemms({"bf16": slow(products(4))}, DEVICE, KERNELS)


def test_a_data_type_without_enough_rows_does_not_stop_the_others() -> None:
    fits, refused = fit_user_gemms({"bf16": slow(products(8)), "fp16": slow(products(2))}, DEVICE, KERNELS)
    assert [fit.dtype for fit in fits] == ["bf16"]
    assert list(refused) == ["fp16"]


def test_other_layouts_get_a_factor_of_their_own() -> None:
    forward, other = slow(products(40), factor=1.0, noise=0.0), products(12, seed=3)
    weights = replace(other, layout=np.full(12, "nt"))
    bare = replace(BASE, layout_time={})
    times = BASE.overhead + 1.3 * (burst_seconds(weights, bare, DEVICE, KERNELS, "bf16") - BASE.overhead)
    both = GemmSamples(
        *(
            np.concatenate([getattr(forward, name), getattr(replace(weights, seconds=times), name)])
            for name in GemmSamples.__slots__
        )
    )
    assert fitted(both).constants.layout_time["nt"] == pytest.approx(1.3, rel=0.02)


def test_long_products_give_the_sustained_share_and_short_ones_only_its_change() -> None:
    short = fitted(slow(products(20), noise=0.0))
    assert short.provenance["sustained"].basis == "assumed"
    assert short.constants.sustained == pytest.approx(BASE.sustained / 1.2, rel=0.03)
    big = GemmSamples(
        *(np.full(5, 32768.0) + 128 * np.arange(5), *(np.full(5, 16384.0),) * 2), ONES(5), np.full(5, "tn"), ONES(5)
    )
    rate = 0.6 * DEVICE.peak_flops["bf16"]
    long = fitted(replace(big, seconds=big.flop / rate))
    assert long.constants.sustained == pytest.approx(0.6)
    assert long.provenance["sustained"].basis == "measured"


def test_a_large_table_fits_a_residual_grid_anew() -> None:
    rng = np.random.default_rng(5)
    count = 600
    m, n, k = (rng.choice([64, 256, 1024, 2048, 4096, 8192, 16384], count).astype(float) for _ in range(3))
    one = GemmSamples(m + np.arange(count), n, k, ONES(count), np.full(count, "tn"), ONES(count))
    times = burst_seconds(one, replace(BASE, residual=None), DEVICE, KERNELS, "bf16")
    found = fitted(replace(one, seconds=times * np.where(n >= 4096, 1.15, 1.0)))
    assert found.grid == "fitted anew"
    assert error_of(found.after, found.samples.seconds).median < 0.03
    assert found.constants.residual is not BASE.residual
    assert error_of(found.held_out, found.samples.seconds).median < 0.05


# The file.


def written(tmp_path: Path, samples: GemmSamples, device: str = "h100-sxm-80gb") -> tuple[Path, usergemm.UserGemmFit]:
    machine = load_device(device)
    kernels = load_kernel_profile(machine.compute_profile)
    (found,), _ = fit_user_gemms({"bf16": samples}, machine, kernels)
    path = tmp_path / "own.yaml"
    base = section_name(machine.compute_profile, "gemm")
    path.write_text(user_gemm_yaml((found,), machine, kernels, base, "mine.csv"))
    return path, found


def test_the_written_profile_predicts_what_was_fitted_and_leaves_the_rest(tmp_path: Path) -> None:
    path, found = written(tmp_path, slow(products(20)))
    read = load_kernel_profile(DEVICE.compute_profile, changes={"kernels.gemm": str(path)})
    times = burst_seconds(found.samples, read.gemm["bf16"], DEVICE, read, "bf16")
    assert times == pytest.approx(found.after, rel=2e-3)
    assert read.gemm["fp16"] == KERNELS.gemm["fp16"]
    assert read.gemm["bf16"].alignment == BASE.alignment
    note = read.provenance["gemm.bf16.tile.fill"]
    assert (note.basis, note.points) == ("fitted", 20)
    assert note.source == "mine.csv: 20 products measured on h100-sxm-80gb"
    assert read.provenance["gemm.bf16.grouped.slowdown"] == KERNELS.provenance["gemm.bf16.grouped.slowdown"]
    assert read.provenance["gemm.bf16.sustained"].basis == "assumed"
    if BASE.residual is not None:
        assert read.provenance["gemm.bf16.residual"] == KERNELS.provenance["gemm.bf16.residual"]


def test_constants_that_were_not_fitted_keep_their_origin_and_a_speed_alone_is_called_that(tmp_path: Path) -> None:
    path, _ = written(tmp_path, slow(products(FEW - 1)))
    read = load_kernel_profile(DEVICE.compute_profile, changes={"kernels.gemm": str(path)})
    for name in ("wave_quantization", "burst_decay", "sharpness"):
        key = f"gemm.bf16.tile.{name}"
        assert read.provenance[key] == KERNELS.provenance[key]
    for name in ("overhead", "memory_efficiency", "tile.burst_cap", "tile.efficiency.64x64"):
        note = read.provenance[f"gemm.bf16.{name}"]
        assert (note.basis, note.points) == ("fitted", FEW - 1)
        assert "the speed alone was fitted" in note.source


def test_constants_of_another_data_type_are_assumed_where_the_fit_leaves_them(tmp_path: Path) -> None:
    kernels = replace(KERNELS, gemm={"bf16": BASE})
    (found,), _ = fit_user_gemms({"fp16": slow(products(FEW - 1))}, DEVICE, kernels)
    path = tmp_path / "own.yaml"
    path.write_text(user_gemm_yaml((found,), DEVICE, kernels, section_name(DEVICE.compute_profile, "gemm"), "mine.csv"))
    read = load_kernel_profile(DEVICE.compute_profile, changes={"kernels.gemm": str(path)})
    assert read.provenance["gemm.fp16.overhead"].basis == "fitted"
    note = read.provenance["gemm.fp16.residual"]
    assert note.basis == "assumed"
    assert note.source.startswith("fitted of bf16: ")


def test_on_a_device_that_was_never_measured_the_other_data_types_stay_assumed(tmp_path: Path) -> None:
    machine = load_device("gh200")
    kernels = load_kernel_profile(machine.compute_profile)
    assert machine.name not in kernels.measured_on["gemm"]
    path, _ = written(tmp_path, slow(products(12)), "gh200")
    read = load_kernel_profile(machine.compute_profile, changes={"kernels.gemm": str(path)})
    assert read.measured_on["gemm"] == ("gh200",)
    assert read.provenance["gemm.bf16.overhead"].basis == "fitted"
    assert read.provenance["gemm.bf16.residual"].basis == "assumed"
    for key, note in read.provenance.items():
        if key.startswith("gemm.fp16."):
            assert note.basis == "assumed", key
    assert read.gemm["fp16"].tile is not None


# The command.


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["calibrate", "gemm", *map(str, arguments)])


def csv_of(path: Path, samples: GemmSamples, gpu: str = "H100", dtype: str = "bf16") -> Path:
    rows = zip(*(getattr(samples, name).tolist() for name in ("m", "n", "k", "seconds")), strict=True)
    lines = [f"{gpu},{dtype},{m:.0f},{n:.0f},{k:.0f},{1e6 * seconds:.3f}" for m, n, k, seconds in rows]
    path.write_text("\n".join(["gpu,dtype,m,n,k,time_us", *lines]) + "\n")
    return path


def test_the_command_fits_writes_and_draws_and_simulate_takes_the_profile(tmp_path: Path) -> None:
    table = csv_of(tmp_path / "gemms.csv", slow(products(20), factor=1.5))
    profile, plot = tmp_path / "own-gemm.yaml", tmp_path / "own.png"
    result = run(table, "--device", "h100-sxm-80gb", "--fit", profile, "--plot", plot)
    assert result.exit_code == 0, result.stderr
    assert max(map(len, result.stdout.replace(str(tmp_path), "").splitlines())) <= 100
    assert "bf16: 20 products on h100-sxm-80gb" in result.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    asked = ["simulate", "--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "8", "--tp", "8", "--json"]
    asked += ["--global-batch", "8", "--seq", "4096", "--engine", "listing"]
    times = []
    for more in ([], ["--set", f"kernels.gemm={profile}"]):
        told = CliRunner().invoke(main, [*asked, *more])
        assert told.exit_code == 0, told.stderr
        times.append(json.loads(told.stdout)["iteration_s"])
    assert times[1] > 1.1 * times[0]
    checked = CliRunner().invoke(main, ["validate", "gemms", str(table), "--set", f"kernels.gemm={profile}", "--json"])
    assert json.loads(checked.stdout)["summary"]["median_abs_error"] < 0.03


def test_json_has_every_product(tmp_path: Path) -> None:
    record = json.loads(
        run(csv_of(tmp_path / "t.csv", slow(products(7))), "--device", "h100-sxm-80gb", "--json").stdout
    )
    assert record["schema"] == "shardsim.gemm-fit/1"
    (fit,) = record["fits"]
    assert (fit["products"], len(fit["residuals"])) == (7, 7)
    assert {one["name"] for one in fit["constants"]} == {*flat(BASE), "sustained"}


def test_a_table_without_gpu_and_data_type_is_told_them(tmp_path: Path) -> None:
    full = csv_of(tmp_path / "t.csv", slow(products(7))).read_text().splitlines()
    bare = tmp_path / "bare.csv"
    bare.write_text("\n".join(line.split(",", 2)[2] for line in full) + "\n")
    result = run(bare, "--device", "h100-sxm-80gb")
    assert result.exit_code == 2
    assert "without a data type: give it with --dtype" in result.stderr
    assert run(bare, "--device", "h100-sxm-80gb", "--dtype", "bfloat16").exit_code == 0


def test_rows_of_other_gpus_and_data_types_are_left_aside_and_counted(tmp_path: Path) -> None:
    own = csv_of(tmp_path / "t.csv", slow(products(7))).read_text()
    mixed = tmp_path / "mixed.csv"
    mixed.write_text(own + "A100,bf16,64,64,64,5\nH100,fp16,64,64,64,5\n")
    result = run(mixed, "--device", "h100-sxm-80gb", "--dtype", "bf16")
    assert result.exit_code == 0, result.stderr
    assert "1  of another GPU: A100" in result.stdout
    assert "1  of another data type: fp16" in result.stdout
    named = tmp_path / "named.csv"
    named.write_text(own.replace("H100", "our card"))
    said = run(named, "--device", "h100-sxm-80gb").stdout
    assert "the table says 'our card'; taken as measured on h100-sxm-80gb" in said


def test_a_table_of_another_device_of_the_catalog_is_refused(tmp_path: Path) -> None:
    table = csv_of(tmp_path / "t.csv", slow(products(7)), gpu="NVIDIA H200")
    result = run(table, "--device", "h100-sxm-80gb")
    assert result.exit_code == 2
    assert "7 rows of another GPU: NVIDIA H200" in result.stderr
    assert "measure more shapes" not in result.stderr


def test_a_device_of_ones_own_may_bear_the_name_of_its_gpu(tmp_path: Path) -> None:
    table = read_gemms(csv_of(tmp_path / "t.csv", slow(products(7))), SHAPE)
    found = rows_of(table, "my-h100", None, DATA_TYPES, measured_names())
    assert found.notes == ("the table says 'H100'; taken as measured on my-h100",)


def test_a_name_that_leaves_the_memory_open_is_either_device(tmp_path: Path) -> None:
    table = read_gemms(csv_of(tmp_path / "t.csv", slow(products(7)), gpu="A100"), SHAPE)
    assert len(rows_of(table, "a100-sxm-40gb", None, DATA_TYPES, measured_names()).tables["bf16"]) == 7


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "h100-sxm-8gb"], "did you mean h100-sxm-80gb"),
        (["--device", "h100-sxm-80gb", "--fit", "own.txt"], "does not end in .yaml"),
        (["--device", "h100-sxm-80gb", "--plot", "own.gif"], ".png or .svg"),
        (["--device", "h100-sxm-80gb", "--fit", "/nowhere/own.yaml"], "does not exist"),
        ([], "--device"),
    ],
)
def test_bad_input_is_one_clear_message_and_status_2(tmp_path: Path, arguments: list[str], said: str) -> None:
    table = csv_of(tmp_path / "t.csv", slow(products(7)))
    result = run(table, *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == [table]


def test_times_in_the_wrong_unit_are_noticed(tmp_path: Path) -> None:
    text = csv_of(tmp_path / "t.csv", slow(products(7))).read_text()
    wrong = tmp_path / "wrong.csv"
    wrong.write_text(text.replace("time_us", "time_ns"))
    result = run(wrong, "--device", "h100-sxm-80gb")
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "7 of 7 rows faster than 1.1 times the dense peak (is the device right, the unit of the times" in said
    assert "measure more shapes" not in said
    table = csv_of(tmp_path / "long.csv", slow(products(20), factor=1000.0))
    profile = tmp_path / "own.yaml"
    result = run(table, "--device", "h100-sxm-80gb", "--fit", profile)
    assert result.exit_code == 2
    assert "the unit of the times" in result.stderr
    assert not profile.exists()


@pytest.mark.parametrize("count", [FEW - 1, 30])
def test_a_speed_that_no_device_differs_by_is_refused(count: int) -> None:
    with pytest.raises(InputError, match="times as long as h100-sxm says, and no fit reaches them"):
        fit_user_gemms({"bf16": slow(products(count), factor=12.0)}, DEVICE, KERNELS)


def test_a_table_most_of_whose_rows_are_disturbed_is_refused() -> None:
    clean = slow(products(10), noise=0.0)
    wild = replace(clean, seconds=clean.seconds * 3.0 ** (np.arange(10) % 4))
    with pytest.raises(InputError, match="no fit reaches them"):
        fit_user_gemms({"bf16": wild}, DEVICE, KERNELS)


def test_a_speed_of_over_twice_the_shipped_one_is_noted() -> None:
    assert any("times as long as shipped" in note for note in fitted(slow(products(20), factor=3.0)).notes)
    assert not any("times as long as shipped" in note for note in fitted(slow(products(20), factor=1.7)).notes)


@pytest.mark.parametrize(("fast", "refused"), [(3, False), (4, True)])
def test_more_than_a_third_of_impossible_rows_make_the_others_doubtful(fast: int, refused: bool) -> None:
    clean = slow(products(10))
    times = clean.seconds.copy()
    times[:fast] /= 100.0
    table = {"bf16": replace(clean, seconds=times)}
    if not refused:
        assert len(fit_user_gemms(table, DEVICE, KERNELS)[0][0].samples) == 7
        return
    with pytest.raises(InputError, match="4 of 10 rows faster") as raised:
        fit_user_gemms(table, DEVICE, KERNELS)
    assert "measure more shapes" not in str(raised.value)


def test_only_too_few_rows_ask_for_more_shapes() -> None:
    with pytest.raises(InputError, match="measure more shapes"):
        fit_user_gemms({"bf16": slow(products(4))}, DEVICE, KERNELS)
    with pytest.raises(InputError, match="has no peak for fp4") as raised:
        fit_user_gemms({"fp4": slow(products(9))}, DEVICE, KERNELS)
    assert "measure more shapes" not in str(raised.value)


def test_a_sustained_share_above_the_peak_is_taken_as_the_peak_and_said() -> None:
    big = GemmSamples(
        *(np.full(5, 32768.0) + 128 * np.arange(5), *(np.full(5, 16384.0),) * 2), ONES(5), np.full(5, "tn"), ONES(5)
    )
    found = fitted(replace(big, seconds=big.flop / (1.05 * DEVICE.peak_flops["bf16"])))
    assert found.constants.sustained == 1.0
    assert any("comes to 1.05 of the dense peak: taken as 1" in note for note in found.notes)


def test_a_data_type_that_profiles_lack_is_refused_with_those_they_have() -> None:
    with pytest.raises(InputError, match=r"profiles have no 'tf32'.*fp16, bf16, fp8, fp8_block, fp4"):
        fit_user_gemms({"tf32": slow(products(20))}, DEVICE, KERNELS)
    fits, refused = fit_user_gemms({"tf32": slow(products(20)), "bf16": slow(products(8))}, DEVICE, KERNELS)
    assert [fit.dtype for fit in fits] == ["bf16"]
    assert "fp8_block" in refused["tf32"]


def test_a_table_of_one_other_layout_says_that_all_get_its_speed() -> None:
    samples = slow(products(20))
    other = replace(samples, layout=np.full(20, "nn"))
    assert any("no products of layout tn" in note for note in fitted(other).notes)
    assert not any("layout tn" in note for note in fitted(samples).notes)
