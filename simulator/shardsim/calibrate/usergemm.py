"""A user's own table of matrix products into a GEMM profile: as many constants as the rows carry, and how well they do.

The search starts at the shipped profile and is tethered to it, so that what a table does not determine stays as it was.
A few rows fit the speed alone; a table of hundreds fits the residual grid anew as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from shardsim.calibrate.fit import Array, Constant, fit_times
from shardsim.calibrate.gemm import TETHER, TILE_CONSTANTS, TILE_NAMES, fit_residual
from shardsim.cost.gemm import PEAK_OF, gemm_seconds
from shardsim.errors import InputError, Problem
from shardsim.schema.kernels import DATA_TYPES
from shardsim.schema.validation import LAYOUTS, MeasuredNames, data_type, first_match
from shardsim.values.hardware import Device
from shardsim.values.kernels import GemmConstants, GemmResidual, KernelConstants, TileConstants
from shardsim.values.measured import MeasuredGemms
from shardsim.values.operators import Gemm
from shardsim.values.provenance import Provenance

FEWEST = 5
"""Different products below which nothing is fitted (-)."""
FEW = 15
"""Below so many the speed alone is fitted (-)."""
GRID = (400, 40)
"""Products, and pairs of n and k, from which the residual grid is fitted anew (-)."""
LONG = 10e12
"""Work from which a product runs as long as those of training: its rate is the sustained one [FLOP]."""
FEWEST_LONG = 3
IMPOSSIBLE = 1.1
"""Share of the dense peak that no product can exceed (-): clocks differ by less."""
MOST_IMPOSSIBLE = 1 / 3
"""Share of a table's rows faster than that from which none of them is believed (-)."""
DISTURBED = 0.5
"""Error after the fit from which a row was disturbed, or is something else (-)."""
MOST_DISTURBED = 0.5
"""Share of such products from which the table measures something else (-)."""
CHANGED = 2.0
"""Factor between shipped and fitted times from which the fit says so (-)."""
FOLDS = 5
MOST_ROWS = 1500
"""Products that the constants of tiles are fitted to (-); more teach 13 constants nothing."""
PRIOR = 0.03
"""Variance of a measurement, 5 % squared, over that of a constant from device to device, 30 % squared (-)."""

