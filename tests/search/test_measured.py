from __future__ import annotations

from pathlib import Path

import pytest

from shardsim.errors import InputError
from shardsim.schema.locate import data_roots
from shardsim.search.measured import read_measured


def write(folder: Path, text: str) -> Path:
    path = folder / "measured.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_points_keep_what_the_file_says(tmp_path: Path) -> None:
    points = read_measured(write(tmp_path, "gpus,iteration_s,tflops_per_gpu,source,note\n1,2.5,,here,x\n8.0,,30,,\n"))
    assert [(p.gpus, p.iteration_s, p.flops_per_gpu, p.efficiency, p.source) for p in points] == [
        (1, 2.5, None, None, "here"),
        (8, None, 30e12, None, ""),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("gpus,iteration_s\n", "a header but no rows"),
        ("gpu,iteration_s\n1,2\n", "did you mean gpu?"),
        ("gpus,seconds\n1,2\n", "no measured column"),
        ("gpus,efficiency\n1,77\n", "0.77 for 77 %"),
        ("gpus,efficiency\n1,0.9\n1,0.8\n", "stand here again"),
        ("gpus,efficiency\n1,\n", "nothing measured"),
        ("gpus,efficiency\n,0.9\n", "gpus is empty"),
        ("gpus,efficiency\n1.5,0.9\n", "not a whole number"),
        ("gpus,efficiency\n0,0.9\n", "not a positive, finite number"),
        ("gpus,iteration_s\n1,fast\n", "'fast' is not a number"),
        ("gpus,iteration_s\n1,nan\n", "not a positive, finite number"),
        ("gpus,iteration_s\n1,2,3\n", "3 cells where the header has 2"),
        ('gpus,iteration_s\n1,"2\n', "is the file cut off?"),
    ],
)
def test_a_bad_file_is_refused_with_what_would_be_right(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_measured(write(tmp_path, text))
    assert message in str(caught.value)


def test_all_problems_come_together(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_measured(write(tmp_path, "gpus,iteration_s\nx,1\n2,-1\n3,\n"))
    assert len(caught.value.problems) == 3


def test_the_shipped_points_of_megatron_2019_are_the_published_percentages() -> None:
    points = read_measured(data_roots()[-1] / "workloads/measured/megatron-2019.csv")
    assert {p.gpus: p.efficiency for p in points} == {
        1: 1.00, 2: 0.95, 4: 0.82, 8: 0.77, 64: 0.96, 128: 0.83, 256: 0.79, 512: 0.74,
    }  # fmt: skip
    assert all("1909.08053" in p.source for p in points)
