"""Every command and every Python session of README.md and docs/ runs, and shows what the page shows."""

from __future__ import annotations

import difflib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import refresh  # noqa: E402  # lies beside the pages, not in a package

PAGES = refresh.pages()
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_what_a_page_shows_is_what_its_commands_print_today(page: Path) -> None:
    before, after = page.read_text(encoding="utf-8").splitlines(), refresh.refreshed(page).splitlines()
    difference = "\n".join(difflib.unified_diff(before, after, named(page), "today", lineterm=""))
    assert not difference, f"run `python docs/refresh.py` and read what changed:\n{difference}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    prose = FENCED.sub("", page.read_text(encoding="utf-8"))
    missing = [link for link in LINK.findall(prose) if not (page.parent / link).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_shardsim_is_never_shown_in_a_block_that_is_not_run(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    shown = [
        line
        for fence in refresh.fences(lines)
        if fence.kind not in ("console", "pycon") and "file" not in fence.notes
        for line in lines[fence.start : fence.end]
        if line.startswith(("$ ", "shardsim ", ">>> "))
    ]
    assert shown == []


def test_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    asked = {
        word for page in PAGES for word in re.findall(r"\bmake (\w+)`|^\$ make (\w+)$", page.read_text("utf-8"), re.M)
    }
    assert {name for pair in asked for name in pair if name} <= targets


def test_the_demo_of_the_makefile_runs() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").split("demo: install\n")[1].split("\n\n")[0]
    demo = [line.strip() for line in recipe.replace("\\\n", " ").replace("$(BIN)/", "").splitlines()]
    assert any(line.startswith("shardsim simulate") for line in demo)
    with refresh.sandbox() as place:
        for line in demo:
            assert place.run(line)


def test_output_that_has_changed_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo today\nyesterday\n```\n\n```pycon\n>>> 1 + 1\n3\n```\n", encoding="utf-8")
    assert refresh.refreshed(page) == "```console\n$ echo today\ntoday\n```\n\n```pycon\n>>> 1 + 1\n2\n```\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```console\n$ false\n```\n", "exit status 1, not 0"),
        ("<!-- status: 2 -->\n```console\n$ true\n```\n", "exit status 0, not 2"),
        ("```pycon\n>>> 1 / 0\n```\n", "ZeroDivisionError"),
    ],
)
def test_an_example_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, found: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    monkeypatch.setattr(refresh, "ROOT", tmp_path)
    monkeypatch.setattr(refresh, "COPIED", ())
    with pytest.raises(refresh.ExampleError, match=found):
        refresh.refreshed(page)


JSON_OUTPUTS = {
    "shardsim.prediction/1": "simulate workloads/runs/megatron-8.3b-tp8.yaml --slow-gpu 1=1.1 --iterations 2 "
    "--checkpoint-every 10 --checkpoint-bandwidth '1 GB/s'",
    "shardsim.critical/1": "critical workloads/runs/megatron-8.3b-tp8.yaml --top 1",
    "shardsim.memory/1": "memory --model megatron-4.2b --cluster dgx-2h --gpus 4 --global-batch 4 --seq 1024",
    "shardsim.scaling/1": "scale workloads/runs/megatron-8.3b-tp8.yaml --gpus 8,16",
    "shardsim.traffic/1": "topology traffic workloads/runs/megatron-8.3b-tp8.yaml",
    "shardsim.validation/1": "validate runs",
    "shardsim.memory-validation/1": "validate memory memory.csv",
    "shardsim.cases/1": "validate cases cases.csv",
    "shardsim.topology/1": "topology show dgx-h100 --gpus 32 --tp 4 --pp 2",
    "shardsim.node/1": "topology import node.txt --device v100-sxm2-32gb --nic '100 Gb/s' --like dgx-2h",
    "shardsim.model/1": "model show deepseek-v3",
    "shardsim.catalog/1": "catalog",
    "shardsim.collective/1": "collective all_reduce 1GiB --cluster dgx-h100 --ranks 8",
    "shardsim.collectives/1": "collective all_reduce 1GiB --cluster dgx-h100 --ranks 8,16",
    "shardsim.nccl-logs/1": "calibrate nccl run.log --ranks 2 --gpus-per-node 2 --cluster dgx-h100",
    "shardsim.gemm-fit/1": "calibrate gemm gemms.csv --device h100-sxm-80gb",
    "shardsim.stack-fit/1": "calibrate stack hosts.csv --framework megatron-deepspeed --constants compute",
    "shardsim.published/1": "validate published",
    "shardsim.host-fit/1": "calibrate host hosts.csv --framework megatron-deepspeed",
    "shardsim.roofline/1": "model roofline llama-3-8b --cluster dgx-h100",
}
LOG = "1048576 262144 float sum -1 30.00 34.95 34.95 0 30.00 34.95 34.95 0"
"""One row of nccl-tests, of two ranks."""
GEMMS = (
    "gpu,dtype,m,n,k,time_us",
    *(f"H100,bf16,{m},4096,{m},{m / 10}" for m in range(1024, 1536, 64)),
    "A100,bf16,1,1,1,9",
)
"""Products of two GPUs."""
HOSTS = (
    (
        "gpu,framework,model,num_gpus,layers,hidden,ffn_hidden,heads,vocab,seq_len,dp,global_batch,micro_batch,precision,"
        "recompute,iteration_time_s"
    ),
    *(
        f"A100 80GB,Megatron-DeepSpeed,h{h},1,{layers},{h},{4 * h},8,50257,512,1,2,2,fp16,full,{layers / 100}"
        for h in (512, 1024)
        for layers in (2, 4, 6)
    ),
)
"""Iterations of small models."""
MEMORY = (
    (
        "gpu,gpus,layers,hidden,ffn_hidden,heads,kv_heads,vocab,tie_word_embeddings,seq_len,tp,pp,dp,zero_stage,"
        "micro_batch,micro_batches,precision,sp,schedule,outcome,peak_reserved_gb"
    ),
    "H100 80GB,8,16,2048,8192,32,32,131072,True,4096,1,1,8,1,1,4,bf16,yes,1f1b,fits,20",
    "H100 80GB,8,16,2048,8192,32,32,131072,True,4096,1,1,8,1,64,4,bf16,yes,1f1b,oom,",
)
"""One layout that ran, and one that did not."""
CASES = ("case_id,kind,framework,layers,pp,outcome", "one,validity,Megatron-LM,30,4,error", "two,perf,Megatron-LM,,,")
"""A layout that is refused, and a row of another kind."""
NODE = ("     GPU0 GPU1 NIC0", "GPU0 X NV2 PIX", "GPU1 NV2 X PIX", "NIC0 PIX PIX X")
"""What nvidia-smi topo -m prints of a small node."""
AS_A_WHOLE = {
    "views",
    "worst",
    "ranking",
    "summary.baselines",
    "constants",
    "constants_s",
    "weight",
    "stages.seconds",
    "lanes.seconds",
    "groups",
    "skipped",
    "notes",
    "rows",
    "verdicts",
    "misses",
    "operators",
    "refused",
    "fit.left_aside",
    "fits.layout_time",
    "answers",
    "advice.changes.keys",
    "mean",
}
"""Keys that are described by their own line and not taken apart."""


def flattened(record: Any, prefix: str = "") -> set[str]:
    """Keys of a record by dotted path, list items and stage numbers left out."""
    if isinstance(record, list):
        return {path for item in record for path in flattened(item, prefix)}
    if not isinstance(record, dict) or prefix in AS_A_WHOLE:
        return set()
    paths: set[str] = set()
    for key, value in record.items():
        here = prefix if key.isdigit() else f"{prefix}.{key}".lstrip(".")
        paths |= {here} | flattened(value, here)
    return paths


@pytest.mark.parametrize(("schema", "command"), JSON_OUTPUTS.items())
def test_every_json_key_is_documented_and_every_documented_key_exists(schema: str, command: str) -> None:
    page = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    section = page.split(f"## {schema}\n")[1].split("\n## ")[0]
    documented = set(re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE))
    with refresh.sandbox() as place:
        place.write("run.log", [LOG])
        place.write("node.txt", NODE)
        place.write("gemms.csv", GEMMS)
        place.write("hosts.csv", HOSTS)
        place.write("memory.csv", MEMORY)
        place.write("cases.csv", CASES)
        record = json.loads("\n".join(place.run(f"shardsim {command} --json")))
    assert record["schema"] == schema
    assert documented == flattened(record)


def test_every_json_schema_is_documented() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "simulator").rglob("*.py"))
    assert set(re.findall(r"shardsim\.[\w-]+/\d+", sources)) == set(JSON_OUTPUTS)


def test_the_documentation_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("sphinx", reason="Sphinx is not installed: make docs installs it")
    pytest.importorskip("myst_parser", reason="MyST is not installed: make docs installs it")
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(ROOT / "docs"), str(tmp_path / "html")]
    result = subprocess.run([*command, "-d", str(tmp_path / "trees")], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