Say = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class GemmSamples:
    """Measured products of one data type.

    Parameters
    ----------
    m, n, k, batch : ndarray of float
        Shapes (-), shape (rows,).
    layout : ndarray of str
        ``tn``, ``nn`` or ``nt``, shape (rows,).
    seconds : ndarray of float
        [s], shape (rows,).
    """

    m: Array
    n: Array
    k: Array
    batch: Array
    layout: NDArray[np.str_]
    seconds: Array

    def __len__(self) -> int:
        return len(self.seconds)

    def where(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> GemmSamples:
        """Keep some rows."""
        return GemmSamples(*(getattr(self, name)[chosen] for name in GemmSamples.__slots__))

    @property
    def flop(self) -> Array:
        """2 b m n k (-)."""
        return 2.0 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class FittedConstant:
    """One constant, before and after.

    Parameters
    ----------
    name : str
        As in a GEMM profile, such as ``tile.fill``.
    shipped, fitted : float
        SI units.
    at_bound : bool
        Whether it ended on a bound of the search: the rows do not determine it.
    """

    name: str
    shipped: float
    fitted: float
    at_bound: bool


@dataclass(frozen=True, slots=True)
class UserGemmFit:
    """One data type, fitted.

    Parameters
    ----------
    dtype : str
    samples : GemmSamples
        Different products, repeats as their median.
    base, constants : GemmConstants
        Before and after.
    changed : tuple of FittedConstant
    grid : str
        What became of the residual grid, in words.
    before, after : ndarray of float
        Times by both [s], shape (rows,).
    held_out : ndarray of float
        Times of products whose pair of n and k the fit had not seen [s], shape (rows,); NaN where none was held out.
    left : mapping of str to int
        Rows that no fit uses, by reason.
    notes : tuple of str
    provenance : mapping of str to Provenance
        Of the constants, by key below the data type; ``own``, ``own_speed`` or ``scaled`` as the source of those that
        changed, the citation of the base for all others.
    """

    dtype: str
    samples: GemmSamples
    base: GemmConstants
    constants: GemmConstants
    changed: tuple[FittedConstant, ...]
    grid: str
    before: Array
    after: Array
    held_out: Array
    left: Mapping[str, int]
    notes: tuple[str, ...]
    provenance: Mapping[str, Provenance] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GemmRows:
    """Rows of a table that are of the device, by data type.

    Parameters
    ----------
    tables : mapping of str to GemmSamples
    left : mapping of str to int
        How many rows were left aside, by reason.
    notes : tuple of str
    """

    tables: Mapping[str, GemmSamples]
    left: Mapping[str, int]
    notes: tuple[str, ...]


def rows_of(
    table: MeasuredGemms, device: str, dtype: str | None, known: Collection[str], rules: MeasuredNames
) -> GemmRows:
    """Take the rows of a device, by data type.

    Parameters
    ----------
    table : MeasuredGemms
    device : str
        Name of what was measured. A table of one GPU is taken as measured on it, unless it names another device
        of the catalog.
    dtype : str or None
        Of rows that do not say theirs; where they do, the only one that is wanted.
    known : collection of str
        Names of data types that profiles use.
    rules : MeasuredNames

    Returns
    -------
    GemmRows

    Raises
    ------
    InputError
        No row of the device, or of the data type; a data type is told nowhere.
    """
    notes: list[str] = []
    left: Counter[str] = Counter()
    wanted = None if dtype is None else data_type(dtype, known, rules)
    gpus = {gpu: device if gpu == device else _device(gpu, rules) for gpu in dict.fromkeys(table.gpu)}
    if len(gpus) == 1 and not _is_another(said := next(iter(gpus)), device, rules):
        if said and gpus[said] != device:
            notes.append(f"the table says {said!r}; taken as measured on {device}")
        gpus = {said: device}
    members: dict[str, list[int]] = {}
    names = {text: data_type(text, known, rules) if text else wanted or "" for text in dict.fromkeys(table.dtype)}
    for index, (gpu, text, layout) in enumerate(zip(table.gpu, table.dtype, table.layout, strict=True)):
        own = names[text]
        if gpus[gpu] != device:
            left[f"of another GPU: {gpu or 'none stated'}"] += 1
        elif not own:
            left["without a data type: give it with --dtype"] += 1
        elif wanted is not None and own != wanted:
            left[f"of another data type: {own}"] += 1
        elif layout.casefold() not in LAYOUTS:
            left[f"of layout {layout!r}, which is none of {', '.join(word for word in LAYOUTS if word)}"] += 1
        else:
            members.setdefault(own, []).append(index)
    if not members:
        reasons = "; ".join(f"{rows} rows {reason}" for reason, rows in left.items())
        right = "--device says what was measured; a table without a gpu column is taken as measured on it"
        of_others = any(gpu != device for gpu in gpus.values())
        raise InputError(Problem(f"no row that a fit may use: {reasons}", table.file, right if of_others else ""))
    layouts = np.array([LAYOUTS.get(layout.casefold(), "") for layout in table.layout])
    whole = GemmSamples(table.m, table.n, table.k, table.batch, layouts, table.seconds)
    tables = {name: whole.where(np.array(rows, dtype=np.int64)) for name, rows in members.items()}
    return GemmRows(tables, dict(left), tuple(notes))


def _device(gpu: str, rules: MeasuredNames) -> str:
    rule = first_match(rules.devices, gpu)
    return gpu if rule is None or rule.name is None else rule.name


def _is_another(gpu: str, device: str, rules: MeasuredNames) -> bool:
    """Whether a name means another device of the catalog for certain: a device of one's own has any name."""
    rule = first_match(rules.devices, gpu)
    named = {one.name for one in rules.devices}
    return gpu != device and device in named and rule is not None and rule.name not in (None, device) and not rule.note


OWN = "own"
"""Name under which a profile cites the user's table."""
OWN_SPEED = "own_speed"
"""The same, where the speed alone was fitted."""


def fit_user_gemms(
    tables: Mapping[str, GemmSamples], device: Device, kernels: KernelConstants, say: Say = lambda _: None
) -> tuple[tuple[UserGemmFit, ...], Mapping[str, str]]:
    """Fit the data types of a table.

    Parameters
    ----------
    tables : mapping of str to GemmSamples
        By data type.
    device : Device
    kernels : KernelConstants
        The profile that the device has.
    say : callable
        Told what is being fitted.

    Returns
    -------
    fits : tuple of UserGemmFit
    refused : mapping of str to str
        Data types that cannot be fitted, and why.

    Raises
    ------
    InputError
        No data type can be fitted; every reason.
    """
    fits: list[UserGemmFit] = []
    refused: dict[str, Problem] = {}
    for dtype, table in tables.items():
        samples, left = _usable_of(dtype, table, device)
        if isinstance(samples, Problem):
            refused[dtype] = samples
            continue
        say(dtype)
        found = _fitted(dtype, samples, left, device, kernels)
        if isinstance(found, Problem):
            refused[dtype] = found
        else:
            fits.append(found)
    if not fits:
        raise InputError(refused.values())
    return tuple(fits), {dtype: str(problem) for dtype, problem in refused.items()}


def _usable_of(dtype: str, table: GemmSamples, device: Device) -> tuple[GemmSamples | Problem, Mapping[str, int]]:
    """The products of a data type and the rows left aside, or why there is no fit."""
    if dtype not in DATA_TYPES:
        return Problem(f"profiles have no {dtype!r}", right=f"the data types are {', '.join(DATA_TYPES)}"), {}
    if PEAK_OF.get(dtype, dtype) not in device.peak_flops:
        return Problem(f"{device.name} has no peak for {dtype}"), {}
    samples, left = usable(table, device.peak_flops[PEAK_OF.get(dtype, dtype)])
    impossible = left.get(TOO_FAST, 0)
    if impossible > MOST_IMPOSSIBLE * len(table):
        return Problem(f"{dtype}: {impossible} of {len(table)} rows {TOO_FAST}", right=WHAT_IS_WRONG), left
    if len(samples) < FEWEST:
        reasons = "".join(f"; {rows} rows {reason}" for reason, rows in left.items())
        few = f"{len(samples)} different products of {dtype}, and a fit needs {FEWEST}{reasons}"
        return Problem(few, right="measure more shapes"), left
    return samples, left


TOO_FAST = f"faster than {IMPOSSIBLE:g} times the dense peak"
WHAT_IS_WRONG = "is the device right, the unit of the times, and the data type?"


def usable(table: GemmSamples, peak: float) -> tuple[GemmSamples, Mapping[str, int]]:
    """Take the rows that a fit may use: repeats of a product as one, by their median.

    Parameters
    ----------
    table : GemmSamples
    peak : float
        Dense peak of the data type [FLOP/s].

    Returns
    -------
    samples : GemmSamples
    left : mapping of str to int
        How many rows were left aside, by reason.
    """
    whole = np.isfinite(table.m + table.n + table.k + table.seconds)
    possible = whole & ~(table.flop > IMPOSSIBLE * peak * table.seconds)
    some = table.where(possible)
    keys: dict[tuple[object, ...], list[int]] = {}
    columns = (some.m, some.n, some.k, some.batch, some.layout)
    for index, key in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        keys.setdefault(key, []).append(index)
    medians = np.array([float(np.median(some.seconds[rows])) for rows in keys.values()])
    left = {
        "without a shape or a time": int((~whole).sum()),
        TOO_FAST: int((whole & ~possible).sum()),
        "repeats: a product counts once, with the median of its times": len(some) - len(keys),
    }
    one_each = some.where(np.array([rows[0] for rows in keys.values()], dtype=np.int64))
    return replace(one_each, seconds=medians), {reason: rows for reason, rows in left.items() if rows}


def burst_seconds(
    samples: GemmSamples, constants: GemmConstants, device: Device, kernels: KernelConstants, dtype: str
) -> Array:
    """Times of products as short bursts [s], shape (rows,).

    Parameters
    ----------
    samples : GemmSamples
    constants : GemmConstants
        Of the data type.
    device : Device
    kernels : KernelConstants
        Whose matrix products ``constants`` stand for.
    dtype : str
    """
    profile = replace(kernels, gemm={dtype: constants})
    found = np.empty(len(samples))
    for layout in np.unique(samples.layout).tolist():
        some = samples.layout == layout
        m, n, k, batch = (getattr(samples, name)[some] for name in ("m", "n", "k", "batch"))
        product = Gemm("measured", m, k, n, batch, layout=layout)
        found[some] = gemm_seconds(product, device, profile, dtype, regime="burst")
    return found


# The constants as one flat set, in the order of TILE_CONSTANTS.

_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "gemm_overhead": "overhead",
        "gemm_memory_efficiency": "memory_efficiency",
        **{constant.name: f"tile.{constant.name}" for constant in TILE_CONSTANTS[2:8]},
        **{name: f"tile.efficiency.{name}" for name in TILE_NAMES},
    }
)
"""Names of constants in a profile, by those of :data:`shardsim.calibrate.gemm.TILE_CONSTANTS`."""
_TIMES = ("overhead", "tile.fill", "tile.split_overhead")
_RATES = ("memory_efficiency", "tile.burst_cap")
_AT_MOST_ONE = ("memory_efficiency", "tile.wave_quantization")
_EFFICIENCY = "tile.efficiency."
_BOUNDS: Mapping[str, Constant] = MappingProxyType({_KEYS[constant.name]: constant for constant in TILE_CONSTANTS})
_TILE_SCALARS = tuple(constant.name for constant in TILE_CONSTANTS[2:8])
SPEED = "speed"
"""Factor on every time: what a cluster and its software stack differ in most."""


