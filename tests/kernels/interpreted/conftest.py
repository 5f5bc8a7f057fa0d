import os

import pytest
import torch
from torch import Tensor

# Whether Triton interprets is decided when a kernel is defined, so these tests need a process of
# their own: `tests/kernels/test_interpreter.py` starts it.
collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill new float tensors with NaN, so that what a kernel forgets to write is seen."""
    empty, empty_like = torch.empty, torch.empty_like

    def poison(tensor: Tensor) -> Tensor:
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", lambda *a, **k: poison(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: poison(empty_like(*a, **k)))
