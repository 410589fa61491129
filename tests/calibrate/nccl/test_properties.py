"""Whatever stands between, inside or instead of the rows: the same rows, or an honest refusal, and never a crash."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardsim.calibrate.nccl.read import read_logs
from shardsim.calibrate.nccl.table import NcclLog
from shardsim.errors import InputError
from shardsim.report.console import to_text
from shardsim.report.nccl_logs import nccl_logs_json, nccl_logs_text, nccl_rows_csv

SIZES = tuple(2**exponent for exponent in range(3, 31, 3))
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce")
VINTAGES = ("1.x", "2.0", "2.10", "2.13", "2.17.4")
SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

NOISE = (
    "quokka0:4242:4247 [0] NCCL INFO comm 0x7f10 rank 0 cudaDev 3 busId 101d0 - Destroy COMPLETE",
    "[2026-03-14 09:26:53] quokka1:77:78 [4] NCCL INFO Channel 00/24 : 0 1 2 3",
    "quokka1:77:78 [4] transport/net.cc:123 NCCL WARN Call to connect returned Connection refused",
    "[quokka0:31337] 7 more processes have sent help message help-mpi-runtime.txt / mpi_init: warn-fork",
    "[1773480413.589] [quokka0:1742 :0] UCX  ERROR   ucp_ep_create failed",
    "srun: error: quokka3: tasks 12-15: Exited with exit code 1",
    "+ export NCCL_DEBUG=INFO",
    "Authorization required, but no authorization protocol specified",
    "--------------------------------------------------------------------------",
    "",
    "...",
    "12 13 14 15",
    "0.12 0.13 0.14",
    "quokka0: 1048576 is not a row",
    "# a remark by hand",
    "| GPU  Name        Persistence-M| Bus-Id        Disp.A |",
    "Sat Mar 14 09:26:53 2026",
)


def jobs(job: Any) -> st.SearchStrategy[Any]:
    return st.builds(
        job,
        collective=st.sampled_from(COLLECTIVES),
        ranks=st.sampled_from([2, 4, 8, 16]),
        per_node=st.sampled_from([2, 8]),
        vintage=st.sampled_from(VINTAGES),
        sizes=st.just(tuple(size * 16 for size in SIZES)),
        latency_us=st.floats(3.0, 200.0),
        gb_per_s=st.floats(1.0, 500.0),
    )


def read(text: str | bytes, job: Any = None) -> NcclLog | None:
    """Read; None for a refusal as a whole."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.log"
        path.write_bytes(text.encode(errors="surrogatepass") if isinstance(text, str) else text)
        name = None if job is None or job.vintage != "1.x" else job.collective
        try:
            return read_logs([path], collective=name)[0]
        except InputError as error:
            refusal = error
    assert refusal.problems
    assert all(problem.what for problem in refusal.problems)
    return None


def check(log: NcclLog | None, job: Any, *, all_of_them: bool) -> None:
    """Every row that was kept is one that was printed; what is missing was named."""
    printed = {(row.bytes, row.time_us, row.in_place_time_us) for row in job.expected()}
    if log is None:
        assert not all_of_them
        return
    kept = []
    for test in log.tests:
        assert (test.collective, test.ranks, test.dtype) == (job.collective, job.ranks, job.dtype)
        for row in test.rows:
            assert row.out_of_place is not None
            assert row.in_place is not None
            times = (round(half.time_s * 1e6, 6) for half in (row.out_of_place, row.in_place))
            kept.append((row.bytes, *times))
    assert set(kept) <= printed
    assert len(kept) == len(set(kept))
    if all_of_them:
        assert set(kept) == printed
    elif len(kept) < len(printed):
        assert log.refused or any(test.sizes_asked != len(test.rows) for test in log.tests)


def usable(job: Any) -> bool:
    """Whether the rows can be told from those of another collective without being asked."""
    return not (job.vintage == "1.x" and job.collective != "all_reduce")


@SETTINGS
@given(data=st.data())
def test_noise_between_lines_changes_nothing(job: Any, data: st.DataObject) -> None:
    run = data.draw(jobs(job).filter(usable))
    lines = run.lines()
    start = len(run.preamble()) + len(run.header())
    for line in data.draw(st.lists(st.sampled_from(NOISE), max_size=12)):
        lines.insert(data.draw(st.integers(start, len(lines))), line)
    check(read("\n".join(lines), run), run, all_of_them=True)


