"""What data parallelism costs a rank: gradients and parameters over replicas, the norm, the optimizer."""

from __future__ import annotations

from shardsim.values.num import Num, any_of, larger
from shardsim.values.operators import Collective, Elementwise, OptimizerStep
from shardsim.values.training import Framework, Layout, Model
from shardsim.workload.parameters import table_parameters
from shardsim.workload.shapes import element_bytes

_FP32 = 4


def expert_shards(layout: Layout) -> Num:
    """Parts into which ZeRO splits the states of experts (-): ``ep`` x ``etp`` ranks hold others in place of ``tp``.

    Parameters
    ----------
    layout : Layout

    Returns
    -------
    Num
        (-).
    """
    return layout.shards * layout.tp / (layout.ep * layout.etp)


def gradient_reduction(
    parameters: Num, layout: Layout, framework: Framework, *, experts: bool = False
) -> tuple[Collective, ...]:
    """Sum gradients over data-parallel replicas.

    Parameters
    ----------
    parameters : Num
        Parameters whose gradients this rank holds (-).
    layout : Layout
        With ``zero`` of 1 and more each rank keeps its part of the sum: a reduce-scatter. Where it ``shard``s over some
        of the replicas, those that hold the same part add theirs afterwards.
    framework : Framework
    experts : bool
        Whether they are of experts, which other ranks hold the same of.

    Returns
    -------
    tuple of Collective
        One after the other, over the axes ``dp`` (all that hold the same parameters), or ``shard`` and ``replica``; of
        experts ``edp``, or ``edp_shard`` and ``replica``.

    Notes
    -----
    arXiv 1910.02054 §5: 2 Ψ elements a rank, whether in one all-reduce or in a reduce-scatter and an all-gather.
    arXiv 2304.11277 §3.2.2 for hybrid sharding.
    """
    size = parameters * framework.gradient_bytes
    what = "expert gradient" if experts else "gradient"
    axis = _sharing_axis(layout, experts=experts)
    if layout.zero == 0:
        whole = "edp" if experts else "dp"
        return (Collective(f"{what} all-reduce", "all_reduce", whole, size, "wgrad"),)
    scatter = Collective(f"{what} scatter", "reduce_scatter", axis, size, "wgrad")
    if not layout.shard:
        return (scatter,)
    parts = expert_shards(layout) if experts else layout.shards
    return (scatter, Collective(f"{what} all-reduce", "all_reduce", "replica", size / parts, "wgrad"))


def _sharing_axis(layout: Layout, *, experts: bool) -> str:
    """Axis over which ZeRO splits parameters, and so scatters and gathers them."""
    if experts:
        return "edp_shard" if layout.shard else "edp"
    return "shard" if layout.shard else "dp"


def gradient_packing(parameters: Num, framework: Framework, tensors: Num = 1) -> Elementwise:
    """Average gradients over replicas, and carry them to where they are reduced.

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
        Overlapped: divided, on the way into buckets where these are copies. At the end, in one buffer: divided; from
        tensors of their own: flattened, divided, copied back.
    """
    overlapped = framework.overlap_grad_reduce == "always"
    if framework.contiguous_gradients or overlapped:
        copied = overlapped and framework.bucket_copies
        passes, launches = 1, tensors if copied else tensors * 0 + 1
    else:
        passes, launches = 3, tensors + 2
    size = parameters * (2 * passes * framework.gradient_bytes)
    return Elementwise("pack gradients", "add", size, kernels=launches, role="wgrad")


def gradient_unpacking(parameters: Num, framework: Framework, tensors: Num = 1) -> tuple[Elementwise, ...]:
    """Copy reduced gradients back out of buckets.

    Parameters
    ----------
    parameters : Num
        Parameters whose gradients this rank holds (-).
    framework : Framework
    tensors : Num
        Tensors that hold them (-).

    Returns
    -------
    tuple of Elementwise
        Empty where buckets are no copies.
    """
    if not framework.bucket_copies:
        return ()
    size = parameters * (2 * framework.gradient_bytes)
    return (Elementwise("unpack gradients", "add", size, kernels=tensors, role="wgrad"),)


def parameter_gather(parameters: Num, layout: Layout, framework: Framework, *, experts: bool = False) -> Collective:
    """Gather parameters of which each rank has one part.

    Parameters
    ----------
    parameters : Num
        What is gathered (-).
    layout : Layout
    framework : Framework
    experts : bool
        Whether they are of experts.

    Returns
    -------
    Collective
        Over the axis ``dp``, or ``shard`` where ZeRO splits over some of the replicas; of experts ``edp`` or
        ``edp_shard``.
    """
    name = "expert parameter gather" if experts else "parameter gather"
    axis = _sharing_axis(layout, experts=experts)
    return Collective(name, "all_gather", axis, parameters * element_bytes(framework))


