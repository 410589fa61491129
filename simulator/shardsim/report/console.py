"""Where text goes: consoles that are plain in a pipe, and progress on anything that takes over a second."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH = 100
"""Columns that every report fits into."""
PATIENCE = 1.0
"""Time before progress is shown [s]."""


def show(renderable: RenderableType) -> None:
    """Print on standard output: in colour on a terminal, plain elsewhere.

    Parameters
    ----------
    renderable : RenderableType
        Anything rich can render.
    """
    sys.stdout.write(to_text(renderable, terminal=sys.stdout.isatty(), encoding=sys.stdout.encoding or "utf-8"))


def to_text(
    renderable: RenderableType, *, width: int | None = None, terminal: bool = False, encoding: str = "utf-8"
) -> str:
    r"""Render to a string.

    Parameters
    ----------
    renderable : RenderableType
    width : int or None
        Columns (-); 100 by default.
    terminal : bool
        Whether colours may be used.
    encoding : str
        What the string will be written in; characters it lacks are replaced.

    Returns
    -------
    str
        Lines without trailing blanks, each ended by a line feed.

    Examples
    --------
    >>> to_text("iteration time", width=20)
    'iteration time\n'
    """
    from rich.console import Console  # noqa: PLC0415  # what prints JSON needs none of it

    buffer = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace", newline="\n")
    console = Console(
        file=buffer,
        force_terminal=terminal,
        no_color=None if terminal else True,
        width=width or WIDTH,  # on a narrower terminal lines wrap: a table must not lose digits
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    console.print(renderable)
    buffer.seek(0)
    text = buffer.read()
    return text if terminal else "".join(f"{line.rstrip()}\n" for line in text.splitlines())


@contextlib.contextmanager
def progress(description: str, total: float | None = None) -> Iterator[Callable[[float], None]]:
    """Show progress on standard error, on a terminal only, once the work has taken a second.

    Parameters
    ----------
    description : str
    total : float or None
        Steps in all (-); None when they cannot be counted.

    Yields
    ------
    callable
        Call it with the number of steps done since the last call.
    """
    if not sys.stderr.isatty():
        yield lambda _steps: None
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()]
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(description, total=total)
    timer = threading.Timer(PATIENCE, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda steps: bar.advance(task, steps)
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
