"""What a board's power limit leaves of its clock.

The power of switching goes with the clock and the square of the voltage (P = C V^2 f), and near its limit a processor
needs voltage in proportion to the clock. So what a limit allows of the clock is about the cube root of what it allows
of the power: a law of thumb, not measured here. Large products and attention run at the limit; what moves bytes does
not.
"""

from __future__ import annotations

from dataclasses import replace

from shardsim.values.hardware import Device
from shardsim.values.kernels import KernelConstants


def clock_share(device: Device, constants: KernelConstants) -> float:
    """Clock of a device over that of those whose kernels were measured.

    Parameters
    ----------
    device : Device
    constants : KernelConstants

    Returns
    -------
    float
        At most 1 (-): a higher limit than was measured is not known to be used.
    """
    if constants.power <= device.power or constants.power == 0.0:
        return 1.0
    return float((device.power / constants.power) ** (1.0 / 3.0))


def at_its_clock(device: Device, constants: KernelConstants) -> Device:
    """Give a device the arithmetic that its power limit leaves, for the price of what runs at that limit.

    Parameters
    ----------
    device : Device
    constants : KernelConstants

    Returns
    -------
    Device
        The same object where nothing is lost.
    """
    share = clock_share(device, constants)
    if share == 1.0:
        return device
    return replace(device, peak_flops={name: rate * share for name, rate in device.peak_flops.items()})
