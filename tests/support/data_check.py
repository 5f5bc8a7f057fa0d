"""Runs `slidepack data check` as a process of its own."""

import json
import subprocess
import sys
from typing import Any

from support.waiting import PATIENCE


def run_check(*arguments: str) -> tuple[int, str, str]:
    """Return exit status, stdout and stderr."""
    process = subprocess.run(
        [sys.executable, "-m", "slidepack.cli", "data", "check", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    return process.returncode, process.stdout, process.stderr


def checked(*arguments: str) -> tuple[int, dict[str, Any], str]:
    """Return exit status, the one object that `--json` prints, and stderr."""
    status, out, err = run_check(*arguments, "--json")
    (line,) = out.splitlines()
    return status, json.loads(line), err
