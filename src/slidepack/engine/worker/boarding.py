"""Lanes on their way into a pack: they wait for a seat; their data is read beside the steps."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.contract.pack import LaneRef, PackSpec
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.data.tokenizer import ChatTokenizer
from slidepack.engine.shape import ModelShape
from slidepack.engine.worker.failures import coded
from slidepack.engine.worker.seat import Seat
from slidepack.engine.worker.stopping import StopFlag, StopRequestedError

__all__ = ["Boarding"]

_WAIT_SECONDS: Final = 0.1


class OnRefused(Protocol):
    """Takes a lane that cannot join."""

    def __call__(self, lane: str, error: SlidepackError, *, recorded: bool) -> None:
        """Take its name, what is wrong, and whether its own events tell of that."""
        ...


class Boarding:
    """The lanes that are not in the pass yet."""

    def __init__(
        self,
        spec: PackSpec,
        plan: RunPlan,
        shape: ModelShape,
        tokenizer: ChatTokenizer,
        stop: StopFlag,
        on_refused: OnRefused,
    ) -> None:
        """Begin with the pack's first lanes waiting.

        Args:
            spec: of the pack.
            plan: of its passes.
            shape: of its base.
            tokenizer: of its base.
            stop: asked while data is read.
            on_refused: told of a lane that cannot join.
        """
        self._spec = spec
        self._plan = plan
        self._shape = shape
        self._tokenizer = tokenizer
        self._stop = stop
        self._on_refused = on_refused
        self._waiting = list(spec.lanes)
        self._reading: dict[str, tuple[Seat, Future[None]]] = {}
        # Their folders are still taken.
        self._leaving: set[str] = set()
        self._reader = ThreadPoolExecutor(1, "lane-data")

    @property
    def is_empty(self) -> bool:
        """Whether nobody is on the way."""
        return not self._waiting and not self._reading

    def __contains__(self, lane: str) -> bool:
        """Return whether a lane is on its way."""
        return lane in self._reading or any(ref.lane == lane for ref in self._waiting)

    @property
    def coming(self) -> list[LoraMethod]:
        """The adapters of the lanes whose data is read or being read."""
        return [seat.method for seat, _ in self._reading.values()]

    def add(self, ref: LaneRef) -> None:
        """Let a lane wait for a seat."""
        self._waiting.append(ref)

    def remove(self, lane: str, reason: str) -> bool:
        """Turn a lane away; return whether it was on its way."""
        if lane in self._reading:
            seat, future = self._reading.pop(lane)
            self._dismiss(seat, future, reason)
            return True
        before = len(self._waiting)
        self._waiting = [ref for ref in self._waiting if ref.lane != lane]
        return len(self._waiting) < before

    def board(self, seated: int, *, crowded: bool) -> None:
        """Begin to read the data of the next lanes, as long as there are seats.

        Args:
            seated: lanes in the pass.
            crowded: a lane has found no room since the last one left.
        """
        while self._waiting and not crowded:
            taken = seated + len(self._reading)
            if self._spec.max_lanes and taken >= self._spec.max_lanes:
                return
            able = [ref for ref in self._waiting if ref.lane not in self._leaving]
            if not able:
                return
            ref = max(able, key=lambda ref: ref.priority)
            self._waiting.remove(ref)
            seat = self._seat(ref)
            if seat is not None:
                future = self._reader.submit(seat.read_data, self._shape)
                self._reading[ref.lane] = (seat, future)

    def ready(self) -> Iterator[Seat]:
        """Yield the lanes whose data has been read.

        Raises:
            StopRequestedError: a stop was asked for.
        """
        for lane, (seat, future) in list(self._reading.items()):
            if not future.done():
                continue
            del self._reading[lane]
            try:
                future.result()
            except StopRequestedError:
                seat.leave(self._stop.reason)
                raise
            except (SlidepackError, OSError) as error:
                self._refuse(seat, coded(error))
                continue
            yield seat

    def wait(self) -> None:
        """Wait a moment for the next lane's data."""
        if not self._reading:
            # Somebody is on the way out first.
            time.sleep(_WAIT_SECONDS)
        for _, future in self._reading.values():
            try:
                future.exception(timeout=_WAIT_SECONDS)
            except TimeoutError:
                return

    def close(self, reason: str) -> None:
        """Turn everybody away; those that only wait have not begun."""
        for seat, future in self._reading.values():
            self._dismiss(seat, future, reason)
        self._reading.clear()
        self._reader.shutdown()

    def _seat(self, ref: LaneRef) -> Seat | None:
        try:
            seat = Seat(ref, self._stop)
        except (SlidepackError, OSError) as error:
            self._on_refused(ref.lane, coded(error), recorded=False)
            return None
        try:
            seat.read_input(self._tokenizer)
            seat.check(self._spec.base, self._plan, self._shape)
        except SlidepackError as error:
            self._refuse(seat, error)
            return None
        return seat

    def _refuse(self, seat: Seat, error: SlidepackError) -> None:
        self._on_refused(seat.ref.lane, error, recorded=seat.fail(error))

    def _dismiss(self, seat: Seat, future: Future[None], reason: str) -> None:
        self._leaving.add(seat.ref.lane)
        future.cancel()

        def leave(_: Future[None]) -> None:
            seat.leave(reason)
            self._leaving.discard(seat.ref.lane)

        # The thread that reads its data still writes events.
        future.add_done_callback(leave)
