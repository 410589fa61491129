"""What may be changed about a run so that it needs less memory: every step as keys of a run file and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType

from shardsim.schema.flags import FLAGS
from shardsim.values.training import Layout, TrainingRun
from shardsim.workload.schedules import RULES

_FACTORS = (0.5, 1, 2, 4)
_UNITS = (2, 4)
_SHARE = 8192
"""Fewest tokens that are left to a rank where sequences are split over more of them (-)."""
_MODULES = MappingProxyType({
    "core_attn": "the attention core",
    "layernorm": "norms",
    "moe_act": "the experts' activation",
    "mla_up_proj": "latent projections",
    "mlp": "the MLP",
})  # fmt: skip
"""What selective recompute may repeat, the cheapest for what it saves first, in words."""
_FLAGS = MappingProxyType({".".join(path): name for name, path in FLAGS.items()})


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One change to a run.

    Parameters
    ----------
    kind : str
        Two steps of the same kind exclude each other.
    words : str
    keys : mapping of str to value
        By dotted key of a run file.
    rung : int
        Of a row of steps that each need less memory and take longer than the one before: its place (-), from 1; 0 for
        a step that stands alone. Only the first that suffices is of interest.
    repeats : frozenset of str
        Work of the forward pass that is done twice: a step that repeats all that another does, and more, costs more.
    """

    kind: str
    words: str
    keys: Mapping[str, object]
    rung: int = 0
    repeats: frozenset[str] = frozenset()


def steps(run: TrainingRun) -> tuple[Step, ...]:
    """List what may be changed; whether the outcome is valid is for the validity rules to say.

    Parameters
    ----------
    run : TrainingRun
        As it is.

    Returns
    -------
    tuple of Step
        Those that as a rule cost the least first.
    """
    families = (
        _sequence_parallel,
        _overlap,
        _selective,
        _zero,
        _micro_batch,
        _schedule,
        _experts,
        _context,
        _ends,
        _degrees,
        _full,
    )
    return tuple(step for family in families for step in family(run))


def flags(keys: Mapping[str, object]) -> str:
    """Write keys of a run file as command-line flags.

    Parameters
    ----------
    keys : mapping of str to value
        By dotted key.

    Returns
    -------
    str

    Examples
    --------
    >>> flags({"layout.recompute": "full", "layout.sp": True, "layout.recompute_layers": 4})
    '--recompute full --sp --recompute-layers 4'
    """
    return " ".join(_flag(key, value) for key, value in keys.items())


def _flag(key: str, value: object) -> str:
    name = f"--{_FLAGS[key].replace('_', '-')}"
    if isinstance(value, bool):
        return name if value else f"--no-{name.removeprefix('--')}"
    return f"{name} {','.join(map(str, value)) if isinstance(value, tuple) else value}"


def _sequence_parallel(run: TrainingRun) -> Iterator[Step]:
    if run.layout.tp > 1 and not run.layout.sp:
        yield Step("sp", "sequence parallelism", {"layout.sp": True})


def _overlap(run: TrainingRun) -> Iterator[Step]:
    if run.framework.bucket_copies and run.framework.overlap_grad_reduce == "always":
        yield Step("overlap", "gradients reduced at the end (no buckets)", {"layout.overlap_grad_reduce": False})


def _selective(run: TrainingRun) -> Iterator[Step]:
    """One or two modules more than are recomputed now."""
    layout, model = run.layout, run.model
    if layout.recompute == "full":
        return
    now = layout.recompute_modules if layout.recompute == "selective" else ()
    there = {"moe_act": model.moe, "mla_up_proj": model.mla}
    others = [name for name in _MODULES if name not in now and there.get(name, True)]
    for more in (*combinations(others, 1), *combinations(others, 2)):
        modules = (*now, *more)
        words = f"selective recompute of {', '.join(_MODULES.get(name, name) for name in modules)}"
        keys = {"layout.recompute": "selective", "layout.recompute_modules": modules}
        yield Step("recompute", words, keys, repeats=frozenset(modules))


def _zero(run: TrainingRun) -> Iterator[Step]:
    """A higher stage; of the last one also with weights given up after each forward pass, where they are not."""
    what = {1: "optimizer states", 2: "optimizer states and gradients", 3: "optimizer states, gradients and weights"}
    layout, again, reshard = run.layout, "weights gathered again for the backward pass", {"layout.reshard": True}
    for stage in range(layout.zero + 1, 4):
        if layout.dp > 1:
            yield Step("zero", f"ZeRO {stage} ({what[stage]} split over replicas)", {"layout.zero": stage})
    if not layout.reshard and layout.zero == 3:
        yield Step("reshard", again, reshard)
    elif not layout.reshard and layout.dp > 1:
        yield Step("zero", f"ZeRO 3 ({what[3]} split over replicas), {again}", {"layout.zero": 3, **reshard})


def _micro_batch(run: TrainingRun) -> Iterator[Step]:
    now = int(run.batch.micro_batch)
    for size in range(now - 1, 0, -1):
        if now % size == 0:
            yield Step("micro", f"micro-batch {size} in place of {now}", {"batch.micro": size})


