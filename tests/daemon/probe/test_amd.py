from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slidepack.daemon.probe.amd import read_amd
from slidepack.daemon.probe.pcie_link import read_link

GIB = 1 << 30
CARD = "0000:03:00.0"
BRIDGES = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0"


def add_card(tree: Any, card: str = "card1", address: str = CARD, **files: str) -> None:
    folder = f"{BRIDGES}/{address}"
    values = {
        "vendor": "0x1002\n",
        "device": "0x744c\n",
        "revision": "0xc8\n",
        "uevent": f"DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_SLOT_NAME={address}\n",
        "mem_info_vram_total": f"{24 * GIB}\n",
        "mem_info_vram_used": f"{2 * GIB}\n",
        "gpu_busy_percent": "13\n",
        "hwmon/hwmon4/temp1_input": "47900\n",
        "hwmon/hwmon4/power1_average": "87500000\n",
        "unique_id": "e1b7f0c0ffee1234\n",
        "current_link_speed": "16.0 GT/s PCIe\n",
        "current_link_width": "16\n",
        "max_link_speed": "16.0 GT/s PCIe\n",
        "max_link_width": "16\n",
        **files,
    }
    tree.write({f"{folder}/{name}": text for name, text in values.items() if text})
    tree.link(f"sys/class/drm/{card}/device", str(tree.root / folder))


def read(tree: Any, groups: tuple[str, ...] = ("render", "video"), **options: Any) -> Any:
    tree.write({"proc/sys/kernel/osrelease": "6.8.0-60-generic\n"})
    return read_amd(tree.root, frozenset(groups), **options)


def test_no_card_is_an_empty_answer(tree: Any) -> None:
    info = read(tree)
    assert info.gpus == ()


def test_a_card_is_read_from_sysfs(tree: Any) -> None:
    add_card(tree)
    tree.write(
        {
            "usr/share/libdrm/amdgpu.ids": "1.0.0\n744C,\tCC,\tAMD Radeon RX 7900 XT\n"
            "744C,\tC8,\tAMD Radeon RX 7900 XTX\n"
        }
    )
    (gpu,) = read(tree).gpus
    assert (gpu.vendor, gpu.name, gpu.pci_address) == ("amd", "AMD Radeon RX 7900 XTX", CARD)
    assert gpu.uuid == "e1b7f0c0ffee1234"
    assert (gpu.vram_total_bytes, gpu.vram_free_bytes) == (24 * GIB, 22 * GIB)
    assert (gpu.temperature_celsius, gpu.utilisation_percent) == (47, 13)
    assert (gpu.power_watts, gpu.energy_joules) == (87.5, None)
    assert gpu.driver_version == "in kernel 6.8.0-60-generic"
    assert (gpu.pcie_generation, gpu.pcie_width) == (4, 16)
    assert gpu.problems == ()


def test_the_cards_own_product_name_wins_and_an_unknown_card_shows_its_id(tree: Any) -> None:
    add_card(tree, product_name="AMD Instinct MI210\n")
    add_card(tree, "card2", "0000:09:00.0")
    named, unknown = read(tree).gpus
    assert named.name == "AMD Instinct MI210"
    assert unknown.name == "AMD GPU 744c"
    assert (named.index, unknown.index) == (0, 1)


def test_other_vendors_and_connectors_are_no_cards(tree: Any) -> None:
    add_card(tree)
    tree.write({"sys/class/drm/card0/device/vendor": "0x8086\n"})
    tree.write({"sys/class/drm/card1-DP-1/device/vendor": "0x1002\n"})
    tree.write({"sys/class/drm/renderD128/device/vendor": "0x1002\n"})
    assert len(read(tree).gpus) == 1


def test_missing_values_are_none_with_a_reason(tree: Any) -> None:
    add_card(
        tree,
        mem_info_vram_used="",
        gpu_busy_percent="",
        uevent=f"DRIVER=radeon\nPCI_SLOT_NAME={CARD}\n",
    )
    (gpu,) = read(tree).gpus
    assert gpu.vram_free_bytes is None
    assert gpu.utilisation_percent is None
    assert any("radeon" in problem for problem in gpu.problems)


