"""What a trainer is told of the drives that a plan puts state on."""

from typing import Any

from slidepack.engine.contract.plan import FullPlan
from slidepack.engine.memory_nvme import STORE_STAGES
from slidepack.engine.shape import ModelShape

__all__ = ["tier_options"]


def tier_options(full: FullPlan, shape: ModelShape) -> dict[str, Any]:
    """Return arguments of `FullSetup`; none where RAM holds everything."""
    nvme = full.nvme
    if nvme is None:
        return {}
    pieces = -(-shape.layer_params // nvme.chunk_elements)
    engines = 2 if full.engine == "auto" else 1
    return {
        "state_stages": max(0, nvme.state_stages - STORE_STAGES) // engines,
        "weight_stages": nvme.weight_stages * pieces,
        "tier_rows": frozenset(nvme.rows),
        "row_stages": nvme.row_stages,
    }
