"""Predictions and timelines as DataFrames, and what a notebook shows for them."""

from __future__ import annotations

import html

import numpy as np
import pandas as pd

from shardsim.report.console import to_text
from shardsim.report.memory import memory_text
from shardsim.report.text import prediction_text
from shardsim.units import gib
from shardsim.values.fit import MemoryAnswer
from shardsim.values.results import PASS_KINDS, Prediction, Timeline

_ROWS_SHOWN = 20


def timeline_frame(timeline: Timeline) -> pd.DataFrame:
    """Every task that ran, one row each, in the order of the timeline.

    Parameters
    ----------
    timeline : Timeline

    Returns
    -------
    DataFrame
        ``start_s``, ``finish_s``, ``seconds`` [s]; ``stage``, ``microbatch``, ``chunk`` (-1 in the epilogue);
        ``pass`` (F, B, I, W, F&B; missing in the epilogue; no such column where the engine did not say), ``name``,
        ``stream``, ``category`` as categoricals. Where there are pairs, ``paired_microbatch`` and ``paired_chunk``
        name their backward passes (-1 outside pairs).
    """
    frame = pd.DataFrame(
        {
            "start_s": timeline.start,
            "finish_s": timeline.finish,
            "seconds": timeline.finish - timeline.start,
            "stage": timeline.stage,
            "microbatch": timeline.microbatch,
            "chunk": timeline.chunk,
        }
    )
    if timeline.kind is not None:
        frame["pass"] = pd.Categorical.from_codes(timeline.kind, categories=pd.Index(PASS_KINDS))
    if timeline.paired is not None:
        frame[["paired_microbatch", "paired_chunk"]] = timeline.paired
    for position, column in enumerate(("name", "stream", "category")):
        names = [label[position] for label in timeline.labels]
        known = list(dict.fromkeys(names))
        codes = np.array([known.index(name) for name in names], dtype=np.int64)
        frame[column] = pd.Categorical.from_codes(codes[timeline.label], categories=pd.Index(known))
    return frame


def stages_frame(prediction: Prediction) -> pd.DataFrame:
    """Where the time and the memory of each stage went.

    Parameters
    ----------
    prediction : Prediction

    Returns
    -------
    DataFrame
        One row a stage, with columns in two levels: ``seconds`` by category [s], ``memory_gib`` by item [GiB].
    """
    accounts = prediction.execution.stages
    index = pd.Index([account.stage for account in accounts], name="stage")
    seconds = pd.DataFrame([dict(account.seconds) for account in accounts], index=index, dtype=float)
    memory = pd.DataFrame(
        [{item: gib(size) for item, size in items.items()} for items in prediction.memory.stages], index=index
    )
    return pd.concat({"seconds": seconds.fillna(0.0), "memory_gib": memory.fillna(0.0)}, axis=1)


def waterfall_frame(prediction: Prediction) -> pd.DataFrame:
    """Steps from peak to achieved, one row each.

    Parameters
    ----------
    prediction : Prediction

    Returns
    -------
    DataFrame
        ``name``, ``seconds`` [s], ``flops_lost`` [FLOP/s per GPU].
    """
    rows = [(step.name, step.seconds, step.flops_lost) for step in prediction.waterfall]
    return pd.DataFrame(rows, columns=["name", "seconds", "flops_lost"])


def prediction_html(prediction: Prediction) -> str:
    """What a notebook shows for a prediction: the same text as the terminal, escaped.

    Parameters
    ----------
    prediction : Prediction

    Returns
    -------
    str
        A fragment of HTML.
    """
    return _preformatted(to_text(prediction_text(prediction)))


def memory_html(answer: MemoryAnswer) -> str:
    """What a notebook shows for an answer about memory: its text.

    Parameters
    ----------
    answer : MemoryAnswer

    Returns
    -------
    str
        A fragment of HTML.
    """
    return _preformatted(to_text(memory_text(answer)))


def _preformatted(text: str) -> str:
    return f'<pre style="line-height:1.3">{html.escape(text)}</pre>'


def timeline_html(timeline: Timeline) -> str:
    """What a notebook shows for a timeline: its first rows and how many there are.

    Parameters
    ----------
    timeline : Timeline

    Returns
    -------
    str
        A fragment of HTML.
    """
    frame = timeline_frame(timeline)
    head = frame.head(_ROWS_SHOWN).to_html(border=0)
    return f"{head}<p>{len(frame):,} tasks on {frame['stage'].nunique():,} stages</p>"


def register_notebook_formatters() -> None:
    """Let notebooks show predictions, answers and timelines: give their classes ``_repr_html_``.

    The values themselves stay free of any presentation; doing this twice changes nothing.
    """
    for kind, show in ((Prediction, prediction_html), (MemoryAnswer, memory_html), (Timeline, timeline_html)):
        setattr(kind, "_repr_html_", show)  # noqa: B010  # the classes declare no such attribute