def test_the_link_is_the_narrowest_on_the_way_to_the_root(tree: Any) -> None:
    add_card(tree)
    slot = "sys/devices/pci0000:00/0000:00:01.0"
    for bridge, width in ((BRIDGES, "16"), (f"{slot}/0000:01:00.0", "4"), (slot, "4")):
        tree.write(
            {
                f"{bridge}/current_link_speed": "8.0 GT/s PCIe\n",
                f"{bridge}/current_link_width": f"{width}\n",
                f"{bridge}/max_link_speed": "16.0 GT/s PCIe\n",
                f"{bridge}/max_link_width": "16\n",
            }
        )
    link = read_link(tree.root / "sys/class/drm/card1/device")
    assert (link.generation, link.width) == (3, 4)
    assert (link.generation_max, link.width_max) == (4, 16)


def test_a_link_that_is_down_is_unknown(tree: Any) -> None:
    add_card(tree, current_link_speed="Unknown\n", current_link_width="0\n")
    (gpu,) = read(tree).gpus
    assert (gpu.pcie_generation, gpu.pcie_width) == (None, None)


def test_users_come_from_fdinfo_once_a_client(tree: Any) -> None:
    add_card(tree)
    other = "0000:99:00.0"
    tree.write({"proc/42/comm": "steam\n", "proc/43/comm": "idle\n", "proc/uptime": "1\n"})
    keys = "drm-driver:\tamdgpu\ndrm-client-id:\t{}\ndrm-pdev:\t{}\ndrm-memory-vram:\t{}\n"
    for fd, client, address, vram in (
        ("3", 1, CARD, "1024 KiB"),
        ("4", 1, CARD, "1024 KiB"),
        ("5", 2, CARD, "2 MiB"),
        ("6", 3, other, "9 MiB"),
    ):
        tree.link(f"proc/42/fd/{fd}", "/dev/dri/renderD128")
        tree.write({f"proc/42/fdinfo/{fd}": keys.format(client, address, vram)})
    tree.link("proc/43/fd/0", "/dev/null")
    tree.write({"proc/43/fdinfo/0": keys.format(9, CARD, "8 MiB")})
    (gpu,) = read(tree).gpus
    assert [(user.pid, user.name, user.used_bytes) for user in gpu.processes] == [
        (42, "steam", 3 << 20)
    ]


def test_newer_kernels_name_the_memory_differently_and_some_not_at_all(tree: Any) -> None:
    add_card(tree)
    for pid, line in (("42", "drm-resident-vram:\t5 MiB\n"), ("43", "")):
        tree.link(f"proc/{pid}/fd/3", "/dev/dri/renderD128")
        tree.write({f"proc/{pid}/fdinfo/3": f"drm-client-id:\t1\ndrm-pdev:\t{CARD}\n{line}"})
    (gpu,) = read(tree).gpus
    assert [user.used_bytes for user in gpu.processes] == [5 << 20, None]


def test_access_and_groups(tree: Any) -> None:
    add_card(tree)
    assert read(tree, groups=("video",)).kfd_access == "missing"
    tree.write({"dev/kfd": ""})
    allowed = read(tree, may_open=lambda _path, _mode: True)
    assert (allowed.kfd_access, allowed.missing_groups) == ("ok", ())
    denied = read(tree, groups=("video",), may_open=lambda _path, _mode: False)
    assert (denied.kfd_access, denied.missing_groups) == ("denied", ("render",))


class AmdSmiException(Exception):
    pass


