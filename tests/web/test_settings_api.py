"""The settings file over the API: where values come from, and what is refused."""

import tomllib
from pathlib import Path

import pytest
from support.daemons import DaemonProcess

from slidepack.daemon.settings import Settings
from slidepack.web.settings_view import ABOUT


@pytest.mark.full
def test_settings_are_shown_changed_and_refused(daemon: DaemonProcess, tmp_path: Path) -> None:
    file = daemon.home / "settings.toml"
    file.write_text("# mine\nnvme = 'on'\n")
    with daemon.http() as client:
        shown = {state["name"]: state for state in client.get("/api/v1/settings").json()}
        assert set(shown) == set(Settings.__struct_fields__)
        assert shown["port"]["source"] == "environment"
        assert (shown["nvme"]["running"], shown["nvme"]["value"]) == ("auto", "on")
        for body, why in (
            ({"listen": "127.0.0.2"}, "set one first"),
            ({"tls_certificate": str(tmp_path / "no.pem"), "tls_key": "/no"}, "No such file"),
            ({"tls_key": "/no"}, "go together"),
            ({"chat_idle_minutes": 1e9}, "above 0"),
            ({"colour": "red"}, "no setting"),
            ({"port": 80}, "SLIDEPACK_PORT"),
        ):
            refused = client.patch("/api/v1/settings", json={"packing": "off"} | body)
            assert (refused.status_code, refused.json()["code"]) == (400, "DAEMON-SETTINGS"), body
            assert why in refused.json()["why"]
            assert file.read_text() == "# mine\nnvme = 'on'\n"
        stored = client.patch("/api/v1/settings", json={"packing": "off", "nvme": None})
        assert stored.status_code == 200
        assert file.read_text() == '# mine\npacking = "off"\n'
        client.put("/api/v1/password", json={"new": "correct horse battery"})
        assert client.patch("/api/v1/settings", json={"listen": "127.0.0.2"}).status_code == 200
    assert tomllib.loads(file.read_text())["listen"] == "127.0.0.2"
    daemon.stop()
    daemon.start()
    assert daemon.api("GET", "/access")["addresses"] == ["127.0.0.2"]


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_each_setting_has_a_label_and_a_place_on_the_page(name: str) -> None:
    assert name in ABOUT
