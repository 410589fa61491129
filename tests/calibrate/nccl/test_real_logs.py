"""Real logs, one by one, as their index describes them; they lie beside the checkout and are not part of it."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from pathlib import Path

import pytest

from shardsim.calibrate.nccl.read import read_logs
from shardsim.calibrate.nccl.table import NcclLog
from shardsim.errors import InputError

NCCL = Path(__file__).parents[3] / "../shared/nccl"
LOGS = NCCL / "logs"

ANSWERS = {"126-b200-ndr-sendrecv-n064.txt": 512}
"""Ranks that a log does not hold: send/recv rows without a rank list."""
READ_AS_JSON = {"143-synthetic-json-v1.txt": (3, 400.53)}
"""The index counts rows of text alone."""
FORMS = {
    "1.x": "text 1.x",
    "2.0-2.9": "text 2.0-2.9",
    "2.10-2.12": "text 2.10-2.12",
    "2.13-2.17.3": "text 2.13-2.17.3",
    "2.16.5+": "text 2.16.5-2.17.3",
    "2.17.4-2.19.x": "text 2.17.4 or newer",
    "2.17.6+": "text 2.17.4 or newer",
    "JSON": "JSON 1",
}
OTHER_FORMS = {"133-fp8-ar-n002-tail.txt": "text 2.17.4 or newer"}
"""The index names an older vintage, but #wrong is six characters wide."""


def index() -> list[dict[str, str]]:
    path = LOGS / "index.csv"
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines())) if path.is_file() else []


pytestmark = pytest.mark.skipif(not index(), reason="../shared/nccl/logs is not there")


def log_of(entry: dict[str, str]) -> NcclLog | None:
    try:
        return read_logs([LOGS / entry["file"]], ranks=ANSWERS.get(entry["file"]))[0]
    except InputError:
        return None


@pytest.mark.parametrize("entry", index(), ids=lambda entry: entry["file"])
def test_a_real_log_is_read_as_its_index_says(entry: dict[str, str]) -> None:
    rows, peak = READ_AS_JSON.get(entry["file"], (int(entry["data_rows"]), float(entry["peak_busbw_gbs"] or 0)))
    log = log_of(entry)
    if not rows:
        assert log is None
        return
    assert log is not None
    assert log.refused == ()
    tests = log.tests
    assert list(dict.fromkeys(test.collective for test in tests)) == entry["collective"].split(";")
    assert sorted({test.ranks for test in tests}) == sorted(map(int, entry["ranks"].split(";")))
    assert sum(len(test.rows) for test in tests) == rows
    assert round(max(test.peak_busbw or 0 for test in tests) / 1e9, 2) == peak
    assert {test.nodes for test in tests} <= {None, int(entry["nodes"])}
    if tests[0].nodes is not None:
        assert {test.gpus_per_node for test in tests} == {int(entry["gpus_per_node"])}
    assert {test.nccl_version for test in tests} <= {"", entry["nccl_version"]}
    if tests[0].device and "Graphics" not in tests[0].device:  # what an engineering sample calls itself
        assert set(re.findall(r"\w+", tests[0].device)) & set(re.findall(r"\w+", entry["gpu"]))
    if "hand-edited" not in entry["format_variant"]:
        form = OTHER_FORMS.get(entry["file"], FORMS[entry["format_variant"].split()[0]])
        assert {test.form for test in tests} == {form}


def test_nodes_are_known_wherever_a_log_lists_ranks() -> None:
    listed = []
    for entry in index():
        log = log_of(entry)
        if log is None:
            continue
        text = (LOGS / entry["file"]).read_text(encoding="utf-8")
        has_list = re.search(r'Rank +\d+ |Device +\d+ +->|"devices":', text) is not None
        assert all((test.nodes is not None) == has_list for test in log.tests)
        listed.append(has_list)
    assert (sum(listed), len(listed)) == (54, 75)


def test_every_row_of_the_collected_table_that_comes_from_a_log_is_read_to_the_digit() -> None:
    collected = defaultdict(list)
    for row in csv.DictReader((NCCL / "measurements.csv").read_text(encoding="utf-8").splitlines()):
        collected[row["log_file"]].append(row)
    compared = 0
    for entry in index():
        log = log_of(entry)
        wanted = collected.get(entry["file"], [])
        if log is None or not wanted:
            continue
        found = [(test, row) for test in log.tests for row in test.rows]
        assert len(found) == len(wanted)
        for (test, row), other in zip(found, wanted, strict=True):
            first, second = row.out_of_place, row.in_place
            assert first is not None
            assert (test.collective, test.dtype, row.bytes) == (
                other["collective"],
                other["dtype"],
                int(other["bytes"]),
            )
            figures = [first.time_s * 1e6, first.algbw / 1e9, first.busbw / 1e9]
            expected = [other["time_us"], other["algbw_gbs"], other["busbw_gbs"]]
            if second is not None:
                figures, expected = [*figures, second.time_s * 1e6], [*expected, other["in_place_time_us"]]
            if first.wrong is not None:
                figures, expected = [*figures, first.wrong], [*expected, other["wrong"]]
            assert figures == pytest.approx([float(value) for value in expected], rel=1e-12)
            compared += 1
    assert compared > 1300
