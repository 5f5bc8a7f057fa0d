"""Folders of packs go when nobody needs them, and nothing else does."""

from pathlib import Path

from support.stores import Stores, plain_spec

from slidepack.daemon.supervisor.pack_folders import clean_up_packs
from slidepack.engine.memory import Machine

MACHINE = Machine(device="cpu", device_free_bytes=0, ram_available_bytes=1, cpu_threads=1)


def _pack(stores: Stores, folder: Path, *, lane: bool, ended: bool) -> int:
    folder.mkdir(parents=True)
    (folder / "pack.json").write_text("{}")
    pack = stores.packs.add(
        device="cpu",
        model="m",
        folder=folder,
        nonce=folder.name,
        machine=MACHINE,
        alone=False,
        now=1.0,
    )
    if lane:
        job = stores.jobs.add(plain_spec(), 0.0)
        stores.attempts.add(job.id, 1, "/jobs/1", "n", 1.0, device="cpu", pack_id=pack.id)
    if ended:
        stores.packs.end(pack.id, 2.0)
    return pack.id


def test_only_what_nobody_needs_goes(stores: Stores, tmp_path: Path) -> None:
    packs = tmp_path / "packs"
    kept = _pack(stores, packs / "kept", lane=True, ended=True)
    live = _pack(stores, packs / "live", lane=False, ended=False)
    _pack(stores, packs / "deleted", lane=False, ended=True)
    outside = _pack(stores, tmp_path / "outside", lane=False, ended=True)
    (packs / "never-recorded").mkdir()
    clean_up_packs(stores.packs, packs)
    assert sorted(path.name for path in packs.iterdir()) == ["kept", "live"]
    assert (tmp_path / "outside").is_dir(), "nothing outside the folder of packs is touched"
    assert {Path(path).name for path in stores.packs.folders()} == {"kept", "live", "outside"}
    assert {kept, live, outside} == {stores.packs.get(i).id for i in (kept, live, outside)}
    clean_up_packs(stores.packs, packs)
    assert sorted(path.name for path in packs.iterdir()) == ["kept", "live"]
