"""What a rank does once an iteration, after its last backward pass: gradients, their norm, the optimizer."""

from __future__ import annotations

from shardsim.values.num import Num
from shardsim.values.operators import Collective, Elementwise, OptimizerStep
from shardsim.values.training import Framework, Layout, Model
from shardsim.workload.parameters import table_parameters
from shardsim.workload.shapes import element_bytes

_FP32 = 4


def gradient_reduction(parameters: Num, layout: Layout, framework: Framework) -> Collective:
    """Sum gradients over data-parallel replicas.

    Parameters
    ----------
    parameters : Num
        Parameters whose gradients this rank holds (-).
    layout : Layout
        With ``zero`` of 1 and more each replica keeps its part of the sum: a reduce-scatter.
    framework : Framework

    Returns
    -------
    Collective
        Over the axis ``dp``.

    Notes
    -----
    arXiv 1910.02054 §5: 2 Ψ elements a rank, whether in one all-reduce or in a reduce-scatter and an all-gather.
    """
    size = parameters * framework.gradient_bytes
    if layout.zero == 0:
        return Collective("gradient all-reduce", "all_reduce", "dp", size, "wgrad")
    return Collective("gradient scatter", "reduce_scatter", "dp", size, "wgrad")


def gradient_packing(parameters: Num, framework: Framework, tensors: Num = 1) -> Elementwise:
    """Average gradients over replicas, and carry them into the buffers that are reduced and back.

    Parameters
    ----------
    parameters : Num
        Parameters whose gradients this rank holds (-).
    framework : Framework
    tensors : Num
        Tensors that hold them (-).

    Returns
    -------
    Elementwise
        Overlapped in buckets that are copies: divided on the way in, and copied back. At the end, from tensors of
        their own: flattened, divided, copied back. In one buffer: divided.
    """
    if framework.bucket_copies and framework.overlap_grad_reduce == "always":
        passes, launches = 2, 2 * tensors
    elif framework.contiguous_gradients or framework.overlap_grad_reduce == "always":
        passes, launches = 1, tensors * 0 + 1
    else:
        passes, launches = 3, tensors + 2
    size = parameters * (2 * passes * framework.gradient_bytes)
    return Elementwise("pack gradients", "add", size, kernels=launches, role="wgrad")


def parameter_gather(parameters: Num, layout: Layout, framework: Framework) -> tuple[Collective, ...]:
    """Gather the updated parameters, of which each replica has one part under the distributed optimizer.

    Parameters
    ----------
    parameters : Num
        Parameters that this rank holds (-).
    layout : Layout
    framework : Framework

    Returns
    -------
    tuple of Collective
        Empty without the distributed optimizer.
    """
    if layout.zero == 0:
        return ()
    return (Collective("parameter gather", "all_gather", "dp", parameters * element_bytes(framework)),)


def embedding_gradient_reduction(model: Model, layout: Layout, framework: Framework) -> Collective:
    """Sum the gradients of a tied embedding over the two stages that hold it.

    Parameters
    ----------
    model : Model
    layout : Layout
    framework : Framework

    Returns
    -------
    Collective
        Of V/t x h elements, over the axis ``embedding``.
    """
    size = table_parameters(model, layout, framework) * framework.gradient_bytes
    return Collective("tied embedding all-reduce", "all_reduce", "embedding", size, "wgrad")


def gradient_norm(layout: Layout) -> Collective:
    """Sum the squared norms of the gradients over all ranks of a replica: one fp32 number.

    Parameters
    ----------
    layout : Layout

    Returns
    -------
    Collective
        Over the axis ``model``.
    """
    return Collective("gradient norm all-reduce", "all_reduce", "model", layout.tp * 0.0 + _FP32)


def optimizer_bytes_per_parameter(framework: Framework) -> float:
    """Memory traffic of one optimizer step, for each parameter updated [bytes].

    Parameters
    ----------
    framework : Framework

    Returns
    -------
    float
        [bytes].

    Notes
    -----
    Adam with fp32 master weights, g the bytes of a gradient, w of a weight:

    ==================================  ==========================  ==================
    pass                                bytes                       recipes
    ==================================  ==========================  ==================
    gradient to its fp32 copy           g + 4                       16-bit gradients
    unscale, look for infinities        4 + 4                       fp16
    norm                                4                           all
    clip                                4 + 4                       all
    Adam                                16 read, 12 written         all
    master weight to 16-bit weight      4 + w                       16-bit weights
    gradients zeroed                    g                           all
    ==================================  ==========================  ==================

    62 for fp16 with fp16 gradients, 50 for bf16 with fp32 gradients, 44 for fp32. A step that is not fused reads and
    writes intermediate results of Adam's seven elementwise operations besides: 76 in place of 28.
    """
    gradient = framework.gradient_bytes
    total = 4.0 + 8.0 + (28.0 if framework.fused_optimizer else 76.0) + gradient
    if gradient < _FP32:
        total += gradient + _FP32
    if framework.recipe == "fp16":
        total += 8.0
    if framework.recipe != "fp32":
        total += _FP32 + element_bytes(framework)
    return total


def optimizer_passes(framework: Framework) -> int:
    """Passes over the parameters that one optimizer step makes, each a launch for every (group of) tensors (-).

    Parameters
    ----------
    framework : Framework

    Returns
    -------
    int
        (-).
    """
    copies = (framework.gradient_bytes < _FP32) + (framework.recipe == "fp16") + (framework.recipe != "fp32")
    return 3 + copies + (1 if framework.fused_optimizer else 7)


def optimizer_step(parameters: Num, layout: Layout, framework: Framework, tensors: Num = 1) -> OptimizerStep:
    """Everything from summed gradients to updated weights, on one rank.

    Parameters
    ----------
    parameters : Num
        Parameters that this rank holds (-); with ``zero`` of 1 and more it updates 1/dp of them.
    layout : Layout
    framework : Framework
    tensors : Num
        Tensors that hold them (-): launches of each pass where the optimizer is not fused.

    Returns
    -------
    OptimizerStep
    """
    updated = parameters / layout.dp if layout.zero > 0 else parameters
    launches = 1 if framework.fused_optimizer else tensors
    return OptimizerStep(
        "optimizer step",
        parameters=updated,
        bytes_moved=updated * optimizer_bytes_per_parameter(framework),
        kernels=optimizer_passes(framework) * launches,
    )
