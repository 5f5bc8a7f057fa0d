"""What is shown of addresses, and what is taken out of texts."""

import pytest

from slidepack.daemon.notices.masking import mask, scrub


@pytest.mark.parametrize(
    ("privacy_url", "shown"),
    [
        ("json://user:****@127.0.0.1:8080/path/secret?method=POST", "json://127.0.0.1/…"),
        ("jsons://hooks.example.org/T0KEN?a=b", "jsons://hooks.example.org/…"),
        ("discord://1...8/a...z/?tts=no", "discord://…"),
        ("tgram://1...p/12315544/?image=False", "tgram://…"),
        ("ntfys://my.topic?priority=default&mode=cloud", "ntfys://…"),
        ("ntfys://topic?priority=default&mode=cloud", "ntfys://…"),
        ("ntfys://u:****@ntfy.example.org/topic?mode=private", "ntfys://ntfy.example.org/…"),
        ("mailtos://me:****@gmail.com/?smtp=smtp.gmail.com", "mailtos://gmail.com/…"),
        ("pbul://o...b//?format=text", "pbul://…"),
        ("json://[::1]:80/x", "json://[::1]/…"),
        ("json://localhost/x", "json://localhost/…"),
        ("", "://…"),
    ],
)
def test_only_a_scheme_and_a_plain_host_are_shown(privacy_url: str, shown: str) -> None:
    assert mask(privacy_url) == shown


def test_no_part_of_an_address_stays_in_a_text() -> None:
    url = "json://me:Pass%2Bw0rd@hooks.example.org:8443/T0KEN/deep?+X-Key=abcdef"
    said = (
        "Failed for ME at hooks.example.org with Pass+w0rd, Pass%2Bw0rd and t0ken: "
        "POST json://hooks.example.org/T0KEN/deep?+X-Key=abcdef 8443 error=500."
    )
    clean = scrub(said, url, "json://hooks.example.org/…")
    for secret in ("w0rd", "t0ken", "abcdef", "deep", "8443"):
        assert secret not in clean.casefold()
    assert "hooks.example.org" in clean
    assert "error=500" in clean
    assert "hooks" not in scrub(said, url), "nothing is shown of an address that is not understood"
