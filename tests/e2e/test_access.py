"""Logging in by a password, and the settings page, as a person does it."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.browsing import REFUSALS, OpenVisitor, agree
from playwright.sync_api import Browser, Page, expect
from support.daemons import DaemonProcess
from support.notices import receiving

_PASSWORD = "correct horse battery"
_OTHER = "another one entirely"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon of its own: passwords and sessions of the others stay as they are."""
    with DaemonProcess(tmp_path_factory.mktemp("house") / "home") as daemon:
        yield daemon


def _settings(open_visitor: OpenVisitor, house: DaemonProcess, **options: object) -> Page:
    return open_visitor(house, **options).go("/settings")


def test_a_password_is_set_and_changed_on_the_page(
    open_visitor: OpenVisitor, tmp_path: Path
) -> None:
    with DaemonProcess(tmp_path / "home") as house:
        page = _settings(open_visitor, house)
        expect(page.get_by_role("heading", name="Set a password")).to_be_visible()
        page.get_by_label("New password").fill("correct")
        expect(page.locator("#strength")).to_have_text("Too short: 3 more.")
        page.get_by_label("New password").fill(_PASSWORD)
        expect(page.locator("#strength")).to_have_text("Good: long.")
        page.get_by_label("Once more").fill("something else")
        page.get_by_role("button", name="Set the password").click()
        assert page.get_by_label("Once more").evaluate("(field) => field.validationMessage")
        page.get_by_label("Once more").fill(_PASSWORD)
        page.keyboard.press("Enter")
        expect(page.get_by_role("status").first).to_contain_text("The password is set.")
        expect(page.get_by_role("heading", name="Change the password")).to_be_visible()

        for label, text in (
            ("Password so far", "not the password"),
            ("New password", _OTHER),
            ("Once more", _OTHER),
        ):
            page.get_by_label(label).fill(text)
        page.get_by_role("button", name="Change the password").click()
        expect(page.locator("#problem-old")).to_contain_text("This is not the password.")
        expect(page.get_by_label("Password so far")).to_be_focused()
        for label, text in (
            ("Password so far", _PASSWORD),
            ("New password", "password123"),
            ("Once more", "password123"),
        ):
            page.get_by_label(label).fill(text)
        page.get_by_role("button", name="Change the password").click()
        expect(page.locator("#problem-new")).to_contain_text("Four unrelated words are good.")


