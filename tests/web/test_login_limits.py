"""Waits after failed logins, by a clock that the tests turn."""

from types import SimpleNamespace

import pytest

from slidepack.web.login_limits import LoginLimits, TooManyTries


@pytest.fixture
def clock() -> SimpleNamespace:
    return SimpleNamespace(now=1000.0)


@pytest.fixture
def limits(clock: SimpleNamespace) -> LoginLimits:
    return LoginLimits(lambda: float(clock.now))


def _wait(limits: LoginLimits, address: str, *, proxied: bool = False) -> int:
    """Return the seconds that a try has to wait; 0 where it was counted."""
    try:
        limits.begin(address, proxied=proxied)
    except TooManyTries as refusal:
        return refusal.seconds
    return 0


def test_waits_double_and_asking_again_does_not_lengthen_them(
    limits: LoginLimits, clock: SimpleNamespace
) -> None:
    assert [_wait(limits, "10.0.0.9") for _ in range(4)] == [0, 0, 0, 0]
    for seconds in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900):
        assert [_wait(limits, "10.0.0.9") for _ in range(3)] == [seconds] * 3
        clock.now += seconds
        assert _wait(limits, "10.0.0.9") == 0
    assert _wait(limits, "127.0.0.1") == 0


def test_a_login_that_succeeds_forgets_an_addresses_failures(limits: LoginLimits) -> None:
    for _ in range(50):
        assert _wait(limits, "10.0.0.9") == 0
        limits.succeeded("10.0.0.9")


def test_failures_are_forgotten_after_an_hour(limits: LoginLimits, clock: SimpleNamespace) -> None:
    for _ in range(4):
        limits.begin("10.0.0.9")
    assert _wait(limits, "10.0.0.9") == 1
    clock.now += 3700
    assert [_wait(limits, "10.0.0.9") for _ in range(4)] == [0, 0, 0, 0]


def test_many_addresses_wait_for_each_other_but_not_for_long(
    limits: LoginLimits, clock: SimpleNamespace
) -> None:
    counted = sum(_wait(limits, f"10.0.0.{n}") == 0 for n in range(250))
    assert counted == 20
    counted = 0
    for n in range(600):
        clock.now += 1
        counted += _wait(limits, f"10.1.{n // 250}.{n % 250}") == 0
    assert 20 <= counted <= 26, "at most one in 30 s after the first few"
    assert _wait(limits, "10.9.9.9") <= 30
    assert _wait(limits, "127.0.0.1") == 0, "the machine itself is not shut out"


def test_whoever_comes_through_a_proxy_waits_apart_and_never_for_long(
    limits: LoginLimits, clock: SimpleNamespace
) -> None:
    for _ in range(3):
        assert _wait(limits, "127.0.0.1") == 0
    assert [_wait(limits, "127.0.0.1", proxied=True) for _ in range(5)] == [0, 0, 0, 0, 1]
    for seconds in (1, 2, 4, 8, 16, 30, 30, 30):
        assert _wait(limits, "127.0.0.1", proxied=True) == seconds
        clock.now += seconds
        assert _wait(limits, "127.0.0.1", proxied=True) == 0
    assert _wait(limits, "127.0.0.1") == 0, "the machine itself has its own four"
    assert _wait(limits, "127.0.0.1") == 1
    for n in range(20):
        assert _wait(limits, f"10.0.0.{n}") == 0, "nor do others of the network wait for them"


def test_a_login_through_a_proxy_takes_its_own_try_back(limits: LoginLimits) -> None:
    for _ in range(50):
        assert _wait(limits, "127.0.0.1", proxied=True) == 0
        limits.succeeded("127.0.0.1", proxied=True)
    for _ in range(3):
        assert _wait(limits, "127.0.0.1") == 0


def test_addresses_of_one_ipv6_network_are_one(limits: LoginLimits) -> None:
    for n in range(4):
        assert _wait(limits, f"fd00:1:2:3::{n:x}") == 0
    assert _wait(limits, "fd00:1:2:3:ffff::1") == 1
    assert _wait(limits, "fd00:1:2:4::1") == 0
    for _ in range(4):
        assert _wait(limits, "::ffff:10.0.0.9") == 0
    assert _wait(limits, "10.0.0.9") == 1


def test_a_flood_of_addresses_takes_no_memory(limits: LoginLimits, clock: SimpleNamespace) -> None:
    for n in range(20_000):
        clock.now += 30
        _wait(limits, f"10.{n // 65536}.{n // 256 % 256}.{n % 256}")
    assert len(limits._by_source) <= 4096