@SETTINGS
@given(data=st.data())
def test_any_text_between_lines_gives_the_same_rows_or_a_refusal(job: Any, data: st.DataObject) -> None:
    run = data.draw(jobs(job).filter(usable))
    lines = run.lines()
    for text in data.draw(st.lists(st.one_of(st.text(max_size=80), st.sampled_from(NOISE)), max_size=6)):
        lines.insert(data.draw(st.integers(0, len(lines))), text)
    check(read("\n".join(lines), run), run, all_of_them=False)


@SETTINGS
@given(data=st.data())
def test_messages_inside_rows_cost_those_rows_at_most(job: Any, data: st.DataObject) -> None:
    run = data.draw(jobs(job).filter(usable))
    lines = run.lines()
    first = len(run.preamble()) + len(run.header())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(first, first + len(SIZES) - 1))
        cut = data.draw(st.integers(0, len(lines[at])))
        message = data.draw(st.sampled_from([line for line in NOISE if "NCCL" in line]))
        lines[at] = f"{lines[at][:cut]}{message}\n{lines[at][cut:]}"
    check(read("\n".join(lines), run), run, all_of_them=False)


@SETTINGS
@given(data=st.data())
def test_a_log_cut_off_anywhere_gives_the_rows_before_the_cut(job: Any, data: st.DataObject) -> None:
    run = data.draw(jobs(job).filter(usable))
    text = run.text()
    check(read(text[: data.draw(st.integers(0, len(text)))], run), run, all_of_them=False)


@SETTINGS
@given(data=st.data())
def test_lines_lost_or_swapped_never_make_a_row(job: Any, data: st.DataObject) -> None:
    run = data.draw(jobs(job).filter(usable))
    lines = run.lines()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        if data.draw(st.booleans()):
            del lines[at]
        else:
            other = data.draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
    log = read("\n".join(lines), run)
    printed = {(row.bytes, row.time_us, row.in_place_time_us) for row in run.expected()}
    for test in log.tests if log is not None else ():
        for row in test.rows:
            assert row.out_of_place is not None
            assert row.in_place is not None
            times = (round(half.time_s * 1e6, 6) for half in (row.out_of_place, row.in_place))
            assert (row.bytes, *times) in printed


@SETTINGS
@given(data=st.binary(max_size=4000))
def test_random_bytes_never_crash(data: bytes) -> None:
    read(data)


@SETTINGS
@given(data=st.data())
def test_damaged_bytes_never_crash_and_every_report_can_be_written(job: Any, data: st.DataObject) -> None:
    raw = bytearray(data.draw(jobs(job)).text().encode())
    for _ in range(data.draw(st.integers(1, 40))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    log = read(bytes(raw))
    if log is not None:
        json.loads(nccl_logs_json([log]))
        to_text(nccl_logs_text([log]))
        assert nccl_rows_csv([log]).count("\n") == 1 + sum(len(test.rows) for test in log.tests)


VOCABULARY = """
# size count type redop root time algbw busbw #wrong error bytes N op Rank Group Pid on quokka0 device
8 1048576 262144 float sum none -1 0 0.00 12.25 N/A nan 1e+06 99999999999999999999 [0x07] ... :
nThread nGpus minBytes maxBytes 1 step: 2(factor) 0(bytes) [1,0]<stdout>: 0: all_reduce_perf
"""
LINES = (
    "# Using devices",
    "# Avg bus bandwidth : 1.0",
    "# Collective test starting: all_reduce_perf",
    "# Reducing maxBytes to 8",
    '{"version":1,"results":[]}',
)
WORDS = st.sampled_from([*VOCABULARY.split(), *LINES, *"\n\n\n\n\n\n"])


@SETTINGS
@given(words=st.lists(WORDS, max_size=120), gap=st.sampled_from([" ", "  "]))
def test_words_of_the_tool_in_any_order_never_crash(words: list[str], gap: str) -> None:
    read(gap.join(words))


KEYS = (
    *("size", "count", "type", "redop", "root", "out_of_place", "in_place", "time", "alg_bw", "bus_bw", "nwrong"),
    *("devices", "rank", "device", "hostname", "step_factor", "minimum_bytes", "maximum_bytes"),
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**70),
    st.floats(),
    st.sampled_from(["nan", "float", "sum", "    -1"]),
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=30,
)


@SETTINGS
@given(version=st.sampled_from([1, 2, 3]), results=st.lists(JSON, max_size=4), config=JSON)
def test_any_json_of_that_form_never_crashes(version: int, results: list[Any], config: Any) -> None:
    read(json.dumps({"version": version, "args": ["all_reduce_perf"], "results": results, "config": config}))
