"""Chats of the daemon with real processes over a tiny model; clock, policy and devices are ours."""

import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from slidepack.daemon.chat.contract import (
    Answer,
    AskFailed,
    AskRequest,
    SessionRequest,
    SessionView,
)
from slidepack.daemon.chat.sessions import ChatSessions
from slidepack.daemon.chat.starting import ChatStarter
from slidepack.daemon.chat.subjects import Subjects
from slidepack.daemon.hardware import DeviceNow, Waiting
from slidepack.daemon.store.catalogue import Catalogue
from slidepack.engine.chat.contract import Message
from slidepack.engine.chat.events import Done, Token
from slidepack.engine.contract.job import DatasetRef, FullMethod, JobSpec, LoraMethod, ModelRef
from slidepack.engine.importer.contract import ImportResult
from slidepack.engine.importer.fingerprint import content_hash, quick_stamp
from slidepack.engine.memory import Machine
from support.stores import Stores, open_stores
from support.waiting import PATIENCE, wait_until

GIB = 1 << 30


def cpu(free: int = 64 * GIB) -> DeviceNow:
    """Return the CPU with so much memory free."""
    return DeviceNow(
        key="cpu",
        name="cpu",
        card="",
        machine=Machine(device="cpu", device_free_bytes=0, ram_available_bytes=free, cpu_threads=1),
    )


def card(number: int, free: int = 24 * GIB) -> DeviceNow:
    """Return a card with so much memory free."""
    return DeviceNow(
        key=f"cuda:{number}",
        name="a card",
        card=f"GPU-{number}",
        machine=Machine(
            device=f"cuda:{number}",
            device_free_bytes=free,
            ram_available_bytes=64 * GIB,
            cpu_threads=1,
        ),
    )


class Asked:
    """What comes of one ask."""

    def __init__(self, voices: Sequence[str]) -> None:
        self.answers: list[Answer] = []
        self.id = ""
        self._left = set(voices)
        self._over = threading.Event()

    def tell(self, answer: Answer) -> None:
        """Take an answer."""
        self.answers.append(answer)
        if isinstance(answer, Done):
            self._left.discard(answer.voice)
        elif isinstance(answer, AskFailed):
            self._left.difference_update(answer.voices)
        if not self._left:
            self._over.set()

    def wait(self) -> "Asked":
        """Wait for the end of the last voice."""
        assert self._over.wait(PATIENCE), self.answers
        return self

    def text(self, voice: str) -> str:
        """Return what a voice said."""
        found = (one for one in self.answers if isinstance(one, Token) and one.voice == voice)
        return "".join(one.text for one in found)

    def done(self, voice: str) -> Done:
        """Return the one end of a voice's answer."""
        (found,) = (one for one in self.answers if isinstance(one, Done) and one.voice == voice)
        return found

    def failed(self) -> AskFailed:
        """Return the one failure."""
        (found,) = (one for one in self.answers if isinstance(one, AskFailed))
        return found


class ChatShop:
    """Chats over one data directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stores: Stores = open_stores(folder)
        self.catalogue = Catalogue(self.stores.database)
        self.hold = ""
        self.clock = 1000.0
        self.devices: list[DeviceNow] | Waiting = [cpu()]
        self.root = folder / "chats"
        self.root.mkdir(exist_ok=True)
        self.chats = self.make()

    def make(self) -> ChatSessions:
        """Return the chats of another daemon over the same folder."""
        starter = ChatStarter(
            devices=lambda: self.devices,
            attempts=self.stores.attempts,
            packs=self.stores.packs,
            root=self.root,
            idle_seconds=600.0,
            changed=lambda: None,
            monotonic=lambda: self.clock,
        )
        return ChatSessions(
            subjects=Subjects(self.stores.jobs, self.catalogue), starter=starter, policy=self
        )

    def why_wait(self, now: float, *, any_time: bool = False) -> str:
        """Return the hold."""
        assert any_time, "windows do not bind a chat"
        return self.hold

    def why_leave(
        self, now: float, *, seconds_left: float | None = None, any_time: bool = False
    ) -> str:
        """Return the hold."""
        assert any_time, "windows do not bind a chat"
        return self.hold

    def add_model(self, path: Path, name: str = "tiny") -> str:
        """Record a model that is ready; return its id."""
        model = self.catalogue.add_model(name, "folder", str(path), "", 0.0)
        result = ImportResult(
            path=str(path),
            content_hash=content_hash(path),
            stamp=quick_stamp(path),
            architecture="LlamaForCausalLM",
            params=1,
            bytes=1,
            license="",
            revision="",
        )
        self.catalogue.model_ready(model.id, result)
        return model.id

    def add_job(
        self, model_id: str, result: Path, *, full: bool = False, state: str = "completed"
    ) -> int:
        """Record a job with a result, which is copied; return its id."""
        model = self.catalogue.model(model_id)
        spec = JobSpec(
            name=f"over {model_id}",
            base=ModelRef(model_id=model.id, path=model.path, content_hash=model.content_hash),
            dataset=DatasetRef(dataset_id="1", path="/nowhere/rows.jsonl", content_hash="-"),
            method=FullMethod() if full else LoraMethod(),
            steps=1,
        )
        job = self.stores.jobs.add(spec, 0.0)
        folder = self.folder / f"result-{job.id}"
        shutil.copytree(result, folder / ("model" if full else "adapter"))
        self.stores.database.execute(
            "UPDATE jobs SET state = ?, result = ? WHERE id = ?", state, str(folder), job.id
        )
        return job.id

    def want(self, **request: Any) -> "Future[SessionView]":
        """Ask for a chat."""
        return self.chats.open(SessionRequest(**request))

    def tick(self) -> None:
        """Look at the machine, then do what is due."""
        self.chats.looked()
        self.chats.tick(0.0)

    def open(self, **request: Any) -> SessionView:
        """Return a chat that is ready."""
        future = self.want(**request)

        def started() -> bool:
            self.tick()
            return future.done()

        wait_until(started, what="the chat starts")
        return self.reach(future.result(0).id, "ready")

    def reach(self, session_id: str, *states: str) -> SessionView:
        """Tick until a chat is in one of the states; return it."""

        def reached() -> SessionView | None:
            self.tick()
            view = self.chats.get(session_id)
            assert view.error is None or "ended" in states, view.error
            return view if view.state in states else None

        found = wait_until(reached, what=f"the chat is {states}")
        assert found is not None
        return found

    def ask(self, session_id: str, *voices: str, question: str = "Hello", **fields: Any) -> Asked:
        """Ask; `question` becomes the conversation unless there is a prompt."""
        asked = Asked(voices)
        if "prompt" not in fields and "messages" not in fields:
            fields["messages"] = (Message(role="user", content=question),)
        request = AskRequest(voices=voices, **fields)
        asked.id = self.chats.ask(session_id, request, asked.tell)
        return asked

    def close(self) -> None:
        """End all processes."""
        self.chats.stop()
