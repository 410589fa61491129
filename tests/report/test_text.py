"""A prediction on the screen: what it must say, within 100 columns, plain in a pipe."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardsim.report.console import to_text
from shardsim.report.text import bar, layout_text, prediction_text, provenance_text, rounded_parts
from shardsim.values.provenance import Provenance
from shardsim.values.results import CostNote, MemoryProfile, Prediction
from shardsim.values.training import Layout


def _shown(prediction: Prediction) -> str:
    return to_text(prediction_text(prediction))


def test_it_fits_100_columns_and_is_plain(prediction: Prediction) -> None:
    long = replace(
        prediction,
        warnings=("a warning that goes on " * 20,),
        costs=(CostNote("a constant " * 9, "a value " * 9, Provenance("fitted", "a source " * 40)),),
    )
    for shown in (_shown(prediction), _shown(long)):
        assert max(map(len, shown.splitlines())) <= 100
        assert "\x1b" not in shown
        assert not any(line != line.rstrip() for line in shown.splitlines())


def test_it_says_what_was_predicted(prediction: Prediction) -> None:
    lines = _shown(prediction).splitlines()
    assert lines[0] == "gpt-tiny on dgx-a100: 32 GPUs (a100-sxm-80gb) in 4 nodes"
    assert lines[1] == "TP4 x PP2 x DP4, 1f1b, SP, recompute selective, ZeRO 1"
    assert lines[2] == "batch 64 x 1,024 tokens, micro-batch 2, m = 8 micro-batches; bf16, megatron-2021"
    assert lines[3] == "engine des, 1,234 events"


@pytest.mark.parametrize(
    "line",
    [
        r"Iteration +2 s",
        r"Throughput +32,768 tokens/s +1,024\.0 per GPU",
        r"Compute +150\.8 TFLOP/s +per GPU, of 312 TFLOP/s, a100-sxm-80gb dense bf16",
        r"MFU +48\.3% +model FLOP / \(iteration x 32 GPUs x peak\)",
        r"HFU +50\.8%",
        r"Bubble +3\.5%",
        r"Exposed comm\. +280 ms +tp 230 ms \(11\.5%\), dp 50 ms \(2\.5%\)",
        r"  total +72\.50 GiB +90\.6% of 80\.0 GiB: fits",
        r"  by stage: 72\.5, 67\.2 GiB",
        r"  fitted +gemm efficiency, bf16: 80 %\n +kernel measurements of 2021 \(430 points, median error 4\.3%\)",
        r"  datasheet +nvlink bandwidth: 300 GB/s\n +DGX A100 data sheet",
        r"  ASSUMED +nvlink all-reduce efficiency: 80 %; nvlink latency: 5 us\n +no measurement of this link was found",
        r"  no error band: this prediction was not checked",
    ],
)
def test_every_figure_stands_on_its_line(prediction: Prediction, line: str) -> None:
    assert re.search(rf"^{line}", _shown(prediction), re.MULTILINE)


def test_the_waterfall_adds_up_as_printed(prediction: Prediction) -> None:
    section = _shown(prediction).split("From peak to achieved")[1].split("Memory")[0]
    peak = float(re.search(r"peak +2 s +([\d.]+) +100", section)[1])  # type: ignore[index]
    achieved = float(re.search(r"achieved +([\d.]+) ", section)[1])  # type: ignore[index]
    losses = [float(text) for text in re.findall(r" ([-+]\d+\.\d) ", section)]
    assert len(losses) == 4
    assert peak + sum(losses) == pytest.approx(achieved, abs=1e-9)


def test_a_layout_that_does_not_fit_is_said_to(prediction: Prediction) -> None:
    full = replace(prediction, memory=MemoryProfile(({"weights": 2.0**37},), 2.0**36))
    assert "200.0% of 64.0 GiB: DOES NOT FIT" in _shown(full)


def test_many_stages_are_summed_up(prediction: Prediction) -> None:
    stages = tuple({"weights": (64 + stage) * 2.0**30} for stage in range(64))
    shown = _shown(replace(prediction, memory=MemoryProfile(stages, 2.0**37)))
    assert "by stage: 64.0 to 127.0 GiB over 64 stages" in shown
    assert "stage 63 of 64, the fullest" in shown


def test_nothing_exposed_reads_none(prediction: Prediction) -> None:
    assert re.search(r"Exposed comm\. +none", _shown(replace(prediction, exposed_s={"tp": 0.0})))


def test_markup_in_names_is_shown_and_not_obeyed(prediction: Prediction) -> None:
    odd = replace(prediction.run, model=replace(prediction.run.model, name="[red]gpt[/red] :smile:"))
    assert "[red]gpt[/red] :smile: on" in _shown(replace(prediction, run=odd))


def test_colours_appear_on_a_terminal_only(prediction: Prediction) -> None:
    assert "\x1b[" in to_text(prediction_text(prediction), width=100, terminal=True)


def test_a_terminal_without_block_characters_still_gets_its_text(prediction: Prediction) -> None:
    shown = to_text(prediction_text(prediction), encoding="ascii")
    assert shown.isascii()
    assert "Iteration" in shown


def test_axes_of_degree_one_are_left_out() -> None:
    assert layout_text(Layout(tp=8, pp=1, dp=2)) == "TP8 x PP1 x DP2, recompute none, ZeRO 0"
    assert layout_text(Layout(tp=8, pp=4, dp=2, cp=2, vpp=3, schedule="interleaved")) == (
        "TP8 x CP2 x PP4 x DP2, 3 chunks, interleaved, CP by p2p, recompute none, ZeRO 0"
    )


def test_a_source_says_what_is_known_of_its_error() -> None:
    assert provenance_text(Provenance("fitted", "a log", 0.04, 1)) == "a log (1 point, median error 4.0%)"
    assert provenance_text(Provenance("datasheet", "a sheet")) == "a sheet"


@given(st.lists(st.floats(-1e4, 1e4), max_size=20), st.integers(0, 3))
def test_rounded_parts_sum_to_the_rounded_whole(parts: list[float], decimals: int) -> None:
    rounded = rounded_parts(parts, decimals)
    whole = 0.0
    for part in parts:
        whole += part
    assert sum(rounded) == pytest.approx(round(whole, decimals), abs=1e-6)
    assert all(abs(r - p) <= 10.0**-decimals + 1e-6 for r, p in zip(rounded, parts, strict=True))


@given(st.floats(-1, 2), st.integers(1, 60))
def test_a_bar_never_outgrows_its_width_nor_hides_something(share: float, width: int) -> None:
    drawn = bar(share, width)
    assert len(drawn) <= width
    assert bool(drawn) == (share > 0)


def test_the_header_says_that_further_tokens_are_predicted(prediction: Prediction) -> None:
    run = replace(prediction.run, model=replace(prediction.run.model, mtp=1))
    first = _shown(replace(prediction, run=run)).splitlines()[0]
    assert first.startswith("gpt-tiny with 1 further token predicted on dgx-a100: 32 GPUs")
