"""Which file a kernel profile takes a section from: what a profile of one's own is based on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from shardsim.schema.catalog import find, is_path
from shardsim.schema.kernels import KernelProfileFile
from shardsim.schema.loader import check
from shardsim.schema.sourced import inherited


def section_name(
    profile: str, section: Literal["gemm", "attention", "memory_bound"], extra: Sequence[Path] = ()
) -> str:
    """Name the file of a section.

    Parameters
    ----------
    profile : str
        Kernel profile: catalog name or path.
    section : {"gemm", "attention", "memory_bound"}
    extra : sequence of Path
        A user's own data folders.

    Returns
    -------
    str
        Catalog name, or path from the working directory.

    Raises
    ------
    InputError
        Unknown name, or every problem of the file.

    Examples
    --------
    >>> section_name("h100-sxm", "gemm")
    'h100-sxm'
    """
    path = find("kernel-profile", profile, extra)
    name: str = getattr(
        check(inherited("kernel-profile", path, KernelProfileFile, extra, ()), KernelProfileFile), section
    )
    return str(path.parent / name) if is_path(name) else name
