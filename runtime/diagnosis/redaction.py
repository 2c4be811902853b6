"""Removes secrets from text and from settings before they leave this machine. Pure.

By form (private keys, invites, URLs with a login or a query, tokens), by the name before a value
(``password=...``), and by value: the caller gives the secrets that its files hold.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

REMOVED: Final = "[removed]"
MIN_SECRET: Final = 4
"""Characters of a known secret; a shorter one would remove parts of ordinary words."""
_WORDS: Final = (
    r"pass(?:word|wd|phrase|code)?|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|account[_-]?key"
    r"|credential|authori[sz]ation|cookie|invite|signature|session[_-]?key|shared[_-]?key|bearer"
)
_SECRET_KEY: Final = re.compile(rf"(?i)(?:{_WORDS})")
_PLACE_KEY: Final = re.compile(r"(?i)(?:_file|_files|_dir|_path|_folder|_command|_sha256)\Z")
"""Keys whose values say where a secret is."""
_VALUE: Final = r"""(?:"(?:[^"\\]|\\.)*(?:"|\Z)|'(?:[^'\\]|\\.)*(?:'|\Z)|[^\s,;&}\])"']+)"""
_FORMS: Final = (
    # A private key; one that is cut off reaches to the end.
    (
        re.compile(
            r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)",
            re.DOTALL,
        ),
        REMOVED,
    ),
    # Its lines alone, where the beginning was cut off.
    (
        re.compile(r"(?<![A-Za-z0-9+/])(?=[a-z0-9+/]*[A-Z])(?=[A-Z0-9+/]*[a-z])[A-Za-z0-9+/]{60,}={0,2}"),
        REMOVED,
    ),
    (re.compile(r"lichen1\.[A-Za-z0-9_-]+"), REMOVED),
    # A login and a query of a URL.
    (re.compile(r"""([A-Za-z][A-Za-z0-9+.-]{0,20}://)[^\s"'<>]*@"""), rf"\1{REMOVED}@"),
    (re.compile(r"""([A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s?#"'<>]*)[?#][^\s"'<>]+"""), rf"\1?{REMOVED}"),
    (re.compile(r"(?i)\b(bearer|basic|digest)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {REMOVED}"),
    (
        re.compile(
            rf"""(?i)(["']?\b[\w.-]{{0,40}}?(?:{_WORDS})(?![\w.-]*(?:_file|_dir|_path|_folder|_command|_sha256))"""
            rf"""[\w.-]{{0,40}}["']?\s{{0,4}}[=:]\s{{0,4}}){_VALUE}"""
        ),
        rf"\1{REMOVED}",
    ),
    (re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}\b"), REMOVED),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?"), REMOVED),
    # Random words of letters of both cases and digits: tokens of invites, links and sessions. A SHA-256 in
    # lower-case hexadecimal names content, and stays.
    (
        re.compile(
            r"(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_-]{0,60}[A-Z])(?=[A-Za-z0-9_-]{0,60}[a-z])"
            r"(?=[A-Za-z0-9_-]{0,60}[0-9])[A-Za-z0-9_-]{32,}={0,2}"
        ),
        REMOVED,
    ),
)


def is_secret_key(key: str) -> bool:
    """Whether a key of settings has a secret as its value, by its name."""
    return _SECRET_KEY.search(key) is not None and _PLACE_KEY.search(key) is None


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without secrets.

    Args:
        text: any text.
        secrets: values that are secret whatever their form; those of less than 4 characters are ignored.
    """
    for secret in sorted({one for one in secrets if len(one) >= MIN_SECRET}, key=len, reverse=True):
        text = text.replace(secret, REMOVED)
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return text


def redacted_values(values: Any, secrets: Iterable[str] = ()) -> Any:
    """Settings or a status (maps, lists, texts, numbers) without secrets, also by the names of keys."""
    known = tuple(secrets)
    if isinstance(values, Mapping):
        return {
            redacted(str(key), known): REMOVED
            if is_secret_key(str(key)) and value not in (None, "", False, True)
            else redacted_values(value, known)
            for key, value in values.items()
        }
    if isinstance(values, list | tuple | set | frozenset):
        return [redacted_values(one, known) for one in values]
    if values is None or isinstance(values, bool | int | float):
        return values
    return redacted(str(values), known)


def secret_values(values: Any) -> set[str]:
    """The texts of settings whose key names a secret, to be removed wherever else they occur."""
    found: set[str] = set()
    if isinstance(values, Mapping):
        for key, value in values.items():
            if isinstance(value, str) and is_secret_key(str(key)):
                found.add(value)
            else:
                found |= secret_values(value)
    elif isinstance(values, list | tuple):
        for one in values:
            found |= secret_values(one)
    elif isinstance(values, str):
        found |= {login[1] for login in re.finditer(r"://[^\s/:@]*:([^\s]*)@", values)}
    return found
