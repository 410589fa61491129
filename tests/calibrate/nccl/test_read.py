"""Every vintage and every collective is read to the digit, with what launchers, NCCL and people put between."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardsim.calibrate.nccl.read import read_logs
from shardsim.calibrate.nccl.segments import Segmenter
from shardsim.calibrate.nccl.table import NcclLog, NcclTest
from shardsim.errors import InputError

VINTAGES = ("1.x", "2.0", "2.10", "2.13", "2.17.4")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv")
LARGE = tuple(2**exponent for exponent in range(20, 31))

Read = Callable[..., NcclLog]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def from_text(text: str | bytes, name: str = "run.log", **wanted: Any) -> NcclLog:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_logs([path], **wanted)[0]

    return from_text


@pytest.fixture
def problems(read: Read) -> Callable[..., list[str]]:
    def found(text: str | bytes, name: str = "run.log", **wanted: Any) -> list[str]:
        with pytest.raises(InputError) as raised:
            read(text, name, **wanted)
        return [str(problem).split(name, 1)[1].lstrip(":") for problem in raised.value.problems]

    return found


def values(test: NcclTest) -> list[tuple[int, float | None, float | None]]:
    return [
        (
            row.bytes,
            None if row.out_of_place is None else round(row.out_of_place.time_s * 1e6, 6),
            None if row.in_place is None else round(row.in_place.time_s * 1e6, 6),
        )
        for row in test.rows
    ]


def printed(job: Any) -> list[tuple[int, float, float]]:
    return [(row.bytes, row.time_us, row.in_place_time_us) for row in job.expected()]


# --- vintages and collectives ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("vintage", VINTAGES[1:])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_of_every_vintage_is_read_to_the_digit(
    job: Any, read: Read, vintage: str, collective: str
) -> None:
    if vintage in ("2.0", "2.10") and collective == "sendrecv":
        pytest.skip("came later")
    run = job(collective=collective, vintage=vintage, ranks=16, per_node=4, sizes=tuple(64 * 2**e for e in range(24)))
    log = read(run.text())
    assert log.refused == ()
    (test,) = log.tests
    assert (test.collective, test.ranks, test.nodes, test.gpus_per_node) == (collective, 16, 4, 4)
    assert (test.dtype, test.device) == ("float", "H100 80GB HBM3")
    assert values(test) == printed(run)
    assert test.sizes_asked == len(test.rows)
    assert test.notes == ()


@pytest.mark.parametrize(
    ("vintage", "form"),
    [
        ("1.x", "text 1.x"),
        ("2.0", "text 2.0-2.9"),
        ("2.10", "text 2.10-2.12"),
        ("2.13", "text 2.13-2.17.3"),
        ("2.17.4", "text 2.17.4 or newer"),
    ],
)
def test_the_vintage_shows_in_columns_and_widths(job: Any, read: Read, vintage: str, form: str) -> None:
    assert read(job(vintage=vintage, ranks=4, sizes=LARGE).text()).tests[0].form == form


def test_the_first_format_is_in_milliseconds(job: Any, read: Read) -> None:
    run = job(vintage="1.x", ranks=4, sizes=(10_000_000,), gb_per_s=9.0)
    (test,) = read(run.text()).tests
    assert run.time_text(run.times(10_000_000)[0]) == "  1.688"
    assert test.column("time_s").tolist() == [1.688e-3]
    assert (test.ranks, test.nodes) == (4, 1)


def test_first_format_rows_behind_a_hash_are_rows(job: Any, read: Read) -> None:
    run = job(vintage="1.x", ranks=4, sizes=(10_000_000, 20_000_000), gb_per_s=9.0)
    text = "\n".join([*run.preamble(), *run.header(), *("#" + row for row in run.rows())])
    assert values(read(text).tests[0]) == printed(run)


def test_several_types_of_one_table_are_several_tests(job: Any, read: Read) -> None:
    run, other = (job(dtype=dtype, sizes=LARGE) for dtype in ("float", "half"))
    text = "\n".join([*run.preamble(), *run.header(), *run.rows(), *other.rows(), *run.footer()])
    log = read(text)
    assert [(test.dtype, values(test)) for test in log.tests] == [("float", printed(run)), ("half", printed(other))]
    assert [test.dtype for test in read(text, dtype="half").tests] == ["half"]


def test_time_stamps_and_iteration_reports_are_passed_over(job: Any, read: Read) -> None:
    for extra in ({"timestamps": True}, {"per_iteration": True}):
        run = job(vintage="2.17.4", **extra)
        (test,) = read(run.text()).tests
        assert values(test) == printed(run)


def test_fp8_and_sizes_over_32_bits_are_read(job: Any, read: Read) -> None:
    run = job(vintage="2.17.4", dtype="f8e5m2", sizes=(2**34, 2**36))
    (test,) = read(run.text()).tests
    assert test.column("bytes").tolist() == [2.0**34, 2.0**36]


def test_bandwidths_come_in_bytes_per_second_and_as_columns(job: Any, read: Read) -> None:
    (test,) = read(job(sizes=(2**30,), latency_us=0.0, gb_per_s=100.0).text()).tests
    assert test.column("busbw").tolist() == [100.00e9]
    assert test.column("in_place_wrong").tolist() == [0.0]
    assert test.peak_busbw == 100e9
    assert test.usable.tolist() == [True]


def test_rccl_tests_print_what_nccl_tests_print(job: Any, read: Read) -> None:
    run = job(sizes=LARGE)
    first, *rest = run.lines()
    title = "# rccl-tests: Version develop:0badc0de"
    arguments = first.replace("nThread", "nThread:").replace("nGpus", "nGpus:").replace("minBytes", "minBytes:")
    lines = [title, arguments.replace("maxBytes", "maxBytes:"), *rest]
    (test,) = read("\n".join(lines).replace("NVIDIA H100 80GB HBM3", "AMD Instinct MI300X")).tests
    assert (values(test), test.device, test.sizes_asked) == (printed(run), "Instinct MI300X", 11)


# --- what cannot be known --------------------------------------------------------------------------------------------


def test_unchecked_all_gather_and_all_to_all_are_the_callers_to_tell_apart(
    job: Any, read: Read, problems: Callable[..., list[str]]
) -> None:
    text = job(collective="all_gather", checked=False, sizes=LARGE).text()
    (problem,) = problems(text)
    assert "does not say which collective it is, and its rows fit all_gather or alltoall" in problem
    assert "--collective all_gather or --collective alltoall" in problem
    for said, name in (("all_to_all", "alltoall"), ("all-gather", "all_gather")):
        (test,) = read(text, collective=said).tests
        assert (test.collective, test.collective_from) == (name, "caller")


def test_the_check_of_results_tells_all_gather_from_all_to_all(job: Any, read: Read) -> None:
    for name in ("all_gather", "alltoall"):
        (test,) = read(job(collective=name, sizes=LARGE).text()).tests
        assert (test.collective, test.collective_from) == (name, "rows")


def test_a_file_name_or_a_command_tells_where_rows_cannot(job: Any, read: Read) -> None:
    text = job(collective="all_gather", checked=False, sizes=LARGE).text()
    assert read(text, "n2-allgather.txt").tests[0].collective_from == "file name"
    assert read("$ ./build/alltoall_perf -b 1M -e 1G -f 2 -c 0\n" + text).tests[0].collective == "alltoall"


def test_a_command_that_the_rows_contradict_is_not_believed(job: Any, read: Read) -> None:
    text = "+ srun all_gather_perf -b 8\n" + job(collective="all_reduce").text()
    assert read(text).tests[0].collective == "all_reduce"


def test_the_caller_cannot_call_an_all_reduce_an_all_gather(job: Any, problems: Callable[..., list[str]]) -> None:
    assert "it is all_reduce, not all_gather" in problems(job().text(), collective="all_gather")[0]


@pytest.mark.parametrize(
    ("collective", "ranks", "vintage"),
    [("all_reduce", n, "2.13") for n in (2, 3, 6, 8, 16, 20, 48, 64, 80, 128, 144, 512)]
    + [(name, 72, "2.17.4") for name in ("all_gather", "reduce_scatter", "alltoall")],
)
def test_ranks_are_recovered_from_the_bandwidths(
    job: Any, read: Read, collective: str, ranks: int, vintage: str
) -> None:
    run = job(collective=collective, ranks=ranks, vintage=vintage, sizes=tuple(ranks * 2**e for e in range(10, 25)))
    (test,) = read("\n".join(run.rows())).tests
    assert (test.collective, test.ranks) == (collective, ranks)
    assert test.ranks_from == ("busbw/algbw" if collective == "all_reduce" else "count column")
    assert test.nodes is None


def test_ranks_of_a_sendrecv_without_a_list_are_asked_for(
    job: Any, read: Read, problems: Callable[..., list[str]]
) -> None:
    run = job(collective="sendrecv", ranks=32, sizes=LARGE)
    text = "\n".join([*run.header(), *run.rows(), *run.footer()])
    (problem,) = problems(text)
    assert "does not say how many ranks there were" in problem
    assert problem.endswith("(--ranks N)")
    assert read(text, ranks=32).tests[0].ranks_from == "caller"


def test_ranks_that_the_bandwidths_contradict_are_refused(job: Any, problems: Callable[..., list[str]]) -> None:
    text = job(ranks=16).text()
    (problem,) = problems(text, ranks=4)
    assert problem.endswith(": 28 rows not read: its busbw/algbw is not that of 4 ranks (16 ranks)")


def test_a_cut_list_of_ranks_yields_to_the_bandwidths(job: Any, read: Read) -> None:
    run = job(ranks=128, per_node=8, sizes=LARGE)
    text = "\n".join([*run.preamble()[: 3 + 20], "...", *run.header(), *run.rows()])
    (test,) = read(text).tests
    assert (test.ranks, test.nodes, test.gpus_per_node) == (128, 16, 8)


def test_a_list_of_ranks_longer_than_the_bandwidths_allow_is_refused(
    job: Any, problems: Callable[..., list[str]]
) -> None:
    run, other = job(ranks=8, sizes=LARGE), job(ranks=16, sizes=LARGE)
    text = "\n".join([*other.preamble(), *run.header(), *run.rows()])
    assert "the list of ranks shows 16, busbw/algbw fits 8 ranks" in problems(text)[0]


def test_nccl_says_how_many_ranks_where_the_list_is_lost(job: Any, read: Read) -> None:
    run = job(collective="broadcast", ranks=24, sizes=LARGE)
    message = "quokka1:88:91 [1] NCCL INFO comm 0x7f rank 9 nranks 24 cudaDev 1 busId 101d0 - Init COMPLETE"
    for lines in ([*run.header(), message, *run.rows()], [message, *run.header(), *run.rows()]):
        (test,) = read("\n".join(lines)).tests
        assert (test.ranks, test.ranks_from) == (24, "NCCL log")


def test_old_all_gather_bandwidths_are_brought_to_todays_definition(job: Any, read: Read) -> None:
    class Old(job):  # type: ignore[misc]
        """Before June 2020: algbw = busbw = (n-1)/n x size / time."""

        def half(self, size: int, time: float, wrong: str) -> str:
            busbw = size / time / 1e3 * (self.ranks - 1) / self.ranks
            return f"  {self.time_text(time)}  {busbw:6.2f}  {busbw:6.2f}  {wrong:>5}"

    run = Old(collective="all_gather", ranks=4, vintage="2.0", sizes=LARGE)
    (test,) = read(run.text()).tests
    assert test.ranks == 4
    assert values(test) == printed(run)
    assert np.allclose(test.column("algbw"), test.column("bytes") / test.column("time_s"))
    assert any("before June 2020" in note for note in test.notes)


# --- what stands between ---------------------------------------------------------------------------------------------

PREFIXES = {
    "mpirun": "[1,0]<stdout>:",
    "prrte": "[prterun-quokka0-77@1,0]<stdout>: ",
    "srun": "0: ",
    "srun of a large job": "   0: ",
    "ray and mpirun": "(head, rank=0, pid=77) [1,0]<stdout>:",
    "hydra": "[0] ",
    "pdsh": "quokka0: ",
    "compose": "worker-1  | ",
    "kubernetes": "2026-03-14T09:26:53.589793Z stdout F ",
    "a clock": "[2026-03-14 09:26:53] ",
    "a mail": "> ",
    "indentation": "        ",
    "one never seen": "<<job 17/quokka0 @12>> ",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("vintage", ["2.0", "2.17.4"])
def test_launcher_prefixes_are_taken_away(job: Any, read: Read, prefix: str, vintage: str) -> None:
    run = job(vintage=vintage)
    log = read("\n".join(prefix + line for line in run.lines()))
    assert [(values(test), test.ranks, test.nodes) for test in log.tests] == [(printed(run), 16, 2)]
    assert log.refused == ()


def test_windows_line_ends_colours_and_utf16_are_nothing_special(job: Any, read: Read) -> None:
    run = job(vintage="2.17.4")
    coloured = "\n".join(f"\x1b[0;32m{line}\x1b[0m" for line in run.lines())
    for text in (run.text().replace("\n", "\r\n"), coloured, run.text().encode("utf-16"), "\ufeff" + run.text()):
        assert values(read(text).tests[0]) == printed(run)


MESSAGE = "quokka0:4242:4247 [0] NCCL INFO AllReduce: opCount 0 sendbuff 0x7f count 262144 datatype 7 op 0 root 0"


def test_messages_between_and_behind_rows_change_nothing(job: Any, read: Read) -> None:
    run = job()
    between = [line for row in run.rows() for line in (row + MESSAGE, MESSAGE, "", "[quokka0:1] 1 more process")]
    log = read("\n".join([*run.preamble(), *run.header(), *between, *run.footer()]))
    assert values(log.tests[0]) == printed(run)
    assert log.refused == ()


def test_a_row_with_a_message_inside_is_refused_and_named(job: Any, read: Read) -> None:
    run = job(sizes=LARGE)
    rows = run.rows()
    at = rows[4].index("-1") + 2
    torn = [*rows[:4], rows[4][:at] + MESSAGE, MESSAGE, rows[4][at:], *rows[5:]]
    log = read("\n".join([*run.preamble(), *run.header(), *torn, *run.footer()]))
    (test,) = log.tests
    assert values(test) == [*printed(run)[:4], *printed(run)[5:]]
    assert [refusal.what for refusal in log.refused] == [
        "row breaks off before its times",
        "row has the numbers of a row without its beginning",
    ]
    assert (test.sizes_asked, len(test.rows)) == (11, 10)


def test_half_a_row_is_never_data(job: Any, problems: Callable[..., list[str]]) -> None:
    run = job(sizes=(2**20,))
    half = run.rows()[0][:-38]
    assert "row breaks off before its in-place half" in problems("\n".join([*run.header(), half]))[0]


def test_the_lost_digit_of_a_time_shows_in_the_bandwidth(job: Any, read: Read) -> None:
    run = job(sizes=LARGE)
    rows = run.rows()
    time = run.time_text(run.times(2**25)[0]).strip()
    damaged = [row.replace(time, time[1:], 1) if row.split()[0] == str(2**25) else row for row in rows]
    log = read("\n".join([*run.preamble(), *run.header(), *damaged]))
    assert values(log.tests[0]) == [row for row in printed(run) if row[0] != 2**25]
    assert "algbw of" in log.refused[0].what


def test_an_out_of_place_table_is_read_when_its_header_says_so(job: Any, read: Read) -> None:
    run = job(sizes=LARGE)
    header = [
        line.removesuffix("     time   algbw   busbw #wrong").removesuffix("            (us)  (GB/s)  (GB/s)")
        for line in run.header()
    ]
    (test,) = read("\n".join([*run.preamble(), *header, *(row[:-32] for row in run.rows())])).tests
    assert values(test) == [(size, time, None) for size, time, _ in printed(run)]
    assert np.isnan(test.column("in_place_time_s")).all()


def test_a_half_without_times_is_missing_not_zero(job: Any, read: Read) -> None:
    run = job(sizes=LARGE)
    rows = [row[:-32] + "      N/A     N/A     N/A    N/A" for row in run.rows()]
    (test,) = read("\n".join([*run.preamble(), *run.header(), *rows])).tests
    assert [row.in_place for row in test.rows] == [None] * len(LARGE)


def test_numbers_with_separators_are_read_and_placeholders_are_not(job: Any, read: Read) -> None:
    run = job(sizes=(32768, 65536))
    first, second = run.rows()
    text = "\n".join(
        [*run.preamble(), *run.header(), first.replace(" 32768", "32_768"), second.replace("16384", "XXXXX")]
    )
    log = read(text)
    assert values(log.tests[0]) == printed(run)[:1]
    assert [refusal.what for refusal in log.refused] == ["row holds placeholders, not numbers"]


def test_a_text_that_lost_its_hashes_to_markdown_is_read(job: Any, read: Read) -> None:
    run = job()
    (test,) = read("\n".join(line.lstrip("#") for line in run.lines())).tests
    assert (values(test), test.ranks, test.nodes) == (printed(run), 16, 2)


# --- several tests, several jobs --------------------------------------------------------------------------------------


def test_tests_of_one_file_are_kept_apart(job: Any, read: Read) -> None:
    runs = [
        job(collective=name, vintage="2.17.4", sizes=LARGE)
        for name in ("all_reduce", "all_gather", "alltoall", "sendrecv")
    ]
    log = read("\n".join(run.text() for run in runs))
    assert [(test.collective, values(test)) for test in log.tests] == [(run.collective, printed(run)) for run in runs]


def test_tables_without_headers_are_kept_apart_by_their_footers_or_by_starting_over(job: Any, read: Read) -> None:
    runs = [job(ranks=ranks, sizes=LARGE) for ranks in (2, 4, 8)]
    marked = "\n".join(line for run in runs for line in (f"### GPUS={run.ranks}", *run.rows(), *run.footer()[1:2]))
    bare = "\n".join(line for run in runs for line in run.rows())
    for text in (marked, bare):
        assert [(test.ranks, values(test)) for test in read(text).tests] == [(run.ranks, printed(run)) for run in runs]


def test_markers_name_the_tests_that_follow(job: Any, read: Read) -> None:
    runs = [job(collective=name, checked=False, sizes=LARGE) for name in ("alltoall", "all_gather")]
    text = "\n".join(f"===begin {run.collective}_perf test===\n{run.text()}" for run in runs)
    assert [(test.collective, test.collective_from) for test in read(text).tests] == [
        ("alltoall", "command"),
        ("all_gather", "command"),
    ]


def test_a_run_that_failed_before_its_first_row_is_named(job: Any, read: Read) -> None:
    failed, good = job(ranks=8), job(ranks=16)
    failure = "quokka0: Test NCCL failure common.cu:1012 'unhandled system error'"
    log = read("\n".join([*failed.preamble(), *failed.header(), failure, good.text()]))
    assert [(test.ranks, values(test)) for test in log.tests] == [(16, printed(good))]
    assert [refusal.what for refusal in log.refused] == ["a run that printed no row: the test failed"]


def test_jobs_that_ran_at_once_are_kept_apart_by_their_prefixes(job: Any, read: Read) -> None:
    runs = [job(ranks=8, sizes=LARGE), job(ranks=16, latency_us=33.0, sizes=LARGE)]
    pairs = zip(*([f"[{index},0]<stdout>:{line}" for line in run.lines()[-18:]] for index, run in enumerate(runs)),
                strict=True)  # fmt: skip
    log = read("\n".join(line for pair in pairs for line in pair))
    assert [(test.ranks, values(test)) for test in log.tests] == [(run.ranks, printed(run)) for run in runs]


def test_equal_jobs_interleaved_line_by_line_are_read_and_marked(job: Any, read: Read) -> None:
    one, two = job(sizes=LARGE), job(latency_us=33.0, sizes=LARGE)
    log = read("\n".join(line for pair in zip(one.lines(), two.lines(), strict=True) for line in pair))
    (test,) = log.tests
    assert sorted(values(test)) == sorted(printed(one) + printed(two))
    assert test.is_mixed
    assert test.notes[0] == "rows of 2 jobs of 16 ranks stand interleaved"


@pytest.mark.parametrize("lag", [0, 3, 14, 20, 25])
def test_unequal_jobs_that_wrote_at_once_are_refused(job: Any, problems: Callable[..., list[str]], lag: int) -> None:
    first, second = job(ranks=8, sizes=LARGE).lines(), job(ranks=16, latency_us=33.0, sizes=LARGE).lines()
    pairs = zip([*first, *[""] * 60], [*[""] * lag, *second, *[""] * 60], strict=False)
    assert "not read" in problems("\n".join(line for pair in pairs for line in pair if line))[0]


def test_processes_that_each_ran_alone_are_marked_as_no_communication(
    job: Any, read: Read, problems: Callable[..., list[str]]
) -> None:
    def together(vintage: str) -> str:
        alone = [job(ranks=1, sizes=LARGE, vintage=vintage).lines() for _ in range(4)]
        return "\n".join(line for lines in zip(*alone, strict=True) for line in lines)

    (test,) = read(together("2.17.4")).tests
    assert (test.ranks, len(test.rows), test.is_communication) == (1, 44, False)
    assert not test.usable.any()
    assert "every process ran alone and nothing was communicated" in problems(together("2.13"))[0]


def test_wrong_values_are_kept_and_marked(job: Any, read: Read) -> None:
    (test,) = read(job(sizes=LARGE, wrong={2**25: 36864}).text()).tests
    assert [row.bytes for row in test.rows if row.is_wrong] == [2**25]
    assert test.wrong_rows == 1
    assert test.usable.sum() == len(LARGE) - 1


def test_a_deviation_beyond_what_old_versions_allow_is_wrong(job: Any, read: Read) -> None:
    text = job(vintage="2.0", sizes=LARGE).text()
    assert read(text).tests[0].wrong_rows == 0
    assert read(text.replace("2e-07", "3e-02", 1)).tests[0].wrong_rows == 1


# --- refusals --------------------------------------------------------------------------------------------------------

LOOK_ALIKES = {
    "nccom-test": "    size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)\n"
    "       1024             256    fp32           63.52           0.02           0.03\n",
    "OSU": "# OSU MPI-CUDA Allreduce Latency Test v7.4\n# Size       Avg Latency(us)\n4                      18.20\n",
    "p2pBandwidthLatencyTest": "Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n   D\\D     0      1\n"
    "     0 2512.10 770.31\n     1 769.90 2520.44\n",
    "nvbandwidth": "nvbandwidth Version: v0.4\nRunning device_to_device_memcpy_read_ce.\n",
    "perftest": " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
    " 65536      5000             46000.1            45999.0            0.735\n",
    "PyTorch": "payload |    busbw   |    algbw   |\n1.00GiB | 380.12GBps | 202.70GBps |\n",
    "CSV": "size,count,type,redop,root,time,algbw,busbw,#wrong,time,algbw,busbw,#wrong\n"
    "8,2,float,sum,-1,42.7,0.00,0.00,0,42.1,0.00,0.00,0\n",
    "shardsim topology import": "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV12\t0-31\n",
    "topology file": '<system version="1">\n  <cpu numaid="0">\n',
    "NCCL's own messages": "quokka0:1:2 [0] NCCL INFO Channel 00/24 : 0 1 2 3\n",
    "no table of nccl-tests": "hello\n",
    "mscclpp": "# mscclpp-test\n",
    "DeepSpeed": "---- Performance of all_reduce on 16 devices ----\n",
}


@pytest.mark.parametrize(("what", "text"), LOOK_ALIKES.items(), ids=LOOK_ALIKES)
def test_look_alikes_are_refused_by_name(problems: Callable[..., list[str]], what: str, text: str) -> None:
    (problem,) = problems(text)
    assert what in problem


def test_a_look_alike_beside_a_real_table_does_no_harm(job: Any, read: Read) -> None:
    run = job()
    (test,) = read(LOOK_ALIKES["p2pBandwidthLatencyTest"] + run.text() + LOOK_ALIKES["OSU"]).tests
    assert values(test) == printed(run)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x1f\x8b\x08\x00rest", "is gzip-compressed (unpack it first)"),
        (b"PK\x03\x04rest", "is a zip archive (unpack it first)"),
        (b"\x7fELF\x02\x01", "is a program"),
        (b"", "holds no table of nccl-tests"),
        (b"\x00\x01\x02\xff\xfe" * 1000, "holds no table of nccl-tests"),
    ],
)
def test_what_is_no_text_is_refused(problems: Callable[..., list[str]], content: bytes, what: str) -> None:
    assert what in problems(content)[0]


def test_all_unreadable_files_are_named_together(tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        read_logs([tmp_path / "missing.log", tmp_path])
    assert [problem.what for problem in raised.value.problems] == ["no such file", "is a directory"]


def test_arguments_that_name_nothing_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        read_logs([tmp_path / "any"], collective="all_redude", ranks=0, dtype="fp32")
    assert [problem.where for problem in raised.value.problems] == ["collective", "ranks", "dtype"]


def test_one_unreadable_log_among_others_is_named_and_the_others_are_read(job: Any, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.log", tmp_path / "bad.log"
    good.write_text(job().text())
    bad.write_text(LOOK_ALIKES["OSU"])
    first, second = read_logs([good, bad])
    assert len(first.tests) == 1
    assert second.tests == ()
    assert "OSU" in second.refused[0].what


def test_a_line_without_an_end_does_not_fill_the_memory(job: Any, read: Read) -> None:
    run = job()
    text = "x" * 5_000_000 + "\n" + run.text()
    assert values(read(text).tests[0]) == printed(run)


# --- JSON ------------------------------------------------------------------------------------------------------------


def document(run: Any, version: int = 1, **changes: Any) -> dict[str, Any]:
    def half(size: int, time: float) -> dict[str, Any]:
        rate = size / time / 1e3
        return {"time": time, "alg_bw": rate, "bus_bw": rate * (run.ranks - 1) / run.ranks * 2, "nwrong": 0.0}

    report = {"min_us": 1.0, "times_us": [1.0, 2.0], "per_process_max_times_us": [[1.0], [2.0]]}
    results = [
        {
            "size": size,
            "count": size // 4,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": half(size, run.times(size)[0]),
            **({"out_of_place_per_iter": report} if version > 1 else {}),
            "in_place": half(size, run.times(size)[1]),
            "actual_iterations": 20,
            "experiment_name": "",
        }
        for size in run.sizes
    ]
    devices = [
        {
            "rank": rank,
            "group": 0,
            "pid": 7,
            "hostname": f"quokka{rank // run.per_node}",
            "device": rank % run.per_node,
            "device_hex": "0000:19:00",
            "device_info": "NVIDIA H100 80GB HBM3",
        }
        for rank in range(run.ranks)
    ]
    config = {"nthreads": 1, "ngpus": 1, "minimum_bytes": min(run.sizes), "maximum_bytes": max(run.sizes)}
    return {
        "version": version,
        "start_time": "2026-03-14 09:26:53",
        "args": ["/opt/nccl-tests/build/all_reduce_perf_mpi", "-J", "out.json"],
        "env": ["SECRET_TOKEN=hunter2", "PATH=/usr/bin"],
        "nccl_version": 22902,
        "config": config | {"step_factor": 2, "graph": 0, "blocking_collectives": "false", "devices": devices},
        "results": results,
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 41.2, "okay": "unchecked"},
        "errors": [""],
    } | changes


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("indent", [None, 2])
def test_json_of_every_version_is_read(job: Any, read: Read, version: int, indent: int | None) -> None:
    run = job(sizes=LARGE)
    (test,) = read(json.dumps(document(run, version), indent=indent), "out.json").tests
    assert (test.collective, test.collective_from, test.ranks, test.nodes) == ("all_reduce", "log", 16, 2)
    assert (test.form, test.nccl_version, test.sizes_asked) == (f"JSON {version}", "2.29.2", 11)
    assert test.column("time_s").tolist() == pytest.approx([run.times(size)[0] / 1e6 for size in LARGE], rel=1e-12)


def test_the_environment_of_a_json_document_is_never_kept(job: Any, read: Read) -> None:
    log = read(json.dumps(document(job(sizes=LARGE))))
    assert len(log.tests[0].rows) == 11
    assert "hunter2" not in repr(log)


def test_json_documents_in_a_row_or_inside_a_text_are_all_read(job: Any, read: Read) -> None:
    run = job(sizes=LARGE)
    one = json.dumps(document(run), separators=(",", ":"))
    assert len(read(one + "\n" + one).tests) == 2
    assert [test.form for test in read(run.text() + one + "\n").tests] == ["text 2.13-2.17.3", "JSON 1"]


def test_missing_halves_and_nan_of_json_are_missing(job: Any, read: Read) -> None:
    record = document(job(sizes=LARGE))
    record["results"][0]["in_place"] = None
    record["results"][1]["in_place"] |= {"time": "nan", "alg_bw": "nan", "bus_bw": "nan", "nwrong": None}
    record["results"][2]["out_of_place"] = {"cpu_time": 3.0, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": 0}
    log = read(json.dumps(record))
    (test,) = log.tests
    assert [row.in_place for row in test.rows[:2]] == [None, None]
    assert len(test.rows) == 10
    assert "CPU times" in log.refused[0].what


def test_a_damaged_json_document_costs_nothing_that_stands_before_it(job: Any, read: Read) -> None:
    run = job(sizes=LARGE)
    one = json.dumps(document(run))
    for text in (one + "\n" + one[:900], run.text() + one[:900] + "\n"):
        log = read(text)
        assert [len(test.rows) for test in log.tests] == [11]
        assert [refusal.what for refusal in log.refused] == ["is JSON that is cut off"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"version":1,"results":[{"size":8', "is JSON that is cut off"),
        ('{"version":9,"results":[]}', "is JSON of nccl-tests, version '9' (known are 1, 2, 3)"),
        ('{"fruit": "apple"}', "is JSON, but not what nccl-tests -J writes"),
        ('[{"version": 1}]', "is JSON, but not what nccl-tests -J writes"),
        ('{"version":1,"results":[}', "is not valid JSON"),
        ('{"version":1,"results":' + "[" * 100_000, "is not valid JSON: nested too deeply"),
        ('{"version":1,"results":[{"size":"' + "9" * 9000 + '"}]}', "has no size or count"),
        ('{"version":1,"results":[{"size":' + "9" * 9000 + "}]}", "is not valid JSON"),
    ],
)
def test_json_that_is_damaged_or_something_else_is_refused(
    problems: Callable[..., list[str]], text: str, what: str
) -> None:
    assert what in problems(text)[0]


def _refused(path):
    with pytest.raises(InputError) as caught:
        read_logs([path])
    return str(caught.value)


def test_a_large_file_of_another_tool_is_recognised_by_its_first_megabyte(tmp_path, monkeypatch):
    path = tmp_path / "x.log"
    path.write_text("# OSU MPI-CUDA Allreduce Latency Test\n" + "8 12.5 3.1\n" * 400_000, encoding="utf-8")
    fed = []

    def feed(_: Segmenter, *given: object) -> bool:
        fed.append(given)
        return False

    monkeypatch.setattr(Segmenter, "feed", feed)
    assert "OSU micro-benchmarks" in _refused(path)
    assert len(fed) < 120_000


def test_bytes_that_are_no_text_are_recognised_by_the_first_megabyte(tmp_path):
    path = tmp_path / "x.log"
    path.write_bytes((bytes(range(128, 256)) + b"\n") * 20_000)
    assert "is not text" in _refused(path)


def test_a_table_far_below_other_output_is_found(tmp_path):
    row = "1048576 262144 float sum -1 30.00 34.95 61.17 0 30.00 34.95 61.17 0\n"
    path = tmp_path / "all_reduce.log"
    path.write_text("unpacking layer 0123456789abcdef\n" * 60_000 + row, encoding="utf-8")
    (log,) = read_logs([path])
    assert [found.bytes for found in log.tests[0].rows] == [2**20]
