import json
from collections.abc import Callable
from typing import Any

import pytest
from support.queueing import Farm

from slidepack.cli.main import run

Command = Callable[..., Any]


@pytest.fixture
def command(
    served_farm: Farm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run a command with --json against the shared daemon; return its exit status and value."""
    monkeypatch.setenv("SLIDEPACK_HOME", str(served_farm.daemon.home))

    def call(*arguments: str) -> tuple[int, Any]:
        capsys.readouterr()
        status = run([*arguments, "--json"])
        captured = capsys.readouterr()
        assert captured.out.count("\n") == 1, "exactly one JSON value on one line"
        value = json.loads(captured.out)
        if status:
            (line,) = captured.err.splitlines()
            assert line.startswith(f"{value['error']['code']}: ")
        else:
            assert captured.err == ""
        return status, value

    return call
