"""Operators of experts: what chooses them, tokens on their way there and back, their products, shared experts.

A rank sends its tokens, each to ``top_k`` experts; the ranks that split an expert between them gather what came for it
and scatter the sum of what they make of it; what comes back is summed token by token, weighed by then. Backward,
gradients go the same ways: those of results are dispatched, those of inputs combined (github deepseek-ai/DeepEP,
README.md). Gradients of weights follow the input gradients of their products.

Rows are put in order as the dispatcher leaves them (github NVIDIA/Megatron-LM,
megatron/core/transformer/moe/token_dispatcher.py): an all-to-all takes them sorted, one copy for each expert, and its
results are sorted again by the experts of the rank; after an all-gather, or DeepEP, the rank makes its own copies.
Kernels that work on rows are those of the busiest rank; FLOP are those of the mean one.

Without sequence parallelism, tokens that all tensor-parallel ranks hold are sent once, each rank sending a part, and
gathered when they are back (github deepspeedai/DeepSpeed, deepspeed/moe/mappings.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardsim.values.num import Num, where
from shardsim.values.operators import (
    Collective,
    Direction,
    Elementwise,
    Gemm,
    GradientRole,
    Operator,
    TokenExchange,
    for_weights,
)
from shardsim.values.training import Batch, Framework, Layout, Model, Moe
from shardsim.workload import linear, pointwise, quantization
from shardsim.workload.parallel import converted
from shardsim.workload.parameters import mlp_projections
from shardsim.workload.router import router_backward, router_forward
from shardsim.workload.routing import arriving, load_of
from shardsim.workload.shapes import Shapes
from shardsim.workload.shared_experts import SharedExperts, named, shared_backward, shared_forward

_MAP_BYTES = 15
"""Bytes a score that PyTorch's kernels take to turn maps and weights of tokens into those of experts."""
_MAP_KERNELS = 5


def experts_forward(
    model: Model,
    layout: Layout,
    batch: Batch,  # noqa: ARG001 - as of the backward pass
    framework: Framework,
    sizes: Shapes,
    uses: Num | None,
) -> tuple[Operator, ...]:
    """List what a layer with experts does between its second norm and its second residual.

    Parameters
    ----------
    model : Model
        With experts.
    layout : Layout
        Degrees may be arrays over layouts.
    batch : Batch
    framework : Framework
    sizes : Shapes
        Of the layer.
    uses : Num or None
        Micro-batches that share a conversion of the weights (-); None where they are converted already.

    Returns
    -------
    tuple of Operator
        Shared experts first, or beside the exchanges where the framework overlaps them: what follows an exchange and
        belongs to them does not need it.
    """
    one = _routed(model, layout, framework, sizes)
    shared = shared_forward(model, one.moe, layout, framework, sizes, uses)
    before, (beside, behind) = _placed(framework, shared)
    return (
        *before,
        *router_forward(one.moe, framework, sizes),
        *one.prepare("forward"),
        one.exchange("dispatch", "forward"),
        *beside,
        *one.arrive("forward"),
        *one.products_forward(uses),
        *one.leave("forward"),
        one.exchange("combine", "forward"),
        *behind,
        *one.restore("forward"),
        *(_joined("experts sum", 1, sizes, "forward") if one.moe.shared_ffn else ()),
    )


def experts_backward(
    model: Model, layout: Layout, batch: Batch, framework: Framework, sizes: Shapes
) -> tuple[Operator, ...]:
    """List what it does backward, from the residual's gradient to that of the norm's output.

    Parameters
    ----------
    model : Model
        With experts.
    layout : Layout
        Degrees may be arrays over layouts.
    batch : Batch
    framework : Framework
    sizes : Shapes
        Of the layer.

    Returns
    -------
    tuple of Operator
        The forward pass in reverse: every exchange and collective has its mirror. Weight gradients follow the exchange
        that does not need them where the framework delays them.
    """
    one = _routed(model, layout, framework, sizes)
    shared = shared_backward(model, one.moe, layout, framework, sizes)
    before, (beside, behind) = _placed(framework, shared)
    held = one.held * (mlp_projections(model) + 1) * model.hidden * one.width
    delayed: list[Operator] = []
    products: list[Operator] = []
    for product in one.products_backward():
        (delayed if framework.delays_weights and for_weights(product) else products).append(product)
    return (
        *one.prepare("dgrad"),
        one.exchange("dispatch", "dgrad"),
        *beside,
        *one.arrive("dgrad"),
        *products,
        *one.leave("dgrad"),
        one.exchange("combine", "dgrad"),
        *delayed,
        *behind,
        *one.restore("dgrad"),
        *router_backward(one.moe, framework, sizes),
        *before,
        *_joined("experts input gradient", 2 if one.moe.shared_ffn else 1, sizes, "dgrad"),
        *pointwise.accumulate("experts", held, 2, batch.micro_batches(layout), framework, sizes),
    )


