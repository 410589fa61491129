"""``shardsim bench gemm`` on a PyTorch that is made of paper: a clock, and a device that takes the time it is told."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shardsim.calibrate.gpubench import DTYPES, SHAPES, BenchShape, find_gpu, measure, shapes_of
from shardsim.cli.main import main
from shardsim.errors import InputError
from shardsim.values.operators import Gemm

RATE, LAUNCH = 500e12, 3e-6


class Tensor:
    """A matrix that knows its shape, and how it lies."""

    def __init__(self, rows: int, columns: int, dtype: str, *, turned: bool = False) -> None:
        self.shape, self.dtype, self.turned = (rows, columns), dtype, turned

    def t(self) -> Tensor:
        return Tensor(*reversed(self.shape), self.dtype, turned=not self.turned)

    def to(self, dtype: str) -> Tensor:
        return Tensor(*self.shape, dtype)


class Paper:
    """As much of PyTorch as the benchmark uses. Its device runs at one rate, and the first run of a graph is slow."""

    __version__ = "2.9.0+paper"
    version = SimpleNamespace(cuda="13.0")
    float32 = "float32"

    def __init__(self, *, available: bool = True, memory: int = 10**12) -> None:
        self.clock, self.captured, self.seen = 0.0, None, []
        self.memory = memory
        for name in DTYPES.values():
            setattr(self, name, name)
        paper = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = paper.clock

            def elapsed_time(self, end: Any) -> float:
                return 1e3 * (end.at - self.at)

        class CUDAGraph:
            seconds, replays = 0.0, 0

            def replay(self) -> None:
                self.replays += 1
                paper.clock += self.seconds * (10.0 if self.replays == 1 else 1.5 if self.replays % 5 == 0 else 1.0)

        class Capture:
            def __init__(self, graph: CUDAGraph) -> None:
                self.graph = graph

            def __enter__(self) -> None:
                paper.captured = self.graph

            def __exit__(self, *_: object) -> None:
                paper.captured = None

        self.cuda = SimpleNamespace(
            is_available=lambda: available,
            get_device_name=lambda: "NVIDIA H100 80GB HBM3",
            synchronize=lambda: None,
            empty_cache=lambda: None,
            Event=Event,
            CUDAGraph=CUDAGraph,
            graph=Capture,
        )

    def randn(self, rows: int, columns: int, *, device: str, dtype: str) -> Tensor:
        assert device == "cuda"
        if rows * columns > self.memory:
            raise RuntimeError("CUDA out of memory. Tried to allocate a lot\nmore words")
        return Tensor(rows, columns, dtype)

    def ones(self, *_: object, **__: object) -> float:
        return 1.0

    def mm(self, left: Tensor, right: Tensor) -> None:
        (m, k), (inner, n) = left.shape, right.shape
        assert inner == k
        self.seen.append((m, n, k, left.dtype, {(0, 1): "tn", (0, 0): "nn", (1, 0): "nt"}[left.turned, right.turned]))
        seconds = 2.0 * m * n * k / RATE
        if self.captured is None:
            self.clock += seconds + 20 * LAUNCH
        else:
            self.captured.seconds += seconds + LAUNCH

    def _scaled_mm(self, left: Tensor, right: Tensor, **_: object) -> None:
        assert right.turned, "the second operand must lie column by column"
        self.mm(left, right)


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> Paper:
    made = Paper()
    monkeypatch.setitem(sys.modules, "torch", made)  # type: ignore[arg-type]
    return made


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", "gemm", *map(str, arguments)])


@pytest.mark.usefixtures("paper")
def test_the_median_of_warm_repeats_without_the_hosts_launches_is_what_counts() -> None:
    (row,), left = measure(find_gpu(), [BenchShape(4096, 4096, 4096)], ["bf16"])
    assert row.seconds == pytest.approx(2 * 4096**3 / RATE + LAUNCH)
    assert row.most == pytest.approx(1.5 * row.least)
    assert left == ()


def test_a_short_product_is_launched_often_between_two_events(paper: Paper) -> None:
    measure(find_gpu(), [BenchShape(64, 64, 64)], ["bf16"])
    assert len(paper.seen) > 100


@pytest.mark.parametrize("layout", ["tn", "nn", "nt"])
def test_operands_lie_as_the_layout_says(paper: Paper, layout: Any) -> None:
    measure(find_gpu(), [BenchShape(128, 256, 512, layout)], ["fp16"])
    assert set(paper.seen) == {(128, 256, 512, "float16", layout)}


def test_fp8_is_measured_forward_only_and_the_rest_is_named(paper: Paper) -> None:
    rows, left = measure(find_gpu(), [BenchShape(64, 64, 64), BenchShape(64, 64, 64, "nt")], ["fp8"])
    assert [row.dtype for row in rows] == ["fp8"]
    assert left == ("fp8 64 x 64 x 64 nt: fp8 is measured in the layout tn only",)
    assert {seen[3] for seen in paper.seen} == {"float8_e4m3fn"}


def test_a_product_that_does_not_fit_is_named_and_the_others_are_measured(paper: Paper) -> None:
    paper.memory = 10**6
    rows, left = measure(find_gpu(), [BenchShape(2048, 2048, 2048), BenchShape(512, 512, 512)], ["bf16"])
    assert [row.shape.m for row in rows] == [512]
    assert left == ("bf16 2048 x 2048 x 2048 tn: CUDA out of memory. Tried to allocate a lot",)


def test_nothing_measured_is_an_error(paper: Paper) -> None:
    paper.memory = 1
    with pytest.raises(InputError, match="nothing could be measured"):
        measure(find_gpu(), [BenchShape(64, 64, 64)], ["bf16"])


def test_shapes_of_a_layer_are_there_once_and_batched_products_are_not() -> None:
    one = Gemm("up", 64, 32, 16)
    assert shapes_of([one, one, Gemm("scores", 8, 8, 8, batch=4), Gemm("w", 64, 32, 16, layout="nt")]) == (
        BenchShape(64, 16, 32, "tn", "up"),
        BenchShape(64, 16, 32, "nt", "w"),
    )


@pytest.mark.usefixtures("paper")
def test_the_table_goes_into_calibrate_and_validate(tmp_path: Path) -> None:
    out = tmp_path / "gemms.csv"
    result = run("--out", out, "--dtypes", "bf16,fp16")
    assert result.exit_code == 0, result.stderr
    assert f"{2 * len(SHAPES)} products measured on NVIDIA H100 80GB HBM3" in result.stdout
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == 2 * len(SHAPES)
    assert rows[0]["torch"] == "2.9.0+paper"
    for command in (["calibrate", "gemm", "--device", "h100-sxm-80gb", "--dtype", "bf16"], ["validate", "gemms"]):
        told = CliRunner().invoke(main, [*command, str(out)])
        assert told.exit_code == 0, told.stderr


@pytest.mark.usefixtures("paper")
def test_products_of_a_model_are_measured_forward_and_backward(tmp_path: Path) -> None:
    out = tmp_path / "gemms.csv"
    assert run("--out", out, "--model", "llama-3-8b", "--tp", 8, "--seq", 4096).exit_code == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert {row["layout"] for row in rows} == {"tn", "nn", "nt"}
    (up,) = (row for row in rows if row["name"] == "mlp up")
    assert (up["m"], up["n"], up["k"]) == ("4096", str(2 * 14336 // 8), "4096")


@pytest.mark.usefixtures("paper")
def test_sizes_can_be_given(tmp_path: Path) -> None:
    out = tmp_path / "gemms.csv"
    assert run("--out", out, "--sizes", "64x128x256, 32X32X32").exit_code == 0
    assert [tuple(row[x] for x in "mnk") for row in csv.DictReader(out.read_text().splitlines())] == [
        ("64", "128", "256"),
        ("32", "32", "32"),
    ]


def test_without_pytorch_there_is_one_message_and_status_2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = run("--out", tmp_path / "a.csv")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "PyTorch is not installed" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_a_gpu_there_is_one_message_and_status_2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", Paper(available=False))  # type: ignore[arg-type]
    result = run("--out", tmp_path / "a.csv")
    assert result.exit_code == 2
    assert "finds no GPU" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sizes", "64x64,abc"], "'64x64' is not m x n x k"),
        (["--dtypes", "bf16,int8"], "'int8' cannot be measured"),
        (["--sizes", "1x1x1", "--model", "llama-3-8b"], "both say what to measure"),
        (["--model", "llama-3-8b", "--tp", "7"], "tp 7"),
    ],
)
def test_bad_input_is_told_before_anything_is_measured(
    paper: Paper, tmp_path: Path, arguments: list[str], said: str
) -> None:
    result = run("--out", tmp_path / "a.csv", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert paper.seen == []


def test_help_does_not_import_pytorch() -> None:
    assert run("--help").exit_code == 0
    assert "torch" not in sys.modules or isinstance(sys.modules["torch"], Paper)
