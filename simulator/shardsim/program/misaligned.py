"""Matrix products whose share on a rank starts its rows off 128-byte lines, and so runs slower."""

from __future__ import annotations

from collections.abc import Iterator

from shardsim.cost.gemm import LINE, alignment_factor, element_width
from shardsim.values.operators import Gemm
from shardsim.values.training import TrainingRun
from shardsim.workload.ends import head_forward
from shardsim.workload.layer import layer_forward


def misaligned(run: TrainingRun) -> tuple[str, ...]:
    """Warn of linear layers whose sharded width is no multiple of 128 bytes, where that was seen to cost something.

    Parameters
    ----------
    run : TrainingRun
        Of one layout: degrees are scalars.

    Returns
    -------
    tuple of str
        One for each width, with the value on a rank, the nearest that is aligned, and what it costs.
    """
    shape = (run.model, run.layout, run.batch, run.framework)
    products = [one for one in (*layer_forward(*shape), *head_forward(*shape)) if isinstance(one, Gemm)]
    found: dict[tuple[float, float], list[str]] = {}
    for gemm in products:
        if not gemm.attention:
            for side, elements, width in _widths(gemm, gemm.data_type or run.wide_type):
                found.setdefault((elements, width), []).append(f"{side} of {gemm.name}")
    texts = (_text(run, elements, width, names) for (elements, width), names in found.items())
    return tuple(text for text in texts if text)


def _widths(gemm: Gemm, precision: str) -> Iterator[tuple[str, float, float]]:
    """Sides of a linear layer that lie contiguous somewhere, forward or backward, and bytes of their elements."""
    width = element_width(gemm, precision)
    yield "input", float(gemm.k), width
    yield "output", float(gemm.n), width


def _text(run: TrainingRun, elements: float, width: float, names: list[str]) -> str:
    shares = run.profile.kernels.gemm[run.wide_type].alignment
    worst = float(alignment_factor([elements * width], shares, "worst"))
    if worst == 1.0:
        return ""
    usual = float(alignment_factor([elements * width], shares))
    step = LINE / width
    nearest = max(1.0, float(int(elements / step + 0.5))) * step
    return (
        f"{' and '.join(names)}: {elements:g} elements a rank, {elements * width:g} bytes, are no multiple of {LINE} "
        f"bytes; the nearest aligned are {nearest:g}. Such products are priced at {usual:.3g} of an aligned one's "
        f"throughput; {worst:.3g} is the worst documented"
    )
