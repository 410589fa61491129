"""Memory drawn: by stage at the fullest moment, and over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from types import MappingProxyType
from typing import TYPE_CHECKING

from shardsim.report.plots import BLUE, GREY, ORANGE, STYLE, image_bytes, new_figure
from shardsim.report.text import layout_text
from shardsim.units import gib
from shardsim.values.fit import MemoryAnswer, fits_closely
from shardsim.values.results import MemoryHistory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Mapping[str, str] = MappingProxyType(
    {
        "weights": BLUE,
        "gradients": "#56B4E9",
        "optimizer": "#009E73",
        "activations": "#E69F00",
        "logits": ORANGE,
        "buffers": "#CC79A7",
        "gathered": "#F0E442",
        "fragmentation": "#bbbbbb",
        "context": "#777777",
    }
)
"""From the palette of Okabe and Ito (2008), which readers with any colour vision can tell apart; grey for overheads."""
_OTHER = "#000000"
_MOST_LINES = 12
_TITLE = 60


def memory_plot(answer: MemoryAnswer, file_format: str) -> bytes:
    """Draw what each stage holds at its fullest moment as stacked bars, with the capacity of the device.

    Parameters
    ----------
    answer : MemoryAnswer
    file_format : {"png", "svg"}

    Returns
    -------
    bytes
        The file.
    """
    from matplotlib import style  # noqa: PLC0415  # costs half a second: only where something is drawn

    memory = answer.memory
    with style.context(["default", STYLE]):
        figure = new_figure(min(max(5.6, 2.6 + 0.42 * len(memory.stages)), 16.0), 4.6)
        axes = figure.subplots()
        stages = range(len(memory.stages))
        below = [0.0] * len(memory.stages)
        for name in _names(memory.stages):
            sizes = [gib(items.get(name, 0.0)) for items in memory.stages]
            colour = COLOURS.get(name, _OTHER)
            axes.bar(stages, sizes, 0.78, bottom=below, label=name, color=colour, edgecolor="white", linewidth=0.4)
            below = [low + size for low, size in zip(below, sizes, strict=True)]
        _capacity(axes, gib(memory.capacity))
        axes.set_ylim(0, 1.12 * max(*below, gib(memory.capacity)))
        axes.set_xlim(-0.6, len(memory.stages) - 0.4)
        worst = memory.worst_stage
        axes.annotate("▼", (worst, below[worst]), (0, 3), textcoords="offset points", ha="center", fontsize=8)
        axes.set_xlabel("pipeline stage (▼ the fullest)")
        axes.set_ylabel("GiB per GPU, at the fullest moment")
        axes.set_xticks(list(stages)[:: -(-len(memory.stages) // 32)])
        axes.grid(visible=False, axis="x")
        _legend_beside(axes)
        verdict = "fits closely" if fits_closely(memory) else "fits" if memory.fits else "does not fit"
        axes.set_title(_title(answer, verdict), fontsize=9)
        figure.tight_layout()
        return image_bytes(figure, file_format)


def history_plot(answer: MemoryAnswer, histories: Sequence[MemoryHistory], file_format: str) -> bytes:
    """Draw what tensors take over one iteration: all stages above, the fullest stage item by item below.

    Parameters
    ----------
    answer : MemoryAnswer
    histories : sequence of MemoryHistory
        One for each stage.
    file_format : {"png", "svg"}

    Returns
    -------
    bytes
        The file.
    """
    from matplotlib import style  # noqa: PLC0415

    with style.context(["default", STYLE]):
        figure = new_figure(9.0, 6.4)
        above, below = figure.subplots(2, 1, sharex=True)
        scale, unit = _time_unit(float(histories[0].seconds[-1]))
        _stages(above, histories, scale)
        _items(below, histories[answer.memory.worst_stage], scale)
        reserved = gib(answer.memory.peak)
        for axes in (above, below):
            # What is allocated may stay below the capacity and what is reserved not: that is what has to fit.
            name = f"stage {answer.memory.worst_stage} reserves {reserved:.4g} GiB"
            axes.axhline(reserved, color=GREY, linestyle=":", linewidth=1.6, label=name)
            _capacity(axes, gib(answer.memory.capacity))
            axes.set_ylabel("GiB allocated per GPU")
            axes.set_xlim(0, float(histories[0].seconds[-1]) * scale)
            axes.set_ylim(bottom=0)
            _legend_beside(axes)
        above.set_title(_title(answer, "every stage"), fontsize=9)
        below.set_title(f"Stage {answer.memory.worst_stage}, item by item")
        below.set_xlabel(f"time in the iteration [{unit}]")
        figure.tight_layout()
        return image_bytes(figure, file_format)


def _title(answer: MemoryAnswer, what: str) -> str:
    """Model, machine and what is shown; below it the layout and the micro-batches."""
    run = answer.run
    micro_batches = round(float(run.batch.micro_batches(run.layout)))
    layout = f"{layout_text(run.layout)}, {micro_batches:,} micro-batch{'es' * (micro_batches != 1)}"
    return f"{run.model.name} on {run.cluster.name}: {what}\n{fill(layout, _TITLE)}"


def _names(stages: Sequence[Mapping[str, float]]) -> list[str]:
    """Items that any stage holds."""
    names = dict.fromkeys(name for items in stages for name in items)
    return [name for name in names if any(items.get(name, 0.0) > 0 for items in stages)]


def _capacity(axes: Axes, size: float) -> None:
    axes.axhline(size, color="black", linestyle="--", linewidth=1.2, label=f"capacity {size:.4g} GiB")


def _stages(axes: Axes, histories: Sequence[MemoryHistory], scale: float) -> None:
    """One line a stage; of many stages some, evenly spread, first and last among them."""
    from matplotlib import colormaps  # noqa: PLC0415

    last = len(histories) - 1
    count = min(len(histories), _MOST_LINES)
    shown = sorted({round(index * last / max(count - 1, 1)) for index in range(count)})
    for index in shown:
        history = histories[index]
        colour = colormaps["cividis"](index / max(last, 1) * 0.92)
        allocated = [gib(float(size)) for size in history.allocated]
        axes.step(history.seconds * scale, allocated, where="post", color=colour, linewidth=1.2, label=f"stage {index}")


def _items(axes: Axes, history: MemoryHistory, scale: float) -> None:
    names = [name for name, sizes in history.items.items() if sizes.max() > 0]
    axes.stackplot(
        history.seconds * scale,
        *[[gib(float(size)) for size in history.items[name]] for name in names],
        labels=names,
        colors=[COLOURS.get(name, _OTHER) for name in names],
        step="post",
        linewidth=0,
    )


def _legend_beside(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)


def _time_unit(seconds: float) -> tuple[float, str]:
    return (1.0, "s") if seconds >= 1 else (1e3, "ms")