def flat(constants: GemmConstants) -> dict[str, float]:
    """Constants of tiled products by their names in a profile; the starts of the shipped fits where there are none.

    Parameters
    ----------
    constants : GemmConstants
    """
    start = {constant.name: constant.start for constant in TILE_CONSTANTS}
    tile = constants.tile or TileConstants(
        efficiency=tuple(start[name] for name in TILE_NAMES[:4]), **{name: start[name] for name in _TILE_SCALARS}
    )
    values = {"overhead": constants.overhead, "memory_efficiency": constants.memory_efficiency}
    values |= {f"tile.{name}": getattr(tile, name) for name in _TILE_SCALARS}
    return values | {f"{_EFFICIENCY}{name}": share for name, share in zip(TILE_NAMES, tile.efficiency, strict=False)}


def _rebuilt(base: GemmConstants, values: Mapping[str, float]) -> GemmConstants:
    tile = TileConstants(
        efficiency=tuple(value for name, value in values.items() if name.startswith(_EFFICIENCY)),
        **{name: values[f"tile.{name}"] for name in _TILE_SCALARS},
    )
    return replace(base, overhead=values["overhead"], memory_efficiency=values["memory_efficiency"], tile=tile)


def _slowed(values: Mapping[str, float], factor: float) -> dict[str, float]:
    """Constants with which everything takes so many times as long."""
    found = dict(values)
    for name, value in values.items():
        if name in _TIMES:
            found[name] = value * factor
        elif name in _RATES or name.startswith(_EFFICIENCY):
            found[name] = value / factor
    found["memory_efficiency"] = min(found["memory_efficiency"], 1.0)
    return found


