import pytest

from profiles.errors import Refusal
from profiles.hosts import is_local, origin
from profiles.models import clean_url


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://localhost:8000/v1",
            "http://LOCALHOST",
            "http://api.localhost",
            "http://box.local:1",
            "http://localhost.",
        ),
        *("http://127.0.0.1", "http://127.9.9.9:1", "http://[::1]:8000/v1", "http://0.0.0.0:1", "http://[::]:1"),
        *("http://10.1.2.3", "http://172.16.0.1", "http://172.31.255.255", "http://192.168.1.1", "http://169.254.1.1"),
        *("http://[fe80::1]", "http://[fd00::1]", "http://[::ffff:127.0.0.1]", "https://10.0.0.1/v1"),
    ],
)
def test_local(url: str) -> None:
    assert is_local(url)


@pytest.mark.parametrize(
    "url",
    [
        *("https://api.example.com/v1", "http://8.8.8.8", "http://172.32.0.1", "http://192.169.1.1", "http://11.0.0.1"),
        *("http://localhost.example.com", "http://notlocalhost", "http://local", "http://gpu-box:8000", "http://127.1"),
        *("http://localhost@example.com", "http://[2001:db8::1]", "http://[::ffff:8.8.8.8]", "http://2130706433"),
        *("ftp://localhost", "localhost:8000", "", "http://", "http://example.com\\@localhost", "http://[::1"),
        *("http://100.64.0.1", "http://127.0.0.1.example.com"),
    ],
)
def test_not_local(url: str) -> None:
    assert not is_local(url)


def test_origin_ignores_case_paths_and_default_ports() -> None:
    assert origin("HTTPS://API.example.com/v1") == origin("https://api.example.com:443/other?x=1")
    assert origin("https://h") == ("https", "h", 443)
    assert len({origin(url) for url in ("http://h", "https://h", "http://h:8080", "http://g")}) == 4


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://h:1", "http://h:1/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("http://h/v1/", "http://h/v1"),
        ("https://h/api/v1", "https://h/api/v1"),
        ("https://h/v1/chat/completions", "https://h/v1"),
        ("https://h/v1/completions/", "https://h/v1"),
        ("https://h/chat/completions", "https://h"),
        ("https://h/d/x/chat/completions?api-version=2024", "https://h/d/x?api-version=2024"),
    ],
)
def test_urls_are_trimmed_to_the_base(given: str, used: str) -> None:
    assert clean_url(given) == used


@pytest.mark.parametrize(
    "url",
    [
        *("h:80", "ftp://h", "http://", "http:///v1", "//h/v1", "", "http://h:99999", "http://h:x", "http://[::1"),
        *("http://user@h", "http://user:pa55@h", "http://h?key=pa55", "http://h?a=1&api_key=pa55", "http://h/#pa55"),
        *("http://h/ v1", "http://h/\n", "http://h\\@g"),
    ],
)
def test_bad_urls_are_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(Refusal) as refusal:
        clean_url(url)
    assert "pa55" not in refusal.value.problem + refusal.value.remedy


def test_a_user_in_the_url_has_a_remedy() -> None:
    with pytest.raises(Refusal) as refusal:
        clean_url("http://user:pa55@h")
    assert "use auth" in refusal.value.remedy
