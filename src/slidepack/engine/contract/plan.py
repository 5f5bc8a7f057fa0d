"""The run plan: where a run's tensors live, and what that is predicted to take."""

from typing import Literal

from slidepack.engine.contract.job import Frozen

Residency = Literal["device", "host", "nvme"]
ActivationPolicy = Literal["keep", "recompute", "offload"]


class NvmePlan(Frozen, frozen=True, kw_only=True):
    """What of a full fine-tuning lies on drives, and the RAM that it passes through.

    Units are numbered as in `sliding.state.units_of`: the layers, the embedding, and the head where
    it is not tied.
    """

    folders: tuple[str, ...]
    """One on each drive; files are striped over them."""
    moments: tuple[int, ...]
    """Units whose moments are there."""
    master: tuple[int, ...]
    """Units whose master weights are there; only where their moments are."""
    rows: tuple[int, ...]
    """Layers whose inputs wait there between forward and backward."""
    chunk_elements: int
    """Parameters whose state is moved at once."""
    state_stages: int
    """Chunks of state in RAM at once."""
    weight_stages: int
    """Layers' weights in RAM at once, on their way to the passes; 0 where no master is there."""
    row_stages: int
    """Micro-batches of a layer's inputs in RAM at once; 0 where no rows are there."""
    held_bytes: int
    """On the drives while it trains, each once; every checkpoint kept holds the state again."""
    step_read_bytes: int
    step_write_bytes: int
    """Of a step of the longest rows."""
    rated_write_bytes: float | None = None
    """What the drives take in their life; None where nobody knows (`engine.drive_wear`)."""
    rated_source: str = ""
    """Where that figure is from."""
    written_bytes: float | None = None
    """What they had taken before; None where they do not tell."""


class FullPlan(Frozen, frozen=True, kw_only=True):
    """What a full fine-tuning needs beside the rest of its plan."""

    weights: Literal["slide", "resident"]
    """`resident` keeps every layer where the passes read it."""
    weight_slots: int
    """Decoder layers on the card at once."""
    grad_slots: int
    """Layers whose gradient is on the card at once."""
    host_grad_slots: int
    """Layers whose gradient may wait in host memory for the CPU's optimizer."""
    engine: Literal["cpu", "gpu", "auto"]
    rows: Literal["device", "host"]
    """Where the inputs of the layers are kept between forward and backward."""
    moments: Literal["fp32", "bf16", "int8"]
    max_tokens: int
    """Most tokens of a step."""
    longest_row: int
    """Most tokens of one row: a micro-batch holds at least one."""
    nvme: NvmePlan | None = None
    """What lies on drives; None where RAM holds everything."""


class LaneSlidePlan(Frozen, frozen=True, kw_only=True):
    """What LoRA over a base that slides needs beside the rest of its plan."""

    slots: int
    """Decoder layers on the card at once, of the base and of the lanes."""
    rows: Literal["device", "host"]
    """Where the inputs of the layers are kept between forward and backward."""
    max_tokens: int
    """Most tokens of a step, of all lanes together."""


class RunPlan(Frozen, frozen=True, kw_only=True):
    """How a run uses the machine; decided by `engine.memory`, obeyed by the worker."""

    device: str
    """`cpu` or `cuda:N` (ROCm's devices are `cuda` to torch as well)."""
    precision: Literal["fp32", "bf16"]
    """Of the passes."""
    layer_weights: tuple[Residency, ...]
    """Where each decoder layer's weights live."""
    layer_activations: tuple[ActivationPolicy, ...]
    """What happens to each decoder layer's activations between forward and backward."""
    optimizer_state: Residency
    cpu_threads: int
    """Threads of torch on the CPU; part of the plan because the order of sums depends on it."""
    micro_batch_tokens: int
    """Upper bound of tokens in one micro-batch."""
    predicted_device_bytes: int
    """Peak on the device; 0 where the device is the CPU."""
    predicted_host_bytes: int
    predicted_disk_bytes: int
    """Checkpoints and result."""
    reason: str
    """Why this plan, in words for the user."""
    base_format: Literal["plain", "nf4"] = "plain"
    """How a frozen base is held: in the precision of the passes, or its linears in 4 bits."""
    full: FullPlan | None = None
    """Of a full fine-tuning; None for adapters."""
    slide: LaneSlidePlan | None = None
    """Of adapters over a base that slides; None where it stays on the device."""
