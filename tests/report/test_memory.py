"""An answer about memory as people, programs and plots get it."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from shardsim.report.console import to_text
from shardsim.report.memory import memory_text
from shardsim.report.memory_plots import COLOURS, _title, history_plot, memory_plot
from shardsim.report.memory_records import (
    biggest_items,
    histories_csv,
    memory_record,
    pass_words,
    stage_groups,
    stage_names,
)
from shardsim.report.records import record_json
from shardsim.values.fit import Change, FitAdvice, MemoryAnswer
from shardsim.values.program import Pair, Pass
from shardsim.values.results import MemoryHistory, MemoryProfile
from shardsim.values.training import TrainingRun
from shardsim.workload.occupancy import ITEMS

GIB = 2.0**30


def _items(activations: float) -> dict[str, float]:
    """66 GiB beside the activations: 60 of tensors."""
    sizes = {"weights": 20.0, "gradients": 0.0, "optimizer": 40.0, "activations": activations}
    return {name: size * GIB for name, size in {**sizes, "fragmentation": 5.0, "context": 1.0}.items()}


def _profile(*activations: float) -> MemoryProfile:
    moments = tuple(Pass("F", number) for number in range(len(activations)))
    return MemoryProfile(tuple(_items(size) for size in activations), 80.0 * GIB, moments)


@pytest.fixture
def fits(run: TrainingRun) -> MemoryAnswer:
    return MemoryAnswer(run, _profile(12.0, 8.0, 8.0, 6.0))


@pytest.fixture
def too_much(run: TrainingRun) -> MemoryAnswer:
    changes = (
        Change("sequence parallelism", {"layout.sp": True}, "--sp", 1, _profile(13.0, 2.0), 1.9, -0.05),
        Change("ZeRO 1 + TP 8", {"layout.zero": 1, "layout.tp": 8}, "--zero 1 --tp 8", 2, _profile(1.0, 2.0)),
    )
    return MemoryAnswer(run, _profile(30.5, 2.0), FitAdvice(2.0, changes, (), 12))


def _shown(answer: MemoryAnswer) -> str:
    return to_text(memory_text(answer))


def test_the_text_fits_into_eighty_columns(fits: MemoryAnswer, too_much: MemoryAnswer) -> None:
    many = replace(fits, memory=_profile(*(float(size) for size in range(30, 0, -1))))
    for answer in (fits, too_much, many):
        assert max(map(len, _shown(answer).splitlines())) <= 80


def test_stages_that_hold_the_same_are_one_column(fits: MemoryAnswer) -> None:
    assert stage_groups(fits.memory) == [(0,), (1, 2), (3,)]
    (head,) = (line for line in _shown(fits).splitlines() if line.startswith("  stage"))
    assert head.split() == ["stage", "0", "*", "1-2", "3"]


def test_every_item_is_shown_with_what_it_adds_up_to(fits: MemoryAnswer) -> None:
    rows = {line.split()[0]: line.split()[1:] for line in _shown(fits).splitlines() if line.startswith("  ")}
    assert rows["activations"] == ["12.00", "8.00", "6.00"]
    assert rows["allocated"] == ["72.00", "68.00", "66.00"]
    assert rows["reserved"] == ["78.00", "74.00", "72.00"]
    assert rows["headroom"] == ["2.00", "6.00", "8.00"]
    assert "gradients" not in rows


def test_a_run_that_fits_says_so_with_its_headroom(fits: MemoryAnswer) -> None:
    text = " ".join(_shown(fits).split())
    assert "fits: stage 0 reserves 78 GiB, 97.5% of 80 GiB" in text
    assert "fullest in the forward pass of micro-batch 0; headroom 2 GiB" in text


def test_a_run_that_fits_closely_says_so_and_one_that_fits_well_does_not(fits: MemoryAnswer) -> None:
    assert "fits with less than 5% of the device to spare, closer than this model" in " ".join(_shown(fits).split())
    assert memory_record(fits)["close"] is True
    well = replace(fits, memory=_profile(9.0, 8.0))
    assert "to spare" not in _shown(well)
    assert memory_record(well)["close"] is False


def test_what_a_change_warns_of_stands_below_the_list_once(too_much: MemoryAnswer) -> None:
    assert too_much.advice is not None
    first, second = too_much.advice.changes
    warned = (replace(first, warnings=("dear",)), replace(second, warnings=("no such stage", "dear")))
    answer = replace(too_much, advice=replace(too_much.advice, changes=warned))
    text = " ".join(_shown(answer).split())
    assert "sequence parallelism [1] [2] --sp" in text
    assert "ZeRO 1 + TP 8 [2] [3] --zero 1" in text
    assert text.count("[1] fits with less than 5%") == text.count("[2] dear") == text.count("[3] no such stage") == 1
    one, other = memory_record(answer)["advice"]["changes"]
    assert (one["close"], one["warnings"]) == (True, ["dear"])
    assert (other["close"], other["warnings"]) == (False, ["no such stage", "dear"])


def test_what_has_no_price_is_said_to_be_listed_by_memory(too_much: MemoryAnswer) -> None:
    assert too_much.advice is not None
    unpriced = replace(too_much, advice=replace(too_much.advice, iteration_s=None))
    assert "What makes it fit, least memory first: time is not priced" in _shown(unpriced)
    assert "cheapest" not in _shown(unpriced)


def test_a_run_that_does_not_fit_names_the_stage_the_items_and_the_cheapest_change(too_much: MemoryAnswer) -> None:
    text = " ".join(_shown(too_much).split())
    assert "DOES NOT FIT: stage 0 needs 96.5 GiB, 120.6% of 80 GiB, 16.5 GiB too much" in text
    assert "biggest items: optimizer 40 GiB, activations 30.5 GiB, weights 20 GiB" in text
    assert "1.9 s -5.0% 79.00 sequence parallelism [1] --sp not priced 68.00 ZeRO 1 + TP 8 --zero 1 --tp 8" in text
    assert "cheapest first 12 valid layouts looked at" in text


def test_changes_that_only_help_together_say_so(too_much: MemoryAnswer) -> None:
    assert too_much.advice is not None
    pairs = replace(too_much.advice, changes=too_much.advice.changes[1:])
    assert "No single change suffices; together" in _shown(replace(too_much, advice=pairs))


def test_the_nearest_is_shown_where_nothing_helps(too_much: MemoryAnswer) -> None:
    assert too_much.advice is not None
    nothing = replace(too_much.advice, changes=(), nearest=too_much.advice.changes[:1])
    text = _shown(replace(too_much, advice=nothing))
    assert "No one or two changes make it fit; nearest" in text
    assert "sequence parallelism" in text


def test_of_many_stages_the_ends_and_the_fullest_are_shown(fits: MemoryAnswer) -> None:
    sizes = [5.0 + stage / 10 for stage in range(40)]
    sizes[17] = 13.5
    text = _shown(replace(fits, memory=_profile(*sizes)))
    heads = [word for line in text.splitlines() if line.startswith("  stage") for word in line.split()[1:]]
    assert heads == ["0", "1", "2", "17", "*", "38", "39"]
    assert "the other stages reserve 71.30 to 74.70 GiB" in text


@pytest.mark.parametrize(
    ("item", "words", "short"),
    [
        (Pass("F", 3), "forward pass of micro-batch 3", "F3"),
        (Pass("I", 3, 1), "input-gradient pass of micro-batch 3 through chunk 1", "I3.1"),
        (None, "optimizer step", "step"),
        (
            Pair(Pass("F", 4), Pass("B", 2, 1)),
            "forward pass of micro-batch 4 beside the backward pass of micro-batch 2 through chunk 1",
            "F4+B2.1",
        ),
    ],
)
def test_moments_have_names(item: Pass | Pair | None, words: str, short: str) -> None:
    assert pass_words(item) == words
    assert pass_words(item, short=True) == short


def test_stage_numbers_in_a_row_are_a_range() -> None:
    assert stage_names((0,)) == "0"
    assert stage_names((0, 7)) == "0, 7"
    assert stage_names((1, 2, 3, 5, 7, 8)) == "1-3, 5, 7-8"


def test_the_biggest_items_come_first_and_nothing_is_no_item() -> None:
    assert biggest_items({"a": 1.0, "b": 3.0, "c": 0.0, "d": 3.0}) == [("b", 3.0), ("d", 3.0), ("a", 1.0)]


def test_the_record_has_every_stage_and_the_advice(too_much: MemoryAnswer) -> None:
    record = json.loads(record_json(memory_record(too_much)))
    assert record["schema"] == "shardsim.memory/1"
    assert [stage["reserved_gib"] for stage in record["stages"]] == [96.5, 68.0]
    assert [stage["headroom_gib"] for stage in record["stages"]] == [-16.5, 12.0]
    assert record["stages"][1]["items_gib"]["activations"] == 2.0
    assert record["stages"][1]["fullest_in"] == "forward pass of micro-batch 1"
    assert record["biggest_items"] == ["optimizer", "activations", "weights"]
    assert (record["worst_stage"], record["fits"], record["headroom_gib"]) == (0, False, -16.5)
    first, second = record["advice"]["changes"]
    assert first | {"flags": "--sp", "slowdown": -0.05, "peak_gib": 79.0, "fits": True, "count": 1} == first
    assert second["keys"] == {"layout.zero": 1, "layout.tp": 8}
    assert second["iteration_s"] is None


def test_a_record_without_advice_says_none(fits: MemoryAnswer) -> None:
    assert memory_record(fits)["advice"] is None


def test_what_the_framework_profile_takes_for_granted_is_said(fits: MemoryAnswer) -> None:
    (note,) = memory_record(fits)["assumptions"]
    assert "953.7 MiB before the first tensor" in note


def _history(stage: int) -> MemoryHistory:
    held = {"weights": np.full(3, 20.0 * GIB), "activations": np.array([0.0, 3.0, 0.0]) * GIB}
    return MemoryHistory(stage, np.array([0.0, 0.5, 2.0]), held)


def test_a_history_is_written_as_a_table() -> None:
    rows = list(csv.DictReader(io.StringIO(histories_csv([_history(0), _history(1)]))))
    assert [(row["stage"], row["seconds"]) for row in rows[:3]] == [("0", "0.0"), ("0", "0.5"), ("0", "2.0")]
    assert [int(row["allocated_bytes"]) / GIB for row in rows] == [20.0, 23.0, 20.0] * 2
    assert int(rows[4]["activations_bytes"]) == 3 * GIB


@pytest.mark.parametrize(("file_format", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_plots_are_files_of_their_format(fits: MemoryAnswer, file_format: str, start: bytes) -> None:
    assert memory_plot(fits, file_format).startswith(start)
    assert history_plot(fits, [_history(stage) for stage in range(4)], file_format).startswith(start)


def test_plots_are_the_same_bytes_each_time(fits: MemoryAnswer) -> None:
    assert memory_plot(fits, "svg") == memory_plot(fits, "svg")


def test_every_item_has_a_colour_of_its_own() -> None:
    assert set(ITEMS) | {"fragmentation", "context"} == set(COLOURS)
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_the_run_as_it_is_stands_above_the_changes_and_how_many_more_fit_below(too_much: MemoryAnswer) -> None:
    assert too_much.advice is not None
    answer = replace(too_much, advice=replace(too_much.advice, more=3))
    text = " ".join(_shown(answer).split())
    assert "2 s 96.50 the run as it is, if it did fit 1.9 s -5.0%" in text
    assert "--zero 1 --tp 8 3 more fit" in text
    assert memory_record(answer)["advice"]["more"] == 3
    assert "more fit" not in _shown(too_much)


def test_plots_say_which_layout_and_what_the_fullest_stage_reserves(fits: MemoryAnswer) -> None:
    micro_batches = round(float(fits.run.batch.micro_batches(fits.run.layout)))
    title = _title(fits, "fits")
    for words in (fits.run.layout.schedule, "recompute", f"{micro_batches} micro-batches"):
        assert words in " ".join(title.split())
    drawn = history_plot(fits, [_history(stage) for stage in range(4)], "svg")
    assert drawn.count(b"<!-- stage 0 reserves 78 GiB -->") == 2
