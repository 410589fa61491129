"""What an exchange of tokens with experts puts on the links, once it is known where the experts are."""

from __future__ import annotations

from dataclasses import dataclass

from shardsim.values.num import Num


@dataclass(frozen=True, slots=True)
class ExchangeVolumes:
    """Bytes that one rank sends, the busiest where loads differ; what stays on the rank counts in ``whole`` only.

    Parameters
    ----------
    near : Num
        Over NVLink [bytes]: to ranks of its own domain, and what has come from other domains and is passed on in this
        one, where that is done in two levels.
    far : Num
        Out of its NVLink domain [bytes].
    whole : Num
        The whole buffer as nccl-tests would count it: every copy of every token [bytes].
    """

    near: Num
    far: Num
    whole: Num
