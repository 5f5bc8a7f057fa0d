"""A chat process from its request to its end."""

import time
from pathlib import Path
from typing import Final

import psutil
import torch

from slidepack.engine.chat.contract import (
    AnyCommand,
    Ask,
    ChatRequest,
    LoadVoice,
    Quit,
    Stop,
    UnloadVoice,
    decode_command,
    id_of,
)
from slidepack.engine.chat.engine import ChatEngine
from slidepack.engine.chat.events import Failed, Loading, Ready
from slidepack.engine.chat.failures import is_out_of_memory, no_room
from slidepack.engine.chat.graphs import TokenGraphs
from slidepack.engine.chat.memory import CacheSize, cache_size, decoder_bytes
from slidepack.engine.chat.voices import Voices
from slidepack.engine.chat.wire import Inbox, LongLine, Outbox
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.data.tokenizer import load_tokenizer
from slidepack.engine.importer.fingerprint import content_hash
from slidepack.engine.memory_lora import base_format, lora_precision
from slidepack.engine.model.cached_pass import CachedPasses
from slidepack.engine.model.kv_cache import KvCache
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.loading import load_decoder
from slidepack.engine.shape import read_shape
from slidepack.engine.worker.run import open_device
from slidepack.engine.worker.stopping import StopFlag

__all__ = ["CallerGoneError", "serve"]

_UNKNOWN_HASHES: Final = ("", "-")


class CallerGoneError(Exception):
    """Standard input ended before the process was ready."""


def serve(request: ChatRequest, inbox: Inbox, outbox: Outbox, stop: StopFlag) -> None:
    """Load, then carry out commands until there will be no more.

    Args:
        request: what to load.
        inbox: of commands.
        outbox: of events.
        stop: asked for by a signal.

    Raises:
        StopRequestedError: a signal asked for the end; answers that ran are told as stopped.
        CallerGoneError: standard input ended while the model was loaded.
        OutboxClosedError: nobody reads any more.
        SlidepackError: the process cannot go on.
    """
    engine = _open(request, inbox, outbox, stop)
    try:
        while _listen(engine, inbox, outbox, stop):
            engine.step()
    finally:
        engine.stop_all()


def _listen(engine: ChatEngine, inbox: Inbox, outbox: Outbox, stop: StopFlag) -> bool:
    """Carry out the commands that have come; wait for one where nothing is to be done."""
    while True:
        stop.check()
        # What was sent before the end of standard input is carried out, but not waited for.
        line = inbox.take(wait=not (engine.is_busy or inbox.ended))
        stop.check()
        if line is None:
            if inbox.ended:
                return False
            if engine.is_busy:
                return True
            continue
        command = _decoded(line, outbox)
        if isinstance(command, Quit):
            return False
        if command is not None:
            _carry_out(command, engine, outbox)


def _decoded(line: bytes, outbox: Outbox) -> AnyCommand | None:
    """Return a line's command, or tell that it is none."""
    try:
        if isinstance(line, LongLine):
            raise SlidepackError(
                "CHAT-COMMAND-INVALID",
                "The line is too long.",
                why=f"it begins with {line[:60].decode(errors='replace')!r}",
                fix="Send shorter conversations.",
            )
        return decode_command(line)
    except SlidepackError as error:
        outbox.emit(Failed(error=error.report, id=id_of(line)))
        return None


def _carry_out(command: AnyCommand, engine: ChatEngine, outbox: Outbox) -> None:
    try:
        match command:
            case Ask():
                engine.ask(command)
            case Stop():
                engine.stop(command.id)
            case LoadVoice():
                engine.load(command.voice)
            case UnloadVoice():
                engine.unload(command.name)
    except SlidepackError as error:
        outbox.emit(_failed(command, error))


def _failed(command: AnyCommand, error: SlidepackError) -> Failed:
    match command:
        case LoadVoice():
            return Failed(error=error.report, voice=command.voice.name)
        case UnloadVoice():
            return Failed(error=error.report, voice=command.name)
        case Ask():
            return Failed(error=error.report, id=command.id)
        case _:
            return Failed(error=error.report)


def _open(request: ChatRequest, inbox: Inbox, outbox: Outbox, stop: StopFlag) -> ChatEngine:
    """Load the model and its voices, and tell that they are ready."""

    def on_layer(done: int, total: int) -> None:
        stop.check()
        if inbox.ended:
            raise CallerGoneError
        outbox.emit(Loading(done=done, total=total))

    folder, plan = Path(request.model), _plan(request)
    device = open_device(plan)
    read_shape(folder)
    _check_hash(folder, request.content_hash)
    tokenizer = load_tokenizer(folder)
    dtype = torch.float32 if plan.precision == "fp32" else torch.bfloat16
    try:
        decoder = load_decoder(folder, device, dtype, on_layer, nf4=plan.base_format == "nf4")
        size = cache_size(request, decoder)
        voices = Voices(folder, decoder, layer_attention(decoder.shape, device, dtype), tokenizer)
        engine, cache_bytes = _engine(decoder, voices, size, outbox, stop)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise no_room("the model", error) from error
    for voice in request.voices:
        stop.check()
        _carry_out(LoadVoice(voice=voice), engine, outbox)
    outbox.emit(
        Ready(
            seconds=time.time() - psutil.Process().create_time(),
            weight_bytes=decoder_bytes(decoder) + voices.num_bytes,
            cache_bytes=cache_bytes,
            context=size.context,
            seats=size.seats,
            device=request.device,
            precision=_precision(plan, decoder),
            template=tokenizer.template_name,
        )
    )
    return engine


def _engine(
    decoder: Decoder, voices: Voices, size: CacheSize, outbox: Outbox, stop: StopFlag
) -> tuple[ChatEngine, int]:
    """Return the engine over a loaded base, and the bytes of its cache."""
    device, dtype = decoder.device, decoder.dtype
    # A card has one seat more, for rows that fill a pass up.
    on_card = device.type == "cuda"
    seats = size.seats + (1 if on_card else 0)
    cache = KvCache(decoder.shape, seats, size.context, device, dtype)
    passes = CachedPasses(decoder, voices.choices, cache, stop.check)
    graphs = TokenGraphs(passes, voices, size.seats) if on_card else None
    return ChatEngine(passes, voices, size.seats, outbox.emit, graphs), cache.num_bytes


def _plan(request: ChatRequest) -> RunPlan:
    """Return what a run's plan would say of the device and the base."""
    method = LoraMethod(base_precision=request.precision)
    return RunPlan(
        device=request.device,
        precision=lora_precision(method, request.device),
        layer_weights=(),
        layer_activations=(),
        optimizer_state="device",
        cpu_threads=request.threads,
        micro_batch_tokens=1,
        predicted_device_bytes=0,
        predicted_host_bytes=0,
        predicted_disk_bytes=0,
        reason="a chat keeps its base on the device",
        base_format=base_format(method),
    )


def _precision(plan: RunPlan, decoder: Decoder) -> str:
    wide = str(decoder.dtype).removeprefix("torch.")
    return f"nf4, widened to {wide}" if plan.base_format == "nf4" else wide


def _check_hash(folder: Path, expected: str) -> None:
    if expected in _UNKNOWN_HASHES:
        return
    found = content_hash(folder)
    if found != expected:
        raise SlidepackError(
            "MODEL-CHANGED",
            "The model's files have changed.",
            why=f"{folder} has the hash {found[:12]}, not {expected[:12]}",
            fix="Add the model again, or get the files that were there.",
        )
