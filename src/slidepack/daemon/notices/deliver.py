"""The delivering process, `python -m slidepack.daemon.notices.deliver`.

Apprise and what it needs are heavy, and a service may hang: both stay out of the daemon. One
request comes on standard input, which nobody else can read, unlike arguments and environment; one
line of JSON for each message goes out as soon as its fate is known.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Final

import msgspec
from apprise import (
    Apprise,
    AppriseAsset,
    NotifyFormat,
    NotifyType,
    OverflowMode,
    PersistentStoreMode,
)
from apprise.plugins import NotifyBase

from slidepack.daemon.notices.contract import Answer, Message, Request
from slidepack.daemon.notices.masking import mask, scrub

_MAX_WORKERS: Final = 8
_MAX_ERROR: Final = 300
_LEEWAY_SECONDS: Final = 5
"""For importing and answering, beyond the request's own time."""


class _Said(logging.Handler):
    """Keeps what Apprise says of an address that it does not take: it returns only None."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._by_thread: defaultdict[int, list[str]] = defaultdict(list)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record."""
        self._by_thread[record.thread or 0].append(record.getMessage())

    def take(self) -> str:
        """Return what was said on this thread since the last call."""
        return " ".join(self._by_thread.pop(threading.get_ident(), []))


def main() -> None:
    """Read the request, answer it, and leave, whoever still hangs."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    # A daemon that died leaves nobody to end this process.
    signal.alarm(int(request.seconds) + _LEEWAY_SECONDS)
    said = _Said()
    logger = logging.getLogger("apprise")
    logger.addHandler(said)
    logger.propagate = False
    _answer_all(request, said)
    sys.stdout.flush()
    # Threads that hang cannot be ended, and would keep the process.
    os._exit(0)


def _answer_all(request: Request, said: _Said) -> None:
    work: Callable[[Message, _Said], Answer] = _check if request.check_only else _send
    pool = ThreadPoolExecutor(_MAX_WORKERS)
    pending = {pool.submit(work, message, said): message for message in request.messages}
    with contextlib.suppress(TimeoutError):
        for done in as_completed(tuple(pending), request.seconds):
            _write(_outcome(pending.pop(done), done))
    for message in pending.values():
        _write(
            Answer(
                key=message.key,
                ok=False,
                error=f"The service did not answer within {request.seconds:g} s.",
            )
        )


def _outcome(message: Message, done: "Future[Answer]") -> Answer:
    error = done.exception()
    if error is None:
        return done.result()
    # A plugin may fail in any way of its own.
    return Answer(
        key=message.key,
        ok=False,
        error=_clean(f"The service's plugin failed: {type(error).__name__}: {error}", message.url),
    )


def _send(message: Message, said: _Said) -> Answer:
    plugin = _plugin(message.url)
    if plugin is None:
        return _refused(message, said)
    if "overflow=" not in message.url:
        # A digest longer than the service takes becomes two messages, not none.
        plugin.overflow_mode = OverflowMode.SPLIT
    sender = Apprise(asset=plugin.asset)
    sender.add(plugin)
    # It knows which services read HTML or Markdown and writes plain text as such; a plugin alone
    # takes a `<` of ours for a tag.
    sent = sender.notify(
        body=message.body,
        title=message.title,
        notify_type=NotifyType(message.tone),
        body_format=NotifyFormat.TEXT,
    )
    shown, why = _shown(plugin), ""
    if not sent:
        why = " ".join(entry.message for entry in sent.logs())
        why = why or "The service refused it and did not say why."
    return Answer(
        key=message.key,
        ok=bool(sent),
        service=str(plugin.service_name),
        shown=shown,
        error=_clean(why, message.url, shown),
    )


def _check(message: Message, said: _Said) -> Answer:
    plugin = _plugin(message.url)
    if plugin is None:
        return _refused(message, said)
    return Answer(
        key=message.key,
        ok=True,
        service=str(plugin.service_name),
        shown=_shown(plugin),
    )


def _refused(message: Message, said: _Said) -> Answer:
    why = said.take() or "Apprise knows no such service."
    return Answer(key=message.key, ok=False, error=_clean(why, message.url))


def _shown(plugin: NotifyBase) -> str:
    return mask(str(plugin.url(privacy=True)))  # type: ignore[no-untyped-call]  # Apprise has no types here


def _plugin(url: str) -> NotifyBase | None:
    asset = AppriseAsset(
        app_id="Slidepack",
        app_desc="Slidepack",
        app_url="",
        image_url_mask="",
        image_url_logo="",
        storage_mode=PersistentStoreMode.MEMORY,
        pem_autogen=False,
        pgp_autogen=False,
    )
    return Apprise.instantiate(url, asset=asset)


def _clean(text: str, url: str, shown: str = "") -> str:
    return " ".join(scrub(text, url, shown).split())[:_MAX_ERROR]


def _write(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
