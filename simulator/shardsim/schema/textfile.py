"""Text of users' files, whatever wrote them: PowerShell's ``>`` and spreadsheets write UTF-16, editors a mark."""

from __future__ import annotations

import codecs

_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16", codecs.BOM_UTF8: "utf-8-sig"}


def encoding(head: bytes) -> str:
    """Name the encoding of a text by its first bytes: UTF-16 with its mark, else UTF-8.

    Parameters
    ----------
    head : bytes
        Two or three of them, or more.

    Returns
    -------
    str
        For ``bytes.decode`` and ``open``; the mark is taken off.

    Examples
    --------
    >>> encoding("a,b".encode("utf-16")), encoding(b"a,b")
    ('utf-16', 'utf-8')
    """
    return next((name for mark, name in _MARKS.items() if head.startswith(mark)), "utf-8")
