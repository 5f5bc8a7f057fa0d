"""The guide from a CSV to an Ollama model, run as it is written."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from support.daemons import DaemonProcess

pytestmark = [pytest.mark.full, pytest.mark.thorough]

GUIDE: Final = Path(__file__).resolve().parents[2] / "docs" / "guides" / "csv-to-ollama.md"
_MINUTES: Final = 10


def _blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", GUIDE.read_text("utf-8"), re.M | re.S)


@pytest.mark.timeout(60 * _MINUTES)
def test_every_command_of_the_guide_works(
    daemon: DaemonProcess, smollm2_gguf: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (table,) = _blocks("csv")
    header, *rows = table.splitlines()
    # Some hundred rows, says the guide.
    numbered = [row.replace("?", f" ({i})?", 1) for i in range(6) for row in rows]
    (here / "support.csv").write_text("\n".join([header, *numbered]) + "\n", encoding="utf-8")
    (here / smollm2_gguf.name).symlink_to(smollm2_gguf)
    environment = daemon.environment | {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    said = ""
    for block in _blocks("sh"):
        for line in block.splitlines():
            words = shlex.split(line)
            if words[:2] == ["slidepack", "export"]:
                job = daemon.wait_for(1, "completed", "failed", seconds=60 * (_MINUTES - 2))
                assert job["state"] == "completed", job
            command = [sys.executable, "-m", "slidepack.cli", *words[1:]]
            done = subprocess.run(
                command, cwd=here, env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, (line, done.stdout[-1000:], done.stderr[-1000:])
            said = done.stdout
    assert "Read back by" in said and "ollama create support-bot" in said
    made = {path.name for path in (here / "support-bot").iterdir()}
    assert made == {"Modelfile", "support-bot-q8_0.gguf"}
    modelfile = (here / "support-bot" / "Modelfile").read_text()
    assert "<|im_start|>assistant" in modelfile and 'PARAMETER stop "<|im_end|>"' in modelfile
