"""``workloads/frameworks/NAME.yaml``: what a training framework does, as flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from shardsim.errors import InputError, Problem
from shardsim.schema.base import Count, Share, Size, StrictModel, Text
from shardsim.schema.catalog import find, is_path
from shardsim.schema.loader import Document, check, load_yaml
from shardsim.schema.megatron import RecomputeModule
from shardsim.schema.sourced import Constant
from shardsim.values.provenance import Provenance
from shardsim.values.training import (
    AttentionKind,
    BackwardGradients,
    ContextComm,
    CudaGraphs,
    Dispatcher,
    ExpertProducts,
    Framework,
    MessagePolicy,
    OverlapPolicy,
    Recompute,
    RunAhead,
    TensorOverlap,
)


class FrameworkFile(StrictModel):
    """What a framework does: flags, and ratios of its own. Every second lives in a calibration profile."""

    title: Text = Field(description="a few words for people")
    sources: Mapping[str, Text] = Field(min_length=1, description="publications, by what they are cited for")
    attention: AttentionKind = Field(
        description="unfused writes the score matrix to memory; flash is the best fused library measured on the device"
    )
    fused_softmax: bool = Field(description="scale, mask and softmax in one kernel")
    fused_softmax_max_seq: Count = Field(default=2048, description="longest sequence the fused softmax takes")
    fused_bias_activation: bool = Field(description="bias and activation in one kernel")
    fused_bias_dropout_add: bool = Field(description="bias, dropout and residual in one kernel")
    fused_optimizer: bool = Field(description="multi-tensor kernels for the optimizer step")
    fused_qkv_bias: bool = Field(description="the bias of QKV is added inside the GEMM")
    fused_gradient_accumulation: bool = Field(description="weight gradients accumulate inside the GEMM")
    copies_heads: bool = Field(description="Q, K and V are copied into head-major order")
    dropout: bool = Field(description="whether dropout kernels run")
    scatter_gather: bool = Field(description="pipeline messages are split over tensor-parallel ranks")
    overlap_grad_reduce: OverlapPolicy = Field(description="never, always or when_it_fits")
    bucket: Size = Field(gt=0, description="size of a gradient bucket")
    bucket_per_replica: Size = Field(default=0.0, description="a bucket is at least this times the DP degree")
    first_bucket: Size = Field(default=0.0, description="size of the first gradient bucket; 0 for that of the others")
    buckets_first_chunk_only: bool = Field(
        default=False, description="chunks other than the first of the first stage are reduced as a whole"
    )
    overlap_param_gather: bool = Field(
        default=False, description="ZeRO 1 and 2: parameters are gathered behind the first forward pass"
    )
    reduces_units: bool = Field(
        default=True, description="ZeRO 2 and 3: gradients of a layer are reduced together, not in buckets"
    )
    gathers_ahead: Count = Field(default=1, description="ZeRO 3: layers gathered ahead in the forward pass")
    reductions_in_flight: Annotated[int, Field(ge=0)] = Field(
        default=0, description="reductions under way before computation waits for one; 0 for no limit"
    )
    kept_parts: tuple[Literal["embedding", "head"], ...] = Field(
        default=(), description="ZeRO 3: parts that stay gathered between forward and backward pass"
    )
    gathers_ends_together: bool = Field(default=False, description="embedding and head are gathered as one")
    copies_gathered: bool = Field(default=False, description="gathered parameters are copied to where they are used")
    pipeline_accumulates: bool = Field(
        default=False, description="ZeRO 2 and 3 with a pipeline: gradients are reduced after the last pass only"
    )
    sums_copies_every_pass: bool = Field(
        default=False,
        description="ZeRO 2 and 3 over some replicas: the others add gradients in every backward pass, not in the last",
    )
    reshards_in_pipeline: bool = Field(
        default=True, description="ZeRO 3 with a pipeline: whether parameters are given up after a forward pass"
    )
    bucket_copies: bool = Field(description="buckets are copies of the gradients, not views")
    contiguous_gradients: bool = Field(description="gradients lie in one buffer that is reduced in place")
    gradient_bytes: Literal[2, 4] = Field(description="bytes of a gradient element, held and on the wire")
    recipe: Literal["fp16", "bf16", "fp32"] = Field(description="precision recipe: which copies exist")
    default_recompute: Recompute
    recompute_modules: tuple[RecomputeModule, ...] = Field(
        default=("core_attn",), min_length=1, description="what selective recompute repeats where a run does not say"
    )
    default_precision: Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
    fp8_recipe: Literal["none", "fp8-delayed", "fp8-current", "fp8-block", "mxfp8"] = Field(
        default="none", description="what precision fp8 stands for; none where the framework has no low precision"
    )
    default_zero: Literal[0, 1, 2, 3]
    sequence_parallel: bool = Field(description="whether SP is on by default where TP > 1")
    vocab_multiple: Count = Field(description="a rank's part of the vocabulary is a multiple of this")
    causal_flop_halved: bool = Field(description="whether attention kernels skip the masked half")
    overlap_dgrad: bool = Field(
        default=False, description="input gradients are summed over tensor-parallel ranks beside weight gradients"
    )
    tp_overlap: TensorOverlap = Field(
        default="none",
        description="how sequence parallelism gathers and scatters beside products: none, own_shard, ring, userbuffers",
    )
    parallel_block: bool = Field(default=False, description="attention and MLP side by side, from one norm")
    loss_in_place: bool = Field(description="the loss overwrites its fp32 logits")
    allocated_share: Share = Field(description="tensors over memory reserved by the caching allocator, at the peak")
    moment_bytes: Literal[2, 4] = Field(default=4, description="bytes of each of Adam's two moments")
    weights_are_masters: bool = Field(default=False, description="ZeRO 3: the shards are fp32 masters")
    gather_buffers: Count = Field(default=1, description="buffers for inputs that sequence parallelism gathers")
    ddp_buckets: bool = Field(
        default=False, description="without ZeRO, buckets of all gradients in the weights' type are held all the time"
    )
    backward_gradients: BackwardGradients = Field(
        default="no",
        description="gradients of a whole backward pass before they are added to a wider sum: no, pass (freed), kept",
    )
    runs_ahead: RunAhead = Field(
        default="never",
        description="where freed tensors are still read by communication streams: never, without_pipeline, warm_up",
    )
    tensors_run_ahead: Annotated[int, Field(ge=0)] = Field(
        default=0, description="the most of such tensors, of b s h elements each"
    )
    gathers_by_copy: bool = Field(default=False, description="ZeRO 1 and 2: weights are gathered through flat copies")
    step_bytes: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="temporaries of the optimizer step, bytes for each parameter that a rank updates"
    )
    loss_moment_bytes: Annotated[int, Field(ge=0)] = Field(
        default=0, description="bytes a logit beside the softmax, for a moment; 0 as loss_in_place implies"
    )
    workspace: Size = Field(default=0.0, description="workspaces of libraries inside the caching allocator")
    activation_share: Share = Field(
        default=1.0, description="activations over the memory reserved for them, before allocated_share"
    )
    fused_norms: bool = Field(
        default=False, description="a norm is part of the linear layer after it, and not recomputed by itself"
    )
    dispatcher: Dispatcher = Field(
        default="alltoall", description="how tokens reach experts: alltoall, allgather, deepep or hybridep"
    )
    cp_comm: ContextComm = Field(
        default="p2p", description="how keys and values reach context-parallel ranks: p2p, all_gather, a2a or a2a+p2p"
    )
    fused_permute: bool = Field(default=False, description="tokens are sorted by expert in one kernel each way")
    fused_router: bool = Field(default=False, description="scores, choice and weights of experts in one kernel")
    expert_products: ExpertProducts = Field(
        default="one_kernel",
        description="products of a rank's experts: one_kernel, streams (a kernel each, several at a time), in_turn",
    )
    overlap_shared_experts: bool = Field(default=False, description="shared experts are computed while tokens travel")
    splits_experts: bool = Field(
        default=True, description="experts are split over tensor-parallel ranks like the rest; otherwise not"
    )
    narrow_dispatch: bool = Field(
        default=False, description="tokens are sent to experts in the data type of their products, below 16 bits"
    )
    delays_weights: bool = Field(
        default=False, description="gradients of experts' weights are computed while those of their inputs travel back"
    )
    narrow_activation_inputs: bool = Field(
        default=False, description="inputs of activations are kept below 16 bits where linear layers run so"
    )
    attention_output_bytes: float = Field(
        default=0.0,
        ge=0.0,
        description="bytes of an element of attention output kept for kernel and projection alike; 0 for two of them",
    )
    narrow_weights_time: Constant[Annotated[float, Field(gt=0.0)]] | None = Field(
        default=None,
        description="time of weight gradients' products below 16 bits over that of the device's profile; 1 if left out",
    )
    context: Size = Field(description="device memory before the first tensor")
    host: Text = Field(description="name of a file in topologies/profiles/hosts, or a path")
    stack: Text = Field(default="none", description="name of a file in topologies/profiles/stacks, or a path")
    rules: Text = Field(
        default="megatron-core", description="which layouts are valid: name of a file in workloads/rules, or a path"
    )
    cuda_graphs: CudaGraphs = Field(description="what is captured and launched as a whole: none, layers or full passes")
    synchronous_messages: MessagePolicy = Field(
        description="schedules under which the host waits for the device at every pipeline message"
    )


_RENAMED = ("bucket", "bucket_per_replica", "first_bucket", "narrow_weights_time")
"""Keys that do not become the field of their name as they are."""


def load_framework(name: str, extra: Sequence[Path] = (), relative_to: Path | None = None) -> Framework:
    """Read a framework.

    Parameters
    ----------
    name : str
        Catalog name or path.
    extra : sequence of Path
        A user's own data folders.
    relative_to : Path or None
        Folder from which a relative path starts.

    Returns
    -------
    Framework

    Raises
    ------
    InputError
        Unknown name, a file that cannot be read, or every problem of it.

    Examples
    --------
    >>> load_framework("megatron-2021").scatter_gather
    True
    """
    path = find("framework", name, extra, relative_to)
    document = load_yaml(path)
    file = check(document, FrameworkFile)
    _refuse_contradictions(document, file)
    weights = file.narrow_weights_time
    flags = file.model_dump(exclude={*_RENAMED, "title", "sources", "context", "workspace", "host", "stack", "rules"})
    return Framework(
        name=path.stem,
        bucket_bytes=file.bucket,
        bucket_bytes_per_replica=file.bucket_per_replica,
        first_bucket_bytes=file.first_bucket,
        context_bytes=file.context,
        workspace_bytes=file.workspace,
        host_profile=str(path.parent / file.host) if is_path(file.host) else file.host,
        stack_profile=str(path.parent / file.stack) if is_path(file.stack) else file.stack,
        rules=str(path.parent / file.rules) if is_path(file.rules) else file.rules,
        source="; ".join(file.sources.values()),
        narrow_weights_time=1.0 if weights is None else weights.value,
        narrow_weights_provenance=None if weights is None else _provenance(file, weights),
        **flags,
    )


def _provenance(file: FrameworkFile, constant: Constant[float]) -> Provenance:
    source = file.sources.get(constant.source, constant.source)
    return Provenance(constant.basis, source, constant.error, constant.points)


def _refuse_contradictions(document: Document, file: FrameworkFile) -> None:
    problems = []
    if file.recipe == "fp32" and file.gradient_bytes < 4:
        where = document.where(("gradient_bytes",))
        problems.append(Problem("the fp32 recipe with gradients of 2 bytes", where, "4"))
    if file.attention == "unfused" and file.causal_flop_halved:
        what = "unfused attention multiplies whole score matrices and skips nothing"
        problems.append(Problem(what, document.where(("causal_flop_halved",)), "false"))
    if file.gathers_ends_together and len(file.kept_parts) == 1:
        what = "embedding and head are gathered as one, and only one of them stays gathered"
        problems.append(Problem(what, document.where(("kept_parts",)), "both or none"))
    if problems:
        raise InputError(problems)
