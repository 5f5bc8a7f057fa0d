"""The settings file keeps its comments, and never holds what the daemon would not start with."""

import codecs
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

from slidepack.daemon.settings import Settings, load_settings
from slidepack.daemon.settings_file import SettingsFile, SettingsRefused, with_value
from slidepack.engine.contract.errors import SlidepackError

_TEXT = """# Mine.
port = 7000  # because of "that" program

  device= 'RTX 3090'
\tdisk_floor_gb = 1e1 # ten
"""


def _file(home: Path, **environment: str) -> SettingsFile:
    variables = {"SLIDEPACK_HOME": str(home), **environment}
    return SettingsFile(load_settings(variables), variables)


def test_a_change_leaves_everything_else_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(_TEXT)
    path.chmod(0o640)
    _file(tmp_path).change(
        {"port": "7001", "device": 'a "b" # \\c', "disk_floor_gb": None, "nvme": "off"}
    )
    assert path.read_text() == (
        "# Mine.\n"
        'port = 7001  # because of "that" program\n'
        "\n"
        '  device= "a \\"b\\" # \\\\c"\n'
        'nvme = "off"\n'
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    loaded = load_settings({"SLIDEPACK_HOME": str(tmp_path)})
    assert (loaded.port, loaded.device, loaded.nvme) == (7001, 'a "b" # \\c', "off")
    assert loaded.disk_floor_gb == Settings().disk_floor_gb


@pytest.mark.parametrize(
    "text",
    ["", "port = 1", "port = 1\n", "port=1\r\nnvme='on'\r\n", '"port" = 1', "# port = 2"],
)
def test_one_value_in_texts_of_all_sorts(text: str) -> None:
    for value in (5, 0.5, True, "x = [", "é\\'\"#"):
        changed = with_value(text, "port", value)
        assert with_value(changed, "port", value) == changed
        assert "port" not in tomllib.loads(with_value(changed, "port", None))


def test_a_line_goes_before_the_first_table() -> None:
    assert with_value("a = 1\n[t]\nport = 3\n", "port", 2) == "a = 1\nport = 2\n[t]\nport = 3\n"
    assert with_value("", "port", 2) == "port = 2\n"


def test_what_is_written_oddly_is_left_to_its_writer() -> None:
    told = "a = '''\nport = 2\n'''\nport = 5\n"
    with pytest.raises(SlidepackError, match="by hand"):
        with_value(told, "port", 6)
    for text in ('device = """\nauto"""\n', "device = [\n'a',\n]\n", "[device]\nx = 1\n"):
        with pytest.raises(SlidepackError, match="by hand"):
            with_value(text, "device", "cpu")


def test_everything_that_is_wrong_is_said_at_once_and_nothing_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(_TEXT)
    file = _file(tmp_path, SLIDEPACK_RETRY_SECONDS="3")
    with pytest.raises(SettingsRefused) as refusal:
        file.change(
            {
                "port": "many",
                "device": "a",
                "disk_floor_gb": "-1",
                "nvme": "perhaps",
                "retry_seconds": "4",
                "colour": "red",
                "listen": "lan\n",
                "tls_certificate": "/c.pem",
                "chat_idle_minutes": "7",
            }
        )
    fields = refusal.value.fields
    assert set(fields) == {
        "port",
        "device",
        "disk_floor_gb",
        "nvme",
        "retry_seconds",
        "colour",
        "listen",
        "tls_certificate",
    }
    assert "whole number" in fields["port"]
    assert "SLIDEPACK_RETRY_SECONDS" in fields["retry_seconds"]
    assert "no setting" in fields["colour"]
    assert path.read_text() == _TEXT


def test_where_a_value_comes_from(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("port = 7000\n")
    file = _file(tmp_path, SLIDEPACK_NVME="off")
    file.change({"port": 7001})
    states = {state.name: state for state in file.states()}
    port, nvme, device = (states[name] for name in ("port", "nvme", "device"))
    assert (port.running, port.value, port.default, port.source) == (7000, 7001, 7333, "file")
    assert port.waits
    assert (nvme.value, nvme.source, nvme.waits) == ("off", "environment", False)
    assert (device.source, device.waits) == ("default", False)


def test_a_link_stays_a_link_and_a_missing_folder_is_made(tmp_path: Path) -> None:
    target = tmp_path / "dotfiles.toml"
    target.write_text("port = 1\n")
    home = tmp_path / "home"
    home.mkdir()
    (home / "settings.toml").symlink_to(target)
    _file(home).change({"port": 2})
    assert (home / "settings.toml").is_symlink()
    assert target.read_text() == "port = 2\n"
    fresh = tmp_path / "a" / "b"
    _file(fresh).change({"port": 3})
    assert (fresh / "settings.toml").read_text() == "port = 3\n"
    assert stat.S_IMODE((fresh / "settings.toml").stat().st_mode) == 0o600


def test_a_broken_file_is_not_made_worse(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("port = 1\n")
    file = _file(tmp_path)
    for text in ("port = [", "colour = 'red'\n", "port = 'x'\n"):
        path.write_text(text)
        with pytest.raises(SlidepackError) as refusal:
            file.states()
        assert refusal.value.report.code == "DAEMON-SETTINGS"
        with pytest.raises(SlidepackError):
            file.change({"nvme": "off"})
        assert path.read_text() == text


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize(
    ("before", "changes", "after"),
    [
        ("# mine|retry_seconds = 4 # x|", {"retry_seconds": 6}, "# mine|retry_seconds = 6.0 # x|"),
        ("retry_seconds = 4|# mine|", {"retry_seconds": 6}, "retry_seconds = 6.0|# mine|"),
        ("# mine|port = 1|", {"device": "cpu"}, '# mine|port = 1|device = "cpu"|'),
        ("# mine|port = 1", {"device": "cpu"}, '# mine|port = 1|device = "cpu"|'),
        ("|port = 1||nvme='on'|", {"port": None}, "||nvme='on'|"),
        ("port = 1|", {"port": 1}, "port = 1|"),
        ("port = 1|nvme='on'", {"port": 2, "nvme": None}, "port = 2|"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_of_any_editor_keeps_its_mark_and_its_line_ends(
    tmp_path: Path, mark: bytes, before: str, changes: dict[str, Any], after: str, end: str
) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(mark + before.replace("|", end).encode())
    _file(tmp_path).change(changes)
    assert path.read_bytes() == mark + after.replace("|", end).encode()
    _file(tmp_path).states()


def test_a_file_whose_lines_end_in_both_ways_is_else_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(b"# a\r\n# b\nport = 1\n")
    _file(tmp_path).change({"port": 2, "nvme": "off"})
    assert path.read_bytes() == b'# a\r\n# b\nport = 2\nnvme = "off"\r\n'


def test_a_file_whose_lines_end_in_cr_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_bytes(b"port = 1\rnvme = 'on'\r")
    file = _file(tmp_path)
    with pytest.raises(SlidepackError, match="by hand"):
        file.change({"port": 2})
    assert path.read_bytes() == b"port = 1\rnvme = 'on'\r"


@pytest.mark.parametrize("sign", "\u00a0\u3000\u202f\u200c\u200d\u00ad\u2028\u0378é日👩")
def test_a_folder_may_have_every_sign_that_a_file_system_has(tmp_path: Path, sign: str) -> None:
    folder = f"/mnt/a{sign}b"
    _file(tmp_path).change({"nvme_folders": folder, "tls_port": 1})
    assert load_settings({"SLIDEPACK_HOME": str(tmp_path)}).nvme_folders == folder
    _file(tmp_path).change({"tls_port": 2})
    assert load_settings({"SLIDEPACK_HOME": str(tmp_path)}).nvme_folders == folder


@pytest.mark.parametrize("sign", [*map(chr, (*range(32), *range(127, 160))), "\ud800", "\udcff"])
def test_a_control_character_is_refused(tmp_path: Path, sign: str) -> None:
    with pytest.raises(SettingsRefused, match="control character"):
        _file(tmp_path).change({"nvme_folders": f"/mnt/a{sign}b"})
    assert not (tmp_path / "settings.toml").exists()
