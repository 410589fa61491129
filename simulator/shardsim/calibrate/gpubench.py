"""Measure matrix products on the GPU at hand with PyTorch, which is imported only here and only when asked for.

A product is launched many times from one CUDA graph, so that the host's launches cost nothing, on operands of random
numbers (zeros draw less power and run faster), over several weights so that none stays in the cache. Rows carry the
median over repeats, timed with CUDA events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardsim.errors import InputError, Problem
from shardsim.values.operators import Gemm, MatrixLayout

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3fn"}
"""Data types that can be measured, by PyTorch's names; fp8 with one scale a tensor, in the forward layout only."""
SHAPES = tuple(
    (m, n, k)
    for m in (64, 256, 1024, 1536, 4096, 5120, 8192, 16384)
    for n, k in (
        (1024, 1024),
        (3072, 1024),
        (2048, 8192),
        (4096, 4096),
        (5120, 1280),
        (6144, 12288),
        (12288, 4096),
        (16384, 16384),
    )
)
"""What is measured where nothing is asked for: (m, n, k), small and large, on and off powers of two (-)."""
WARM_UPS = 3
REPEATS = 15
BATCH_SECONDS = 2e-3
"""Least time of what one pair of events encloses [s]: far above the resolution of a timer."""
MOST_LAUNCHES = 200
CACHE_BYTES = 256e6
"""Operands rotate over so many bytes, which no cache holds [bytes]."""
MOST_COPIES = 16
COLUMNS = ("gpu", "dtype", "layout", "m", "n", "k", "time_us", "least_us", "most_us", "name", "torch", "cuda")


@dataclass(frozen=True, slots=True)
class BenchShape:
    """One product to be measured.

    Parameters
    ----------
    m, n, k : int
        (-).
    layout : {"tn", "nn", "nt"}
    name : str
        What it is in a model; empty for none.
    """

    m: int
    n: int
    k: int
    layout: MatrixLayout = "tn"
    name: str = ""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One measured product.

    Parameters
    ----------
    shape : BenchShape
    dtype : str
    seconds, least, most : float
        Median, fastest and slowest repeat [s].
    """

    shape: BenchShape
    dtype: str
    seconds: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU that PyTorch reaches.

    Parameters
    ----------
    name : str
        As the driver names it.
    torch_version, cuda_version : str
    torch : module
    """

    name: str
    torch_version: str
    cuda_version: str
    torch: Any


def find_gpu() -> Gpu:
    """Import PyTorch and find its GPU.

    Raises
    ------
    InputError
        No PyTorch, or it reaches no GPU.
    """
    try:
        torch = import_module("torch")
    except ImportError:
        what = "PyTorch is not installed, and the benchmark runs on it"
        raise InputError(Problem(what, "bench gemm", "install PyTorch on the machine with the GPU")) from None
    if not torch.cuda.is_available():
        what = f"PyTorch {torch.__version__} finds no GPU"
        raise InputError(
            Problem(what, "bench gemm", "run it on the machine with the GPU, with a CUDA build of PyTorch")
        )
    return Gpu(torch.cuda.get_device_name(), str(torch.__version__), str(torch.version.cuda), torch)


def shapes_of(operators: Sequence[object]) -> tuple[BenchShape, ...]:
    """Matrix products among the operators of a layer, each shape once.

    Parameters
    ----------
    operators : sequence of Operator
        Batched products are left out: they are not measured.
    """
    found: dict[tuple[int, int, int, str], BenchShape] = {}
    for one in operators:
        if isinstance(one, Gemm) and one.batch == 1:
            m, n, k = (round(float(size)) for size in (one.m, one.n, one.k))
            found.setdefault((m, n, k, one.layout), BenchShape(m, n, k, one.layout, one.name))
    return tuple(found.values())


