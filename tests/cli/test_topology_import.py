"""``shardsim topology import``: from a dump to a drawing, and to a cluster that simulate takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardsim.cli.main import main

FIXTURES = Path(__file__).parents[1] / "topology" / "imports" / "fixtures"
QUARTZ, GRANITE = str(FIXTURES / "quartz-8gpu.txt"), str(FIXTURES / "granite-4gpu-dump.xml")
H100 = ("--device", "h100-sxm-80gb", "--nic", "400 Gb/s", "--like", "dgx-h100")


def _run(*arguments: str, text: bytes | None = None) -> Result:
    return CliRunner().invoke(main, ["topology", "import", *arguments], input=text)


def test_a_dump_alone_is_shown() -> None:
    result = _run(QUARTZ)
    assert result.exit_code == 0, result.stderr
    assert "8; 18 NVLinks each, through NVSwitch" in result.stdout
    assert "10; 8 under a PCIe switch with a GPU" in result.stdout
    assert "18 to NVSwitch; PXB NIC3" in result.stdout
    assert "Cluster of such nodes" not in result.stdout


def test_standard_input_is_read() -> None:
    result = _run("-", text=Path(QUARTZ).read_bytes())
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("standard input  nvidia-smi topo -m\n")


def test_the_written_cluster_can_be_simulated(tmp_path: Path) -> None:
    out = tmp_path / "ours.yaml"
    result = _run(QUARTZ, *H100, "--nodes", "4", "--out", str(out))
    assert result.exit_code == 0, result.stderr
    assert "assumed" in result.stdout
    arguments = ["simulate", "--model", "llama-3-8b", "--cluster", str(out), "--gpus", "32", "--tp", "8"]
    batch = ["--global-batch", "64", "--micro-batch", "1", "--seq", "8192", "--json"]
    simulated = CliRunner().invoke(main, [*arguments, *batch])
    assert simulated.exit_code == 0, simulated.stderr
    found = json.loads(simulated.stdout)
    assert found["run"]["cluster"]["name"] == "ours"
    known = CliRunner().invoke(main, [*arguments[:4], "dgx-h100", *arguments[5:], *batch])
    assert found["iteration_s"] == pytest.approx(json.loads(known.stdout)["iteration_s"]), "the same machine"


@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.parametrize("dump", sorted(path.name for path in FIXTURES.iterdir()))
def test_every_kind_of_node_is_drawn(tmp_path: Path, dump: str, suffix: str) -> None:
    out = tmp_path / f"node.{suffix}"
    result = _run(str(FIXTURES / dump), "--draw", str(out))
    assert result.exit_code == 0, result.stderr
    assert out.stat().st_size > 5000
    again = tmp_path / f"again.{suffix}"
    _run(str(FIXTURES / dump), "--draw", str(again))
    assert again.read_bytes() == out.read_bytes()


def test_json_has_the_node_and_the_cluster_if_one_was_asked_for() -> None:
    found = json.loads(_run(GRANITE, "--json").stdout)
    assert found["schema"] == "shardsim.node/1"
    assert [gpu["switch_links"] for gpu in found["gpus"]] == [18] * 4
    assert found["nics"][0]["gb_per_s"] == 25.0
    assert {"a": "GPU1", "b": "mlx5_0", "distance": "PIX"} in found["distances"]
    assert "cluster" not in found
    with_cluster = json.loads(_run(GRANITE, "--json", "--nodes", "2", "--like", "hgx-h200").stdout)
    assert with_cluster["cluster"]["max_gpus"] == 8


def test_what_is_missing_is_asked_for_and_nothing_is_written(tmp_path: Path) -> None:
    out = tmp_path / "ours.yaml"
    result = _run(QUARTZ, "--out", str(out), "--draw", str(tmp_path / "node.png"))
    assert result.exit_code == 2
    assert [line.split(":")[1] for line in result.stderr.splitlines()] == [" --device", " --nic"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((QUARTZ, "--nic", "400"), "error: --nic: '400' has no unit"),
        ((QUARTZ, "--nic", "0 Gb/s"), "error: --nic: '0 Gb/s' carries nothing"),
        ((QUARTZ, "--out", "ours.txt"), "error: --out: ours.txt is no YAML file"),
        ((QUARTZ, "--draw", "node.pdf"), "error: --draw: node.pdf is neither PNG nor SVG"),
        ((QUARTZ, "--out", "nowhere/ours.yaml"), "error: --out: folder nowhere does not exist"),
        (("nothing.txt",), "error: nothing.txt: cannot be read: no such file or directory"),
        (("topo.yaml", "--out", "topo.yaml"), "error: --out: topo.yaml is also read as input"),
    ],
)
def test_bad_input_is_told_in_one_line(arguments: tuple[str, ...], found: str) -> None:
    result = _run(*arguments)
    assert result.exit_code == 2
    assert found in result.stderr
