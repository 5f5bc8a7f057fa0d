"""The shipped units: what systemd itself says of them, and the lines that others rely on."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from slidepack.daemon.system.unit_file import exec_line, quoted, render, template, this_command
from slidepack.engine.contract.errors import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]
FILES = {False: "slidepack.service", True: "slidepack-system.service"}
EXPOSURE_LIMITS = {False: 70, True: 30}
"""In tenths of systemd's points; 6.8 and 2.6 when this was written, 8.8 for the bare minimum."""
PATHS = {
    "plain": "/opt/slidepack/slidepack",
    "odd": "/sp ace/50%h/$HOME/${HOME}/;x/é",
    "quotes": "/a'b/c\"d/e\\f=%h/$HOME",
}
WORDS = ["serve", "--x=%h $HOME;", "", ";"]


def _analyze(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here (apt install systemd)")
    return subprocess.run(
        ["systemd-analyze", *arguments],
        env=os.environ | {"XDG_RUNTIME_DIR": str(folder), "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=False,
    )


def _scope(system: bool) -> list[str]:
    return ["--system" if system else "--user"]


def _write(folder: Path, text: str) -> str:
    path = folder / "slidepack.service"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _rendered(folder: Path, system: bool, kind: str = "plain") -> str:
    program = folder / PATHS[kind].lstrip("/")
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return render(
        system=system,
        command=[str(program), *WORDS],
        variables={"SLIDEPACK_HOME": '/data/50% "full" $HOME\\x'},
        writable=(folder / "da ta 50%",) if system else (),
        groups=["video"],
    )


@pytest.mark.parametrize("kind", PATHS)
@pytest.mark.parametrize("system", [False, True], ids=["user", "system"])
def test_systemd_takes_what_install_writes(tmp_path: Path, system: bool, kind: str) -> None:
    unit = _write(tmp_path, _rendered(tmp_path, system, kind))
    done = _analyze("verify", *_scope(system), unit, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_path_with_quotes_is_still_the_same_process(tmp_path: Path) -> None:
    program = tmp_path / "a'b$HOME" / "slidepack"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho $$ "$@"\n')
    program.chmod(0o755)
    words = shlex.split(exec_line([str(program), *WORDS]).removeprefix(":"))
    words = [word.replace("%%", "%") for word in words]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.read().strip() == f"{child.pid} {' '.join(WORDS)}"


@pytest.mark.parametrize("system", [False, True], ids=["user", "system"])
def test_systemd_takes_the_shipped_files(tmp_path: Path, system: bool) -> None:
    done = _analyze(
        "verify", *_scope(system), str(ROOT / "systemd" / FILES[system]), folder=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "line", ["KillMode=proces", "ExecStart=/nowhere/at/all", "ProtectSistem=strict"]
)
def test_systemd_would_complain(tmp_path: Path, line: str) -> None:
    key = line.partition("=")[0]
    text = re.sub(f"(?m)^{key}=.*$", line, template(system=True))
    text = text if line in text else text.replace("[Service]\n", f"[Service]\n{line}\n")
    done = _analyze("verify", "--system", _write(tmp_path, text), folder=tmp_path)
    assert done.stderr


@pytest.mark.parametrize("system", [False, True], ids=["user", "system"])
def test_exposure_stays_low(tmp_path: Path, system: bool) -> None:
    unit = _write(tmp_path, _rendered(tmp_path, system))
    arguments = ["security", *_scope(system), "--offline=true", "--no-pager"]
    if "--offline" not in _analyze("--help", folder=tmp_path).stdout:
        pytest.skip("this systemd-analyze cannot look at a file (before 250)")
    limit = f"--threshold={EXPOSURE_LIMITS[system]}"
    done = _analyze(*arguments, limit, unit, folder=tmp_path)
    assert "Overall exposure level" in done.stdout
    assert done.returncode == 0, done.stdout
    bare = _write(tmp_path, "[Service]\nExecStart=/bin/true\n")
    assert _analyze(*arguments, limit, bare, folder=tmp_path).returncode != 0


def test_the_root_folder_is_the_packages_own() -> None:
    link = ROOT / "systemd"
    assert link.is_symlink()
    assert sorted(path.name for path in link.iterdir()) == sorted(FILES.values())
    for system, name in FILES.items():
        assert (link / name).read_text("utf-8") == template(system=system)


@pytest.mark.parametrize("system", [False, True], ids=["user", "system"])
def test_only_the_daemon_is_ever_signalled(system: bool) -> None:
    lines = template(system=system).splitlines()
    assert {"KillMode=process", "Type=notify", "NotifyAccess=main"} <= set(lines)
    # It is emptied when the daemon ends, and workers that go on still use it.
    assert not [line for line in lines if line.startswith(("PrivateTmp=", "RuntimeDirectory="))]
    # Both forbid what drivers and compilers of kernels do.
    assert not [
        line for line in lines if line.startswith(("PrivateDevices=", "MemoryDenyWriteExecute="))
    ]


def test_the_users_unit_stays_out_of_a_user_namespace() -> None:
    # Each of these brings one, and in it /proc/PID/environ of a worker cannot be read.
    names = r"Private\w+|Protect\w+|Read(Write|Only)Paths|InaccessiblePaths|Bind\w+|RootDirectory"
    assert not re.findall(rf"(?m)^(?:{names})=", template(system=False))


def test_what_does_not_mend_by_itself_is_not_tried_again() -> None:
    codes = ("RUNNING", "PORT-IN-USE", "SETTINGS", "DATABASE-NEWER", "NO-PASSWORD")
    wanted = sorted(CATALOGUE[f"DAEMON-{code}"].exit_code for code in codes)
    for system in FILES:
        found = re.findall(r"(?m)^RestartPreventExitStatus=(.*)$", template(system=system))
        assert [sorted(map(int, line.split())) for line in found] == [wanted]


def test_only_groups_that_are_there_are_asked_for() -> None:
    def groups(*known: str) -> list[str]:
        text = render(system=True, command=["/x"], variables={}, groups=known)
        return re.findall(r"(?m)^SupplementaryGroups=.*$", text)

    assert groups("video", "render", "wheel") == ["SupplementaryGroups=render video"]
    assert groups("video") == ["SupplementaryGroups=video"]
    assert groups("wheel") == []


def test_a_variable_replaces_the_shipped_one() -> None:
    text = render(
        system=True,
        command=["/x"],
        variables={"SLIDEPACK_HOME": "/data"},
        writable=[Path("/data")],
        groups=["video"],
    )
    assert re.findall(r"(?m)^Environment=SLIDEPACK_HOME=.*$", text) == [
        "Environment=SLIDEPACK_HOME=/data"
    ]
    assert "ReadWritePaths=/tmp /var/tmp /data\n" in text
    assert text.count("\n[Install]\n") == 1


def test_words_are_quoted_where_they_must_be() -> None:
    assert quoted("/opt/slidepack") == "/opt/slidepack"
    assert quoted("") == '""'
    assert quoted("a b") == '"a b"'
    assert quoted("50%") == '"50%%"'
    assert quoted('a"b\\c\nd') == '"a\\"b\\\\c\\nd"'
    assert exec_line(["/a b/$x", "serve"]) == '":/a b/$x" serve'
    assert exec_line(["/a'b", "serve"]) == ':/bin/sh -c "exec \\"$0\\" \\"$@\\"" "/a\'b" serve'


def test_the_command_is_this_installations(tmp_path: Path) -> None:
    python = tmp_path / "python"
    assert this_command(str(python)) == [str(python), "-P", "-m", "slidepack.cli", "serve"]
    script = tmp_path / "slidepack"
    script.touch(mode=0o755)
    assert this_command(str(python)) == [str(script), "serve"]
