"""The daemon's parts, put together, and the clock that drives them."""

import logging
import threading
import time
from datetime import UTC, datetime
from typing import Final

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from slidepack.daemon.changes import Changes
from slidepack.daemon.hardware import HardwareMonitor
from slidepack.daemon.imports import ModelImports
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.queue import Queue
from slidepack.daemon.settings import Settings
from slidepack.daemon.store.catalogue import Catalogue, Sessions
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobStore
from slidepack.daemon.store.runlog import RunLog
from slidepack.daemon.supervisor.starting import Starter
from slidepack.daemon.supervisor.supervisor import Supervisor
from slidepack.daemon.uploads import Uploads
from slidepack.engine.contract.errors import SlidepackError

logger = logging.getLogger(__name__)

_TICK_SECONDS: Final = 0.25
_PROBE_SECONDS: Final = 120.0
"""Between looks at torch while its last answer leaves the hardware unusable."""


class Service:
    """Everything behind the page and the API, over one data directory."""

    def __init__(self, paths: DataPaths, settings: Settings) -> None:
        """Open the database and wire the parts; nothing runs until `start`.

        Raises:
            SlidepackError: DISK-UNWRITABLE or DISK-FULL.
        """
        paths.create()
        self.paths = paths
        self.settings = settings
        self.changes = Changes()
        self.database = Database(paths.database)
        self.jobs = JobStore(self.database)
        self.runlog = RunLog(self.database)
        self.catalogue = Catalogue(self.database)
        self.sessions = Sessions(self.database)
        self.hardware = HardwareMonitor(paths.home)
        self.uploads = Uploads(self.catalogue, paths, settings)
        self.imports = ModelImports(self.catalogue, paths, settings, self.changes)
        self.queue = Queue(self.database, self.jobs, self.catalogue, paths, self.changes)
        self.supervisor = Supervisor(
            database=self.database,
            jobs=self.jobs,
            runlog=self.runlog,
            starter=Starter(
                self.database, self.jobs, self.catalogue, self.hardware, paths, settings
            ),
            changes=self.changes,
            stop_seconds=settings.worker_stop_seconds,
        )
        self.stopping = threading.Event()
        """Set while the daemon ends; live streams close themselves."""
        self._last_problem = ""
        self._clock = BackgroundScheduler(
            executors={"default": ThreadPoolExecutor(1), "slow": ThreadPoolExecutor(1)},
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )

    def start(self) -> None:
        """Clean up after an earlier daemon, find its workers again, and start the clock."""
        # A tick that takes long, as one that starts a worker does, is no fault to warn of.
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        self.uploads.clean_up()
        # Only jobs that repeat: one that ends is removed by the scheduler's own thread, which fails
        # where a shutdown comes between.
        self._clock.add_job(
            self.hardware.probe_software_where_needed,
            "interval",
            seconds=_PROBE_SECONDS,
            next_run_time=datetime.now(UTC),
            executor="slow",
        )
        self._clock.add_job(self._tick, "interval", seconds=_TICK_SECONDS)
        self._clock.start()

    def stop(self) -> None:
        """Let every worker checkpoint and leave, then stop the clock."""
        self.stopping.set()
        try:
            self.supervisor.shut_down()
        finally:
            self._clock.shutdown(wait=True)
            self.imports.stop()

    def _tick(self) -> None:
        try:
            self.supervisor.tick(time.time())
            self.imports.tick()
        except (SlidepackError, OSError) as error:
            # A full disk, most of all: nothing is lost, and the next tick tries again.
            if str(error) != self._last_problem:
                logger.error("%s", error)
            self._last_problem = str(error)
        else:
            self._last_problem = ""
