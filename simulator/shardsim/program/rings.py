"""Communication of context parallelism behind attention: the next block of keys and values arrives meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardsim.program.overlap import Priced
from shardsim.values.operators import Attention, Collective


def beside_attention(pairs: Sequence[Priced]) -> tuple[Priced, ...]:
    """Let each step of a ring run beside the attention that follows it.

    Parameters
    ----------
    pairs : sequence of (Operator, Task)
        Of one layer and pass, in order of issue.

    Returns
    -------
    tuple of (Operator, Task)
        The same tasks. A step does not block; what computes next after the attention beside it waits for it: the
        attention to the block that it brought, or backward, the sum of the gradients that it brought. So ``c`` blocks
        of ``x`` seconds and ``c - 1`` steps of ``y`` between them take ``x + (c - 1) max(x, y)``.

    Notes
    -----
    github NVIDIA/TransformerEngine, transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py,
    AttnFuncWithCPAndKVP2P.
    """
    made: list[Priced] = []
    coming: list[int] = []  # steps that no attention has run beside yet
    due: list[int] = []  # steps that one has
    for operator, task in pairs:
        if isinstance(operator, Collective) and operator.kind == "send_recv":
            coming.append(len(made))
            made.append((operator, replace(task, blocking=False)))
            continue
        made.append((operator, replace(task, waits=(*task.waits, *due)) if due else task))
        due = []
        if isinstance(operator, Attention):
            coming, due = [], coming
    return tuple(made)
