"""What each page shows, declared: templates read these and nothing else."""

from dataclasses import dataclass, field

from slidepack.daemon.notices.digest import Digest
from slidepack.daemon.policy.state import PolicyState
from slidepack.daemon.store.catalogue import DatasetRecord, ModelRecord
from slidepack.daemon.store.jobs import JobRecord
from slidepack.web.day_strip import DayStrip
from slidepack.web.export_view import ExportsView
from slidepack.web.hardware_view import HardwareView
from slidepack.web.job_view import Ending, Lane, Setting
from slidepack.web.plan_view import PlanView
from slidepack.web.queue_view import QueueView
from slidepack.web.results import CheckpointRow, JobDetail


@dataclass(frozen=True, kw_only=True, slots=True)
class HomePage:
    """The first page."""

    csrf_token: str
    hardware: HardwareView
    policy: PolicyState
    """Whether training may run now."""
    queue: QueueView
    tonight: DayStrip
    digest: Digest
    """Of the last night, up to now."""
    begun: bool
    """Whether there is a model, or one on its way."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanPage:
    """The page of the plan."""

    csrf_token: str
    view: PlanView | None
    """None while there is no plan."""
    policy: PolicyState


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatVoice:
    """Somebody who can be ticked to answer."""

    name: str
    """`base`, or `job-N`."""
    title: str
    job_id: int | None
    ticked: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatPage:
    """The page on which a job's result, or a model as it is, is tried."""

    csrf_token: str
    job: JobRecord | None
    """Whose result it is; None for a model."""
    whole: bool
    """Whether the job trained a whole model, which has no base beside it."""
    voices: list[ChatVoice]
    idle_minutes: float
    """After its last answer the model is let go."""
    model: ModelRecord | None = None
    """The model where there is no job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplePair:
    """A question with the base's answer and the tuned one."""

    prompt: str
    before: str
    after: str | None
    """None until the run has ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobPage:
    """One job's page."""

    csrf_token: str
    detail: JobDetail
    samples: list[SamplePair]
    log: str
    eval_before: float | None
    eval_now: float | None
    last_event_id: int
    rescuable: bool
    """Whether it diverged after a healthy checkpoint, from which it may go on."""
    continuable: bool
    """Whether it has ended, and left something that another job may begin with."""
    datasets: list[DatasetRecord]
    """Rows that it may go on with."""
    exports: ExportsView
    """What its result can become, and has become."""
    ending: Ending = field(default_factory=Ending)
    lanes: tuple[Lane, ...] = ()
    """Who shares, or last shared, its worker, itself among them; empty where it was alone."""
    checkpoints: tuple[CheckpointRow, ...] = ()
    settings: tuple[Setting, ...] = ()
    """All of them."""
    drives: str = ""
    """What of its state is on drives, by its newest plan; empty where RAM holds everything."""
