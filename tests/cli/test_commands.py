"""Every command: one JSON value, coded errors in one line, and text for people."""

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from support.queueing import Farm
from support.tiny import chat_rows, write_jsonl

from slidepack.cli import (
    data,
    exports,
    jobs,
    main,
    models,
    notify,
    policy,
    schedule,
    service,
    sweep,
)
from slidepack.cli.main import run
from slidepack.engine.contract.errors import CATALOGUE

Command = Callable[..., Any]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "rows.jsonl", chat_rows(12))


def _commands(app: typer.Typer, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for entry in app.registered_commands:
        callback = entry.callback
        assert callback is not None
        yield prefix + (entry.name or callback.__name__), callback


def test_every_command_but_serve_has_json() -> None:
    groups = (
        (main.app, ""),
        (jobs.app, "jobs "),
        (models.app, "models "),
        (data.app, "data "),
        (exports.app, "exports "),
        (policy.app, "policy "),
        (schedule.app, "schedule "),
        (notify.app, "notify "),
        (service.app, "service "),
        (sweep.app, "sweep "),
    )
    names: dict[str, Any] = {}
    for app, prefix in groups:
        names |= dict(_commands(app, prefix))
    assert {n for n, call in names.items() if "json_output" not in call.__annotations__} == {
        "serve"
    }
    # The tests below run each of these, and those of the demo and the doctor are elsewhere.
    assert set(names) == {
        *("serve", "open", "demo", "doctor", "fit", "train", "data check", "export", "chat"),
        *("pause", "resume", "queue-end", "digest", "plan", "policy show", "policy set"),
        *("password", "schedule never", "jobs smaller", "jobs when"),
        *(f"exports {name}" for name in ("list", "cancel", "rm")),
        *(f"schedule {name}" for name in ("show", "add", "clear")),
        *(f"notify {name}" for name in ("list", "add", "remove", "test", "settings")),
        *(f"service {name}" for name in ("install", "uninstall", "status")),
        *(f"jobs {name}" for name in ("add", "list", "show", "logs")),
        *(
            f"jobs {name}"
            for name in ("cancel", "pause", "resume", "retry", "duplicate", "move", "rm")
        ),
        "jobs continue",
        *(f"models {name}" for name in ("add", "list", "show", "rm")),
        *(f"sweep {name}" for name in ("add", "list", "show", "best", "cancel", "rm", "optuna")),
    }


def test_when_a_job_runs(command: Command, served_farm: Farm, file: Path) -> None:
    add = ("jobs", "add", str(file), "--model", served_farm.model, "--steps", "3")
    command("pause")
    when = ("--start", "tonight", "--priority", "3", "--after", "1", "--on-failure", "stop")
    _, first = command(*add, *when, "--by", "2099-02-03T04:05")
    assert first["deadline"] == datetime(2099, 2, 3, 4, 5).timestamp()
    assert (first["priority"], first["after"], first["on_failure"]) == (3, [1], "stop")
    _, second = command(*add, "--at", "2099-01-02T03:04", "--start", "now")
    assert second["any_time"]
    assert second["not_before"] == datetime(2099, 1, 2, 3, 4).timestamp()
    assert command("jobs", "move", str(second["id"]), "--before", str(first["id"]))[0] == 0
    order = [job["id"] for job in command("jobs", "list")[1] if job["ended_at"] is None]
    assert order[:2] == [second["id"], first["id"]]
    assert command("jobs", "move", str(second["id"]), "--last")[1]["id"] == second["id"]
    for arguments in ((), ("--last", "--before", "1")):
        assert run(["jobs", "move", str(first["id"]), *arguments]) == 2
    status, later = command(
        *("jobs", "when", str(first["id"]), "--at", "2099-01-03T05:00"),
        *("--by", "any", "--priority", "-2"),
    )
    assert (status, later["deadline"], later["priority"]) == (0, None, -2)
    assert later["not_before"] == datetime(2099, 1, 3, 5).timestamp()
    _, later = command("jobs", "when", str(first["id"]), "--start", "now", "--at", "any")
    assert (later["any_time"], later["not_before"], later["priority"]) == (True, None, -2)
    assert run(["jobs", "when", str(first["id"])]) == 2
    assert run(["jobs", "when", str(first["id"]), "--by", "soon"]) == 2
    assert command("jobs", "when", str(first["id"]), "--start", "soon")[0] != 0
    assert command("jobs", "when", "1", "--start", "now")[1]["error"]["code"] == "RUN-STATE"
    command("jobs", "when", str(first["id"]), "--start", "tonight", "--priority", "3")
    assert run([*add, "--at", "25:00"]) == 2
    assert run([*add, "--by", "soon"]) == 2
    assert command(*add, "--at", "2099-01-02T03:04", "--by", "2099-01-01T00:00")[0] != 0
    for job in (first, second):
        command("jobs", "cancel", str(job["id"]))
    status, again = command("jobs", "retry", str(first["id"]), "--lr-factor", "0.5")
    assert (status, again["priority"], again["on_failure"]) == (0, 3, "stop")
    half = command("jobs", "show", str(again["id"]))[1]["spec"]["optim"]["lr"]
    whole = command("jobs", "show", str(first["id"]))[1]["spec"]["optim"]["lr"]
    assert half == whole / 2
    status, refused = command("jobs", "retry", str(first["id"]), "--resume")
    assert (status, refused["error"]["code"]) == (62, "RUN-NO-CHECKPOINT")
    command("jobs", "cancel", str(again["id"]))
    status, second = command("jobs", "duplicate", str(first["id"]))
    assert (status, second["name"], second["on_failure"]) == (0, first["name"], "continue")
    command("jobs", "cancel", str(second["id"]))
    command("resume")


def test_what_happens_when_the_queue_is_done(command: Command, served_farm: Farm) -> None:
    assert command("queue-end")[1]["action"] == "nothing"
    status, answer = command("queue-end", "suspend")
    if status == 0:
        assert (answer["action"], answer["phase"]) == ("suspend", "armed")
    else:
        # Nobody could do it here, and that is said when it is asked for, not at night.
        assert answer["error"]["code"] in ("DAEMON-NO-LOGIND", "DAEMON-POWER-REFUSED")
    assert command("queue-end", "--cancel")[1]["action"] == "nothing"
    assert command("queue-end", "explode")[0] == 76
    assert run(["queue-end", "nothing", "--cancel"]) == 2


def test_the_life_of_a_job(command: Command, served_farm: Farm, file: Path) -> None:
    add = ("jobs", "add", str(file), "--model", served_farm.model, "--held-out", str(file))
    status, job = command(
        *(*add, "--name", "from the shell", "--steps", "5000"),
        *("--prompt", "Hi?", "--too-long", "split"),
    )
    assert (status, job["state"], job["name"]) == (0, "queued", "from the shell")
    number = str(job["id"])
    status, paused = command("jobs", "pause", number)
    assert (status, paused["state"] == "paused" or paused["wanted"]) == (0, True) or paused[
        "wanted"
    ]
    served_farm.daemon.wait_for(job["id"], "paused")
    assert command("jobs", "resume", number)[1]["state"] == "queued"
    command("jobs", "cancel", number)
    served_farm.daemon.wait_for(job["id"], "cancelled")
    status, again = command("jobs", "retry", number)
    assert (status, again["state"]) == (0, "queued")
    command("jobs", "cancel", str(again["id"]))
    # It may have been started meanwhile, and the model is in use until it has ended.
    served_farm.daemon.wait_for(again["id"], "cancelled")
    listed = command("jobs", "list")[1]
    assert {job["id"], again["id"], 1} <= {entry["id"] for entry in listed}
    detail = command("jobs", "show", number)[1]
    assert detail["spec"]["eval"]["sample_prompts"] == ["Hi?"]
    assert detail["spec"]["too_long"] == "split"
    assert "attempt 1" in command("jobs", "logs", "1")[1]["log"]


def test_the_life_of_a_model(
    command: Command, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tiny_model.parent)
    # The same folder, by a relative path, is the same model.
    status, same = command("models", "add", tiny_model.name)
    assert (status, same["state"]) == (0, "ready")
    assert same["id"] in {model["id"] for model in command("models", "list")[1]}
    assert command("models", "show", same["id"])[1] == same
    other = tiny_model.with_name("other")
    if not other.exists():
        other.symlink_to(tiny_model)
    status, removed = command("models", "rm", same["id"])
    assert (status, removed) == (0, {"removed": same["id"]})
    assert (tiny_model / "config.json").exists()
    status, back = command("models", "add", str(other), "--name", same["name"])
    assert (status, back["id"]) == (0, same["id"])


def test_data_check_and_open(
    command: Command, file: Path, monkeypatch: pytest.MonkeyPatch, served_farm: Farm
) -> None:
    status, report = command("data", "check", str(file))
    assert (status, report["accepted"], report["family"]) == (0, 12, "chat")
    status, link = command("open")
    assert link["url"].startswith(served_farm.daemon.address.url)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("jobs", "show", "987"), "RUN-NOT-FOUND"),
        (("jobs", "show", "99999999999999999999"), "RUN-NOT-FOUND"),
        (("jobs", "logs", "987"), "RUN-NOT-FOUND"),
        (("jobs", "cancel", "1"), "RUN-STATE"),
        (("jobs", "resume", "1"), "RUN-STATE"),
        (("jobs", "add", "/no/such/file", "--model", "x"), "DATA-NOT-FOUND"),
        (("jobs", "add", "{tmp}", "--model", "x"), "DATA-NOT-FOUND"),
        (("jobs", "add", "{file}", "--model", "nobody"), "MODEL-NOT-FOUND"),
        (("jobs", "add", "{file}", "--model", "{model}", "--rank", "0"), "RUN-SPEC-INVALID"),
        (("jobs", "add", "{file}", "--model", "{model}", "--format", "x"), "DATA-FORMAT-UNKNOWN"),
        (("jobs", "add", "{empty}", "--model", "{model}"), "DATA-EMPTY"),
        (("jobs", "add", "{cut}", "--model", "{model}"), "DATA-NOT-JSON"),
        (("jobs", "add", "{file}", "--model", "{model}", "--map", "x"), "DATA-MAPPING-INVALID"),
        (("jobs", "add", "{half}", "--model", "{model}"), "DATA-TOO-MANY-REJECTED"),
        (("data", "check", "/no/such/file"), "DATA-NOT-FOUND"),
        (("data", "check", "{tmp}"), "DATA-NOT-FOUND"),
        (("data", "check", "{empty}"), "DATA-EMPTY"),
        (("models", "show", "nobody"), "MODEL-NOT-FOUND"),
        (("models", "rm", "nobody"), "MODEL-NOT-FOUND"),
        *(
            (("models", action, odd), "MODEL-NOT-FOUND")
            for action in ("show", "rm")
            for odd in ("b?c#d", "\udce9", "ü %2f")
        ),
        (("models", "show", "a\nb"), "DAEMON-REQUEST-INVALID"),
        (("models", "rm", "../jobs/1"), "DAEMON-REQUEST-INVALID"),
        (("models", "add", "/no/such/model"), "MODEL-NOT-FOUND"),
        (("models", "add", "~nobody-of-that-name/x y"), "MODEL-NOT-FOUND"),
        (("models", "add", "{tmp}"), "MODEL-NOT-A-MODEL"),
        (("models", "add", "{text}"), "MODEL-NOT-A-MODEL"),
        (("models", "add", "{pickled}"), "MODEL-PICKLE"),
        (("models", "add", "{mamba}"), "MODEL-UNSUPPORTED"),
        (("models", "add", "{hollow}"), "MODEL-UNSUPPORTED"),
    ],
)
def test_errors_keep_their_code(
    command: Command,
    served_farm: Farm,
    file: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: str,
) -> None:
    places = {"tmp": tmp_path, "file": file, "model": served_farm.model}
    half = '{"prompt": "p", "completion": "c"}\n{"prompt": "p"}\n'
    for name, content in (("empty", ""), ("text", "hello"), ("cut", "[{"), ("half", half)):
        places[name] = tmp_path / name
        (tmp_path / name).write_text(content)
    for name, kind in (("pickled", "LlamaForCausalLM"), ("mamba", "MambaForCausalLM")):
        places[name] = tmp_path / name
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(f'{{"architectures": ["{kind}"]}}')
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"\x80\x02")
    places["hollow"] = tmp_path / "hollow.gguf"
    (tmp_path / "hollow.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    status, value = command(*(argument.format(**places) for argument in arguments))
    assert value["error"]["code"] == code, value
    assert status == CATALOGUE[code].exit_code
    assert value["error"]["what"]
    assert value["error"]["fix"]


def test_without_a_daemon_each_command_says_so(
    command: Command, tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIDEPACK_HOME", str(tmp_path / "nobody"))
    stale = '{"url": "http://127.0.0.1:9", "token": "t", "pid": 1}'
    for address in (None, "{", stale):
        if address is not None:
            (tmp_path / "nobody").mkdir(exist_ok=True)
            (tmp_path / "nobody" / "daemon.json").write_text(address)
        for arguments in (
            ("jobs", "list"),
            ("jobs", "add", str(file), "--model", "x"),
            ("models", "add", "x/y"),
            ("open",),
        ):
            status, value = command(*arguments)
            assert (status, value["error"]["code"]) == (72, "DAEMON-NOT-RUNNING")


def test_text_for_people_shows_names_as_they_are(
    command: Command, served_farm: Farm, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "[red]not markup[/red] [/]"
    add = ("jobs", "add", str(file), "--model", served_farm.model, "--steps", "5000")
    number = command(*add, "--name", name)[1]["id"]
    command("jobs", "cancel", str(number))
    for arguments in (["jobs", "list"], ["jobs", "show", str(number)], ["models", "list"]):
        assert run(arguments) == 0
    assert name in capsys.readouterr().out
    for arguments in (["jobs", "logs", "1"], ["data", "check", str(file)], ["models", "show", "x"]):
        run(arguments)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err


def test_wrong_usage_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    shred = ["jobs", "add", "f", "--model", "m", "--too-long", "shred"]
    for arguments in (["nothing"], ["jobs", "add"], shred, ["jobs", "show", "many"], ["--nothing"]):
        assert run(arguments) == 2
        assert "Traceback" not in capsys.readouterr().err
