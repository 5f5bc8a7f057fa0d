"""Small host tensors on their way to the device, which the host does not wait for."""

import torch
from torch import Tensor

__all__ = ["upload"]


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a host tensor on a device; one that is there already as it is.

    A copy from pageable memory would make the host wait for everything launched so far.
    """
    if tensor.device == device or device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
