"""An event that may be waited for before it is known when it happens."""

from __future__ import annotations

from math import nan
from typing import Protocol

from simpy import Event
from simpy.events import NORMAL, EventPriority


class LateStream(Protocol):
    """A stream that knows when its tasks waited for slower ranks."""

    def late_within(self, start: float, end: float) -> float:
        """Seconds of a span in which a task of the stream waited for slower ranks [s]."""
        ...


class Later(Event):
    """An event whose time is set when it is known.

    Of a task on a side stream, ``planned`` is when it will be, which is known as soon as it is issued where nothing
    that such a task waits for meets others; infinite where something does.
    """

    planned = nan
    stream: LateStream | None = None

    def happen(self, delay: float = 0.0, priority: EventPriority = NORMAL) -> None:
        """Let it happen after ``delay`` [s]; of events at one time, those of a higher number last."""
        self._ok = True
        self._value = None
        self.env.schedule(self, priority, delay)
