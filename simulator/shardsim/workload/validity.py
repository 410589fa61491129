"""Whether a layout can be run: every problem at once, each with the values that would be legal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from shardsim.errors import Problem
from shardsim.values.num import Num
from shardsim.values.training import Batch, Framework, Layout, Model

_SHOWN = 12


MOST_PASSES = 1_000_000
"""Forward and backward passes of one iteration, over all stages and chunks, that are simulated (-)."""


def check(
    model: Model, layout: Layout, batch: Batch, gpus: int, framework: Framework
) -> tuple[tuple[Problem, ...], tuple[str, ...]]:
    """Check one layout against Megatron's rules and against what this version can price.

    Parameters
    ----------
    model : Model
    layout : Layout
        Scalars. ``dp`` may be any number where the GPUs do not divide.
    batch : Batch
    gpus : int
        GPUs in all (-).
    framework : Framework

    Returns
    -------
    problems : tuple of Problem
        Empty for a valid layout.
    warnings : tuple of str
        What will be changed.
    """
    problems = tuple(_positive(layout, batch, gpus))
    if not problems:
        asked = _Asked.of(model, layout, batch, gpus)
        rules = (_tensor, _pipeline, _devices, _batches, _unpriced, _order)
        problems = tuple(problem for rule in rules for problem in rule(asked, layout))
    return problems, tuple(_warnings(layout, framework))


@dataclass(frozen=True, slots=True)
class _Asked:
    """The numbers that the rules are about."""

    model: Model
    tp: int
    pp: int
    cp: int
    vpp: int
    sp: bool
    gpus: int
    global_batch: int
    micro_batch: int
    seq_len: int

    @classmethod
    def of(cls, model: Model, layout: Layout, batch: Batch, gpus: int) -> _Asked:
        return cls(
            model,
            tp=int(layout.tp),
            pp=int(layout.pp),
            cp=int(layout.cp),
            vpp=int(layout.vpp),
            sp=layout.sp and int(layout.tp) > 1,
            gpus=gpus,
            global_batch=int(batch.global_batch),
            micro_batch=int(batch.micro_batch),
            seq_len=batch.seq_len,
        )

    @property
    def replica(self) -> int:
        return self.tp * self.pp * self.cp


def _positive(layout: Layout, batch: Batch, gpus: int) -> Iterator[Problem]:
    counts: tuple[tuple[str, Num], ...] = (
        ("layout.tp", layout.tp),
        ("layout.pp", layout.pp),
        ("layout.cp", layout.cp),
        ("layout.ep", layout.ep),
        ("layout.vpp", layout.vpp),
        ("batch.global", batch.global_batch),
        ("batch.micro", batch.micro_batch),
        ("batch.seq", batch.seq_len),
        ("gpus", gpus),
    )
    for where, value in counts:
        if not (value >= 1 and value == int(value)):
            yield Problem(f"{value} is not a count", where, "a whole number, 1 or more")


def _tensor(asked: _Asked, _: Layout) -> Iterator[Problem]:
    model, tp = asked.model, asked.tp
    right = _choices(_legal_tp(asked))
    if model.heads % tp:
        yield Problem(f"{model.heads} attention heads do not divide by tp {tp}", "layout.tp", right)
    if model.kv_heads != model.heads and not _kv_divides(model, tp):
        what = f"{model.kv_heads} key-value heads are neither a multiple nor a divisor of tp {tp}"
        yield Problem(what, "layout.tp", right)
    if model.ffn % tp:
        yield Problem(f"the MLP width {model.ffn} does not divide by tp {tp}", "layout.tp", right)
    if asked.sp and asked.seq_len % tp:
        what = f"sequences of {asked.seq_len} tokens do not divide by tp {tp}, as sequence parallelism needs"
        yield Problem(what, "batch.seq", _multiples(asked.seq_len, tp))
    if model.position == "learned" and asked.seq_len > model.max_positions:
        what = f"sequences of {asked.seq_len} tokens are longer than {model.name}'s {model.max_positions} positions"
        yield Problem(what, "batch.seq", f"{model.max_positions} or less")


def _pipeline(asked: _Asked, layout: Layout) -> Iterator[Problem]:
    layers, pp, vpp = asked.model.layers, asked.pp, asked.vpp
    if layers % (pp * vpp):
        chunks = "" if vpp == 1 else f" x vpp {vpp} = {pp * vpp} virtual stages"
        right = f"pp {_choices(_legal_pp(asked))}"
        if layers % pp == 0:
            right += f"; vpp {_choices(v for v in _divisors(layers // pp) if v > 1 or vpp == 1)}"
        yield Problem(f"{layers} layers do not divide by pp {pp}{chunks}", "layout.pp", right)
    interleaved = layout.schedule == "interleaved"
    if interleaved and pp == 1:
        yield Problem("an interleaved schedule on one pipeline stage", "layout.pp", "pp of 2 or more, or vpp 1")
    if interleaved and vpp == 1:
        yield Problem("an interleaved schedule with one chunk a stage", "layout.vpp", "2 or more, or schedule 1f1b")
    if not interleaved and vpp > 1:
        what = f"{layout.schedule} holds one chunk a stage, vpp {vpp} is asked for"
        yield Problem(what, "layout.schedule", "interleaved, or vpp 1")


def _devices(asked: _Asked, layout: Layout) -> Iterator[Problem]:
    if asked.gpus % asked.replica:
        what = f"{asked.gpus} GPUs do not divide into replicas of tp {asked.tp} x pp {asked.pp} x cp {asked.cp}"
        yield Problem(f"{what} = {asked.replica}", "gpus", _multiples(asked.gpus, asked.replica))
    elif layout.dp != asked.gpus // asked.replica:
        what = f"dp {layout.dp:g} x {asked.replica} ranks a replica is not {asked.gpus} GPUs"
        yield Problem(what, "layout.dp", f"{asked.gpus // asked.replica}")


def _batches(asked: _Asked, layout: Layout) -> Iterator[Problem]:
    if asked.gpus % asked.replica:
        return
    dp, size = asked.gpus // asked.replica, asked.global_batch
    step = asked.micro_batch * dp
    if size % step:
        what = f"a global batch of {size} does not divide by micro-batch {asked.micro_batch} x dp {dp}"
        yield Problem(f"{what} = {step}", "batch.global", _multiples(size, step))
    elif 2 * (size // step) * asked.pp * asked.vpp > MOST_PASSES:
        what = (
            f"{size // step:,} micro-batches a replica make more than {MOST_PASSES:,} passes, too many to walk through"
        )
        yield Problem(what, "batch.global", "a smaller global batch, or a larger micro-batch")
    elif layout.schedule == "interleaved" and asked.pp > 1 and (size // step) % asked.pp:
        what = (
            f"{size // step} micro-batches a replica do not divide by pp {asked.pp}, as the interleaved schedule needs"
        )
        yield Problem(what, "batch.global", _multiples(size, step * asked.pp))


def _unpriced(asked: _Asked, layout: Layout) -> Iterator[Problem]:
    if asked.cp > 1:
        yield Problem(f"context parallelism (cp {asked.cp}) is not priced by this version", "layout.cp", "1")
    if layout.ep > 1:
        yield Problem(f"expert parallelism (ep {layout.ep:g}) is not priced by this version", "layout.ep", "1")
    if layout.zero not in (0, 1):
        what = f"ZeRO stage {layout.zero} is not priced by this version"
        yield Problem(what, "layout.zero", "0, or 1 for the distributed optimizer")


def _order(_: _Asked, layout: Layout) -> Iterator[Problem]:
    axes = [axis for axis in layout.order if axis != "ep"]
    if sorted(axes) != ["cp", "dp", "pp", "tp"] or layout.order.count("ep") > 1:
        what = f"the rank order {', '.join(layout.order)} does not name each axis once"
        yield Problem(what, "layout.order", "tp, cp, dp, pp in any order")


def _warnings(layout: Layout, framework: Framework) -> Iterator[str]:
    if layout.sp and layout.tp == 1 and not framework.sequence_parallel:
        yield "sequence parallelism is switched off: it splits what tensor parallelism leaves whole, and tp is 1"


def _kv_divides(model: Model, tp: int) -> bool:
    return model.kv_heads % tp == 0 or tp % model.kv_heads == 0


def _legal_tp(asked: _Asked) -> list[int]:
    model = asked.model
    by_model = [t for t in _divisors(model.heads) if _kv_divides(model, t) and model.ffn % t == 0]
    rules: tuple[Callable[[int], bool], ...] = (
        lambda t: asked.gpus % (t * asked.pp * asked.cp) == 0,
        lambda t: not asked.sp or asked.seq_len % t == 0,
    )
    return [t for t in by_model if all(rule(t) for rule in rules)] or by_model


def _legal_pp(asked: _Asked) -> list[int]:
    layers = asked.model.layers
    by_model = [p for p in _divisors(layers) if layers % (p * asked.vpp) == 0 and (p > 1 or asked.vpp == 1)]
    by_gpus = [p for p in by_model if asked.gpus % (asked.tp * p * asked.cp) == 0]
    return by_gpus or by_model or _divisors(layers)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _choices(values: Iterable[int]) -> str:
    listed = list(values)
    more = f" ... {listed[-1]}" if len(listed) > _SHOWN else ""
    return "one of " + ", ".join(str(v) for v in listed[:_SHOWN]) + more


def _multiples(value: int, step: int) -> str:
    below = value // step * step
    return f"a multiple of {step}, such as " + (f"{below} or {below + step}" if below else str(step))
