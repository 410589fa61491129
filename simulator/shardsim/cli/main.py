"""The entry point: the table of commands, and how every failure reaches the user."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

import click

from shardsim.cli.lazy import LazyCommand, LazyGroup, did_you_mean
from shardsim.errors import InputError, ShardsimError

BAD_INPUT = 2
"""Exit status of anything the user can put right."""
INTERNAL = 70
"""Exit status of a fault in shardsim itself (EX_SOFTWARE)."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it: 128 + SIGINT."""
PIPE_CLOSED = 141
"""Exit status when the reader of our output has gone: 128 + SIGPIPE."""
TERMINATED = 143
"""Exit status after SIGTERM."""

_OBJECTS = 50_000
"""New objects after which Python looks for garbage; its own 700 have it search what a command keeps, over and over."""

COMMANDS = {
    "simulate": LazyCommand(
        "shardsim.cli.simulate:simulate", "How long does one iteration take, why, and does it fit?"
    ),
    "critical": LazyCommand(
        "shardsim.cli.critical:critical", "What does an iteration wait for, and what if that were quicker?"
    ),
    "memory": LazyCommand("shardsim.cli.memory:memory", "Does it fit, stage by stage, and what would make it fit?"),
    "scale": LazyCommand("shardsim.cli.scale:scale", "How does it scale over a list of GPU counts?"),
    "collective": LazyCommand(
        "shardsim.cli.collective:collective", "How long does one collective take, by which algorithm, and why?"
    ),
    "validate": LazyCommand(
        "shardsim.cli.validate:validate", "Compare predictions with measured runs and collectives."
    ),
    "calibrate": LazyCommand("shardsim.cli.calibrate:calibrate", "Read measurements of your own cluster."),
    "bench": LazyCommand("shardsim.cli.bench:bench", "Measure the GPU of this machine (needs PyTorch)."),
    "topology": LazyCommand(
        "shardsim.cli.topology:topology", "Show, draw or import a cluster; who talks to whom over which link."
    ),
    "model": LazyCommand("shardsim.cli.model:model", "Show a model: shape, parameters, the operators of a layer."),
    "catalog": LazyCommand(
        "shardsim.cli.catalog:catalog", "List the clusters, devices, models, frameworks and profiles."
    ),
}


_NO_ARGUMENTS: tuple[type[click.UsageError], ...] = (
    (click.exceptions.NoArgsIsHelpError,) if hasattr(click.exceptions, "NoArgsIsHelpError") else ()
)
"""A command without arguments shows its help; click before 8.2 does so by itself."""


class _InterruptedError(Exception):
    """Ctrl-C while a command ran; not KeyboardInterrupt, which click would turn into its own message."""


class _PipeClosedError(Exception):
    """The reader of our output has gone; not BrokenPipeError, which click would turn into exit status 1."""


class Root(LazyGroup):
    """The ``shardsim`` command: one line for each problem, and the exit statuses that README promises."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for, and flush what it printed while failures can still be reported."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except KeyboardInterrupt as error:
            raise _InterruptedError from error
        except BrokenPipeError as error:
            raise _PipeClosedError from error
        return result

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "shardsim",
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002  # click's signature
        **extra: Any,
    ) -> Any:
        """Run, and leave with status 0 good, 1 the answer is no, 2 bad input, 70 a fault of ours, 130 Ctrl-C."""

        def run() -> Any:
            return super(Root, self).main(args, prog_name, complete_var, standalone_mode=False, **extra)

        if not standalone_mode:
            return run()
        gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
        with _terminate_cleanly():
            try:
                status = run()
            except Exception as error:  # the last place where a fault can be told in one line
                status = _report(error)
        sys.exit(status if isinstance(status, int) else 0)


@contextlib.contextmanager
def _terminate_cleanly() -> Iterator[None]:
    """Turn SIGTERM into an exit that unwinds, so that no temporary file stays behind."""

    def leave(_signal: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(TERMINATED)

    try:
        before = signal.signal(signal.SIGTERM, leave)
    except ValueError:  # only the main thread may set handlers; elsewhere the host decides
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _report(error: Exception) -> int:
    """Tell the user what went wrong, one line for each problem; the exit status."""
    if isinstance(error, _InterruptedError | click.Abort):
        _line("interrupted")
        return INTERRUPTED
    if isinstance(error, _PipeClosedError):
        # Whatever is still buffered has nowhere to go: without this Python complains on its way out.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    if isinstance(error, _NO_ARGUMENTS):
        click.echo(error.format_message(), err=True)
        return BAD_INPUT
    status, lines = _explain(error)
    for line in dict.fromkeys(lines):
        _line(f"error: {line}")
    return status


def _explain(error: Exception) -> tuple[int, list[str]]:
    """Exit status and lines for an error that has something to say."""
    if os.environ.get("SHARDSIM_DEBUG"):
        raise error
    if isinstance(error, InputError):
        return BAD_INPUT, [str(problem) for problem in error.problems]
    if isinstance(error, ShardsimError):
        return BAD_INPUT, [str(error)]
    if isinstance(error, click.ClickException):
        return BAD_INPUT, [_usage(error)]
    if isinstance(error, OSError):
        named = f"{error.filename}: " if error.filename is not None else ""
        return BAD_INPUT, [f"{named}{error.strerror or error}"]
    fault = f"internal fault: {type(error).__name__}: {error}"
    return INTERNAL, [f"{fault} (please report it; SHARDSIM_DEBUG=1 in the environment shows the traceback)"]


def _usage(error: click.ClickException) -> str:
    """Say what is wrong with the command line: the problem, near names, where help is."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    message = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and context is not None:
        known = [option for parameter in context.command.params for option in parameter.opts if option.startswith("--")]
        here = _of_megatron(error.option_name)
        right = f"here: {here}" if here.split(" ")[0] in known else did_you_mean(error.option_name, [*known, "--help"])
        message = f"no such option: {error.option_name} ({right})"
    where = f"; see {context.command_path} --help" if context is not None else ""
    return message + where


def _of_megatron(option: str) -> str:
    """What an option of Megatron-LM is called here; empty for none of its."""
    from shardsim.schema.flags import FLAGS
    from shardsim.schema.megatron import MEGATRON_NAMES

    if option == "--use-distributed-optimizer":
        return "--zero 1"
    key = MEGATRON_NAMES.get(option.removeprefix("--").replace("-", "_"))
    flag = next((name for name, path in FLAGS.items() if path == key), "")
    return f"--{flag.replace('_', '-')}" if flag else ""


def _line(text: str) -> None:
    """Write one line to stderr, whatever was in the text that the user gave us."""
    printable = "".join(c if c.isprintable() else " " for c in text)
    with contextlib.suppress(OSError):
        click.echo(printable, err=True)


@click.group("shardsim", cls=Root, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="shardsim", prog_name="shardsim")
def main() -> None:
    """Predict how a transformer trains on a GPU cluster.

    Iteration time, scaling and memory of any TP x PP x DP layout, before it is bought or rented.
    """
