"""Linear layers of transformer blocks below 16 bits: what is converted, when, and what it weighs.

Both operands of each of a layer's three products are narrow; results, attention, norms, embedding and LM head stay in
16 bits. An operand is summed over another dimension in each product that takes it, so that two copies are made: of one
scale a tensor, the second is the first transposed; with scales along a dimension, both are made from the 16-bit values.
Weights are converted once an iteration and kept for all its micro-batches, which here takes its share of each. What
sequence parallelism gathers in front of a product is gathered narrow.

All of it as github NVIDIA/TransformerEngine has it (assumed from transformer_engine/common/recipe, and from
transformer_engine/pytorch: distributed.py, module/base.py, module/linear.py, module/layernorm_linear.py) and github
NVIDIA/Megatron-LM uses it (assumed from megatron/core/extensions/transformer_engine.py, ``is_first_microbatch``).
Conversions are kernels of their own here: those that a norm makes on its way out are priced the same, the dearer way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from shardsim.values.num import Num
from shardsim.values.operators import Elementwise, GradientRole
from shardsim.values.training import NARROW_TYPE, LowPrecision
from shardsim.workload.shapes import Shapes


@dataclass(frozen=True, slots=True)
class Recipe:
    """How operands are scaled.

    Parameters
    ----------
    copy : float
        Bytes of an element of one narrow copy, its scale included (-).
    reads : int
        Times that the 16-bit values are read (-): twice where the largest is looked for first.
    oriented : bool
        Whether scales lie along a dimension, so that each copy has its own.
    """

    copy: float
    reads: int = 1
    oriented: bool = False


RECIPES: Mapping[LowPrecision, Recipe] = MappingProxyType(
    {
        "fp8-delayed": Recipe(1.0),
        "fp8-current": Recipe(1.0, reads=2),
        "fp8-block": Recipe(1.0 + 4.0 / 128.0, oriented=True),
        "mxfp8": Recipe(1.0 + 1.0 / 32.0, oriented=True),
        "nvfp4": Recipe(0.5 + 1.0 / 16.0, reads=2, oriented=True),
    }
)
"""One scale a tensor, from earlier iterations or from the tensor itself; an fp32 scale for 128 elements (arXiv
2412.19437 §3.3: 128 x 128 of a weight, whose scales count as those of activations here); a byte for 32 (OCP MX); a byte
for 16 and one scale a tensor (arXiv 2509.25149; layers that it keeps in 16 bits are not told apart)."""


def data_type(sizes: Shapes) -> str:
    """Data type of a block's linear layers; empty for that of the run."""
    return "" if sizes.low_precision is None else NARROW_TYPE[sizes.low_precision]


def operand(
    name: str, elements: Num, sizes: Shapes, role: GradientRole = "forward", *, gathered: bool = False
) -> tuple[Elementwise, ...]:
    """Convert an operand.

    Parameters
    ----------
    name : str
    elements : Num
        Of the rank that converts them (-).
    sizes : Shapes
    role : {"forward", "dgrad", "wgrad"}
    gathered : bool
        Whether it is gathered next: what can be transposed is transposed after that, by :func:`turned`.

    Returns
    -------
    tuple of Elementwise
        Empty in 16 bits.

    Examples
    --------
    >>> from dataclasses import replace
    >>> sizes = Shapes(2, 1, 1024, 1024, 1024, 512, 8, 8, 64, 1536, 512, 2048, 2048, low_precision="fp8-delayed")
    >>> [one.bytes_moved for one in operand("qkv input", 1024 * 512, sizes)]
    [2097152.0]
    """
    if sizes.low_precision is None:
        return ()
    recipe = RECIPES[sizes.low_precision]
    copies = 1 if gathered and not recipe.oriented else 2
    size = elements * (recipe.reads * sizes.element_bytes + copies * recipe.copy)
    return (Elementwise(f"{name} cast", "quantize", size, kernels=recipe.reads, role=role),)


def turned(name: str, elements: Num, sizes: Shapes) -> tuple[Elementwise, ...]:
    """Transpose an operand that was gathered, for the weight gradient.

    Parameters
    ----------
    name : str
    elements : Num
        After gathering (-).
    sizes : Shapes

    Returns
    -------
    tuple of Elementwise
        Read and written; empty in 16 bits, and where both copies are there already.
    """
    if sizes.low_precision is None or RECIPES[sizes.low_precision].oriented:
        return ()
    size = elements * 2 * RECIPES[sizes.low_precision].copy
    return (Elementwise(f"{name} transpose", "transpose", size, role="wgrad"),)


def weight(name: str, elements: Num, sizes: Shapes, microbatches: Num) -> tuple[Elementwise, ...]:
    """Convert a weight: a micro-batch's share of once an iteration.

    Parameters
    ----------
    name : str
    elements : Num
        Of the weight on this rank (-).
    sizes : Shapes
    microbatches : Num
        Micro-batches a replica and iteration (-).

    Returns
    -------
    tuple of Elementwise
    """
    whole = operand(f"{name} weight", elements, sizes)
    return tuple(
        Elementwise(one.name, one.kind, one.bytes_moved / microbatches, kernels=one.kernels / microbatches)
        for one in whole
    )


def gathered_bytes(sizes: Shapes, copies: int = 1) -> float:
    """Bytes of an element of what sequence parallelism gathers in front of a product (-).

    Parameters
    ----------
    sizes : Shapes
    copies : int
        How many products take it: each needs a copy of its own where scales lie along a dimension.

    Returns
    -------
    float
    """
    if sizes.low_precision is None:
        return sizes.element_bytes
    recipe = RECIPES[sizes.low_precision]
    return recipe.copy * (copies if recipe.oriented else 1)


def kept_bytes(sizes: Shapes) -> float:
    """Bytes of an element of a linear layer's input as kept for its weight gradient (-)."""
    return sizes.element_bytes if sizes.low_precision is None else RECIPES[sizes.low_precision].copy


def weight_copies(low_precision: LowPrecision | None) -> float:
    """Bytes that a weight's narrow copies take beside it, one for each direction (-)."""
    return 0.0 if low_precision is None else 2 * RECIPES[low_precision].copy
