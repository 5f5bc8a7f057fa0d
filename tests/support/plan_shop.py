"""A queue over a real database, with cards that are not there, to be planned."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from slidepack.daemon.planning.queue_reader import QueueReader
from slidepack.daemon.planning.replanner import Replanner
from slidepack.daemon.planning.request import RequestMaker
from slidepack.daemon.policy.rules import Policy
from slidepack.daemon.probe.nvidia import NvidiaInfo
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.store.catalogue import Catalogue
from slidepack.daemon.store.costs import CostBook
from slidepack.daemon.store.jobs import JobRecord
from slidepack.daemon.store.timing import JobTiming
from slidepack.engine.contract.events import Progress, Started
from slidepack.engine.contract.job import (
    DatasetRef,
    FullMethod,
    JobSpec,
    LoraMethod,
    ModelRef,
)
from slidepack.engine.data.report import DataReport
from slidepack.engine.data.rows import ChatRow, Turn, encode_row
from support.doctor_reports import CUDA, DEVICE, HEALTHY, RTX, with_torch
from support.stores import Stores, open_stores

GIB = 1 << 30
NOW = 1_800_000_000.0
ROWS = 1000
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
"""Of Llama's shape with a billion parameters."""


def cards(count: int, free_gib: float = 20.0) -> HardwareReport:
    """Return a machine with so many RTX 4090."""
    free = round(free_gib * GIB)
    gpus = tuple(
        msgspec.structs.replace(
            RTX, index=i, uuid=f"GPU-{i}", pci_address=f"0000:0{i}:00.0", vram_free_bytes=free
        )
        for i in range(count)
    )
    devices = tuple(
        msgspec.structs.replace(DEVICE, index=i, uuid=f"GPU-{i}", pci_address=f"0000:0{i}:00.0")
        for i in range(count)
    )
    nvidia = HEALTHY.nvidia
    assert isinstance(nvidia, NvidiaInfo)
    report = msgspec.structs.replace(HEALTHY, nvidia=msgspec.structs.replace(nvidia, gpus=gpus))
    return with_torch(report, torch=msgspec.structs.replace(CUDA, devices=devices))


class PlanShop:
    """Jobs on one model and one dataset, and what plans them."""

    def __init__(self, folder: Path, report: HardwareReport) -> None:
        self.stores: Stores = open_stores(folder)
        self.catalogue = Catalogue(self.stores.database)
        self.book = CostBook(self.stores.database)
        self.policy = Policy()
        self.report = report
        self.ask_hardware: Callable[[], HardwareReport] = lambda: self.report
        self.model = folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text(json.dumps(_CONFIG))
        self.rows = folder / "rows.jsonl"
        self.dataset = self._add_dataset()
        self.reader = self.new_reader()
        self.maker = RequestMaker(self.book)

    def new_reader(self) -> QueueReader:
        """Return a reader that remembers nothing."""
        return QueueReader(
            database=self.stores.database,
            jobs=self.stores.jobs,
            catalogue=self.catalogue,
            report=lambda: self.ask_hardware(),
            policy=lambda: self.policy,
            device="auto",
        )

    def replanner(self, **changes: Any) -> Replanner:
        """Return a replanner that is not started."""
        return Replanner(
            reader=self.reader,
            maker=self.maker,
            book=self.book,
            promise=self.stores.jobs.promise,
            **changes,
        )

    def spec(self, **changes: Any) -> JobSpec:
        """Return the specification of a small LoRA job."""
        values: dict[str, Any] = {
            "name": "job",
            "base": ModelRef(model_id="m", path=str(self.model), content_hash="base"),
            "dataset": DatasetRef(
                dataset_id=str(self.dataset), path=str(self.rows), content_hash="rows"
            ),
            "method": LoraMethod(),
            "batch_size": 4,
            "max_seq_len": 512,
            "epochs": 1.0,
        }
        if changes.get("steps"):
            values["epochs"] = 0.0
        return JobSpec(**(values | changes))

    def full(self, **changes: Any) -> JobSpec:
        """Return the specification of a full fine-tuning."""
        return self.spec(method=FullMethod(), **changes)

    def add(self, timing: JobTiming | None = None, **changes: Any) -> int:
        """Queue a job."""
        return self.stores.jobs.add(self.spec(**changes), NOW, timing).id

    def run(self, job_id: int, device: str = "cuda:0", *, steps: int = 0, tokens: int = 0) -> None:
        """Let a job run on a device, with steps that it has reported."""
        stores = self.stores
        stores.jobs.move(job_id, "starting", "test", NOW)
        stores.jobs.move(job_id, "running", "test", NOW)
        stores.attempts.add(job_id, 1, "-", f"nonce-{job_id}", NOW, device=device)
        if steps:
            self.report_steps(job_id, steps, tokens)

    def report_steps(
        self, job_id: int, steps: int, tokens: int, rows: int = 900, total: int = 225
    ) -> None:
        """Report the first steps of a job, each of so many tokens."""
        started = Started(
            at=NOW,
            pid=1,
            device="cuda:0",
            precision="bf16",
            total_steps=total,
            from_step=0,
            train_rows=rows,
            eval_rows=100,
            trainable_params=1,
            attention="sdpa",
        )
        done = [
            Progress(
                at=NOW,
                step=step,
                total_steps=total,
                loss=1.0,
                grad_norm=1.0,
                lr=1e-4,
                tokens=tokens,
                supervised_tokens=tokens,
                tokens_per_second=1.0,
                eta_seconds=(total - step) * 0.5,
            )
            for step in range(1, steps + 1)
        ]
        self.stores.runlog.ingest(self.stores.attempt(job_id), [started, *done], 1)

    def end(self, job_id: int, now: float, state: Any = "completed") -> JobRecord:
        """End a job that runs, and its attempt."""
        self.stores.attempts.end(self.stores.attempt(job_id), state, 0, now)
        self.stores.jobs.move(job_id, state, "test", now)
        return self.stores.jobs.get(job_id)

    def _add_dataset(self) -> int:
        row = ChatRow(1, (Turn("user", "x" * 100, False), Turn("assistant", "y" * 75)))
        self.rows.write_bytes(encode_row(row) * ROWS)
        number = self.catalogue.reserve_dataset("rows.jsonl", 1, "-", NOW)
        report = DataReport(
            family="chat",
            rows=ROWS,
            accepted=ROWS,
            rejected=0,
            reasons={},
            ignored_columns=(),
            content_hash="rows",
        )
        self.catalogue.set_dataset_report(number, report)
        return number
