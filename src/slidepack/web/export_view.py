"""What the part "Use it" of a job's page shows."""

from typing import Final

import msgspec

from slidepack.daemon.exports.record import ExportRecord, ExportWanted
from slidepack.daemon.exports.source import ExportOffer
from slidepack.daemon.service import Service
from slidepack.engine.contract.job import JobSpec
from slidepack.web.export_commands import Command, commands_of

__all__ = ["ExportCard", "ExportsView", "exports_view"]

_TITLES: Final = {
    ("peft", "f16"): "Adapter (PEFT)",
    ("merged", "f16"): "Merged model (safetensors)",
    ("gguf", "f16"): "GGUF F16",
    ("gguf", "q8_0"): "GGUF Q8_0",
    ("ollama", "f16"): "Ollama, F16",
    ("ollama", "q8_0"): "Ollama",
}
_USES: Final = {
    ("peft", "f16"): "What was trained, beside the base: for transformers, vLLM and more training.",
    ("merged", "f16"): "One whole model as a Hugging Face folder: for transformers, vLLM, and "
    "programs that convert it further.",
    ("gguf", "f16"): "One file for llama.cpp and what is built on it; nothing is lost but "
    "rounding to 16 bits.",
    ("gguf", "q8_0"): "One file for llama.cpp, about half as large, in 8 bits.",
    ("ollama", "f16"): "A GGUF file in 16 bits with the Modelfile that Ollama wants.",
    ("ollama", "q8_0"): "A GGUF file in 8 bits with the Modelfile that Ollama wants.",
}
_STAGES: Final = {
    "reading": "Reads the result",
    "writing": "Writes",
    "checking": "Checks that it computes the same",
    "ollama": "Hands it to Ollama",
}


class ExportCard(msgspec.Struct, frozen=True, kw_only=True):
    """One form of the result: what it is for, and its export where there is one."""

    title: str
    use: str
    offer: ExportOffer | None
    """None for an export of a form that is not offered."""
    vals: str
    """The request for it as JSON, for the button."""
    export: ExportRecord | None
    """The newest one of this form that was not cancelled."""
    stage: str
    """What it does now, in words; empty where it does not run."""
    commands: tuple[Command, ...] = ()


class ExportsView(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one job."""

    job_id: int
    cards: tuple[ExportCard, ...]
    """Empty where the job has no result."""


def exports_view(service: Service, job_id: int) -> ExportsView:
    """Gather what the page says of a job's exports.

    Raises:
        SlidepackError: RUN-NOT-FOUND.
    """
    offers = service.exports.offers(job_id)
    return make_view(job_id, offers, service.exports.of_job(job_id), service.jobs.spec(job_id))


def make_view(
    job_id: int, offers: list[ExportOffer], exports: list[ExportRecord], spec: JobSpec
) -> ExportsView:
    """Put together offers and exports: a card for each offer, then one for any other export.

    Args:
        job_id: of the job.
        offers: what its result can become.
        exports: newest first.
        spec: of the job.
    """
    shown = [export for export in exports if export.state != "cancelled"]
    cards: list[ExportCard] = []
    for offer in offers:
        same = [export for export in shown if _form(export.wanted) == _form(offer.wanted)]
        cards.append(_card(offer.wanted, offer, same[0] if same else None, spec))
        shown = [export for export in shown if export not in same[:1]]
    cards += [_card(export.wanted, None, export, spec) for export in shown]
    return ExportsView(job_id=job_id, cards=tuple(cards))


def stage_words(export: ExportRecord) -> str:
    """Return what an export does now; empty where it has ended."""
    if export.ended:
        return ""
    if export.cancelling:
        return "Is being cancelled"
    if export.state == "queued":
        return "Waits for its turn"
    return "Starts" if export.stage is None else _STAGES[export.stage]


def _card(
    wanted: ExportWanted, offer: ExportOffer | None, export: ExportRecord | None, spec: JobSpec
) -> ExportCard:
    title, use = _TITLES[wanted.format, wanted.quant], _USES[wanted.format, wanted.quant]
    if wanted.adapter_only:
        title, use = "GGUF LoRA", "The adapter alone, for llama.cpp's --lora."
    return ExportCard(
        title=title,
        use=use,
        offer=offer,
        vals=msgspec.json.encode({"format": wanted.format, "quant": wanted.quant}).decode(),
        export=export,
        stage="" if export is None else stage_words(export),
        commands=commands_of(export, spec) if export is not None and export.state == "done" else (),
    )


def _form(wanted: ExportWanted) -> tuple[str, str, bool]:
    return wanted.format, wanted.quant, wanted.adapter_only
