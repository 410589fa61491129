"""Output files are whole or absent, and refused before the work when they could not be written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from shardsim.errors import InputError
from shardsim.report.save import check_outputs, save_text, save_with


def test_a_file_holds_exactly_what_was_written(tmp_path: Path) -> None:
    save_text(tmp_path / "out.json", "µ\n")
    assert (tmp_path / "out.json").read_bytes() == "µ\n".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_failure_half_way_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(stream: object) -> None:
        stream.write(b"half")  # type: ignore[attr-defined]
        raise RuntimeError("cut")

    with pytest.raises(RuntimeError, match="cut"):
        save_with(tmp_path / "out.json", fail)
    assert list(tmp_path.iterdir()) == []


def test_a_failure_half_way_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")

    def interrupted(stream: object) -> None:
        stream.write(b"half")  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_with(path, interrupted)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    ordinary = tmp_path / "ordinary"
    ordinary.write_text("")
    save_text(tmp_path / "saved", "")
    assert stat.S_IMODE((tmp_path / "saved").stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)


def test_an_old_files_permissions_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.write_text("old")
    path.chmod(0o640)
    save_text(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.read_text() == "new"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    save_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_a_device_is_written_to_and_not_replaced() -> None:
    save_text(Path("/dev/null"), "gone")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_pipe_receives_the_bytes(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        save_text(pipe, "through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_long_file_name_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)
    save_text(path, "x")
    assert path.read_text() == "x"


def test_good_outputs_pass_and_nothing_is_created(tmp_path: Path) -> None:
    check_outputs({"--trace": tmp_path / "a.json", "--html": None, "--csv": Path("/dev/null")})
    assert list(tmp_path.iterdir()) == []


def _problems(outputs: dict[str, Path | None], inputs: list[Path] | None = None) -> list[str]:
    with pytest.raises(InputError) as caught:
        check_outputs(outputs, inputs or [])
    return [str(problem) for problem in caught.value.problems]


def test_every_bad_output_is_named_at_once(tmp_path: Path) -> None:
    found = _problems({"--trace": tmp_path, "--html": tmp_path / "none" / "page.html"})
    assert len(found) == 2
    assert found[0].startswith("--trace: ")
    assert "is a directory" in found[0]
    assert found[1].startswith("--html: ")
    assert "does not exist" in found[1]


def test_two_outputs_to_one_file_are_refused_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    found = _problems({"--trace": tmp_path / "a", "--html": tmp_path / "sub" / ".." / "a"})
    assert found == [f"--html: {tmp_path}/sub/../a is also written by --trace (give each output a file of its own)"]


def test_an_input_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("gpus: 8")
    (tmp_path / "link").symlink_to(path)
    assert "read as input" in _problems({"--trace": tmp_path / "link"}, [path])[0]


def test_a_file_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "does not exist" in _problems({"--trace": tmp_path / "file" / "out"})[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        assert "is not writable" in _problems({"--trace": tmp_path / "out"})[0]
    finally:
        tmp_path.chmod(0o700)
