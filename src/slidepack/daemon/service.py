"""The daemon's parts, put together, and the clock that drives them."""

import functools
import logging
import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from slidepack.daemon.aftermath import Aftermath
from slidepack.daemon.changes import Changes
from slidepack.daemon.chat.devices import chat_devices
from slidepack.daemon.chat.sessions import ChatSessions
from slidepack.daemon.chat.starting import ChatStarter
from slidepack.daemon.chat.subjects import Subjects
from slidepack.daemon.continuing import Continuing
from slidepack.daemon.disk_room import DiskRoom
from slidepack.daemon.doctor.examination import Examiner
from slidepack.daemon.drive_wears import DriveWears
from slidepack.daemon.exports.exports import Exports
from slidepack.daemon.fits import Fits
from slidepack.daemon.hardware import HardwareMonitor
from slidepack.daemon.imports import ModelImports
from slidepack.daemon.notices.notices import Notices
from slidepack.daemon.outlook import outlook
from slidepack.daemon.passwords import Passwords
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.planning.measured import MeasuredSteps
from slidepack.daemon.planning.queue_reader import QueueReader
from slidepack.daemon.planning.replanner import Replanner
from slidepack.daemon.planning.request import RequestMaker
from slidepack.daemon.policy.gpu_sample import no_gpus, sample_gpus
from slidepack.daemon.policy.watch import PolicyWatch
from slidepack.daemon.policy.windows_side import WindowsSide
from slidepack.daemon.probe.wsl import under_wsl
from slidepack.daemon.queue import Queue
from slidepack.daemon.removals import Removals
from slidepack.daemon.rounds import Rounds
from slidepack.daemon.settings import Settings
from slidepack.daemon.settings_file import SettingsFile
from slidepack.daemon.sleeping import Sleeping
from slidepack.daemon.store.access import Sessions, Tokens
from slidepack.daemon.store.attempts import AttemptRecord, AttemptStore
from slidepack.daemon.store.catalogue import Catalogue
from slidepack.daemon.store.costs import CostBook
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.documents import Documents
from slidepack.daemon.store.jobs import JobStore
from slidepack.daemon.store.packs import PackRecord, PackStore
from slidepack.daemon.store.runlog import RunLog
from slidepack.daemon.store.sweeps import SweepStore
from slidepack.daemon.supervisor.gate import PolicyGate
from slidepack.daemon.supervisor.launching import Launcher
from slidepack.daemon.supervisor.model_check import ModelCheck
from slidepack.daemon.supervisor.next_job import NextJob
from slidepack.daemon.supervisor.origins import Origins
from slidepack.daemon.supervisor.pack_folders import clean_up_packs
from slidepack.daemon.supervisor.pack_follow import PackFollower
from slidepack.daemon.supervisor.pack_starting import PackStarter, tell_to_join
from slidepack.daemon.supervisor.retention import Retention
from slidepack.daemon.supervisor.run_folders import RunFolders
from slidepack.daemon.supervisor.run_plans import RunPlans
from slidepack.daemon.supervisor.starting import Starter
from slidepack.daemon.supervisor.supervisor import Supervisor
from slidepack.daemon.supervisor.worker_process import current_boot_id
from slidepack.daemon.sweeps.lane import LaneSweeps
from slidepack.daemon.system.desktop import DesktopInhibitor, session_bus
from slidepack.daemon.system.logind import Logind
from slidepack.daemon.system.queue_end import QueueEnd
from slidepack.daemon.system.sd_notify import Notifier, Watchdog
from slidepack.daemon.system.sleep_guard import SleepGuard
from slidepack.daemon.tier_drives import TierDrives
from slidepack.daemon.told_once import ToldOnce
from slidepack.daemon.uploads import Uploads

_TICK_SECONDS: Final = 0.25
_LOOK_SECONDS: Final = 1.0
_TELL_SECONDS: Final = 5.0
_WEAR_SECONDS: Final = 3600.0
_PROBE_SECONDS: Final = 120.0
"""Between looks at torch while its last answer leaves the hardware unusable."""
_PARTS: Final = ("queue", "policy")
"""Threads of the clock without which the daemon is dead, whatever else still runs."""


