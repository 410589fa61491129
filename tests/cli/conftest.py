"""A run that is quick to simulate, as a file."""

from __future__ import annotations

from pathlib import Path

import pytest

RUN = """\
model: gpt3-175b
cluster: dgx-a100
gpus: 128
layout: {tp: 8, pp: 8, schedule: 1f1b, recompute: full}
batch: {global: 32, micro: 1, seq: 2048}
framework: megatron-2021
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path