# The fit.


@dataclass(frozen=True, slots=True)
class _Setting:
    """What stays the same over the fits of one data type."""

    dtype: str
    device: Device
    kernels: KernelConstants

    def times(self, samples: GemmSamples, constants: GemmConstants) -> Array:
        return burst_seconds(samples, constants, self.device, self.kernels, self.dtype)


def _fitted(
    dtype: str, samples: GemmSamples, left: Mapping[str, int], device: Device, kernels: KernelConstants
) -> UserGemmFit | Problem:
    setting = _Setting(dtype, device, kernels)
    notes = []
    like = dtype if dtype in kernels.gemm else "bf16" if "bf16" in kernels.gemm else next(iter(kernels.gemm))
    base = kernels.gemm[like]
    if like != dtype:
        notes.append(f"{kernels.name} has no {dtype}: the search starts at its {like}, which `shipped` means here")
    constants, at_bounds = _fit(samples, base, setting)
    before, after = setting.times(samples, base), setting.times(samples, constants)
    disturbed = int((np.abs(np.log(after / samples.seconds)) > DISTURBED).sum())
    if SPEED in at_bounds or disturbed > MOST_DISTURBED * len(samples):
        slower = float(np.median(samples.seconds / before))
        said = f"{dtype}: products take {slower:.3g} times as long as {kernels.name} says, and no fit reaches them"
        return Problem(said, right=WHAT_IS_WRONG)
    constants, sustained, clipped = _sustained(samples, base, constants, setting)
    notes += [*_remarks(samples, float(np.median(after / before)), disturbed), *clipped]
    found = flat(constants)
    source = OWN_SPEED if _speed_alone(samples) else OWN
    fitted = Provenance("fitted", source, error_of(after, samples.seconds).median, len(samples))
    return UserGemmFit(
        dtype=dtype,
        samples=samples,
        base=base,
        constants=constants,
        changed=tuple(
            FittedConstant(name, value, found[name], name in at_bounds) for name, value in flat(base).items()
        ),
        grid=_grid_words(samples, base),
        before=before,
        after=after,
        held_out=_held_out(samples, base, setting),
        left=left,
        notes=tuple(notes),
        provenance={
            **shipped_provenance(kernels, like, device, dtype),
            **dict.fromkeys(_changed(base, constants), fitted),
            **sustained,
        },
    )


