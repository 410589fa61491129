"""Whether a layout can be run: every problem at once, each with the values that would be legal.

Rules are data (``workloads/rules``); what they speak of is in ``facts``, how they are applied in ``verdicts``, what
holds for us alone in ``limits``.
"""

from shardsim.workload.validity.layout import check
from shardsim.workload.validity.limits import MOST_PASSES
from shardsim.workload.validity.verdicts import Verdicts, verdicts

__all__ = ["MOST_PASSES", "Verdicts", "check", "verdicts"]
