"""What each page shows, declared: templates read these and nothing else."""

from dataclasses import dataclass

from slidepack.daemon.doctor.finding import Finding
from slidepack.daemon.policy.state import PolicyState
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.requests import JobRequest
from slidepack.daemon.store.catalogue import DatasetRecord, ModelRecord
from slidepack.daemon.store.jobs import JobRecord
from slidepack.web.export_view import ExportsView
from slidepack.web.plan_view import PlanView
from slidepack.web.results import JobDetail


@dataclass(frozen=True, kw_only=True, slots=True)
class HardwareCards:
    """The hardware strip."""

    report: HardwareReport
    findings: tuple[Finding, ...]
    """Problems and notes of the doctor; what is well is left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HomePage:
    """The first page."""

    csrf_token: str
    hardware: HardwareCards
    models: list[ModelRecord]
    datasets: list[DatasetRecord]
    jobs: list[JobRecord]
    policy: PolicyState
    """Whether training may run now."""
    defaults: JobRequest
    """What the fields of a new job mean while they are empty."""


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
    """The page on which a job's result is tried."""

    csrf_token: str
    job: JobRecord
    whole: bool
    """Whether the job trained a whole model, which has no base beside it."""
    voices: list[ChatVoice]
    idle_minutes: float
    """After its last answer the model is let go."""


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
