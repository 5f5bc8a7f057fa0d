"""What the tests of reading share."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.data.reading import RawRow, read_rows
from slidepack.engine.data.rows import Reject


def read(path: Path, data: bytes | str, **options: Any) -> list[RawRow | Reject]:
    """Write the data and read its rows."""
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return list(read_rows(path, **options))


def values(path: Path, data: bytes | str, **options: Any) -> list[tuple[int, Any]]:
    """Return (line, value) of every row; there must be no reject."""
    rows = read(path, data, **options)
    assert not [row for row in rows if isinstance(row, Reject)]
    return [(row.line, row.value) for row in rows if isinstance(row, RawRow)]


def error(path: Path, data: bytes | str, **options: Any) -> ErrorReport:
    """Return the error that refuses the data."""
    with pytest.raises(SlidepackError) as caught:
        read(path, data, **options)
    return caught.value.report


_MEASURE = """
import sys
from pathlib import Path
from slidepack.engine.data.reading import read_rows
def peak():
    # Unlike getrusage's, this one does not start at the parent's.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) >> 10
before = peak()
count = sum(1 for _ in read_rows(Path(sys.argv[1])))
print(count, peak() - before)
"""


def rows_and_growth(path: Path) -> tuple[int, int]:
    """Return how many rows a new process reads, and by how many MiB its peak memory grows."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path)], capture_output=True, text=True, check=True
    )
    count, grown_mib = map(int, done.stdout.split())
    return count, grown_mib
