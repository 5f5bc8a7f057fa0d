"""What `slidepack bench nvme` is asked for."""

from dataclasses import dataclass
from pathlib import Path

from slidepack.engine.nvme.files import ALIGNMENT
from slidepack.engine.nvme.lanes import PIECE_BYTES

__all__ = ["NvmeOptions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NvmeOptions:
    """One measurement."""

    folders: tuple[Path, ...]
    """One on each drive; files are striped over them."""
    gigabytes: float
    """Size of each of the two files, in 1e9 bytes: one is read, one is written."""
    chunk_megabytes: int
    """What the tier moves in one request, in units of 2^20 bytes."""
    rounds: int
    """Of each measurement, the others between them."""
    threads: int
    """In each direction, of the tier and of what it is compared with."""
    transport: str
    """ring or kvikio; empty chooses as a run does."""
    device: str
    """Whose work the transfers are hidden behind: `cpu`, or `cuda` as torch knows it."""
    deepspeed: bool = False
    """Whether DeepSpeed's drive engine moves the same files too."""

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        if not self.folders:
            raise ValueError("name a folder")
        if min(self.chunk_megabytes, self.rounds, self.threads) < 1:
            raise ValueError("chunk-megabytes, rounds and threads are 1 or more")
        if self.transport not in ("", "ring", "kvikio"):
            raise ValueError(f"transport is {self.transport}; use ring or kvikio")
        if self.chunks < 4:
            raise ValueError("the files hold fewer than 4 chunks; take larger ones")
        if self.deepspeed and len(self.folders) > 1:
            raise ValueError("DeepSpeed knows one drive; name one folder")

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a request of the tier."""
        return self.chunk_megabytes << 20

    @property
    def chunks(self) -> int:
        """Requests to a file."""
        return int(self.gigabytes * 1e9) // self.chunk_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of a file: whole chunks."""
        return self.chunks * self.chunk_bytes

    @property
    def raw_request_bytes(self) -> int:
        """Bytes of a request of what the tier is compared with."""
        return min(PIECE_BYTES, self.chunk_bytes) // ALIGNMENT * ALIGNMENT