def fake_amdsmi(**changes: Any) -> Any:
    def refuse(_: object) -> None:
        raise AmdSmiException("not supported")

    functions = {
        "AmdSmiException": AmdSmiException,
        "amdsmi_init": lambda: None,
        "amdsmi_shut_down": lambda: None,
        "amdsmi_get_processor_handles": lambda: ["h"],
        "amdsmi_get_gpu_device_bdf": lambda _: CARD.upper(),
        "amdsmi_get_gpu_asic_info": lambda _: {
            "market_name": "AMD Radeon PRO W7900",
            "target_graphics_version": "gfx1100",
        },
        "amdsmi_get_gpu_driver_info": refuse,
        "amdsmi_get_gpu_device_uuid": lambda _: "N/A",
        "amdsmi_get_power_info": lambda _: {
            "current_socket_power": "N/A",
            "average_socket_power": 93,
        },
        "amdsmi_get_energy_count": lambda _: {
            "energy_accumulator": 4_000_000,
            "counter_resolution": 15.25,
        },
        "amdsmi_get_gpu_process_list": lambda _: [
            {"pid": 8, "name": "python", "memory_usage": {"vram_mem": GIB}},
            {"pid": 9, "name": "N/A", "memory_usage": {"vram_mem": "N/A"}},
        ],
    }
    return SimpleNamespace(**{**functions, **changes})


def test_amdsmi_refines_what_sysfs_says(tree: Any) -> None:
    add_card(tree)
    info = read(tree, load_amdsmi=lambda _name: fake_amdsmi())
    (gpu,) = info.gpus
    assert (gpu.name, gpu.architecture) == ("AMD Radeon PRO W7900", "gfx1100")
    assert gpu.uuid == "e1b7f0c0ffee1234"
    assert gpu.driver_version == "in kernel 6.8.0-60-generic"
    assert gpu.problems == ("driver: not supported",)
    assert [(user.pid, user.name, user.used_bytes) for user in gpu.processes] == [
        (8, "python", GIB),
        (9, "", None),
    ]
    assert (gpu.power_watts, gpu.energy_joules) == (93.0, 61.0)
    assert info.amdsmi_problem == ""


def test_what_amdsmi_does_not_offer_stays_as_sysfs_has_it(tree: Any) -> None:
    add_card(tree)
    tree.link("proc/8/fd/3", "/dev/dri/renderD128")
    engines = "drm-engine-gfx:\t700 ns\ndrm-engine-compute:\t50 ns\n"
    tree.write({"proc/8/fdinfo/3": f"drm-client-id:\t1\ndrm-pdev:\t{CARD}\n{engines}"})
    nothing = fake_amdsmi(
        amdsmi_get_power_info=lambda _: {"socket_power": 0xFFFFFFFF},
        amdsmi_get_energy_count=lambda _: {"energy_accumulator": "N/A"},
    )
    (gpu,) = read(tree, load_amdsmi=lambda _name: nothing).gpus
    assert (gpu.power_watts, gpu.energy_joules) == (87.5, None)
    assert [(user.pid, user.busy_nanoseconds) for user in gpu.processes] == [(8, 750), (9, None)]


def test_amdsmi_that_is_absent_broken_or_refusing_leaves_sysfs_standing(tree: Any) -> None:
    add_card(tree)

    def absent(name: str) -> None:
        raise ModuleNotFoundError(name)

    def broken(_name: str) -> None:
        raise OSError("libamd_smi.so: cannot open shared object file")

    def refuse() -> None:
        raise AmdSmiException("no driver")

    assert read(tree, load_amdsmi=absent).amdsmi_problem == ""
    for load, reason in (
        (broken, "libamd_smi.so"),
        (lambda _name: fake_amdsmi(amdsmi_init=refuse), "no driver"),
        (lambda _name: fake_amdsmi(amdsmi_get_processor_handles=refuse), "no driver"),
    ):
        info = read(tree, load_amdsmi=load)
        assert reason in info.amdsmi_problem
        assert info.gpus[0].vram_total_bytes == 24 * GIB


def test_this_machine_answers() -> None:
    assert read_amd(Path("/"), frozenset()).amdsmi_problem == ""