def test_login_by_password_leads_to_where_one_was_going_and_logout_ends_it(
    browser: Browser, house: DaemonProcess
) -> None:
    house.api("PUT", "/password", json={"new": _PASSWORD})
    # Without script: the form is a plain one.
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{house.address.url}/settings?from=here")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    field = page.get_by_label("Password")
    assert field.get_attribute("autocomplete") == "current-password"
    field.fill("not the password")
    page.keyboard.press("Enter")
    expect(page.locator(".error")).to_contain_text("This is not the password.")
    page.get_by_label("Password").fill(_PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/settings?from=here")
    expect(page.get_by_role("heading", name="Settings")).to_be_visible()
    state = context.storage_state()
    context.close()

    context = browser.new_context(storage_state=state)
    page = context.new_page()
    page.goto(f"{house.address.url}/settings")
    page.get_by_role("button", name="Log out", exact=True).first.click()
    page.wait_for_url("**/login")
    page.goto(f"{house.address.url}/")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    context.close()


def test_wrong_passwords_wait(browser: Browser, tmp_path: Path) -> None:
    with DaemonProcess(tmp_path / "home") as house:
        house.api("PUT", "/password", json={"new": _PASSWORD})
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{house.address.url}/login")
        for _ in range(12):
            page.get_by_label("Password").fill("not the password")
            with page.expect_navigation():
                page.get_by_role("button", name="Log in").click()
            # The waits double: however slow the machine is, one of them is longer than its pace.
            if page.get_by_text("DAEMON-TOO-MANY-TRIES").is_visible():
                break
        expect(page.locator(".error")).to_contain_text("DAEMON-TOO-MANY-TRIES")
        context.close()


def test_other_browsers_are_logged_out(open_visitor: OpenVisitor, house: DaemonProcess) -> None:
    page = _settings(open_visitor, house)
    other = open_visitor(house, allowed=(REFUSALS, r"error: \[object Event\]"))
    page.reload()
    sessions = page.locator("#settings-sessions li")
    expect(sessions.filter(has_text="this one")).to_have_count(1)
    before = sessions.count()
    page.get_by_role("button", name="Log out Chrome").first.click()
    expect(sessions).to_have_count(before - 1)
    other.page.reload()
    expect(other.page.get_by_role("heading", name="Log in")).to_be_visible()


def test_a_token_is_shown_once(open_visitor: OpenVisitor, house: DaemonProcess) -> None:
    visitor = open_visitor(house)
    page = visitor.go("/settings")
    page.get_by_label("Name of a new token").fill("grafana <1>")
    page.get_by_label("It ends").select_option("30")
    page.get_by_role("button", name="Make a token").click()
    token = page.locator("#new-token")
    expect(token).to_contain_text("slp_")
    secret = token.inner_text()
    row = page.locator("#settings-tokens li", has_text="grafana <1>")
    expect(row).to_contain_text("read")
    page.reload()
    expect(page.locator("body")).not_to_contain_text(secret)
    row.get_by_role("button", name="Remove").click()
    agree(page, "Remove the token grafana <1>?")
    expect(row).to_have_count(0)


def test_an_address_is_added_tested_and_removed(
    open_visitor: OpenVisitor, house: DaemonProcess
) -> None:
    visitor = open_visitor(house)
    page = visitor.go("/settings")
    with receiving() as receiver:
        page.get_by_label("Address").fill("nonsense")
        page.get_by_role("button", name="Add the address").click()
        expect(page.locator("#problem-url")).to_contain_text("no scheme")
        page.get_by_label("Address").fill(receiver.url("/s3cret-path"))
        page.get_by_label("Name", exact=True).fill("my hook")
        page.get_by_role("button", name="Add the address").click()
        row = page.locator("#settings-notices li", has_text="my hook")
        expect(row).to_be_visible()
        assert "s3cret" not in page.content()
        row.get_by_role("button", name="Test").click()
        expect(row).to_contain_text("The test arrived.")
        assert receiver.titles == ["Slidepack: a test"]
        receiver.status = 404
        row.get_by_role("button", name="Test").click()
        expect(row).to_contain_text("did not arrive")
        row.get_by_role("button", name="Remove").click()
        agree(page, "Forget my hook?")
        expect(row).to_have_count(0)


def test_what_is_told_and_when_is_chosen(open_visitor: OpenVisitor, house: DaemonProcess) -> None:
    page = _settings(open_visitor, house)
    page.get_by_label("A job is completed").uncheck()
    page.get_by_label("Quiet from").fill("23:00")
    page.get_by_role("button", name="Store").first.click()
    expect(page.locator("#problem-when")).to_contain_text("quiet_to")
    page.get_by_label("A job is completed").uncheck()
    page.get_by_label("Quiet from").fill("23:00")
    page.get_by_label("until", exact=True).fill("07:00")
    page.get_by_label("Summary of the night").select_option("window")
    page.get_by_role("button", name="Store").first.click()
    expect(page.get_by_role("status").first).to_have_text("Stored.")
    chosen = house.api("GET", "/notices/settings")
    assert "finished" not in chosen["sends"]
    assert (chosen["quiet_from"], chosen["digest_at"]) == ("23:00", "window")


def test_settings_are_stored_with_errors_beside_their_fields(
    open_visitor: OpenVisitor, house: DaemonProcess
) -> None:
    file = house.home / "settings.toml"
    file.write_text("# mine\nchat_idle_minutes = 12 # long\n")
    page = _settings(open_visitor, house)
    idle = page.get_by_label("Minutes a silent chat")
    expect(idle).to_have_value("12")
    expect(page.get_by_label("Port", exact=True)).to_be_disabled()
    idle.fill("0")
    page.get_by_label("Cards that train").fill("x")
    page.get_by_role("button", name="Store").last.click()
    expect(page.locator("#problem-device")).to_be_visible()
    expect(page.locator("#problem-chat_idle_minutes")).to_contain_text("above 0")
    expect(page.get_by_label("Cards that train")).to_be_focused()
    expect(idle).to_have_value("0")
    idle.fill("20")
    page.get_by_label("Cards that train").fill("")
    page.get_by_role("button", name="Store").last.click()
    expect(page.get_by_role("status").first).to_contain_text("counts after a restart")
    expect(page.locator("#settings-values")).to_contain_text("Waits for a restart: Minutes")
    assert file.read_text().startswith("# mine\n")
    assert tomllib.loads(file.read_text()) == {"chat_idle_minutes": 20.0}


@pytest.mark.parametrize("width", [360, 1440])
def test_the_page_fits(open_visitor: OpenVisitor, house: DaemonProcess, width: int) -> None:
    page = _settings(open_visitor, house, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
