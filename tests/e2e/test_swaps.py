"""Parts that are fetched again while scripts have moved what is in them."""

from e2e.browsing import OpenVisitor
from e2e.conftest import Studio
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