def gathered_copy(parameters: Num, framework: Framework) -> Elementwise:
    """Copy gathered parameters to where they are used: one read, one write.

    Parameters
    ----------
    parameters : Num
        (-).
    framework : Framework

    Returns
    -------
    Elementwise
    """
    return Elementwise("unpack parameters", "add", parameters * (2 * element_bytes(framework)))


def bucket_elements(layout: Layout, framework: Framework) -> Num:
    """Gradients in a bucket (-).

    Parameters
    ----------
    layout : Layout
    framework : Framework
        Its size in bytes, and the least size for each replica.

    Returns
    -------
    Num
        (-).

    Notes
    -----
    Megatron-LM core, ``distributed_data_parallel.py``: max(40,000,000, 1,000,000 D) for D replicas.
    """
    return larger(framework.bucket_bytes, framework.bucket_bytes_per_replica * layout.dp) / framework.gradient_bytes


def scatters_every_microbatch(layout: Layout, framework: Framework) -> bool:
    """Whether gradients are reduced in every backward pass, not in the last one only.

    Parameters
    ----------
    layout : Layout
        ZeRO 2 and 3 have no room for whole gradients.
    framework : Framework
        May accumulate them nevertheless where there is a pipeline.

    Returns
    -------
    bool
    """
    return layout.zero > 1 and not (framework.pipeline_accumulates and any_of(layout.pp > 1))


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
        Of V/t x h elements, or a rank's part of them under ZeRO 2 and 3, over the axis ``embedding``.
    """
    size = table_parameters(model, layout, framework) * framework.gradient_bytes
    size = size / layout.shards if layout.zero > 1 else size
    return Collective("tied embedding all-reduce", "all_reduce", "embedding", size, "wgrad")


def copy_reduction(
    parameters: Num, layout: Layout, framework: Framework, experts: Num = 0.0
) -> tuple[Collective, Collective | None]:
    """Sum gradients over the two stages of a pipeline that hold the same layers, and share what was updated.

    Parameters
    ----------
    parameters : Num
        Parameters that this rank holds (-), without experts.
    layout : Layout
        With ``zero`` of 1 and more, data-parallel reduction has left each rank a part, of which either stage updates
        half. Assumed: no publication says how ZeRO and two copies go together.
    framework : Framework
    experts : Num
        Parameters of experts that this rank holds (-).

    Returns
    -------
    reduction : Collective
        Over the axis ``copies``.
    gather : Collective or None
        Of the halves, after the optimizer; None without ZeRO.
    """
    if layout.zero == 0:
        size = (parameters + experts) * framework.gradient_bytes
        return Collective("sum of copies", "all_reduce", "copies", size, "wgrad"), None
    part = parameters / layout.shards + experts / expert_shards(layout)
    return (
        Collective("sum of copies", "reduce_scatter", "copies", part * framework.gradient_bytes, "wgrad"),
        Collective("gather of copies", "all_gather", "copies", part * element_bytes(framework)),
    )


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


def optimizer_step(
    parameters: Num, layout: Layout, framework: Framework, tensors: Num = 1, copies: int = 1, experts: Num = 0.0
) -> OptimizerStep:
    """Everything from summed gradients to updated weights, on one rank.

    Parameters
    ----------
    parameters : Num
        Parameters that this rank holds (-), without experts; with ``zero`` of 1 and more it updates its part of them.
    layout : Layout
    framework : Framework
    tensors : Num
        Tensors that hold them (-): launches of each pass where the optimizer is not fused.
    copies : int
        Copies of the parameters that a pipeline holds (-), over which ZeRO splits as well.
    experts : Num
        Parameters of experts that this rank holds (-).

    Returns
    -------
    OptimizerStep
    """
    updated = parameters + experts
    if layout.zero > 0:
        updated = parameters / (layout.shards * copies) + experts / (expert_shards(layout) * copies)
    launches = 1 if framework.fused_optimizer else tensors
    return OptimizerStep(
        "optimizer step",
        parameters=updated,
        bytes_moved=updated * optimizer_bytes_per_parameter(framework),
        kernels=optimizer_passes(framework) * launches,
    )
