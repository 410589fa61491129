"""Constants of fitted profiles as text: a value, and beside it where it comes from and how well it fits."""

from __future__ import annotations

from shardsim.values.provenance import Provenance


def constant_text(value: str, provenance: Provenance, digits: int = 4) -> str:
    """Write a constant as a mapping of YAML's short form.

    >>> constant_text("0.8", Provenance("fitted", "logs", 0.0123, 40))
    '{value: 0.8, basis: fitted, source: logs, error: 0.0123, points: 40}'
    """
    return f"{{value: {value}, {note_text(provenance, digits)}}}"


def note_text(provenance: Provenance, digits: int = 4) -> str:
    """Write where a constant comes from; its error with so many digits."""
    parts = [f"basis: {provenance.basis}", f"source: {provenance.source}"]
    if provenance.error is not None:
        parts.append(f"error: {provenance.error:.{digits}g}")
    if provenance.points is not None:
        parts.append(f"points: {provenance.points}")
    return ", ".join(parts)


def time_text(seconds: float) -> str:
    """Write a time in microseconds.

    >>> time_text(1.5e-6)
    '1.5 us'
    """
    return f"{seconds * 1e6:.4g} us"