def shipped_provenance(
    kernels: KernelConstants, dtype: str, device: Device, as_dtype: str | None = None
) -> dict[str, Provenance]:
    """Provenance of the shipped constants; what was measured on another device, or of another data type, is assumed.

    Parameters
    ----------
    kernels : KernelConstants
    dtype : str
        Whose constants they are.
    device : Device
        On which they are used.
    as_dtype : str or None
        For which they stand, if not for ``dtype``.

    Returns
    -------
    dict of str to Provenance
        By key below the data type.
    """
    prefix = f"gemm.{dtype}."
    notes = {key.removeprefix(prefix): note for key, note in kernels.provenance.items() if key.startswith(prefix)}
    measured_on = kernels.measured_on.get("gemm", ())
    elsewhere = [f"on {', '.join(measured_on)}"] if measured_on and device.name not in measured_on else []
    elsewhere += [f"of {dtype}"] if as_dtype not in (None, dtype) else []
    if not elsewhere and device.name in measured_on:
        return notes
    return {
        key: note
        if note.basis == "assumed"
        else Provenance("assumed", f"{' '.join([note.basis, *elsewhere])}: {note.source}" if elsewhere else note.source)
        for key, note in notes.items()
    }


def _remarks(samples: GemmSamples, slower: float, disturbed: int) -> Iterator[str]:
    """What a reader of the fit should know; ``slower`` is fitted over shipped time."""
    if _speed_alone(samples):
        yield f"{len(_forward(samples))} products: the speed alone is fitted; {FEW} fit every constant"
    if max(slower, 1.0 / slower) > CHANGED:
        yield f"products take {slower:.3g} times as long as shipped: {WHAT_IS_WRONG}"
    layouts = np.unique(samples.layout).tolist()
    if _forward(samples) is samples and layouts != ["tn"]:
        few = int((samples.layout == "tn").sum())
        yield (
            f"{few or 'no'} products of layout tn, and {FEWEST} give it a fit of its own:"
            f" all layouts get the speed of {', '.join(layouts)}"
        )
    if disturbed:
        yield f"{disturbed} products are off by over {DISTURBED:.0%} after the fit: disturbed, or not what they say"


