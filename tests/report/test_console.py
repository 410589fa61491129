"""Progress shows up only for people who wait, and never in the output."""

from __future__ import annotations

import io
import sys
import time

import pytest

from shardsim.report import console


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with console.progress("working") as advance:
        advance(1)
    assert capsys.readouterr() == ("", "")


def test_short_work_shows_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with console.progress("working"):
        pass
    assert "working" not in terminal.getvalue()


def test_long_work_shows_progress_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(console, "PATIENCE", 0.01)
    with console.progress("working", total=2) as advance:
        advance(1)
        time.sleep(0.3)
    assert "working" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_a_failure_inside_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", _Terminal())
    with pytest.raises(ZeroDivisionError), console.progress("working"):
        raise ZeroDivisionError
