"""Looks at the cards from time to time and says what speaks against training on them."""

from typing import Final

from slidepack.daemon.policy.applications import Applications
from slidepack.daemon.policy.foreign import (
    OwnUse,
    foreign_use,
    hot_cards,
    hot_reason,
    idle_bytes,
    lost_cards,
    vram_and_load_reasons,
)
from slidepack.daemon.policy.gpu_sample import GpuSample, SampleGpus, card_key
from slidepack.daemon.policy.holding import Reason
from slidepack.daemon.policy.own_processes import OwnProcesses
from slidepack.daemon.policy.patterns import NamePatterns
from slidepack.daemon.policy.rules import Policy
from slidepack.daemon.probe.gpu import Gpu

_EVERY_SECONDS: Final = 2.0


class CardWatch:
    """Remembers what must be known of the cards from look to look."""

    def __init__(self, sample: SampleGpus, applications: Applications, own: OwnProcesses) -> None:
        """Bind what asks the drivers, and what knows our own processes."""
        self._sample = sample
        self._applications = applications
        self._own = own
        self._asked_at: float | None = None
        self._last: dict[str, Gpu] = {}
        self._known: dict[str, Gpu] = {}
        self._idle: dict[str, float] = {}
        self._hot: frozenset[str] = frozenset()
        self._reasons: tuple[Reason, ...] = ()
        self.problem = ""
        """Why a driver showed no card at the last look; empty where all answered."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The cards as they were at the last look."""
        return tuple(self._last.values())

    def look(
        self,
        policy: Policy,
        monotonic: float,
        *,
        planned_vram_bytes: int | None,
        cards: frozenset[str] | None,
    ) -> tuple[Reason, ...]:
        """Return what speaks against training, from a look at most two seconds old.

        Args:
            policy: the limits.
            monotonic: seconds by a clock that only goes forward.
            planned_vram_bytes: what our run takes by its plan; None where nobody knows.
            cards: keys of the cards that matter; None is every card.
        """
        since = float("inf") if self._asked_at is None else monotonic - self._asked_at
        if since < _EVERY_SECONDS:
            return self._reasons
        sample = self._sample()
        own = OwnUse(
            is_ours=lambda pid: self._applications.is_ours(pid, self._own.pids),
            running=self._own.running,
            settling=self._own.settling,
            planned_vram_bytes=planned_vram_bytes,
        )
        gpus = tuple(g for g in sample.gpus if cards is None or card_key(g) in cards)
        self._hot = hot_cards(gpus, policy, self._hot)
        self.problem = sample.problem
        known = {k: gpu for k, gpu in self._known.items() if cards is None or k in cards}
        reasons = lost_cards(sample, known)
        reasons += [hot_reason(gpu, policy) for gpu in gpus if card_key(gpu) in self._hot]
        ignored = NamePatterns(policy.ignored_processes)
        for gpu in gpus:
            reasons += self._others(gpu, since, own, ignored, policy)
        self._remember(sample, own)
        self._asked_at = monotonic
        self._reasons = tuple(reasons)
        return self._reasons

    def forget_lost(self) -> None:
        """No longer wait for cards that do not answer."""
        self._known = {key: gpu for key, gpu in self._known.items() if key in self._last}
        self._reasons = tuple(r for r in self._reasons if r.code != "gpu-lost")

    def rest(self) -> None:
        """Forget the last look, while nobody asks."""
        self._asked_at = None
        self._reasons = ()

    def _others(
        self, gpu: Gpu, since: float, own: OwnUse, ignored: NamePatterns, policy: Policy
    ) -> list[Reason]:
        key = card_key(gpu)
        use = foreign_use(gpu, self._last.get(key), since, own, ignored, self._idle.get(key))
        return vram_and_load_reasons(use, policy)

    def _remember(self, sample: GpuSample, own: OwnUse) -> None:
        self._last = {card_key(gpu): gpu for gpu in sample.gpus}
        for key, gpu in self._last.items():
            if gpu.vram_total_bytes is not None:
                self._known[key] = gpu
            if not own.running and not own.settling:
                idle = idle_bytes(gpu, self._idle.get(key))
                if idle is not None:
                    self._idle[key] = idle