class Service:
    """Everything behind the page and the API, over one data directory."""

    def __init__(self, paths: DataPaths, settings: Settings) -> None:
        """Open the database and wire the parts; nothing runs until `start`.

        Raises:
            SlidepackError: DISK-UNWRITABLE, DISK-FULL, DAEMON-DATABASE-NEWER or DAEMON-SETTINGS.
        """
        paths.create()
        self.paths = paths
        self.settings = settings
        self.settings_file = SettingsFile(settings)
        self.changes = Changes()
        self.notifier = Notifier.from_environment(os.environ, os.getpid())
        self._watchdog = Watchdog(self.notifier, _PARTS)
        self._open_stores()
        self.origins = Origins(self.database, paths.origins)
        self.retention = Retention(
            database=self.database,
            jobs=self.jobs,
            attempts=self.attempts,
            runlog=self.runlog,
            folder=paths.jobs,
            origins=self.origins,
            state_kept_seconds=settings.keep_state_days * 86_400,
        )
        self.examiner = Examiner(paths.home, self.changes.bump)
        wears = DriveWears()
        self.hardware = HardwareMonitor(
            paths.home, settings.device, TierDrives(paths.home, settings, wears), wears
        )
        self.policy = PolicyWatch(
            self.documents,
            sample=no_gpus if settings.device == "cpu" else sample_gpus,
            windows_side=WindowsSide() if under_wsl() else None,
            changed=self._policy_changed,
        )
        self.notices = Notices(
            self.database,
            self.documents,
            self.changes,
            outlook=functools.partial(outlook, self.policy),
        )
        self.uploads = Uploads(self.catalogue, paths, settings)
        self.imports = ModelImports(self.catalogue, paths, settings, self.changes)
        self.exports = Exports(
            database=self.database,
            jobs=self.jobs,
            folder=paths.exports,
            room=self.disk_room,
            changes=self.changes,
            training=lambda: bool(self.attempts.live()),
        )
        self.queue = Queue(
            self.database,
            self.jobs,
            self.runlog,
            self.retention,
            self.catalogue,
            paths,
            self.changes,
            self.policy.tonight,
            self.origins,
            self.exports.of_job,
        )
        self.removals = Removals(
            database=self.database,
            catalogue=self.catalogue,
            jobs=self.jobs,
            queue=self.queue,
            paths=paths,
            changes=self.changes,
        )
        self.fits = Fits()
        self.continuing = Continuing(
            database=self.database,
            jobs=self.jobs,
            attempts=self.attempts,
            catalogue=self.catalogue,
            origins=self.origins,
            paths=paths,
            changes=self.changes,
            tonight=self.policy.tonight,
        )
        self.chats = self._chat_sessions()
        self.costs = CostBook(self.database)
        self.replanner = Replanner(
            reader=self.queue_reader(),
            maker=self.request_maker(),
            book=self.costs,
            promise=self.jobs.promise,
        )
        self.supervisor = self._supervisor()
        logind = Logind()
        self.queue_end = QueueEnd(self.documents, logind, current_boot_id())
        self.guard = SleepGuard(
            logind,
            Sleeping(self.policy, self._our_pids, self.hardware, self.queue_end),
            desktop=DesktopInhibitor(session_bus(os.environ)),
        )
        self._rounds = Rounds(
            jobs=self.jobs,
            attempts=self.attempts,
            hardware=self.hardware,
            policy=self.policy,
            notices=self.notices,
            retention=self.retention,
            guard=self.guard,
            queue_end=self.queue_end,
            chats=self.chats,
            our_pids=self._our_pids,
            exports=self.exports.count_unended,
        )
        self.stopping = threading.Event()
        """Set while the daemon ends; live streams close themselves."""
        self._parts = ToldOnce()
        self._clock = BackgroundScheduler(
            executors={
                name: ThreadPoolExecutor(1) for name in ("default", "slow", "looks", "tells")
            },
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )

    def start(self) -> None:
        """Clean up after an earlier daemon, find its workers again, and start the clock."""
        # A tick that takes long, as one that starts a worker does, is no fault to warn of.
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        self.uploads.clean_up()
        clean_up_packs(self.packs, self.paths.packs)
        self.chats.clean_up()
        self.exports.runner.recover()
        # Only jobs that repeat: one that ends is removed by the scheduler's own thread, which fails
        # where a shutdown comes between.
        for work, seconds, executor in (
            (self.hardware.probe_software_where_needed, _PROBE_SECONDS, "slow"),
            (self._look_at_wear, _WEAR_SECONDS, "slow"),
            (self._tick, _TICK_SECONDS, "default"),
            (self._look, _LOOK_SECONDS, "looks"),
            (self._tell, _TELL_SECONDS, "tells"),
        ):
            self._clock.add_job(
                work,
                "interval",
                seconds=seconds,
                next_run_time=datetime.now(UTC),
                executor=executor,
            )
        self._clock.start()
        self.replanner.start()
        self.guard.start()

    def stop(self) -> None:
        """Let every worker checkpoint and leave, then stop the clock."""
        self.stopping.set()
        self.notifier.stopping("running jobs write a checkpoint")
        self.notifier.extend_timeout(self.supervisor.longest_stop_seconds + _TELL_SECONDS)
        try:
            self.chats.stop()
            self.supervisor.shut_down()
        finally:
            self.hardware.stop()
            self.replanner.stop()
            self.guard.stop()
            self._clock.shutdown(wait=True)
            self.notices.stop(time.time())
            self.imports.stop()
            self.exports.runner.stop()

    def queue_reader(self) -> QueueReader:
        """Return a reader of the queue for plans; each thread needs one of its own."""
        return QueueReader(
            database=self.database,
            jobs=self.jobs,
            catalogue=self.catalogue,
            report=self.hardware.report,
            policy=self.policy.policy,
            device=self.settings.device,
            held=self.chats.held,
        )

    def request_maker(self) -> RequestMaker:
        """Return what makes requests of plans; each thread needs one of its own."""
        return RequestMaker(self.costs, max_lanes=1 if self.settings.packing == "off" else 0)

    def _open_stores(self) -> None:
        self.database = Database(self.paths.database)
        self.documents = Documents(self.database)
        self.jobs = JobStore(self.database)
        self.attempts = AttemptStore(self.database)
        self.packs = PackStore(self.database)
        self.runlog = RunLog(self.database)
        self.catalogue = Catalogue(self.database)
        self.sessions = Sessions(self.database)
        self.tokens = Tokens(self.database)
        self.passwords = Passwords(self.documents)

    @property
    def disk_room(self) -> DiskRoom:
        """The data directory's disk, with what the settings keep free of it."""
        return DiskRoom(self.paths.home, int(self.settings.disk_floor_gb * 1e9))

    def _supervisor(self) -> Supervisor:
        aftermath = Aftermath(self.notices, self.policy)
        gate = PolicyGate(self.policy)
        plans = self._run_plans(self.settings)
        room = self.disk_room
        launcher = Launcher(
            database=self.database,
            jobs=self.jobs,
            attempts=self.attempts,
            packs=self.packs,
            outcomes=aftermath,
        )
        folders = RunFolders(
            attempts=self.attempts,
            plans=plans,
            paths=self.paths,
            disk_floor_bytes=room.floor_bytes,
            also=LaneSweeps(SweepStore(self.database), self.paths).put,
        )
        models = ModelCheck(self.catalogue)
        starter = Starter(
            launcher, models=models, plans=plans, folders=folders, paths=self.paths, room=room
        )
        pack_starter = PackStarter(
            launcher,
            models=models,
            plans=plans,
            folders=folders,
            paths=self.paths,
            room=room,
            exact=self.settings.packing == "exact",
        )
        return Supervisor(
            database=self.database,
            jobs=self.jobs,
            attempts=self.attempts,
            runlog=self.runlog,
            packs=PackFollower(
                database=self.database,
                packs=self.packs,
                attempts=self.attempts,
                runlog=self.runlog,
                expect_again=self._tell_again,
                steps=MeasuredSteps(self.costs, self.hardware.name_of),
            ),
            plan=self.replanner,
            next_job=NextJob(
                database=self.database,
                jobs=self.jobs,
                attempts=self.attempts,
                packs=self.packs,
                starter=starter,
                pack_starter=pack_starter,
                gate=gate,
                outcomes=aftermath,
                plan=self.replanner,
                packing=self.settings.packing != "off",
                retry_seconds=self.settings.retry_seconds,
                held=self.chats.held,
            ),
            gate=gate,
            outcomes=aftermath,
            retention=self.retention,
            changes=self.changes,
            stop_seconds=self.settings.worker_stop_seconds,
        )

    def _run_plans(self, settings: Settings) -> RunPlans:
        return RunPlans(
            jobs=self.jobs,
            attempts=self.attempts,
            hardware=self.hardware,
            settings=settings,
            reserved_vram_bytes=lambda: int(self.policy.policy().reserve_vram_mb * 1e6),
        )

    def _chat_sessions(self) -> ChatSessions:
        on_cpu = self._run_plans(msgspec.structs.replace(self.settings, device="cpu"))
        starter = ChatStarter(
            devices=chat_devices(self._run_plans(self.settings).devices, on_cpu.devices),
            attempts=self.attempts,
            packs=self.packs,
            root=self.paths.chats,
            idle_seconds=self.settings.chat_idle_minutes * 60,
            changed=self._chats_changed,
        )
        return ChatSessions(
            subjects=Subjects(self.jobs, self.catalogue), starter=starter, policy=self.policy
        )

    def _chats_changed(self) -> None:
        self.changes.bump()
        # What a chat holds is left out of the next plan.
        self.replanner.changed()

    def holders(self) -> dict[int, str]:
        """Return whom each process of ours works for, by its id: `job 3`, `2 jobs`, `chat`."""
        jobs: dict[int, list[int]] = {}
        for attempt in self.attempts.live():
            if attempt.pid is not None:
                jobs.setdefault(attempt.pid, []).append(attempt.job_id)
        told = {
            pid: f"job {found[0]}" if len(found) == 1 else f"{len(found)} jobs"
            for pid, found in jobs.items()
        }
        return told | dict.fromkeys(self.chats.pids(), "chat")

    def _our_pids(self) -> list[int]:
        return [worker.pid for worker in self.supervisor.running()] + self.chats.pids()

    def _tell_again(self, pack: PackRecord, lane: AttemptRecord) -> None:
        tell_to_join(pack, self.jobs.get(lane.job_id), lane.number, Path(lane.folder))

    def _policy_changed(self) -> None:
        self.changes.bump()
        self.replanner.changed()

    def _tick(self) -> None:
        self._parts.run("queue", self._tick_queue)
        self._parts.run("chats", lambda: self.chats.tick(time.time()), prefix="chats: ")
        self._parts.run("exports", self.exports.runner.tick, prefix="exports: ")
        self._watchdog.alive("queue", time.monotonic())

    def _tick_queue(self) -> None:
        self.supervisor.tick(time.time())
        self.imports.tick()

    def _look(self) -> None:
        self._parts.run("policy", self._rounds.look)
        self._watchdog.alive("policy", time.monotonic())

    def _look_at_wear(self) -> None:
        self._parts.run("wear", self.hardware.look_at_wear, prefix="the drives' wear: ")

    def _tell(self) -> None:
        self._parts.run("notices", self._rounds.tell)
        self._parts.run("uploads", lambda: self.uploads.drafts.expire(time.time()))
