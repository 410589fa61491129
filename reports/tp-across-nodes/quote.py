"""Puts the tables of this folder into README.md: a fence after <!-- NAME --> shows what the file of that name holds."""

from __future__ import annotations

import re
from pathlib import Path

page = Path("README.md")
if page.exists():
    quoted = re.compile(r"(<!-- (\S+) -->\n```\n).*?(?=```)", re.DOTALL)
    page.write_text(quoted.sub(lambda found: found[1] + Path(found[2]).read_text(), page.read_text()))