def _changed(base: GemmConstants, constants: GemmConstants) -> Iterator[str]:
    """Keys of constants that the fit moved, by as much as a profile shows."""
    shipped = {} if base.tile is None else flat(base)
    yield from (name for name, value in flat(constants).items() if _differ(value, shipped.get(name)))
    if constants.residual is not base.residual:
        yield "residual"
    for layout, ratio in constants.layout_time.items():
        if _differ(ratio, base.layout_time.get(layout)):
            yield f"layout_time.{layout}"


def _differ(value: float, shipped: float | None) -> bool:
    return shipped is None or f"{value:.4g}" != f"{shipped:.4g}"


def _forward(samples: GemmSamples) -> GemmSamples:
    """The products of ``tn``, to which the constants are fitted; all where these are too few."""
    forward = samples.layout == "tn"
    return samples.where(forward) if not forward.all() and forward.sum() >= FEWEST else samples


def _speed_alone(samples: GemmSamples) -> bool:
    return len(_forward(samples)) < FEW


def _fit(samples: GemmSamples, base: GemmConstants, setting: _Setting) -> tuple[GemmConstants, tuple[str, ...]]:
    """As many constants as the rows carry, and those that ended on a bound."""
    own = _forward(samples)
    anew = _fits_grid(samples)
    start = replace(base, residual=None) if anew else base
    chosen, values = _thinned(own), flat(start)
    each = () if _speed_alone(samples) else tuple(_around(name, value) for name, value in values.items())

    def rebuilt(found: Mapping[str, float]) -> GemmConstants:
        return _rebuilt(start, _slowed({name: found.get(name, value) for name, value in values.items()}, found[SPEED]))

    search = (Constant(SPEED, 1.0, 0.1, 10.0), *each)
    fit = fit_times(
        lambda found: setting.times(chosen, rebuilt(found)), chosen.seconds, search, TETHER + PRIOR / len(chosen)
    )
    constants = rebuilt(fit.constants)
    if anew:
        constants = replace(constants, residual=_grid(own, constants, setting))
    if len(own) < len(samples):
        constants = replace(constants, layout_time=_layout_times(samples, constants, setting))
    return constants, fit.at_bounds


def _around(name: str, start: float) -> Constant:
    """The bounds of the shipped fits, widened where the shipped constant lies on one or beyond."""
    bounds = _BOUNDS[name]
    most = 1.0 + 1e-9 if name in _AT_MOST_ONE else max(bounds.most, start * 1.001)
    return Constant(name, start, min(bounds.least, start / 1.001), most)


def _thinned(samples: GemmSamples) -> GemmSamples:
    """At most so many rows, evenly over the size of the work."""
    if len(samples) <= MOST_ROWS:
        return samples
    order = np.argsort(samples.flop, kind="stable")
    return samples.where(np.sort(order[np.linspace(0, len(order) - 1, MOST_ROWS).round().astype(np.int64)]))


def _pairs(samples: GemmSamples) -> NDArray[np.int64]:
    """Number of each row's pair of n and k (-), shape (rows,)."""
    found: NDArray[np.int64] = np.unique(np.stack([samples.n, samples.k]), axis=1, return_inverse=True)[1].reshape(-1)
    return found


def _fits_grid(samples: GemmSamples) -> bool:
    return len(samples) >= GRID[0] and int(_pairs(samples).max()) + 1 >= GRID[1]


def _grid_words(samples: GemmSamples, base: GemmConstants) -> str:
    if _fits_grid(samples):
        return "fitted anew"
    if base.residual is None:
        return f"none: it takes {GRID[0]} products of {GRID[1]} pairs of n and k"
    return f"as shipped: a new one takes {GRID[0]} products of {GRID[1]} pairs of n and k"


