"""A printer that writes what nccl-tests of each vintage writes, for jobs on invented hosts with invented times.

The printf formats are those of the tool's sources: 1.x prints milliseconds; 2.0 to 2.12 an ``error`` column and only
the columns that a collective has; from 2.13 on every row has redop and root; from 2.17.4 on the columns are wider.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

REDUCING = ("all_reduce", "reduce_scatter", "reduce", "sendrecv")
SHARED = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
BYTES = {"float": 4, "half": 2, "double": 8, "bfloat16": 2, "int8": 1, "char": 1, "f8e5m2": 1}


def factor(collective: str, ranks: int) -> float:
    share = (ranks - 1) / ranks
    return 2 * share if collective == "all_reduce" else share if collective in SHARED else 1.0


@dataclass(frozen=True)
class Expected:
    """One row as a reader should give it."""

    bytes: int
    time_us: float
    in_place_time_us: float


@dataclass
class Job:
    """One run of one test."""

    collective: str = "all_reduce"
    ranks: int = 16
    per_node: int = 8
    dtype: str = "float"
    vintage: str = "2.13"
    sizes: tuple[int, ...] = tuple(2**exponent for exponent in range(3, 31))
    latency_us: float = 21.0
    gb_per_s: float = 190.0
    checked: bool = True
    wrong: dict[int, int] = field(default_factory=dict)
    timestamps: bool = False
    per_iteration: bool = False

    @property
    def is_old(self) -> bool:
        return self.vintage in ("2.0", "2.10")

    @property
    def is_new(self) -> bool:
        return self.vintage == "2.17.4"

    def times(self, size: int) -> tuple[float, float]:
        out = self.latency_us + size / self.gb_per_s / 1e3 * factor(self.collective, self.ranks)
        return out, out * 0.993

    def time_text(self, time: float) -> str:
        if self.vintage == "1.x":
            return f"{time / 1e3:7.3f}"
        if self.is_new:
            texts = (f"{time:.{decimals}f}" for decimals in (2, 1, 0))
            return next((text for text in texts if len(text) <= 7), f"{time:.1e}").rjust(7)
        return f"{time:7.0f}" if time >= 10000 else f"{time:7.1f}" if time >= 100 else f"{time:7.2f}"

    def count(self, size: int) -> int:
        return size // BYTES[self.dtype] // (self.ranks if self.collective in SHARED else 1)

    def half(self, size: int, time: float, wrong: str) -> str:
        algbw = size / time / 1e3
        busbw = algbw * factor(self.collective, self.ranks)
        width = {"1.x": 7, "2.17.4": 6}.get(self.vintage, 5)
        bandwidths = f"  {algbw:5.2f}  {busbw:5.2f}" if self.vintage == "1.x" else f"  {algbw:6.2f}  {busbw:6.2f}"
        more = f"  {time * 0.98:7.2f}  {time * 1.1:7.2f}  {time * 1.09:7.2f}  {1.25:6.2f}" if self.per_iteration else ""
        return f"  {self.time_text(time)}{bandwidths}  {wrong:>{width}}{more}"

    def row(self, size: int) -> str:
        redop = "sum" if self.collective in REDUCING else "none"
        root = "0" if self.collective in ROOTED else "-1"
        kind = f"{self.dtype:>6}" if self.vintage in ("1.x", "2.0") else f"{self.dtype:>8}"
        head = f"{size:12d}  {self.count(size):12d}  {kind}"
        if self.vintage == "1.x":
            head += f"  {redop:>6}"
        elif self.is_old:
            if self.collective in (*REDUCING, "alltoall"):
                head += f"  {redop if redop != 'none' else '':>6}"
            if self.collective in ROOTED:
                head += f"  {root:>6}"
        else:
            head += f"  {redop:>6}  {root:>6}"
        out, in_place = self.times(size)
        if not self.checked:
            marks = ("N/A", "N/A")
        elif self.vintage == "1.x" or self.is_old:
            marks = ("0e+00", "0e+00") if self.vintage == "1.x" else ("2e-07", "2e-07")
        else:
            found = str(self.wrong.get(size, 0))
            marks = (found, "N/A" if self.collective in ("alltoall", "sendrecv") else found)
        stamp = "  2026-03-14 09:26:53" if self.timestamps else ""
        return head + self.half(size, out, marks[0]) + self.half(size, in_place, marks[1]) + stamp

    def header(self) -> list[str]:
        if self.vintage == "1.x":
            half = "time  algbw  busbw      res"
            return [f"#      bytes             N    type      op     {half}     {half}"]
        check = "error" if self.is_old else "#wrong"
        half = f"time   algbw   busbw {check:>6}"
        if self.per_iteration:
            half += "    i_min    i_max    i_p99   i_cv%"
        middle = ""
        if not self.is_old or self.collective in (*REDUCING, "alltoall"):
            middle += "   redop"
        if not self.is_old or self.collective in ROOTED:
            middle += "    root"
        stamp = "           timestamp" if self.timestamps else ""
        return [
            "#",
            f"#{'out-of-place':>73}{'in-place':>31}",
            f"#       size         count      type{middle}     {half}     {half}{stamp}",
            "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)",
        ]

    def rank_lines(self) -> list[str]:
        if self.vintage == "1.x":
            return [f"#   Device {rank:2d} -> {rank:2d} [0x{rank:02x}] Test GPU" for rank in range(self.ranks)]
        group = "" if self.is_old else " Group  0"
        blanks = "   " if self.is_old else "  "
        return [
            f"#{blanks}Rank {rank:2d}{group} Pid {40000 + rank:6d} on {f'quokka{rank // self.per_node}':>10} "
            f"device {rank % self.per_node:2d} [0000:{rank % self.per_node:02x}:00] NVIDIA H100 80GB HBM3"
            for rank in range(self.ranks)
        ]

    def preamble(self) -> list[str]:
        if self.vintage == "1.x":
            return ["# Using devices", *self.rank_lines(), ""]
        begin, end = min(self.sizes), max(self.sizes)
        lines = []
        if self.is_new:
            lines += ["# nccl-tests version 2.18.1 nccl-headers=22902 nccl-library=22902"]
            lines += [f"# Collective test starting: {self.collective}_perf"]
        tail = " " if self.is_old else " graph: 0"
        agg = "" if self.is_old else " agg iters: 1"
        sizes = f"minBytes {begin} maxBytes {end} step: 2(factor)"
        lines += [
            f"# nThread 1 nGpus 1 {sizes} warmup iters: 5 iters: 20{agg} validation: {int(self.checked)}{tail}",
            "#",
            "# Using devices",
        ]
        return lines + self.rank_lines()

    def rows(self) -> list[str]:
        return [self.row(size) for size in self.sizes]

    def footer(self) -> list[str]:
        if self.vintage == "1.x":
            return []
        verdict = f"{len(self.wrong)} {'FAILED' if self.wrong else 'OK'}"
        lines = [f"# Out of bounds values : {verdict}", "# Avg bus bandwidth    : 41.2951 ", "#"]
        if self.is_new:
            lines += [f"# Collective test concluded: {self.collective}_perf", "#"]
        return lines

    def lines(self) -> list[str]:
        return [*self.preamble(), *self.header(), *self.rows(), *self.footer()]

    def text(self) -> str:
        return "\n".join(self.lines()) + "\n"

    def expected(self) -> list[Expected]:
        """What the printed digits say."""
        scale = 1e3 if self.vintage == "1.x" else 1.0
        return [
            Expected(size, *(round(float(self.time_text(time)) * scale, 6) for time in self.times(size)))
            for size in self.sizes
        ]


@pytest.fixture(scope="session")
def job() -> type[Job]:
    return Job


@pytest.fixture(scope="session")
def expected_row() -> type[Expected]:
    return Expected
