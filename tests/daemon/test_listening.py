"""Where the daemon listens and what it may be called; no socket is opened here."""

import pytest

from slidepack.daemon.listening import check_hosts, listen_addresses, listening_of


@pytest.mark.parametrize(
    ("choice", "addresses"),
    [
        ("local", ("127.0.0.1",)),
        ("lan", ("0.0.0.0",)),
        ("192.168.1.20", ("127.0.0.1", "192.168.1.20")),
        ("192.168.1.20, fd00::7 ,127.0.0.1", ("192.168.1.20", "fd00::7", "127.0.0.1")),
        ("0.0.0.0", ("0.0.0.0",)),
    ],
)
def test_addresses_of_a_choice(choice: str, addresses: tuple[str, ...]) -> None:
    assert listen_addresses(choice) == addresses


@pytest.mark.parametrize(
    "choice", ["", " , ", "everywhere", "192.168.1", "192.168.1.20:80", "lan,", "192.168.1.20/24"]
)
def test_other_choices_are_refused(choice: str) -> None:
    with pytest.raises(ValueError, match="listen is"):
        listen_addresses(choice)


@pytest.mark.parametrize("hosts", ["http://a", "a/b", "a b", "-", "a:b", "a,*", "a@b", "a\nb"])
def test_hosts_that_are_none_are_refused(hosts: str) -> None:
    with pytest.raises(ValueError, match="allowed_hosts holds"):
        check_hosts(hosts)


def test_local_is_in_the_clear_with_nobody() -> None:
    local = listening_of("local", "", machine="Gaming-PC")
    assert (local.plain, local.secure, local.beyond) == (("127.0.0.1",), (), ())
    assert not local.in_clear
    assert not local.lan_only
    assert local.reachable_names() == ()
    assert not local.allows("gaming-pc:7333", ("127.0.0.1", 7333)), "it is nobody's name for it"


def test_a_certificate_leaves_only_this_machine_in_the_clear() -> None:
    lan = listening_of("lan", "", machine="pc", tls=True)
    assert (lan.plain, lan.secure) == (("127.0.0.1",), ("0.0.0.0",))
    assert not lan.in_clear
    some = listening_of("192.168.1.20", "", machine="pc", tls=True)
    assert (some.plain, some.secure) == (("127.0.0.1",), ("192.168.1.20",))
    local = listening_of("local", "", machine="pc", tls=True)
    assert (local.plain, local.secure, local.beyond) == (("127.0.0.1",), ("127.0.0.1",), ())
    clear = listening_of("lan", "", machine="pc")
    assert (clear.plain, clear.secure, clear.in_clear) == (("0.0.0.0",), (), True)


def test_names_for_another_machine() -> None:
    assert listening_of("lan", "", machine="pc").reachable_names() == ("pc.local",)
    some = listening_of("192.168.1.20,fd00::7", "", machine="pc")
    assert some.reachable_names() == ("192.168.1.20", "[fd00::7]")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:7333", True),
        ("localhost:7333", True),
        ("LocalHost:7333", True),
        ("192.168.1.20:7333", True),
        ("gaming-pc:7333", True),
        ("gaming-pc.local:7333", True),
        ("gaming-pc.example.org:7333", True),
        ("train.example.org", True),
        ("train.example.org:1", True),
        ("proxy:8443", True),
        ("proxy", False),
        ("proxy:7333", False),
        ("192.168.1.21:7333", False),
        ("192.168.1.20:80", False),
        ("192.168.1.20", False),
        ("gaming-pc", False),
        ("gaming-pc.local.evil.example:7333", False),
        ("evil.example:7333", False),
        ("evil.example", False),
        ("train.example.org.evil.example", False),
        ("train.example.org@evil.example:7333", False),
        ("", False),
        (":7333", False),
        ("gaming-pc:7333, evil.example", False),
        ("gaming-pc:\uff17333", False),
    ],
)
def test_hosts_of_a_machine_on_the_network(host: str, allowed: bool) -> None:
    lan = listening_of(
        "lan", "Train.Example.org, proxy:8443", machine="Gaming-PC.example.org", tls=False
    )
    assert lan.allows(host, ("192.168.1.20", 7333)) is allowed


def test_a_host_without_a_port_means_the_schemes_own() -> None:
    lan = listening_of("lan", "", machine="pc")
    assert lan.allows("pc", ("10.0.0.2", 80))
    assert not lan.allows("pc", ("10.0.0.2", 443))
    assert lan.allows("pc", ("10.0.0.2", 443), tls=True)
    assert lan.allows("[fd00::7]:7333", ("fd00::7", 7333))
    assert not lan.allows("[fd00::8]:7333", ("fd00::7", 7333))
    assert not lan.allows("pc:7333", None)