def measure(
    gpu: Gpu, shapes: Sequence[BenchShape], dtypes: Sequence[str], done: Callable[[float], object] = lambda _: None
) -> tuple[tuple[BenchRow, ...], tuple[str, ...]]:
    """Measure products.

    Parameters
    ----------
    gpu : Gpu
    shapes : sequence of BenchShape
    dtypes : sequence of str
        Of :data:`DTYPES`.
    done : callable
        Called with 1 after each product.

    Returns
    -------
    rows : tuple of BenchRow
    left : tuple of str
        What was not measured, and why.

    Raises
    ------
    InputError
        Nothing could be measured.
    """
    rows, left = [], []
    for dtype in dtypes:
        for shape in shapes:
            said = f"{dtype} {shape.m} x {shape.n} x {shape.k} {shape.layout}"
            try:
                rows.append(_measured(gpu.torch, shape, dtype))
            except (RuntimeError, AttributeError, TypeError) as error:
                # PyTorch raises RuntimeError for lack of memory and for what a GPU cannot do, the others for old ones.
                left.append(f"{said}: {str(error).splitlines()[0][:120] if str(error) else type(error).__name__}")
                gpu.torch.cuda.empty_cache()
            done(1)
    if not rows:
        raise InputError([Problem(f"nothing could be measured: {reason}", "bench gemm") for reason in left[:10]])
    return tuple(rows), tuple(left)


def _measured(torch: Any, shape: BenchShape, dtype: str) -> BenchRow:
    products = _products(torch, shape, dtype)
    once = float(np.median(_replayed(torch, products))) / len(products)
    rounds = max(1, min(math.ceil(BATCH_SECONDS / max(once, 1e-9)), MOST_LAUNCHES) // len(products))
    times = _replayed(torch, products * rounds) / (rounds * len(products))
    return BenchRow(shape, dtype, float(np.median(times)), float(times.min()), float(times.max()))


def _replayed(torch: Any, products: Sequence[Callable[[], object]]) -> NDArray[np.float64]:
    """Times of all products together, launched as one graph by a warm device [s], shape (repeats,)."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for product in products:
            product()
    for _ in range(WARM_UPS):
        graph.replay()
    torch.cuda.synchronize()
    return np.array([_seconds(torch, graph.replay) for _ in range(REPEATS)])


def _seconds(torch: Any, work: Callable[[], object]) -> float:
    """Time of what is launched, between two CUDA events [s]."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def _products(torch: Any, shape: BenchShape, dtype: str) -> list[Callable[[], object]]:
    """The product over operands enough to leave no cache any use; each has run once, so that kernels are chosen."""
    m, n, k = shape.m, shape.n, shape.k
    size = (m * k + k * n + m * n) * (1 if dtype == "fp8" else 2)
    copies = min(MOST_COPIES, max(2, math.ceil(CACHE_BYTES / size)))
    found = []
    for _ in range(copies):
        first, second = (_operand(torch, *sides, dtype) for sides in _stored(shape))
        found.append(_product(torch, first, second, shape.layout, dtype))
        found[-1]()
    return found


def _stored(shape: BenchShape) -> tuple[tuple[int, int], tuple[int, int]]:
    """Rows and columns of both operands as they lie in memory, row by row."""
    first = (shape.k, shape.m) if shape.layout == "nt" else (shape.m, shape.k)
    second = (shape.n, shape.k) if shape.layout == "tn" else (shape.k, shape.n)
    return first, second


def _operand(torch: Any, rows: int, columns: int, dtype: str) -> Any:
    values = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
    return values.to(getattr(torch, DTYPES[dtype]))


def _product(torch: Any, first: Any, second: Any, layout: MatrixLayout, dtype: str) -> Callable[[], object]:
    left = first.t() if layout == "nt" else first
    right = second.t() if layout == "tn" else second
    if dtype != "fp8":
        return lambda: torch.mm(left, right)
    if layout != "tn":
        raise RuntimeError("fp8 is measured in the layout tn only")
    scale = torch.ones((), device="cuda", dtype=torch.float32)
    # Private in PyTorch, but what its own linear layers of 8 bits call.
    scaled = torch._scaled_mm  # noqa: SLF001
    return lambda: scaled(left, right, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16)


def bench_csv(gpu: Gpu, rows: Sequence[BenchRow]) -> str:
    """Write rows as the table that ``shardsim calibrate gemm`` and ``shardsim validate gemms`` read.

    Parameters
    ----------
    gpu : Gpu
    rows : sequence of BenchRow

    Returns
    -------
    str
    """
    return "\n".join([",".join(COLUMNS), *_lines(gpu, rows)]) + "\n"


def _lines(gpu: Gpu, rows: Sequence[BenchRow]) -> Iterator[str]:
    for row in rows:
        shape = row.shape
        times = [f"{1e6 * seconds:.4f}" for seconds in (row.seconds, row.least, row.most)]
        cells = [gpu.name, row.dtype, shape.layout, shape.m, shape.n, shape.k, *times]
        yield ",".join(
            str(cell).replace(",", " ") for cell in (*cells, shape.name, gpu.torch_version, gpu.cuda_version)
        )