def activation_forward(model: Model, layout: Layout, framework: Framework, sizes: Shapes) -> tuple[Operator, ...]:
    """List what stands between the products of experts: what ``moe_act`` repeats.

    Parameters
    ----------
    model : Model
        With experts.
    layout : Layout
    framework : Framework
    sizes : Shapes
        Of the layer.

    Returns
    -------
    tuple of Operator
    """
    return _routed(model, layout, framework, sizes).activated()


def _placed(framework: Framework, shared: SharedExperts) -> tuple[tuple[Operator, ...], SharedExperts]:
    """What shared experts do by themselves, and what they do beside either exchange."""
    if not framework.overlap_shared_experts:
        return (*shared.first, *shared.second), SharedExperts()
    return (), shared


def _joined(name: str, times: int, sizes: Shapes, role: GradientRole) -> tuple[Operator, ...]:
    """Add up results of shared and routed experts, or gradients of what they and the router take."""
    size = times * 3 * sizes.local_hidden * sizes.element_bytes
    return (Elementwise(name, "add", size, kernels=times, role=role),)


@dataclass(frozen=True, slots=True)
class _Routed:
    """Routed experts of one rank, one micro-batch.

    Parameters
    ----------
    tokens, copies, arriving, rows, busy : Num
        Tokens that it sends (-), their copies, rows that one rank of those that split an expert receives, rows that
        its experts work on, and those of the busiest rank.
    held, width : Num
        Experts of the rank, and their width there (-).
    """

    model: Model
    moe: Moe
    layout: Layout
    framework: Framework
    sizes: Shapes
    tokens: Num
    copies: Num
    arriving: Num
    rows: Num
    busy: Num
    held: Num
    width: Num
    share: Num
    imbalance: Num

    def exchange(self, direction: Direction, role: GradientRole) -> TokenExchange:
        """Tokens on their way to the experts, or back; gradients go the way of what they are gradients of, reversed."""
        return TokenExchange(
            direction if role == "forward" else f"{direction} gradients",
            direction,
            self.tokens,
            self.moe.experts,
            self.moe.top_k,
            self.model.hidden,
            self._wire if direction == "dispatch" else self.sizes.element_bytes,
            dispatcher=self.layout.dispatcher,
            groups=self.moe.groups,
            group_limit=self.moe.group_limit,
            imbalance=self.imbalance,
            share=self.share,
            role=role,
        )

    def prepare(self, role: GradientRole) -> tuple[Operator, ...]:
        """Bring tokens, or gradients, into the form and the order in which they are sent."""
        cast: tuple[Operator, ...] = ()
        if self._narrow:
            size = self.tokens * self.model.hidden * (self.sizes.element_bytes + self._wire)
            cast = (Elementwise("dispatch cast", "quantize", size, role=role),)
        if self.layout.dispatcher != "alltoall":
            return cast
        return (*cast, *self._copied(self.tokens, self.copies, self.moe.experts, role))

    def arrive(self, role: GradientRole) -> tuple[Operator, ...]:
        """From the exchange to rows in the order of the rank's experts."""
        gathered = (self._over_etp("all_gather", self._wire, role),)
        if self.layout.dispatcher == "alltoall":
            return (*gathered, *self._sorted("experts sort", self._wire, role))
        return (*gathered, *self._copied(self._arrived, self.busy, self.held, role))

    def leave(self, role: GradientRole) -> tuple[Operator, ...]:
        """From rows in the order of the rank's experts to the exchange back."""
        scattered = self._over_etp("reduce_scatter", self.sizes.element_bytes, role)
        if self.layout.dispatcher == "alltoall":
            return (*self._sorted("experts unsort", self.sizes.element_bytes, role), scattered)
        return (*self._summed(self._arrived, self.busy, role), scattered)

    def restore(self, role: GradientRole) -> tuple[Operator, ...]:
        """Sum the copies that come back token by token, and give them to all ranks that hold the tokens."""
        summed = self._summed(self.tokens, self.copies, role) if self.layout.dispatcher == "alltoall" else ()
        if self.layout.sp:
            return summed
        return (*summed, Collective("experts gather", "all_gather", "tp", self.sizes.hidden_bytes, role))

    def products_forward(self, uses: Num | None) -> tuple[Operator, ...]:
        """Both products of the experts, with what stands between them."""
        z, h, up = self.sizes, self.model.hidden, self._up
        biased = linear.add_bias("experts down", self.busy, h, z) if self.model.bias else ()
        return (
            *(() if self._narrow else self._operand("experts up input", h, "forward")),
            *converted("experts up", self.held * h * up, z, uses),
            self._each(linear.forward("experts up", self._rows, h, up, z, self._type)),
            *self.activated(),
            *self._operand("experts down input", self.width, "forward"),
            *converted("experts down", self.held * h * self.width, z, uses),
            self._each(linear.forward("experts down", self._rows, self.width, h, z, self._type)),
            *biased,
        )

    def activated(self) -> tuple[Operator, ...]:
        """Between both products."""
        activation = pointwise.activate(self.model, self._inner, self.framework)
        return (*named("experts", activation), *self._weighed(2, 1, "forward"))

    def products_backward(self) -> tuple[Operator, ...]:
        """Their input and weight gradients."""
        z, h, up, narrow = self.sizes, self.model.hidden, self._up, self._type
        down = ("experts down", self._rows, self.width, h, z, narrow)
        first = ("experts up", self._rows, h, up, z, narrow)
        biased = linear.bias_gradient("experts down", self.busy, h, z) if self.model.bias else ()
        sent = () if self._narrow else self._operand("experts down gradient", h, "dgrad")
        return (
            *sent,
            *biased,
            self._each(linear.input_gradient(*down)),
            *self._turned("experts down gradient"),
            self._each(linear.weight_gradient(*down)),
            *self._weighed(5, 3, "dgrad"),
            *named("experts", pointwise.activate_backward(self.model, self._inner, self.framework)),
            *self._operand("experts up gradient", up, "dgrad"),
            self._each(linear.input_gradient(*first)),
            *self._turned("experts up input"),
            self._each(linear.weight_gradient(*first)),
        )

    @property
    def _narrow(self) -> bool:
        return self.framework.narrow_dispatch and self.sizes.low_precision is not None

    @property
    def _wire(self) -> float:
        """Bytes of an element that is dispatched."""
        return quantization.kept_bytes(self.sizes) if self._narrow else self.sizes.element_bytes

    @property
    def _type(self) -> str:
        return quantization.data_type(self.sizes)

    @property
    def _rows(self) -> Num:
        """Of one expert."""
        return self.rows / self.held

    @property
    def _up(self) -> Num:
        return mlp_projections(self.model) * self.width

    @property
    def _inner(self) -> Shapes:
        return replace(self.sizes, tokens=self.busy, ffn=self.width, up=self._up)

    @property
    def _arrived(self) -> Num:
        """What all ranks that split an expert have received, the busiest of them."""
        return self.arriving * self.layout.etp

    def _each(self, product: Gemm) -> Gemm:
        """The product of one expert, for all of the rank."""
        how = self.framework.expert_products
        kernels = 1 if how == "one_kernel" else self.held
        grouped = "" if how == "in_turn" else how
        return replace(product, batch=self.held, grouped=grouped, imbalance=self.imbalance, kernels=kernels)

    def _operand(self, name: str, width: Num, role: GradientRole) -> tuple[Operator, ...]:
        """Convert what a product takes, expert by expert where each has a kernel of its own.

        github NVIDIA/TransformerEngine, transformer_engine/pytorch/csrc/extensions/cast.cpp,
        multi_tensor_quantize_impl: all at once with delayed scales only.
        """
        together = self.framework.expert_products == "one_kernel" or self.sizes.low_precision == "fp8-delayed"
        kernels = 1 if together else self.held
        made = quantization.operand(name, self.busy * width, self.sizes, role)
        return tuple(replace(one, kernels=one.kernels * kernels) for one in made)

    def _over_etp(self, kind: str, width: float, role: GradientRole) -> Collective:
        size = self._arrived * self.model.hidden * width
        if kind == "all_gather":
            return Collective("experts tp gather", "all_gather", "etp", size, role)
        return Collective("experts tp scatter", "reduce_scatter", "etp", size, role)

    def _copied(self, source: Num, rows: Num, experts: Num, role: GradientRole) -> tuple[Operator, ...]:
        """Copy tokens to the rows of their experts: read once, or row by row and by maps that are made first."""
        row = self.model.hidden * self._wire
        if self.framework.fused_permute:
            return (Elementwise("permute", "permute", (source + rows) * row, role=role),)
        scores = source * experts * _MAP_BYTES if role == "forward" else 0.0
        kernels = 1 + (_MAP_KERNELS if role == "forward" else 0)
        return (Elementwise("permute", "permute", 2 * rows * row + scores, kernels=kernels, role=role),)

    def _summed(self, target: Num, rows: Num, role: GradientRole) -> tuple[Operator, ...]:
        """Sum rows to the tokens that they are copies of: in one kernel, or added one by one to zeros."""
        row = self.model.hidden * self.sizes.element_bytes
        if self.framework.fused_permute:
            return (Elementwise("unpermute", "permute", (target + rows) * row, role=role),)
        return (Elementwise("unpermute", "permute", (target + 3 * rows) * row, kernels=2, role=role),)

    def _sorted(self, name: str, width: float, role: GradientRole) -> tuple[Operator, ...]:
        """Sort what came from many ranks by expert, where there are several; unfused, weights are sorted apart."""
        several = where(self.held > 1, self.held * 0.0 + 1.0, self.held * 0.0)
        size = several * 2 * self.busy * self.model.hidden * width
        kernels = several * (1 if self.framework.fused_permute else 2)
        return (Elementwise(name, "permute", size, kernels=kernels, role=role),)

    def _weighed(self, passes: int, kernels: int, role: GradientRole) -> tuple[Operator, ...]:
        """Weigh rows before the second product, where the activation's kernel does not do so."""
        if self.framework.fused_bias_activation:
            return ()
        size = passes * self.busy * self.width * self.sizes.element_bytes
        return (Elementwise("experts weights", "add", size, kernels=kernels, role=role),)

    def _turned(self, name: str) -> tuple[Operator, ...]:
        """Scale along the other dimension what was sent narrow, for a weight gradient (arXiv 2412.19437 §3.5.2)."""
        if not self._narrow:
            return ()
        size = 2 * self.busy * self.model.hidden * self._wire
        return (Elementwise(f"{name} transpose", "transpose", size, role="wgrad"),)


def _routed(model: Model, layout: Layout, framework: Framework, sizes: Shapes) -> _Routed:
    moe = _moe(model)
    tokens = sizes.tokens / layout.tp
    load = load_of(moe, layout, tokens)
    copies = tokens * moe.top_k * load.share
    rows = copies * layout.etp
    return _Routed(
        model=model,
        moe=moe,
        layout=layout,
        framework=framework,
        sizes=sizes,
        tokens=tokens,
        copies=copies,
        arriving=arriving(moe, layout, tokens, load),
        rows=rows,
        busy=rows * load.imbalance,
        held=moe.experts / layout.ep,
        width=moe.ffn / layout.etp,
        share=load.share,
        imbalance=load.imbalance,
    )


def _moe(model: Model) -> Moe:
    if model.moe is None:
        raise ValueError(f"{model.name} has no experts")
    return model.moe