def _grid(samples: GemmSamples, constants: GemmConstants, setting: _Setting) -> GemmResidual | None:
    """Residual grid of the single products."""
    single = samples.where(samples.batch == 1.0)
    product = setting.times(single, constants) - constants.overhead
    # Where measured times fall short of the launch, the ratio of the whole is as good as can be had.
    left = np.maximum(single.seconds - constants.overhead, 0.25 * single.seconds)
    return fit_residual(single.m, single.n, single.k, np.log(left / product))


def _layout_times(samples: GemmSamples, constants: GemmConstants, setting: _Setting) -> Mapping[str, float]:
    """Time of the other layouts over that of ``tn``, launches taken off."""
    found = dict(constants.layout_time)
    alike = replace(constants, layout_time={})
    for layout in ("nn", "nt"):
        some = samples.where(samples.layout == layout)
        if len(some) >= FEWEST:
            product = setting.times(some, alike) - constants.overhead
            found[layout] = float(
                np.median(np.maximum(some.seconds - constants.overhead, 0.25 * some.seconds) / product)
            )
    return MappingProxyType(found)


def _sustained(
    samples: GemmSamples, base: GemmConstants, constants: GemmConstants, setting: _Setting
) -> tuple[GemmConstants, Mapping[str, Provenance], tuple[str, ...]]:
    """Share of peak that training holds: of the longest products measured, or the shipped one at the new speed."""
    peak = setting.device.peak_flops[PEAK_OF.get(setting.dtype, setting.dtype)]
    long = samples.where(samples.flop >= LONG)
    if len(long) >= FEWEST_LONG:
        share = float(np.median(long.flop / long.seconds)) / peak
        note = Provenance("measured", OWN, None, len(long))
    else:
        one = np.ones(1)
        large = GemmSamples(8192 * one, 8192 * one, 8192 * one, one, np.array(["tn"]), one)
        share = base.sustained * float((setting.times(large, base) / setting.times(large, constants))[0])
        note = Provenance("assumed", SCALED)
    clipped = (f"the sustained share comes to {share:.3g} of the dense peak: taken as 1",) if share > 1.0 else ()
    kept = replace(constants, sustained=min(share, 1.0))
    as_shipped = note.basis == "assumed" and not _differ(kept.sustained, base.sustained)
    return kept, {} if as_shipped else {"sustained": note}, clipped


SCALED = "scaled"
"""Name of the source that says how an unmeasured sustained share follows from the shipped one."""


def _held_out(samples: GemmSamples, base: GemmConstants, setting: _Setting) -> Array:
    """Times by fits that had not seen the row's pair of n and k [s], shape (rows,); NaN where there are too few."""
    pairs = _pairs(samples)
    folds = min(FOLDS, int(pairs.max()) + 1)
    found = np.full(len(samples), np.nan)
    # Pairs are sorted by n and k: every fold gets small and large ones.
    for fold in range(folds):
        test = pairs % folds == fold
        if folds > 1 and (~test).sum() >= FEWEST:
            constants, _ = _fit(samples.where(~test), base, setting)
            found[test] = setting.times(samples.where(test), constants)
    return found


@dataclass(frozen=True, slots=True)
class Error:
    """Size of predicted / measured - 1.

    Parameters
    ----------
    products : int
    median, p90 : float
        Of its size (-).
    bias : float
        Median with its sign (-).
    """

    products: int
    median: float
    p90: float
    bias: float


def error_of(predicted: Array, measured: Array) -> Error:
    """Error of predicted times.

    Parameters
    ----------
    predicted, measured : ndarray of float
        [s], shape (products,), at least one.
    """
    off = predicted / measured - 1.0
    median, p90 = np.percentile(np.abs(off), [50, 90])
    return Error(len(off), float(median), float(p90), float(np.median(off)))
