"""The first day of validity of a certificate: just enough DER, so that no daemon needs a crypto library."""

import datetime as dt
import json
import ssl
from pathlib import Path
from typing import Final

_MAX_BYTES: Final = 256 * 1024
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_LONG: Final = 0x80
"""With this bit, the other bits are the number of length bytes that follow."""
_END: Final = "-----END CERTIFICATE-----"
IDENTITY_FILE: Final = "identity.json"
"""Beside an enrolled certificate; its ``issued_at`` is the real time of issue, in Unix seconds."""


def not_before(pem: str) -> float | None:
    """When the first certificate of ``pem`` becomes valid (RFC 5280, 4.1.2.5): Unix seconds, or None."""
    begin = pem.find("-----BEGIN CERTIFICATE-----")
    end = pem.find(_END, begin)
    if begin < 0 or end < 0:
        return None
    try:
        return _not_before(ssl.PEM_cert_to_DER_cert(pem[begin : end + len(_END)]))
    except (ValueError, IndexError):  # binascii.Error is a ValueError
        return None


def _not_before(der: bytes) -> float | None:
    """Certificate -> tbsCertificate -> validity -> notBefore."""
    _, at, _ = _element(der, 0)
    _, at, _ = _element(der, at)
    tag, _, after = _element(der, at)
    if tag == _VERSION:
        _, _, after = _element(der, after)  # the serial number follows the version
    for _ in range(2):  # the signature's algorithm, the issuer
        _, _, after = _element(der, after)
    tag, inner, _ = _element(der, after)
    if tag != _SEQUENCE:
        return None
    tag, begin, end = _element(der, inner)
    formats = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
    if tag not in formats:
        return None
    text = der[begin:end].decode("ascii")
    if tag == _UTC_TIME:  # 50 to 99 belong to the last century; strptime's pivot is 69
        text, tag = ("19" if int(text[:2]) >= 50 else "20") + text, _GENERALIZED_TIME  # noqa: PLR2004 - RFC 5280
    return dt.datetime.strptime(text, formats[tag]).replace(tzinfo=dt.UTC).timestamp()


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag, begin and end of the element at ``at``. Raises IndexError or ValueError if it is cut off."""
    tag, length, begin = der[at], der[at + 1], at + 2
    if length >= _LONG:
        count = length - _LONG
        length = int.from_bytes(der[begin : begin + count], "big")
        begin += count
    if begin + length > len(der):
        raise ValueError("cut off")
    return tag, begin, begin + length


def known_since(cert_file: Path | None, ca_certs: list[dict[str, object]]) -> float:
    """A time that has certainly passed, in Unix seconds; 0.0 if none is known.

    An authority does not sign for the future: if the clock is before the start of a certificate that exists,
    the clock is wrong.

    Args:
        cert_file: our own certificate; ``identity.json`` beside it has the time of issue (the certificate
            itself is back-dated).
        ca_certs: ``SSLContext.get_ca_certs()`` of the trusted authorities.
    """
    times = [0.0]
    for one in ca_certs:
        begin = one.get("notBefore")
        if isinstance(begin, str):
            times.append(float(ssl.cert_time_to_seconds(begin)))
    if cert_file is not None:
        times += [_issued_at(cert_file.with_name(IDENTITY_FILE)), not_before(_read_text(cert_file)) or 0.0]
    return max(times)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("ascii", errors="replace")
    except OSError:
        return ""


def _issued_at(path: Path) -> float:
    try:
        identity = json.loads(_read_text(path) or "{}")
    except ValueError:
        return 0.0
    value = identity.get("issued_at") if isinstance(identity, dict) else None
    return float(value) if isinstance(value, int | float) else 0.0
