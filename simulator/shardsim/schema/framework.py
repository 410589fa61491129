"""``workloads/frameworks/NAME.yaml``: what a training framework does, as flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from shardsim.errors import InputError, Problem
from shardsim.schema.base import Count, Share, Size, StrictModel, Text
from shardsim.schema.catalog import find, is_path
from shardsim.schema.loader import Document, check, load_yaml
from shardsim.values.training import AttentionKind, CudaGraphs, Framework, MessagePolicy, OverlapPolicy, Recompute


class FrameworkFile(StrictModel):
    """What a framework does. Flags only: every second lives in a calibration profile."""

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
    bucket_copies: bool = Field(description="buckets are copies of the gradients, not views")
    contiguous_gradients: bool = Field(description="gradients lie in one buffer that is reduced in place")
    gradient_bytes: Literal[2, 4] = Field(description="bytes of a gradient element, held and on the wire")
    recipe: Literal["fp16", "bf16", "fp32"] = Field(description="precision recipe: which copies exist")
    default_recompute: Recompute
    default_precision: Literal["fp32", "tf32", "fp16", "bf16", "fp8"]
    fp8_recipe: Literal["none", "fp8-delayed", "fp8-current", "fp8-block", "mxfp8"] = Field(
        default="none", description="what precision fp8 stands for; none where the framework has no low precision"
    )
    default_zero: Literal[0, 1, 2, 3]
    sequence_parallel: bool = Field(description="whether SP is on by default where TP > 1")
    vocab_multiple: Count = Field(description="a rank's part of the vocabulary is a multiple of this")
    causal_flop_halved: bool = Field(description="whether attention kernels skip the masked half")
    loss_in_place: bool = Field(description="the loss overwrites its fp32 logits")
    allocated_share: Share = Field(description="tensors over memory reserved by the caching allocator, at the peak")
    context: Size = Field(description="device memory before the first tensor")
    host: Text = Field(description="name of a file in topologies/profiles/hosts, or a path")
    cuda_graphs: CudaGraphs = Field(description="what is captured and launched as a whole: none, layers or full passes")
    synchronous_messages: MessagePolicy = Field(
        description="schedules under which the host waits for the device at every pipeline message"
    )


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
    flags = file.model_dump(exclude={"title", "sources", "bucket", "context", "host"})
    return Framework(
        name=path.stem,
        bucket_bytes=file.bucket,
        context_bytes=file.context,
        host_profile=str(path.parent / file.host) if is_path(file.host) else file.host,
        source="; ".join(file.sources.values()),
        **flags,
    )


def _refuse_contradictions(document: Document, file: FrameworkFile) -> None:
    problems = []
    if file.recipe == "fp32" and file.gradient_bytes < 4:
        where = document.where(("gradient_bytes",))
        problems.append(Problem("the fp32 recipe with gradients of 2 bytes", where, "4"))
    if file.attention == "unfused" and file.causal_flop_halved:
        what = "unfused attention multiplies whole score matrices and skips nothing"
        problems.append(Problem(what, document.where(("causal_flop_halved",)), "false"))
    if problems:
        raise InputError(problems)
