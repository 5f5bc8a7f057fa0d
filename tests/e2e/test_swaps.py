"""Parts that are fetched again while scripts have moved what is in them."""

from e2e.browsing import OpenVisitor
from e2e.conftest import Studio
from playwright.sync_api import Route, expect
from support.waiting import wait_until


def test_what_a_script_has_styled_is_swapped_within_the_content_security_policy(
    open_visitor: OpenVisitor, studio: Studio
) -> None:
    visitor = open_visitor(studio.daemon)
    page = visitor.go("/")
    page.locator("#hardware").wait_for()
    # The page itself fetches this part again every few seconds.
    page.route("**/parts/**", lambda route: route.fulfill(status=204))
    # By id, htmx knows an old element again in the new part, and would carry its style over as an
    # attribute, which the policy forbids.
    page.evaluate(
        """() => {
            const first = document.querySelector("#hardware [id]") ?? document.createElement("p");
            if (!first.id) document.getElementById("hardware").append(first);
            first.id ||= "styled";
            first.style.width = "50%";
            window.fetched = 0;
            document.addEventListener("htmx:afterSettle", () => (window.fetched += 1));
            const answer = `<p id="${first.id}">new</p>`;
            htmx.swap("#hardware", answer, { swapStyle: "innerHTML" });
        }"""
    )
    wait_until(lambda: page.evaluate("window.fetched") > 0, what="it is settled")
    assert page.locator("#hardware").inner_text() == "new"


def test_the_keyboard_stays_where_it_is_in_a_part_that_comes_anew(
    open_visitor: OpenVisitor, studio: Studio
) -> None:
    visitor = open_visitor(studio.daemon)
    page = visitor.go("/")
    part, step, ends = page.locator("#queue"), 0, False

    def answer(route: Route) -> None:
        nonlocal step
        step += 1
        new = '<a href="/jobs/9">a new one</a>' if step > 1 else ""
        links = "".join(f'<a href="/jobs/{job}">job {job}, step {step}</a>' for job in (1, 2, 2))
        buttons = "<button>Pause</button><button>Pause</button>"
        gone = "" if ends else '<a href="/jobs/3">it ends</a>'
        route.fulfill(content_type="text/html", body=new + links + buttons + gone)

    def fetch() -> None:
        with page.expect_response("**/parts/queue"):
            page.evaluate("htmx.trigger('#queue', 'refresh')")
        first = part.locator("[href='/jobs/1']")
        wait_until(lambda: first.inner_text() == f"job 1, step {step}", what="it is swapped in")

    page.route("**/parts/policy", lambda route: route.fulfill(status=204))
    page.route("**/parts/hardware", lambda route: route.fulfill(status=204))
    page.route("**/parts/queue", answer)
    fetch()
    second = part.locator("[href='/jobs/2']").nth(1)
    second.focus()
    fetch()
    expect(second).to_be_focused()
    part.locator("button").nth(1).focus()
    fetch()
    expect(part.locator("button").nth(1)).to_be_focused()
    # Of what is gone, nothing else takes the place.
    part.locator("[href='/jobs/3']").focus()
    ends = True
    fetch()
    expect(part.locator("[href='/jobs/3']")).to_have_count(0)
    expect(part.locator(":focus")).to_have_count(0)
    # Who is elsewhere stays there.
    page.locator(".brand").focus()
    fetch()
    expect(page.locator(".brand")).to_be_focused()


def test_a_press_ends_on_what_it_began_on_though_its_part_comes_anew_meanwhile(
    open_visitor: OpenVisitor, studio: Studio
) -> None:
    page = open_visitor(studio.daemon).go("/")
    step = 0

    def answer(route: Route) -> None:
        nonlocal step
        step += 1
        button = f'<button hx-get="/pressed" hx-swap="none">Step {step}</button>'
        route.fulfill(content_type="text/html", body=button)

    def fetch() -> None:
        page.evaluate(
            """() => new Promise((done) => {
                document.addEventListener("htmx:afterOnLoad", done, { once: true });
                htmx.trigger("#queue", "refresh");
            })"""
        )

    page.route("**/parts/policy", lambda route: route.fulfill(status=204))
    page.route("**/parts/hardware", lambda route: route.fulfill(status=204))
    page.route("**/pressed", lambda route: route.fulfill(status=204))
    page.route("**/parts/queue", answer)
    fetch()
    button = page.locator("#queue button")
    expect(button).to_be_visible()
    for press, release in (
        (page.mouse.down, page.mouse.up),
        (lambda: page.keyboard.down(" "), lambda: page.keyboard.up(" ")),
    ):
        button.hover()
        button.focus()
        press()
        pressed = button.inner_text()
        fetch()
        assert button.inner_text() == pressed
        with page.expect_request("**/pressed"), page.expect_response("**/parts/queue"):
            release()
        expect(button).not_to_have_text(pressed)


def test_a_button_acts_as_soon_as_it_is_there(open_visitor: OpenVisitor, studio: Studio) -> None:
    page = open_visitor(studio.daemon).go("/")
    page.route("**/parts/**", lambda route: route.fulfill(status=204))
    page.route("**/pressed", lambda route: route.fulfill(status=204))
    button = '<button id="new" hx-get="/pressed" hx-swap="none">new</button>'
    page.route("**/parts/queue", lambda route: route.fulfill(content_type="text/html", body=button))
    with page.expect_request("**/pressed"):
        page.evaluate(
            """() => {
                const press = () => setTimeout(() => document.getElementById("new").click());
                document.addEventListener("htmx:afterSwap", press, { once: true });
                htmx.trigger("#queue", "refresh");
            }"""
        )
