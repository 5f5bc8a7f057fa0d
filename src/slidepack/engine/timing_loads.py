"""What a step of full fine-tuning moves beside its passes, and how long that keeps what busy.

Torch-free.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from slidepack.engine.contract.plan import FullPlan
from slidepack.engine.memory_full_need import end_sizes
from slidepack.engine.memory_nvme import traffic
from slidepack.engine.rates import Rates
from slidepack.engine.shape import ModelShape

__all__ = ["Loads", "PassName", "Phase", "Resource"]

Resource = Literal["compute", "link", "memory", "cpu", "read", "write", "drives"]
"""The last three are of the drives, which do both at once at less than the sum of their rates."""
PassName = Literal["forward", "head", "backward"]

_STATE_BYTES: Final = {"fp32": 12, "bf16": 8, "int8": 6}
"""A parameter of state, split master and moments, each way."""


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the step, and how long each resource is busy in it."""

    name: Literal["forward", "head", "backward", "update"]
    busy_seconds: dict[Resource, float]

    @property
    def seconds(self) -> float:
        """As long as the busiest."""
        return max(self.busy_seconds.values(), default=0.0)

    @property
    def bound_by(self) -> Resource:
        """The busiest."""
        return max(self.busy_seconds, key=lambda name: self.busy_seconds[name])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Load:
    """What moves beside the passes in one phase."""

    to_card: float = 0.0
    """Bytes over the link."""
    to_host: float = 0.0
    optimizer: float = 0.0
    """Bytes that the CPU's optimizer reads and writes."""
    read: float = 0.0
    """Bytes from drives."""
    written: float = 0.0
    """Bytes to drives."""

    def __add__(self, other: "_Load") -> "_Load":
        return _Load(
            to_card=self.to_card + other.to_card,
            to_host=self.to_host + other.to_host,
            optimizer=self.optimizer + other.optimizer,
            read=self.read + other.read,
            written=self.written + other.written,
        )

    def busy(self, rates: Rates) -> dict[Resource, float]:
        """Return the seconds that each resource is busy."""
        less, more = sorted((self.to_card, self.to_host))
        moved = self.to_card + self.to_host + self.optimizer + self.read + self.written
        busy: dict[Resource, float] = {
            "link": less / rates.duplex_bytes + (more - less) / rates.link_bytes,
            "memory": moved / rates.memory_bytes,
            "cpu": self.optimizer / rates.cpu_adamw_bytes,
        }
        if self.read or self.written:
            busy |= {
                "read": self.read / rates.read_bytes,
                "write": self.written / rates.write_bytes,
                "drives": (self.read + self.written) / rates.drive_bytes,
            }
        return busy


class Loads:
    """What a step moves, by its reason."""

    def __init__(
        self,
        shape: ModelShape,
        full: FullPlan,
        *,
        clip: bool,
        on_cpu: bool,
        cpu_share: float,
        batches: int,
    ) -> None:
        """Count what a plan moves; the arguments are those of `timing.full_step`."""
        layers = shape.num_layers * shape.layer_params
        embedding, *others = end_sizes(shape)
        head = sum(others)
        self._state, self._clip = _STATE_BYTES[full.moments], clip
        self._params = layers + embedding + head
        drives = traffic(shape, full, 1.0, on_cpu=on_cpu, batches=batches)
        self._drive_rows = drives.rows
        """Bytes of a token, each way."""
        self._drive_rows_again = drives.rows_again
        """Of those, read by the forward pass too."""
        self._row_bytes = 2.0 * shape.num_layers * shape.hidden * (full.rows == "host")
        slides = full.weights == "slide"
        self._weights = _Load(to_card=2.0 * layers * slides, read=drives.weights)
        by_cpu = cpu_share * layers
        # The CPU updates the ends where it updates everything. A head of its own is updated with
        # the layers.
        alone = cpu_share >= 1.0
        self._gradients = _Load(to_host=2.0 * (layers if clip else by_cpu)) + _Load(
            to_host=4.0 * head * (clip or alone), to_card=2.0 * head * alone
        )
        self._layers = self._update(by_cpu, layers - by_cpu, grad_bytes=2) + self._update(
            head * alone, head * (not alone), grad_bytes=4
        )
        self._layers += _Load(read=drives.update, written=drives.update)
        self._embedding = self._update(
            embedding * alone, embedding * (not alone), grad_bytes=4
        ) + _Load(
            read=drives.embedding,
            written=drives.embedding,
            to_host=4.0 * embedding * (clip or alone),
            to_card=2.0 * embedding * alone,
        )
        self._renewed = 0.0 if slides else 2.0 * by_cpu
        """Bytes of layers that stay on the card and are updated by the CPU: the passes wait."""

    def _update(self, on_cpu: float, on_card: float, *, grad_bytes: int) -> _Load:
        to_card = self._state + (grad_bytes if self._clip else 0)
        return _Load(
            to_card=to_card * on_card,
            to_host=self._state * on_card,
            # Reads and writes the state, reads the gradient.
            optimizer=(2 * self._state + grad_bytes) * on_cpu,
        )

    def phases_of_cpu(
        self, passes: Mapping[PassName, float], tokens: float, rates: Rates
    ) -> tuple[Phase, ...]:
        """Return the phases of a step without a card.

        The passes have all cores, so the updates, of all weights in fp32, add to them.
        """
        rows = tokens * self._drive_rows
        beside = {
            "forward": _Load(
                read=self._weights.read + tokens * self._drive_rows_again, written=rows
            ),
            "head": _Load(),
            "backward": _Load(read=self._weights.read + rows),
        }
        drives = self._layers + self._embedding
        update = _Load(
            optimizer=(2.0 * self._state + 4.0) * self._params,
            read=drives.read,
            written=drives.written,
        )
        return (
            *(
                _phase(name, compute, _drives_only(beside[name].busy(rates)))
                for name, compute in passes.items()
            ),
            Phase(name="update", busy_seconds=update.busy(rates)),
        )

    def phases(
        self, passes: Mapping[PassName, float], tokens: float, rates: Rates
    ) -> tuple[Phase, ...]:
        """Return the phases of a step, given the seconds of its passes alone."""
        rows = _Load(to_card=tokens * self._row_bytes, to_host=tokens * self._row_bytes)
        on_drives = tokens * self._drive_rows
        again = tokens * self._drive_rows_again
        forward = self._weights + rows + _Load(read=again, written=on_drives)
        backward = self._weights + rows + _Load(read=on_drives)
        backward += self._gradients
        if self._clip:
            forward += self._layers
        else:
            backward += self._layers
        renewal = self._renewed / rates.link_bytes
        return (
            _phase("forward", passes["forward"] + renewal, forward.busy(rates)),
            _phase("head", passes["head"], {}),
            _phase("backward", passes["backward"], backward.busy(rates)),
            Phase(name="update", busy_seconds=self._embedding.busy(rates)),
        )


def _phase(name: PassName, compute: float, others: dict[Resource, float]) -> Phase:
    return Phase(name=name, busy_seconds={"compute": compute, **others})


def _drives_only(busy: dict[Resource, float]) -> dict[Resource, float]:
    return {name: busy[name] for name in ("read", "write", "drives") if name in busy}
