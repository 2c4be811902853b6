"""Secrets are removed by form, by key and by value; what a person needs to find a fault stays."""

import pytest

from protocol.enrolment import Invite
from runtime.diagnosis.redaction import REMOVED, is_secret_key, redacted, redacted_values, secret_values

DIGEST = "5e" * 32
TOKEN = "wQ9xJk2_mP-4sT7uVbN1cZ8aLdE5fGh0RyXiOoKkWqY"  # noqa: S105 - made up
INVITE = Invite(url="https://c.example:8443", ca_sha256=DIGEST, token=TOKEN, device="d").encode()
BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"
PEM = f"-----BEGIN PRIVATE KEY-----\n{BODY}\n{BODY}\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        (f"before {PEM} after", [BODY[:20]]),
        (f"cut off: {PEM[:90]}", [BODY[:20]]),
        (f"the end alone: {PEM[40:]}", [BODY[12:40], BODY]),
        (PEM.replace("PRIVATE", "EC PRIVATE"), [BODY[:20]]),
        (f"invite {INVITE} was used", [INVITE[8:40]]),
        ("postgresql://ann:s3cr3t@db:5432/lichen is gone", ["s3cr3t"]),
        ("mqtt://ann:pa/ss@w@host/x", ["pa/ss", "ss@w"]),
        ("https://b.s3.amazonaws.com/blob?X-Amz-Credential=AK&X-Amz-Signature=abc123", ["abc123", "AK&"]),
        (f"http://127.0.0.1:8080/enter?token={TOKEN}", [TOKEN]),
        ("password=hunter22 user=ann", ["hunter22"]),
        ('{"password": "hun\\"ter22", "user": "ann"}', ["hun", "ter22"]),
        ("db_password: 'two words'", ["two", "words"]),
        ("Authorization: Bearer abc.def-ghi", ["abc.def-ghi"]),
        ("the header was Basic dXNlcjpwYXNz", ["dXNlcjpwYXNz"]),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ["wJalrXUtnFEMI", "bPxRfiCY"]),
        ("with AKIAIOSFODNN7EXAMPLE", ["AKIAIOSFODNN7EXAMPLE"]),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", ["eyJzdWIi", "c2lnbmF0"]),
        (f"session {TOKEN}", [TOKEN]),
        ("host=db password=abcd1234 dbname=x", ["abcd1234"]),
    ],
)
def test_a_secret_is_removed_by_its_form(text, secrets):
    found = redacted(text)
    assert REMOVED in found
    assert not [secret for secret in secrets if secret in found], found


@pytest.mark.parametrize(
    "text",
    [
        f"bundle {DIGEST} was installed",
        "connected to broker.example:8883 in 0.3 s",
        "/var/lib/lichen/models/bundle-7.onnx is damaged",
        "password_file = /etc/lichen/mqtt.password",
        "round=3 device=barn-1 loss=0.53",
        "2026-11-27T00:00:00.000000Z [info] started",
        "https://c.example:8443/v1/enrol answered 503",
    ],
)
def test_what_a_person_needs_stays(text):
    assert redacted(text) == text


def test_a_known_secret_is_removed_whatever_its_form():
    assert redacted("the entity key is abc-def", {"abc-def", "ab"}) == f"the entity key is {REMOVED}"


def test_settings_lose_the_values_of_secret_keys_and_keep_the_others():
    values = {
        "mqtt": {"password_file": "/etc/x", "host": "h", "extra": {"api_key": 7}},
        "source": [{"token": "q", "kind": "mqtt"}, {"url": "http://a:b@c/"}],
        "identity": {"invite": None, "enabled": True},
    }
    found = redacted_values(values)
    assert found["mqtt"] == {"password_file": "/etc/x", "host": "h", "extra": {"api_key": REMOVED}}
    assert found["source"] == [{"token": REMOVED, "kind": "mqtt"}, {"url": f"http://{REMOVED}@c/"}]
    assert found["identity"] == {"invite": None, "enabled": True}
    assert secret_values({"a": [{"token": "qqqq"}], "url": "postgres://u:pw12@h/x"}) == {"qqqq", "pw12"}
    assert is_secret_key("dbPassword")
    assert not is_secret_key("secret_file")
