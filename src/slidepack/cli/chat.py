"""`slidepack chat`: ask the result of a job, its base beside it, from a terminal or a script."""

import secrets
import sys
from typing import Annotated

import typer

from slidepack.cli.chat_loop import ChatLoop
from slidepack.cli.chat_speakers import Settings, speakers_of
from slidepack.cli.client import connect
from slidepack.cli.output import print_json, say
from slidepack.engine.contract.errors import SlidepackError

__all__ = ["chat"]

_SEEDS = 1 << 32
_MOST_TOKENS = 512

Value = typer.Option


def chat(
    jobs: Annotated[
        list[int] | None,
        typer.Argument(help="Completed jobs over one base.", metavar="JOB...", show_default=False),
    ] = None,
    with_base: Annotated[
        bool | None,
        Value(
            "--with-base/--no-base",
            help="Ask the base too (yes, but not where a job trained a whole model).",
        ),
    ] = None,
    model: Annotated[str | None, Value(help="Id of a base model, in place of jobs.")] = None,
    system: Annotated[str, Value(help="System prompt.")] = "",
    seed: Annotated[int | None, Value(help="Of the random numbers, for all voices alike.")] = None,
    temperature: Annotated[float, Value(help="0 takes the most likely token.")] = 0.7,
    top_p: Annotated[float, Value(help="Share of the probability that is drawn from.")] = 0.9,
    max_tokens: Annotated[int, Value(help="Longest answer.")] = _MOST_TOKENS,
    device: Annotated[str, Value(help="auto, cpu or cuda:N.")] = "auto",
    once: Annotated[str | None, Value(help="Ask this, print the answers, and end.")] = None,
    end: Annotated[
        bool, Value("--end", help="End the chats that run, so that the queue goes on.")
    ] = False,
    json_output: Annotated[bool, Value("--json", help="Print JSON, one object an answer.")] = False,
) -> None:
    """Ask what a job learned, and the base what it says to the same, with the same seed.

    In the loop, Ctrl-C ends an answer, and again the chat. /reset forgets the conversation, /seed N
    sets the seed, /quit ends it. The model stays loaded for a while (`chat_idle_minutes`).
    """
    client = connect()
    if end:
        ended = client.get("/chat/sessions")
        for session in ended:
            client.delete(f"/chat/sessions/{session['id']}")
        if json_output:
            print_json({"ended": [session["id"] for session in ended]})
        else:
            say(f"Ended: {', '.join(one['title'] for one in ended)}." if ended else "No chat runs.")
        return
    settings = Settings(
        system=system,
        seed=secrets.randbelow(_SEEDS) if seed is None else seed,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
    )
    found = speakers_of(client, jobs or [], model or "", with_base=with_base, device=device)
    loop = ChatLoop(client, found, settings, json_output=json_output)
    if once is None:
        _require_terminal(json_output=json_output)
        loop.run()
        return
    failed = loop.ask(once)
    if failed is not None:
        raise failed


def _require_terminal(*, json_output: bool) -> None:
    if sys.stdin.isatty() or json_output:
        return
    # A script that forgot --once would wait for ever, or read its own lines as questions.
    raise SlidepackError(
        "CHAT-REQUEST-INVALID",
        "There is no terminal to chat in.",
        why="standard input is no terminal",
        fix='Ask one question with --once "...", or one a line with --json.',
    )
