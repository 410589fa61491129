"""What a row's own words say of the machine that it was measured on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardsim.schema.validation import measured_names
from shardsim.validate.conditions import condition_of
from shardsim.validate.rows import read_measured_runs

NAMES = measured_names(())
TABLE = (
    "gpu,num_gpus,layers,hidden,heads,vocab,seq_len,global_batch,micro_batch,iteration_time_s\n"
    "H100,8,1,64,1,9,8,8,1,1\n"
)


@pytest.mark.parametrize(
    ("notes", "interconnect", "condition"),
    [
        ("", "measured in-run: AR 45.5 AG 42.0 RS 42.1 GB/s; measured in-run: AR 44.0 AG 40.1 RS 40.2 GB/s", "sick"),
        ("", "measured in-run: AR 425.1 AG 242.0 RS 242.1 GB/s; measured in-run: AR 26.0 AG 13.1 RS 13.2 GB/s", None),
        ("after_pp_fix=False; x", "", "before a fix"),
        ("section 3, line 5. before the 02-25 PCIe fix", "", "before a fix"),
        ("measured before the summer", "", None),
        ("", "", None),
    ],
)
def test_words_tell_the_condition_and_the_time_does_not(
    tmp_path: Path, notes: str, interconnect: str, condition: str | None
) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(TABLE, encoding="utf-8")
    (row,) = read_measured_runs(path)
    for seconds in (1e-3, 1.0, 1e3):
        found = condition_of(replace(row, notes=notes, interconnect=interconnect, iteration_s=seconds), NAMES)
        assert found == condition if condition else found in ("", "healthy")
