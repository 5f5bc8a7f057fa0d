"""Encoded rows in a file: what was put is what is read, and memory does not hold it."""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.worker.row_store import RowStore


def _row(random: Random, line: int) -> EncodedRow:
    count = random.choice([1, 2, 17, 400])
    return EncodedRow(
        line,
        tuple(random.randrange(2**31) for _ in range(count)),
        tuple(random.random() < 0.5 for _ in range(count)),
    )


def test_rows_come_back_as_they_were_in_any_order(tmp_path: Path) -> None:
    random = Random(0)
    rows = [_row(random, line) for line in range(1, 300)]
    store = RowStore(tmp_path)
    for number, row in enumerate(rows):
        store.append(row)
        if number % 50 == 0:
            # Reading and adding may take turns.
            assert store[number] == row
    assert len(store) == len(rows)
    for number in random.sample(range(len(rows)), 100):
        assert store[number] == rows[number]
    assert list(store) == rows
    assert store[-1] == rows[-1]
    assert store[3:40:7] == rows[3:40:7]
    assert store[:0] == []


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    assert not store
    store.append(EncodedRow(1, (1,), (False,)))
    for index in (1, -2):
        with pytest.raises(IndexError):
            store[index]


def test_nothing_is_left_on_the_disk(tmp_path: Path) -> None:
    store = RowStore(tmp_path)
    store.append(EncodedRow(1, (1, 2), (False, True)))
    assert len(store[0].ids) == 2
    assert not list(tmp_path.iterdir())


def test_memory_does_not_grow_with_the_tokens(tmp_path: Path) -> None:
    # 40 million tokens: 200 MB in the file, and more than 600 MB as tuples.
    program = f"""
from pathlib import Path
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.resident_memory import peak_resident_bytes
from slidepack.engine.worker.row_store import RowStore
store = RowStore(Path({str(tmp_path)!r}))
before = peak_resident_bytes()
row = EncodedRow(1, tuple(range(20_000)), (True,) * 20_000)
for _ in range(2_000):
    store.append(row)
assert store[1_999] == row
print((peak_resident_bytes() - before) >> 20)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 60
