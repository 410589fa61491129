"""How the command line starts, helps, fails and stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from shardsim.cli.lazy import LazyCommand
from shardsim.cli.main import COMMANDS, Root, main
from shardsim.errors import InputError, Problem, ProgramError

HEAVY = ("numpy", "scipy", "pandas", "networkx", "matplotlib", "pydantic", "yaml", "jinja2", "simpy")


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def _failing(error: BaseException) -> Result:
    """Run a command that fails in a certain way."""

    def fail() -> None:
        raise error

    root = Root("shardsim", lazy={})
    root.add_command(click.Command("fail", callback=fail))
    return CliRunner().invoke(root, ["fail"])


# ---- starting ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)], ids=" ".join
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    done = _python(
        f"""
        import sys
        from shardsim.cli.main import main
        try:
            main(sys.argv[1:])
        except SystemExit as error:
            assert not error.code, error.code
        print("loaded:", *[name for name in {HEAVY!r} if name in sys.modules])
        """,
        *arguments,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_a_prediction_as_json_loads_no_library_of_tables_graphs_or_drawings() -> None:
    done = _python(
        """
        import sys
        from shardsim.cli.main import main
        try:
            main("simulate --model llama-2-7b --cluster dgx-a100 --gpus 8 --tp 2 --pp 2 --global-batch 8 --seq 2048"
                 " --zero 1 --detail operators --json".split())
        except SystemExit as error:
            assert not error.code, error.code
        unwanted = ("scipy", "pandas", "networkx", "matplotlib", "jinja2", "rich", "shardsim.schema.huggingface")
        print("loaded:", *[name for name in unwanted if name in sys.modules])
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_help_lists_every_command_with_a_line() -> None:
    shown = _run("--help").output
    for name, entry in COMMANDS.items():
        assert f"  {name}" in shown
        assert entry.summary in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_exists_and_helps(name: str) -> None:
    result = _run(name, "--help")
    assert result.exit_code == 0, result.output
    assert f"shardsim {name}" in result.output


def test_the_version_is_that_of_the_package() -> None:
    from importlib.metadata import version

    assert _run("--version").output == f"shardsim, version {version('shardsim')}\n"


def test_the_installed_script_runs() -> None:
    script = Path(sys.executable).with_name("shardsim")
    if not script.exists():
        pytest.skip("the package is not installed as a script beside this Python")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("shardsim, version ")


# ---- unknown names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["simulte"], "error: no such command: simulte (did you mean simulate?); see shardsim --help\n"),
        (["--versio"], "error: no such option: --versio (did you mean --version?); see shardsim --help\n"),
        (["topology", "shw"], "error: no such command: shw (did you mean show?); see shardsim topology --help\n"),
        (["validate", "rnus"], "error: no such command: rnus (did you mean runs?); see shardsim validate --help\n"),
    ],
)
def test_a_slip_in_a_name_is_answered_with_the_near_one(arguments: list[str], expected: str) -> None:
    result = _run(*arguments)
    assert result.exit_code == 2
    assert result.stderr == expected
    assert result.stdout == ""


def test_a_name_far_from_all_is_answered_with_all() -> None:
    result = _run("zzz")
    assert result.exit_code == 2
    assert all(name in result.stderr for name in COMMANDS)


def test_an_option_of_a_command_is_suggested() -> None:
    result = _run("simulate", "--globl-batch", "8")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: no such option: --globl-batch (did you mean --global-batch")


def test_a_missing_value_is_one_line() -> None:
    result = _run("simulate", "--tp")
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ")


# ---- failing ----------------------------------------------------------------------------------------------------


def test_every_problem_of_an_input_is_one_line() -> None:
    result = _failing(InputError([Problem("a is wrong", "run.yaml:3: a", "b or c"), Problem("two\nlines")]))
    assert result.exit_code == 2
    assert result.stderr == "error: run.yaml:3: a: a is wrong (b or c)\nerror: two lines\n"


def test_a_terminal_is_safe_from_what_a_user_wrote() -> None:
    assert "\x1b" not in _failing(InputError("name \x1b[2J is unknown")).stderr


@pytest.mark.parametrize(
    ("error", "status", "expected"),
    [
        (ProgramError("stage 1 waits for nobody"), 2, "error: stage 1 waits for nobody\n"),
        (IsADirectoryError(21, "Is a directory", "out"), 2, "error: out: Is a directory\n"),
        (OSError(28, "No space left on device"), 2, "error: No space left on device\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
    ],
)
def test_each_kind_of_failure_has_its_status(error: BaseException, status: int, expected: str) -> None:
    result = _failing(error)
    assert (result.exit_code, result.stderr) == (status, expected)
    assert result.stdout == ""


def test_a_fault_of_ours_is_told_apart_from_bad_input() -> None:
    result = _failing(ZeroDivisionError("division by zero"))
    assert result.exit_code == 70
    assert result.stderr.startswith("error: internal fault: ZeroDivisionError: division by zero (please report it")
    assert result.stderr.count("\n") == 1


def test_a_fault_of_ours_can_be_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDSIM_DEBUG", "1")
    assert isinstance(_failing(ZeroDivisionError()).exception, ZeroDivisionError)


def test_a_table_that_names_no_command_is_noticed() -> None:
    root = Root("shardsim", lazy={"broken": LazyCommand("shardsim.units:parse", "")})
    assert CliRunner().invoke(root, ["broken"]).exit_code == 70


# ---- stopping ---------------------------------------------------------------------------------------------------

PATIENT = """
    import sys, time
    import click
    from pathlib import Path
    from shardsim.cli.main import Root
    from shardsim.report.save import save_with

    def write(stream):
        stream.write(b"half")
        print("ready", flush=True)
        time.sleep(60)

    root = Root("shardsim", lazy={})
    root.add_command(click.Command("wait", callback=lambda: save_with(Path(sys.argv[1]), write)))
    root(["wait"])
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_while_a_file_is_written_leaves_nothing(tmp_path: Path, number: int, status: int) -> None:
    command = [sys.executable, "-c", textwrap.dedent(PATIENT), str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == status
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


TALKATIVE = """
    import click
    from shardsim.cli.main import Root
    root = Root("shardsim", lazy={})
    root.add_command(click.Command("talk", callback=lambda: click.echo("x" * 1_000_000)))
    root(["talk"])
"""


def test_a_reader_that_has_left_is_no_failure_to_complain_about() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-c", textwrap.dedent(TALKATIVE)]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_under_the_output_is_reported() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from shardsim.cli.main import main; main(['simulate', '--help'])"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "error: No space left on device\n"


@pytest.mark.parametrize(
    ("given", "here"),
    [
        ("--tensor-model-parallel-size", "--tp"),
        ("--pipeline-model-parallel-layout", "--pp-layout"),
        ("--use-distributed-optimizer", "--zero 1"),
    ],
)
def test_an_option_of_megatron_is_named_as_it_is_here(given: str, here: str) -> None:
    assert _run("simulate", given, "8").stderr.startswith(f"error: no such option: {given} (here: {here});")


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands(inner, (*path, name))


def test_no_line_of_any_help_is_wider_than_a_terminal() -> None:
    for path in _commands(main):
        lines = CliRunner().invoke(main, [*path, "--help"], terminal_width=80).output.splitlines()
        assert max(map(len, lines)) <= 80, path