def _schedule(run: TrainingRun) -> Iterator[Step]:
    layout = run.layout
    if layout.pp == 1 or layout.custom is not None:
        return
    interleaves = sorted({2, *_divisors(int(layout.vpp))} - {1})
    for name, rule in RULES.items():
        for chunks in [rule.chunks] if rule.chunks else interleaves:
            if (name, chunks) == (layout.schedule, layout.vpp):
                continue
            held = f" with {chunks} chunks a rank" if chunks > 1 else ""
            words = f"schedule {name}{held}" if name != layout.schedule else f"{chunks} chunks a rank"
            yield Step("schedule", words, {"layout.schedule": name, "layout.vpp": chunks})


def _experts(run: TrainingRun) -> Iterator[Step]:
    if run.model.moe is None:
        return
    for ep in _divisors(run.model.moe.experts):
        if ep > run.layout.ep:
            yield Step("ep", f"EP {ep}", {"layout.ep": ep})


def _context(run: TrainingRun) -> Iterator[Step]:
    """Sequences split over more ranks, while each has as many tokens as make one worth it."""
    layout, tokens = run.layout, run.batch.seq_len
    most = round(float(layout.gpus / (layout.tp * layout.pp)))
    for cp in (cp for cp in _divisors(most) if cp > layout.cp and cp % layout.cp == 0 and tokens / cp >= _SHARE):
        yield Step("cp", f"CP {cp}", {"layout.cp": cp})


def _ends(run: TrainingRun) -> Iterator[Step]:
    """Fewer layers on the first or the last stage, where embedding and loss are; the others share the rest."""
    layout = run.layout
    if layout.split or layout.custom is not None or layout.pp < 3:
        return
    layers, pp = run.model.layers, int(layout.pp)
    for fewer in range(layers // pp - 1, 0, -1):
        # Most would be refused, as the others cannot share the rest evenly: not asking saves most of the time.
        if (layers - fewer) % (pp - 1) == 0:
            for where in ("first", "last"):
                yield Step("ends", f"{fewer} layers on the {where} stage", {f"layout.{where}_layers": fewer})
        if (layers - 2 * fewer) % (pp - 2) == 0:
            keys = {"layout.first_layers": fewer, "layout.last_layers": fewer}
            yield Step("ends", f"{fewer} layers on the first and on the last stage", keys)


def _degrees(run: TrainingRun) -> Iterator[Step]:
    """Other TP and PP, of no smaller product, on as many GPUs; fewer chunks a rank where layers would not do otherwise.

    TP does not leave the NVLink domain unless it has done so already: nobody runs it like that for memory's sake. A
    user's own schedule is one for as many stages as it has.
    """
    layout = run.layout
    widest = max(run.cluster.gpus_per_domain, int(layout.tp))
    now, gpus = int(layout.tp) * int(layout.pp), round(float(layout.gpus))
    for tp in (tp for tp in _divisors(run.model.heads) if tp <= widest):
        for more_pp in _FACTORS if layout.custom is None else (1,):
            pp = int(layout.pp * more_pp)
            if pp < 1 or tp * pp < now or (tp, pp) == (layout.tp, layout.pp) or gpus % (tp * pp * int(layout.cp)):
                continue
            for chunks in sorted({int(layout.vpp), max(int(layout.vpp / more_pp), 1)}, reverse=True):
                yield _degree_step(layout, tp, pp, chunks)


def _full(run: TrainingRun) -> Iterator[Step]:
    layout = run.layout
    most = max(_layers_of_chunks(run))
    full = {"layout.recompute": "full"}
    some = frozenset({"layers"})
    every = some | {*_MODULES, *layout.recompute_modules}
    if layout.recompute != "full" or (layout.recompute_method == "block" and layout.recompute_layers):
        now = layout.recompute_layers if layout.recompute == "full" else 0
        for rung, layers in enumerate(range(now + 1, most), start=1):
            keys = {**full, "layout.recompute_method": "block", "layout.recompute_layers": layers}
            words = f"full recompute of {layers} layer{'s' * (layers > 1)} of each chunk"
            yield Step("recompute", words, keys, rung, some)
        whole = {"layout.recompute_method": "uniform", "layout.recompute_layers": 1} if now else {}
        yield Step("recompute", "full recompute of every layer", {**full, **whole}, repeats=every)
    for layers in _UNITS:
        if layers <= most and (layout.recompute != "full" or layers > layout.recompute_layers):
            keys = {**full, "layout.recompute_method": "uniform", "layout.recompute_layers": layers}
            every |= {f"unit {layers}"}  # as much, but with more layers at a time
            yield Step("recompute", f"full recompute in units of {layers} layers", keys, repeats=every)


def _degree_step(layout: Layout, tp: int, pp: int, chunks: int) -> Step:
    keys: dict[str, object] = {}
    if tp != layout.tp:
        keys["layout.tp"] = tp
    if pp != layout.pp:
        keys["layout.pp"] = pp
    if chunks != layout.vpp:
        keys |= {"layout.vpp": chunks}
        if chunks == 1 and layout.schedule == "interleaved":
            keys["layout.schedule"] = "1f1b"
    words = ", ".join(f"{key.removeprefix('layout.').upper()} {value}" for key, value in keys.items() if key[-1] == "p")
    return Step("degrees", words, keys)


def _layers_of_chunks(run: TrainingRun) -> tuple[int, ...]:
    layout = run.layout
    if layout.split:
        return layout.split
    copies = layout.custom.copies if layout.custom is not None else RULES[layout.schedule].copies
    return (-(-run.model.layers * copies // (int(layout.pp) * int(layout.vpp))),)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
