import base64
import json
import time
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import ProfileError
from profiles.models import Auth
from profiles.secrets import REDACTED, looks_secret, read_key, redact, redact_sweep, redact_urls, secrets_in

KEY = "sk-Ab1/+=&\"é'9"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "Authorization",
            "Proxy-Authorization",
            "api-key",
            "X-API-Key",
            "x_api_key",
            "apiKey",
            "OPENAI_API_KEY",
            "apikey",
        ),
        *(
            "cookie",
            "Set-Cookie",
            "token",
            "access_token",
            "hf_token",
            "X-Auth-Token",
            "x-goog-api-key",
            "key",
            "X-Key",
        ),
        *(
            "Ocp-Apim-Subscription-Key",
            "password",
            "db_passwd",
            "client_secret",
            "credentials",
            "sig",
            "AWSAccessKeyId",
        ),
        *("x-amz-security-token", "api_keys", "APIKey", "private_key"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *("max_tokens", "max_completion_tokens", "tokenizer", "stop_token_ids", "skip_special_tokens", "eos_token"),
        *("prompt_cache_key", "Idempotency-Key", "user", "author", "Content-Type", "api-version", "keyboard", "monkey"),
        *("temperature", "", "x", "-", "HTTP-Referer", "X-Title", "keys_total", "secretary", "X-Request-Id"),
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert not looks_secret(name)


def test_no_auth_means_no_key() -> None:
    assert read_key(None, {"OPENAI_API_KEY": "never"}) is None


def test_a_key_from_the_environment_and_from_a_file(tmp_path: Path) -> None:
    assert read_key(Auth(env="A_KEY"), {"A_KEY": "abc"}) == "abc"
    for content in (b"abc", b"abc\n", b"abc\r\n", b"\xef\xbb\xbfabc\n"):
        (tmp_path / "key").write_bytes(content)
        assert read_key(Auth(file=str(tmp_path / "key")), {}) == "abc"


@pytest.mark.parametrize(
    "key", ["", " ", "pa55\n", "pa55\npa55", "pa55\r", "pa\t55", "pa55\x7f", "pa55\x85", "pa55€", " pa55", "pa55 "]
)
def test_an_unusable_key_is_named_by_its_variable_only(key: str) -> None:
    with pytest.raises(ProfileError) as error:
        read_key(Auth(env="A_KEY"), {"A_KEY": key})
    assert "A_KEY" in str(error.value)
    assert "pa55" not in str(error.value)


def test_an_unset_variable_is_named() -> None:
    with pytest.raises(ProfileError, match="A_KEY"):
        read_key(Auth(env="A_KEY"), {})


@pytest.mark.parametrize("content", [b"", b"\n", b"pa55\n\n", b"pa55\nx", b"\xffpa55", b"pa55\0", b"pa55" * 20_000])
def test_an_unusable_key_file_is_named_without_its_content(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ProfileError) as error:
        read_key(Auth(file=str(tmp_path / "key")), {})
    assert str(tmp_path / "key") in str(error.value)
    assert "pa55" not in str(error.value)


@pytest.mark.parametrize("name", ["missing", ".", "a\0b", "~nobody-of-this-name/key"])
def test_a_key_file_that_is_no_file(tmp_path: Path, name: str) -> None:
    path = name if name.startswith("~") else str(tmp_path / name)
    with pytest.raises(ProfileError):
        read_key(Auth(file=path), {})


@pytest.mark.parametrize(
    "form",
    [
        KEY,
        f"Bearer {KEY}",
        quote(KEY, safe=""),
        quote(KEY),
        quote(KEY, safe="").lower().replace("sk-ab1", "sk-Ab1"),
        quote_plus(KEY),
        json.dumps(KEY),
        json.dumps(KEY, ensure_ascii=False),
        json.dumps(KEY).replace("/", "\\/"),
        *(base64.b64encode(user + KEY.encode()).decode() for user in (b"", b":", b"u:", b"us:", b"user:")),
        base64.b64encode(b"a:" + KEY.encode() + b":x").decode(),
        base64.urlsafe_b64encode(b"us:" + KEY.encode()).decode(),
    ],
)
def test_every_form_of_a_secret_is_redacted(form: str) -> None:
    shown = redact(f"before {form} after", [KEY])
    assert REDACTED in shown
    assert "Ab1" not in shown
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    for piece in (form, form.rstrip("=")):
        assert piece not in shown


def test_redaction_leaves_other_text_alone() -> None:
    assert redact("nothing here", [KEY, ""]) == "nothing here"
    assert redact("nothing here", []) == "nothing here"


def test_the_longer_of_two_secrets_goes_first() -> None:
    assert redact("x abcdefgh y abcd z", ["abcd", "abcdefgh"]) == f"x {REDACTED} y {REDACTED} z"


@given(
    st.text('0123456789XYZ%+/=\\"é', min_size=6, max_size=20), st.text("0123456789XYZ ", max_size=20), st.integers(0, 3)
)
def test_no_secret_survives(secret: str, around: str, times: int) -> None:
    text = around + (secret + around) * times
    assert secret not in redact(text, [secret])


def test_urls_lose_passwords_and_keys() -> None:
    shown = redact_urls("see http://u:pa55@h/p?api_key=pa55&v=1;token=pa55#x and https://h?key=${KEY}")
    assert "pa55" not in shown
    assert shown == "see http://<redacted>@h/p?api_key=<redacted>&v=1;token=<redacted>#x and https://h?key=${KEY}"


def test_a_stored_document_has_no_secret() -> None:
    document = {
        "endpoint": {
            "url": "http://h/v1",
            "auth": {"env": "A_KEY"},
            "headers": {"Authorization": "Bearer pa55", "X-Title": "mine", "api-key": "${KEY}", "cookie": "a=$${pa55}"},
            "extra_body": {
                "provider": {"api_key": "pa55", "tokens": ["kept"]},
                "password": [1, {"x": "pa55"}],
                "max_tokens": 5,
            },
        },
        "arms": {"headers": {"headers": {"x-token": "Bearer ${T}"}, "auth": {"env": "B"}}, "off": None},
    }
    before = json.dumps(document)
    shown = redact_sweep(document)
    assert json.dumps(document) == before
    assert "pa55" not in json.dumps(shown)
    assert shown["endpoint"]["headers"] == {
        "Authorization": REDACTED,
        "X-Title": "mine",
        "api-key": "${KEY}",
        "cookie": REDACTED,
    }
    assert shown["endpoint"]["extra_body"]["provider"]["tokens"] == ["kept"]
    assert shown["endpoint"]["extra_body"]["password"] == [REDACTED, {"x": REDACTED}]
    assert shown["arms"] == document["arms"]


def test_secrets_of_headers_and_body_are_found() -> None:
    headers = {"Authorization": "Bearer abc", "X-Title": "t", "api-key": "tokenabc"}
    body = {"a": [{"client_secret": "def"}], "password": {"x": ["ghi"]}, "max_tokens": 3}
    assert sorted(secrets_in(headers, body)) == ["abc", "def", "ghi", "tokenabc"]


@pytest.mark.parametrize(
    "line", ["A" * 400_000, "://" + "?" * 400_000, "=" * 400_000, "Ab1/" * 100_000, "&a=" * 100_000]
)
def test_a_long_line_takes_no_longer_than_its_length(line: str) -> None:
    began = time.process_time()
    assert redact_urls(redact(line, ["sk-0123456789abcdef", "another/secret"])) == line
    assert time.process_time() - began < 5  # in the square of the length it is minutes


def test_secrets_are_found_in_a_long_run() -> None:
    inner = base64.b64encode(b"u:" + KEY.encode()).decode().rstrip("=")
    shown = redact(f"x {'A' * 50_000}{inner}{'B' * 50_000}{inner}== y", [KEY])
    assert shown == f"x {REDACTED} y"


def test_overlapping_secrets_leave_nothing() -> None:
    assert redact("x abcdefgh y", ["abcdef", "defgh"]) == f"x {REDACTED} y"


def test_a_secret_of_several_lines_is_redacted_line_by_line() -> None:
    pem = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEFAAS\nab\n-----END KEY-----"
    for shown in (redact(f"got {pem} end", [pem]), redact(pem.replace("\n", "\r\n    "), [pem])):
        assert "MIIE" not in shown
        assert "kqhk" not in shown
