"""Scripts and styles are asked for at each page, and sent only where they changed."""

import os
from pathlib import Path

from litestar import Litestar
from litestar.testing import TestClient

from slidepack.web.static_files import static_router


def test_what_the_browser_has_is_not_sent_again(tmp_path: Path) -> None:
    file = tmp_path / "page.js"
    file.write_text("old();")
    with TestClient(Litestar(route_handlers=[static_router(tmp_path)])) as client:
        first = client.get("/static/page.js")
        assert first.text == "old();"
        assert "no-cache" in first.headers["cache-control"]
        tag = first.headers["etag"]
        for known in (tag, f'"other", {tag}'):
            again = client.get("/static/page.js", headers={"If-None-Match": known})
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
            assert "no-cache" in again.headers["cache-control"]
        file.write_text("new();")
        os.utime(file, (1, 1))
        changed = client.get("/static/page.js", headers={"If-None-Match": tag})
        assert (changed.status_code, changed.text) == (200, "new();")
        assert client.get("/static/none.js", headers={"If-None-Match": tag}).status_code == 404
