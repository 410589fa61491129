"""Measured tables against a made-up machine: the rows contract, whatever the engine says."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardsim.errors import InputError
from shardsim.report.validation import ROW_COLUMNS, rows_csv, validation_frame, validation_json
from shardsim.validate.evaluate import Priced, Refused
from shardsim.validate.rows import REQUIRED
from shardsim.validate.runs import shipped_runs, validate_runs

GOOD = {
    "gpu": "A100 80GB",
    "num_gpus": "16",
    "layers": "24",
    "hidden": "1024",
    "heads": "16",
    "vocab": "51200",
    "seq_len": "2048",
    "global_batch": "64",
    "micro_batch": "4",
    "iteration_time_s": "2.0",
}


def price(run: Mapping[str, Any], **_options: object) -> Priced | Refused:
    """A hundredth of a second a layer."""
    layers = run["model"]["layers"]
    if layers == 13:
        return Refused("13 layers")
    return Priced("m", "c", 1, 1, 1, 1, 1, 1, 1, layers / 100, 1.0, 1.0, 1.0, 0.5, fits=True, warnings=())


def table(folder: Path, rows: Sequence[Mapping[str, str]], extra: Sequence[str] = ()) -> Path:
    path = folder / "runs.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, [*REQUIRED, *extra])
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_every_input_row_has_one_row_in_order(tmp_path: Path) -> None:
    rows = [GOOD | {"id": "b"}, GOOD | {"id": "a", "gpu": "TPU v5"}, GOOD | {"id": "", "layers": "200"}]
    found = validate_runs(table(tmp_path, rows, ["id"]), evaluate=price)
    assert [(r.id, r.status) for r in found.rows] == [("b", "ok"), ("a", "skipped"), ("3", "ok")]
    assert [r.predicted for r in found.rows] == [0.24, None, 2.0]
    assert [r.error for r in found.rows] == [pytest.approx(-0.88), None, 0.0]


def test_without_an_id_column_rows_are_numbered_from_1(tmp_path: Path) -> None:
    found = validate_runs(table(tmp_path, [GOOD, GOOD]), evaluate=price)
    assert [r.id for r in found.rows] == ["1", "2"]


@settings(max_examples=25)
@given(errors=st.lists(st.floats(0.01, 100.0), min_size=1, max_size=12))
def test_rows_come_back_from_csv_as_they_went_in(tmp_path_factory: pytest.TempPathFactory, errors: list[float]) -> None:
    rows = [GOOD | {"iteration_time_s": repr(x), "layers": str(7 + i)} for i, x in enumerate(errors)]
    found = validate_runs(table(tmp_path_factory.mktemp("runs"), rows), evaluate=price)
    back = list(csv.DictReader(io.StringIO(rows_csv(found))))
    assert list(back[0]) == list(ROW_COLUMNS)
    assert len(back) == len(rows)
    for given_row, row in zip(found.rows, back, strict=True):
        assert row["id"] == given_row.id
        assert float(row["measured"]) == given_row.measured
        if row["status"] == "ok":
            assert float(row["predicted"]) == given_row.predicted
            assert float(row["error"]) == float(row["predicted"]) / float(row["measured"]) - 1
            assert row["reason"] == ""
        else:
            assert row["predicted"] == row["error"] == ""
            assert row["reason"]


def test_reasons_depend_on_the_inputs_only_not_on_the_measured_time(tmp_path: Path) -> None:
    changes: list[dict[str, str]] = [
        {"gpu": "TPU"},
        {"layers": "13"},
        {"dp": "3"},
        {"arch_class": "moe-mla"},
        {"framework": "MaxText"},
    ]
    reasons = []
    for seconds in ("0.001", "1000"):
        rows = [GOOD | change | {"iteration_time_s": seconds} for change in changes]
        found = validate_runs(table(tmp_path, rows, ["dp", "arch_class", "framework"]), evaluate=price)
        assert all(r.status == "skipped" for r in found.rows)
        reasons.append([r.reason for r in found.rows])
    assert reasons[0] == reasons[1]
    assert reasons[0] == [
        "no cluster of the catalog has the GPU 'TPU'",
        "13 layers",
        "tp x pp x cp x dp = 3 is not 16 GPUs",
        "latent attention without its widths (MLA q_lora N kv_lora N in the notes)",
        "no framework profile is of JAX and its compiler",
    ]


def test_empty_cells_are_a_reason_not_an_error(tmp_path: Path) -> None:
    rows = [GOOD | {"hidden": "", "vocab": ""}, GOOD | {"iteration_time_s": ""}]
    found = validate_runs(table(tmp_path, rows), evaluate=price)
    assert [r.reason for r in found.rows] == ["not stated: hidden, vocab", "no measured iteration time"]
    assert found.rows[1].measured is None


def test_skipped_rows_are_counted_by_reason(tmp_path: Path) -> None:
    rows = [GOOD, GOOD | {"layers": "13"}, GOOD | {"gpu": "TPU"}, GOOD | {"layers": "13"}]
    found = validate_runs(table(tmp_path, rows), evaluate=price)
    assert found.skipped == (("13 layers", 2), ("no cluster of the catalog has the GPU 'TPU'", 1))
    assert (found.overall.rows, found.overall.predicted) == (4, 1)


def test_equal_configurations_are_predicted_once(tmp_path: Path) -> None:
    seen: list[int] = []

    def counting(run: Mapping[str, Any], **_options: object) -> Priced | Refused:
        seen.append(run["model"]["layers"])
        return price(run)

    rows = [GOOD | {"iteration_time_s": "1"}, GOOD | {"iteration_time_s": "2"}, GOOD | {"layers": "25"}]
    progress: list[tuple[float, float]] = []
    validate_runs(table(tmp_path, rows), evaluate=counting, progress=lambda done, total: progress.append((done, total)))
    assert seen == [24, 25]
    assert progress == [(1, 2), (2, 2)]


def test_the_result_does_not_depend_on_the_workers(tmp_path: Path) -> None:
    path = table(tmp_path, [GOOD | {"layers": str(n)} for n in range(2, 40)])
    alone = validate_runs(path, evaluate=price)
    with ThreadPoolExecutor(2) as executor:
        assert validate_runs(path, executor=executor, evaluate=price) == alone


@pytest.mark.parametrize("bad", [{"layers": "many"}, {"hidden": "-4"}, {"num_gpus": "1.5"}, {"iteration_time_s": "0"}])
def test_cells_that_are_no_numbers_are_refused_with_line_and_column(tmp_path: Path, bad: dict[str, str]) -> None:
    with pytest.raises(InputError) as caught:
        validate_runs(table(tmp_path, [GOOD, GOOD | bad]), evaluate=price)
    [problem] = caught.value.problems
    assert problem.where.endswith(f"runs.csv:3: {next(iter(bad))}")


def test_all_bad_cells_are_listed_and_a_flood_is_counted(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        validate_runs(table(tmp_path, [GOOD | {"layers": "x", "heads": "y"}] * 40), evaluate=price)
    assert len(caught.value.problems) == 51
    assert str(caught.value.problems[-1]) == "and 30 more problems"


def test_missing_columns_are_all_named_with_near_names(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("gpu,gpus,layer,hidden,heads,vocab,seq_len,global_batch,micro_batch\nx,1,1,1,1,1,1,1,1\n")
    with pytest.raises(InputError) as caught:
        validate_runs(path, evaluate=price)
    text = str(caught.value)
    assert "'num_gpus' is missing" in text
    assert "'layers' is missing (did you mean layer?)" in text
    assert "'iteration_time_s' is missing" in text


def _header() -> bytes:
    return ",".join(REQUIRED).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n\n", "is empty"),
        (_header(), "a header but no rows"),
        (_header() + b"\nA100,1,2", "is the file cut off?"),
        (_header() + b"\n" + b'"A100', "is the file cut off?"),
        (b"\xff\xfe" + b"\x00\xd8" * 2, "is neither UTF-8 nor UTF-16 text"),
        (_header() + b"\n\0", "NUL"),
        (_header() + b",gpu\n" + b"1," * 10 + b"1\n", "'gpu' is there twice"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        validate_runs(path, evaluate=price)
    assert message in str(caught.value)


def test_a_directory_or_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory"):
        validate_runs(tmp_path, evaluate=price)
    with pytest.raises(InputError, match="no such file"):
        validate_runs(tmp_path / "none.csv", evaluate=price)


def test_a_byte_order_mark_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    path = table(tmp_path, [GOOD])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b"\r\n\r\n")
    assert validate_runs(path, evaluate=price).overall.predicted == 1


@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_what_spreadsheets_write_is_read(tmp_path: Path, separator: str) -> None:
    decimal = "," if separator == ";" else "."
    cells = GOOD | {
        "num_gpus": f"16{decimal}0",
        "vocab": "51200",
        "iteration_time_s": f"2{decimal}5",
        "gpu": " A100 80GB  ",
    }
    path = tmp_path / "runs.csv"
    lines = [separator.join(f" {cell} " for cell in line) for line in (cells, cells.values())]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    [found] = validate_runs(path, evaluate=price).rows
    assert (found.measured, found.predicted, found.gpu) == (2.5, 0.24, "A100 80GB")


def test_thousands_may_be_parted_by_commas(tmp_path: Path) -> None:
    rows = [GOOD | {"num_gpus": "1,024", "vocab": "51,200", "iteration_time_s": "1,000.5"}]
    assert validate_runs(table(tmp_path, rows), evaluate=price).rows[0].measured == 1000.5


@pytest.mark.parametrize("bad", ["1,02", "1,0245", ",5", "1,,000"])
def test_commas_elsewhere_are_no_number(tmp_path: Path, bad: str) -> None:
    with pytest.raises(InputError, match="is not a number"):
        validate_runs(table(tmp_path, [GOOD | {"num_gpus": bad}]), evaluate=price)


def test_a_point_between_thousands_is_refused_where_the_comma_is_before_the_fraction(tmp_path: Path) -> None:
    cells = GOOD | {"vocab": "51.200"}
    path = tmp_path / "runs.csv"
    path.write_text(";".join(cells) + "\n" + ";".join(cells.values()) + "\n")
    with pytest.raises(InputError, match="is not a whole number"):
        validate_runs(path, evaluate=price)


def test_sick_machines_are_told_by_the_table_whatever_the_time(tmp_path: Path) -> None:
    words = "measured in-run: AR {} AG 40.1 RS 41.2 GB/s"
    beyond = {"source": "sweep", "interconnect_inter": words.format("12.0")}
    told = (("45.3", ""), ("425.1", ""), ("425.1", "after_pp_fix=False"))
    inside = [{"interconnect_intra": words.format(rate), "notes": notes} for rate, notes in told]
    for seconds in ("0.01", "100"):
        rows = [GOOD | beyond | cells | {"iteration_time_s": seconds} for cells in inside]
        rows.append(GOOD | {"source": "another"})
        path = table(tmp_path, rows, ["source", "interconnect_intra", "interconnect_inter", "notes"])
        found = validate_runs(path, evaluate=price)
        assert [row.condition for row in found.rows] == ["sick", "healthy", "before a fix", ""]


def test_layouts_of_one_job_are_told_from_other_jobs(tmp_path: Path) -> None:
    changes = [{"tp": "2"}, {"tp": "4"}, {"micro_batch": "2"}, {"global_batch": "128"}, {"tp": "2"}]
    found = validate_runs(table(tmp_path, [GOOD | change for change in changes], ["tp"]), evaluate=price).rows
    assert len({row.job for row in found[:3]}) == 1
    assert len({row.layout for row in found[:3]}) == 3
    assert found[3].job != found[0].job
    assert (found[4].job, found[4].layout) == (found[0].job, found[0].layout)


def test_json_has_summary_groups_and_reasons(tmp_path: Path) -> None:
    rows = [GOOD | {"source": "s1", "iteration_time_s": "0.2"}, GOOD | {"source": "s2", "layers": "13"}]
    record = json.loads(validation_json(validate_runs(table(tmp_path, rows, ["source"]), evaluate=price)))
    assert record["summary"] == {
        "rows": 2,
        "predicted": 1,
        "skipped": 1,
        "median_abs_error": pytest.approx(0.2),
        "p90_abs_error": pytest.approx(0.2),
        "bias": pytest.approx(0.2),
    }
    assert [group["name"] for group in record["groups"]["source"]] == ["s1", "s2"]
    assert record["groups"]["source"][1]["median_abs_error"] is None
    assert record["skipped"] == [{"reason": "13 layers", "rows": 1}]


def test_columns_that_nothing_reads_are_named_once_with_what_they_may_have_been_meant_as(tmp_path: Path) -> None:
    path = table(tmp_path, [GOOD | {"note": "x"}, GOOD], ["note", "gpus_per_node", "interconnect_intra", "zero_stage"])
    found = validate_runs(path, evaluate=price)
    assert found.remarks == ("Columns not used: note (notes?), gpus_per_node",)
    assert json.loads(validation_json(found))["remarks"] == list(found.remarks)
    assert validate_runs(table(tmp_path, [GOOD]), evaluate=price).remarks == ()


def test_the_frame_has_a_row_for_each_input_row(tmp_path: Path) -> None:
    frame = validation_frame(validate_runs(table(tmp_path, [GOOD, GOOD | {"gpu": "TPU"}]), evaluate=price))
    assert list(frame["status"]) == ["ok", "skipped"]


def test_the_shipped_times_follow_from_the_published_rates() -> None:
    """Narayanan et al. 2021, eq. 3 and Table 1: 96 B s l h^2 (1 + s/6h + V/16lh) / (GPUs x FLOP/s per GPU)."""
    with shipped_runs().open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    published = [137, 138, 142, 135, 138, 140, 148, 155, 163, 163]
    assert [int(row["tflops_per_gpu"]) for row in rows] == published
    for row in rows:
        b, s, l, h, v = (int(row[k]) for k in ("global_batch", "seq_len", "layers", "hidden", "vocab"))  # noqa: E741
        flop = 96 * b * s * l * h**2 * (1 + s / (6 * h) + v / (16 * l * h))
        seconds = flop / (int(row["num_gpus"]) * float(row["tflops_per_gpu"]) * 1e12)
        assert float(row["iteration_time_s"]) == pytest.approx(seconds, rel=1e-4)
        assert int(row["tp"]) * int(row["pp"]) * int(row["dp"]) == int(row["num_gpus"])
    assert float(rows[0]["iteration_time_s"]) == pytest.approx(3.53, abs=0.005)
    assert float(rows[-1]["iteration_time_s"]) == pytest.approx(102.6, abs=0.05)
