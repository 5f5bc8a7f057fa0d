"""Listening beyond this machine. Nothing here leaves it: 127.0.0.2 stands for another address."""

import http.client
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.daemons import DaemonProcess
from support.waiting import PATIENCE
from web.test_startup import refused_start

_PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def lan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon that listens on a second address, in the clear."""
    home = tmp_path_factory.mktemp("lan") / "home"
    daemon = DaemonProcess(home, listen="127.0.0.2", allowed_hosts="train.example.org")
    set_password(daemon)
    with daemon:
        yield daemon


def set_password(daemon: DaemonProcess, password: str = _PASSWORD) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "slidepack.cli", "password"],
        input=f"{password}\n",
        env=daemon.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert password not in done.stdout + done.stderr


def test_without_a_password_it_does_not_start(tmp_path: Path) -> None:
    done = refused_start(
        tmp_path, "DAEMON-NO-PASSWORD", 86, SLIDEPACK_LISTEN="127.0.0.2", SLIDEPACK_TLS_PORT="0"
    )
    assert "127.0.0.2" in done.stderr
    assert "slidepack password" in done.stderr
    assert not (tmp_path / "daemon.json").exists()


@pytest.mark.full
def test_the_other_address_is_answered_under_its_own_names_only(lan: DaemonProcess) -> None:
    port = int(lan.address.url.rsplit(":", 1)[1])
    assert lan.address.url == f"http://127.0.0.1:{port}", "the command line stays on 127.0.0.1"
    other = f"127.0.0.2:{port}"
    with httpx.Client(base_url=f"http://{other}", trust_env=False, timeout=PATIENCE) as client:
        assert client.get("/").status_code == 401
        assert client.get("/static/style.css").status_code == 200
        for host in (f"127.0.0.3:{port}", f"evil.example:{port}", "127.0.0.2", "127.0.0.2:1"):
            assert client.get("/login", headers={"host": host}).status_code == 403, host
        for host in ("train.example.org", f"train.example.org:{port}", "train.example.org:1"):
            assert client.get("/login", headers={"host": host}).status_code == 200, host
        through = {"host": "train.example.org", "origin": "https://train.example.org"}
        assert client.get("/login", headers=through).status_code == 200
        crossed = through | {"origin": "https://evil.example"}
        assert client.get("/login", headers=crossed).status_code == 403


def test_a_login_there_and_a_banner_on_every_page(lan: DaemonProcess) -> None:
    port = lan.address.url.rsplit(":", 1)[1]
    here = f"http://127.0.0.2:{port}"
    with httpx.Client(base_url=here, trust_env=False, timeout=PATIENCE) as client:
        page = client.get("/settings?a=1")
        assert page.status_code == 401
        assert 'name="to" value="/settings?a=1"' in page.text
        entered = client.post(
            "/login", data={"password": _PASSWORD, "to": "/settings?a=1"}, headers={"origin": here}
        )
        assert (entered.status_code, entered.headers["location"]) == (303, "/settings?a=1")
        assert "secure" not in entered.headers["set-cookie"].casefold()
        for path in ("/", "/settings", "/plan", "/login"):
            text = client.get(path, follow_redirects=True).text
            assert "Not encrypted." in text, path
    assert "Not encrypted." in httpx.get(f"{here}/nothing", trust_env=False).text
    assert lan.api("GET", "/access")["in_clear"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    return make_certificate(folder, "one")


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj"
    subprocess.run(
        [
            *command.split(),
            f"/CN={name}",
            "-addext",
            "subjectAltName=IP:127.0.0.2",
            "-keyout",
            key,
            "-out",
            cert,
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


@pytest.mark.full
def test_with_a_certificate_others_speak_https_only(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    daemon = DaemonProcess(
        tmp_path / "home",
        listen="127.0.0.2",
        tls_certificate=str(cert),
        tls_key=str(key),
        tls_port="0",
    )
    set_password(daemon)
    with daemon:
        state = daemon.api("GET", "/access")
        assert not state["in_clear"]
        (url,) = state["elsewhere"]
        assert url.startswith("https://127.0.0.2:")
        trusted = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(
            base_url=url, verify=trusted, trust_env=False, timeout=PATIENCE
        ) as client:
            entered = client.post(
                "/login", data={"password": _PASSWORD, "to": "/"}, headers={"origin": url}
            )
            assert entered.status_code == 303
            cookie = entered.headers["set-cookie"]
            assert cookie.startswith("__Host-slidepack_")
            assert "secure" in cookie.casefold()
            page = client.get("/settings")
            assert page.status_code == 200
            assert "Not encrypted." not in page.text
            crossed = client.get("/", headers={"origin": url.replace("https", "http")})
            assert crossed.status_code == 403
        plain = int(daemon.address.url.rsplit(":", 1)[1])
        with pytest.raises(OSError, match="refused"):
            http.client.HTTPConnection("127.0.0.2", plain, timeout=PATIENCE).connect()
        assert daemon.api("GET", "/health")["status"] == "ready"
        assert daemon.stop() == 0


@pytest.mark.full
@pytest.mark.parametrize("spoil", ["missing", "other", "locked", "pair"])
def test_a_certificate_that_cannot_be_used_is_named(
    tmp_path: Path, certificate: tuple[Path, Path], spoil: str
) -> None:
    cert, key = map(str, certificate)
    if spoil == "missing":
        cert = str(tmp_path / "nowhere.pem")
    elif spoil == "other":
        key = str(make_certificate(tmp_path, "two")[1])
    elif spoil == "locked":
        locked = tmp_path / "locked.pem"
        subprocess.run(
            ["openssl", "ec", "-aes256", "-passout", "pass:abcd", "-in", key, "-out", locked],
            check=True,
            capture_output=True,
        )
        key = str(locked)
    variables = {"SLIDEPACK_TLS_CERTIFICATE": cert}
    if spoil != "pair":
        variables["SLIDEPACK_TLS_KEY"] = key
    refused_start(tmp_path / "home", "DAEMON-SETTINGS", 77, **variables)


def test_what_it_says_of_other_machines_needs_no_secret(lan: DaemonProcess) -> None:
    address = json.loads((lan.home / "daemon.json").read_text())
    assert set(address) == {"url", "token", "pid"}
    assert _PASSWORD not in lan.log
