"""Timelines and predictions as DataFrames, and in notebooks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from shardsim.report.frames import (
    memory_html,
    prediction_html,
    register_notebook_formatters,
    stages_frame,
    timeline_frame,
    timeline_html,
    waterfall_frame,
)
from shardsim.values.fit import MemoryAnswer
from shardsim.values.results import PAIR, PASS_KINDS, Prediction, Timeline


def test_a_timeline_has_one_row_a_task(timeline: Timeline) -> None:
    frame = timeline_frame(timeline)
    assert len(frame) == 8
    assert frame.loc[1].to_dict() == {
        "start_s": 0.75,
        "finish_s": 1.0,
        "seconds": 0.25,
        "stage": 0,
        "microbatch": 0,
        "chunk": 0,
        "pass": "F",
        "name": "all-reduce",
        "stream": "tp",
        "category": "tp",
    }
    assert pd.isna(frame["pass"].iloc[-1])


def test_a_timeline_without_kinds_has_no_pass_column(timeline: Timeline) -> None:
    assert "pass" not in timeline_frame(replace(timeline, kind=None))


def test_a_task_of_a_pair_names_both_passes(timeline: Timeline) -> None:
    assert "paired_microbatch" not in timeline_frame(timeline)
    kind, paired = timeline.kind.copy(), np.full((8, 2), -1)
    kind[1], paired[1] = PASS_KINDS.index(PAIR), (5, 1)
    row = timeline_frame(replace(timeline, kind=kind, paired=paired)).loc[1]
    assert (row["pass"], row["paired_microbatch"], row["paired_chunk"]) == ("F&B", 5, 1)


def test_text_columns_are_categorical_so_that_millions_of_rows_stay_small(timeline: Timeline) -> None:
    frame = timeline_frame(timeline)
    assert all(isinstance(frame[column].dtype, pd.CategoricalDtype) for column in ("name", "stream", "category"))


def test_an_empty_timeline_is_an_empty_frame() -> None:
    none, whole = np.array([]), np.array([], dtype=np.int64)
    assert timeline_frame(Timeline(none, none, whole, whole, whole, whole, ())).empty


def test_stages_have_their_seconds_and_their_memory(prediction: Prediction) -> None:
    frame = stages_frame(prediction)
    assert list(frame.index) == [0, 1]
    assert frame.loc[0, ("seconds", "gemm")] == 1.2
    assert frame["memory_gib"].loc[0].sum() == pytest.approx(72.5)
    assert frame["seconds"].sum(axis=1).tolist() == pytest.approx([2.0, 2.0])


def test_the_waterfall_has_one_row_a_step(prediction: Prediction) -> None:
    frame = waterfall_frame(prediction)
    assert frame["flops_lost"].sum() + prediction.flops_per_gpu == pytest.approx(prediction.peak_flops)


def test_notebooks_show_escaped_text(prediction: Prediction) -> None:
    odd = replace(prediction.run, model=replace(prediction.run.model, name="<script>alert(1)</script>"))
    shown = prediction_html(replace(prediction, run=odd))
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "Iteration" in shown


def test_notebooks_show_whether_a_run_fits(prediction: Prediction) -> None:
    shown = memory_html(MemoryAnswer(prediction.run, prediction.memory))
    assert "allocated" in shown
    assert shown.startswith("<pre")


def test_notebooks_show_the_head_of_a_timeline(timeline: Timeline) -> None:
    shown = timeline_html(timeline)
    assert "8 tasks on 2 stages" in shown
    assert "<table" in shown


def test_registering_gives_the_values_their_notebook_form(
    prediction: Prediction, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (Prediction, MemoryAnswer, Timeline):
        monkeypatch.setattr(kind, "_repr_html_", None, raising=False)
    register_notebook_formatters()
    register_notebook_formatters()
    assert prediction._repr_html_() == prediction_html(prediction)  # type: ignore[attr-defined]
