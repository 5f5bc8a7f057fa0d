"""`slidepack sweep`: files of settings, sweeps in the queue, and the best adapter."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.queueing import Farm
from support.tiny import chat_rows, write_jsonl

from slidepack.cli import sweep
from slidepack.cli.main import run

Command = Callable[..., Any]

FILE = """
name = "stones"
[fixed]
steps = 4
batch_size = 4
max_seq_len = 128
alpha_times_rank = 2
[grid]
lr = [1e-5, 2e-2]
"""


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "rows.jsonl", chat_rows(40))


@pytest.fixture
def grid(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "sweep.toml"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def held_queue(command: Command) -> Iterator[None]:
    """Nothing starts meanwhile."""
    command("pause")
    yield
    command("resume")


def test_every_command_has_json() -> None:
    commands = {entry.name: entry.callback for entry in sweep.app.registered_commands}
    assert set(commands) == {"add", "list", "show", "best", "cancel", "rm", "optuna"}
    assert all("json_output" in call.__annotations__ for call in commands.values() if call)


@pytest.mark.full
def test_from_a_file_of_settings_to_the_best_adapter(
    command: Command,
    served_farm: Farm,
    rows: Path,
    grid: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = (str(rows), "--model", served_farm.model, "--grid", grid(FILE))
    status, queued = command("sweep", "add", *arguments)
    assert (status, queued["name"], queued["merged"]) == (0, "stones", 0)
    for job_id in queued["jobs"]:
        served_farm.finish(job_id)
    number = str(queued["sweep_id"])
    _, table = command("sweep", "show", number)
    assert [row["settings"]["lr"] for row in table["members"]] == [2e-2, 1e-5]
    _, tested = command("sweep", "show", number, "--by", "test-score")
    assert (tested["by"], tested["best"]) == ("test-score", table["best"])
    assert number in [str(one["id"]) for one in command("sweep", "list")[1]]
    target = tmp_path / "out" / "adapter"
    _, best = command("sweep", "best", number, "--to", str(target))
    assert (best["job_id"], best["copy"]) == (table["members"][0]["job_id"], str(target))
    copied = {path.name: path.read_bytes() for path in target.iterdir()}
    assert copied == {path.name: path.read_bytes() for path in Path(best["adapter"]).iterdir()}
    assert [path.name for path in target.parent.iterdir()] == ["adapter"]
    # What is there is not touched, and what is gone is said.
    assert run(["sweep", "best", number, "--to", str(target)]) == 2
    for arguments_of in (["show", number], ["best", number], ["list"]):
        capsys.readouterr()
        assert run(["sweep", *arguments_of]) == 0
        assert "stones" in capsys.readouterr().out
    assert run(["sweep", "show", number, "--by", "test"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "test loss" in shown
    assert "for reporting, not for choosing" in shown
    assert run(["sweep", "show", number, "--by", "luck"]) == 2
    shutil.rmtree(best["adapter"])
    status, gone = command("sweep", "best", number, "--to", str(tmp_path / "other"))
    assert (status, gone["error"]["code"]) == (59, "RUN-NO-RESULT")
    assert not (tmp_path / "other").exists()
    assert command("sweep", "rm", number) == (0, {"removed": int(number)})
    status, missing = command("sweep", "show", number)
    assert (status, missing["error"]["code"]) == (58, "RUN-NOT-FOUND")


@pytest.mark.usefixtures("held_queue")
def test_what_the_command_says_counts_before_the_file(
    command: Command,
    served_farm: Farm,
    rows: Path,
    grid: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = grid('name = "stones"\n[grid]\nrank = [4, 4, 8]\n')
    when = ("--start", "now", "--priority", "3", "--at", "2099-01-02T03:04")
    add = ("sweep", "add", str(rows), "--model", served_farm.model, "--grid", file)
    _, queued = command(*add, "--name", "mine", "--held-out", str(rows), *when)
    number = str(queued["sweep_id"])
    assert (queued["name"], queued["merged"], len(set(queued["jobs"]))) == ("mine", 1, 2)
    job = served_farm.daemon.job(queued["jobs"][0])
    assert (job["name"], job["priority"], job["any_time"]) == ("mine rank=4", 3, True)
    spec = served_farm.detail(queued["jobs"][0])["spec"]
    assert spec["eval"]["selection"] == spec["dataset"]
    status, refused = command("sweep", "rm", number)
    assert (status, refused["error"]["code"]) == (57, "RUN-STATE")
    status, refused = command("sweep", "best", number)
    assert (status, refused["error"]["code"]) == (59, "RUN-NO-RESULT")
    _, table = command("sweep", "cancel", number)
    assert {row["state"] for row in table["members"]} == {"cancelled"}
    capsys.readouterr()
    assert run([*add]) == 0
    assert "with 2 members. 1 were the same as another one." in capsys.readouterr().out
    latest = str(command("sweep", "list")[1][0]["id"])
    assert run(["sweep", "cancel", latest]) == 0
    assert "0 members are still ending" in capsys.readouterr().out
    for one in (number, latest):
        assert command("sweep", "rm", one)[0] == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[grid", "The sweep file cannot be read"),
        ("[gird]\nlr = [1e-4]", "gird"),
        ("[grid]\nrang = [8]", "rang in [grid] is not known"),
        ("[fixed]\nrang = 8\n[grid]\nlr = [1e-4]", "[fixed] has no setting rang"),
        ("[grid]\nrank = ['eight']", "$.rank"),
        ("[fixed]\nrank = 8", "it has 0 members"),
        ("[grid]\nlr = [1e-4]\n[halving]\nfirst_samples = 0", "first_samples is 0"),
    ],
)
def test_a_file_that_cannot_be_swept_is_refused_before_data_is_sent(
    command: Command, served_farm: Farm, grid: Callable[[str], str], text: str, said: str
) -> None:
    arguments = ("no-such-file.jsonl", "--model", served_farm.model, "--grid", grid(text))
    status, value = command("sweep", "add", *arguments)
    assert (status, value["error"]["code"]) == (51, "RUN-SPEC-INVALID")
    assert said in f"{value['error']['what']} {value['error']['why']}"


def test_a_file_that_is_not_there_is_said_so(
    command: Command, served_farm: Farm, rows: Path, tmp_path: Path
) -> None:
    arguments = (str(rows), "--model", served_farm.model, "--grid", str(tmp_path / "none.toml"))
    status, value = command("sweep", "add", *arguments)
    assert (status, value["error"]["code"]) == (51, "RUN-SPEC-INVALID")
    assert "none.toml" in value["error"]["why"]
