import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.full
def test_every_kernel_in_tritons_interpreter() -> None:
    """In fp32: the interpreter's bf16 is wrong, so bf16 is judged on a GPU."""
    folder = Path(__file__).with_name("interpreted")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", str(folder)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
