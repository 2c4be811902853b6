"""Finds a provider in a model's process: one of ONNX Runtime's, or one of a package that is imported here.

Never in the agent: ``edge_agent.inference.providers.catalog`` asks a process.
"""

from collections.abc import Sequence
from typing import Any, Final

from edge_agent.inference.providers.kinds import (
    GROUP,
    Hardware,
    NoHardware,
    Provider,
    ProviderKind,
)
from edge_agent.inference.providers.known import kind_of
from models import packages
from protocol.errors import LichenError, Misconfigured, Reason, Refused
from protocol.tasks.network import Package

_MOST: Final = 300
"""Characters of a package's own words."""


def load_kind(provider: Provider) -> ProviderKind:
    """The kind of a provider; a package is imported after its version and hash were checked.

    Raises:
        Refused: the package is another one, cannot be imported, or gives no :class:`ProviderKind`.
    """
    if provider.package is None:
        return kind_of(provider.name)
    where = origin(provider.name, provider.package)
    try:
        found = packages.load_point(provider.package, GROUP, provider.name, where)
    except (Misconfigured, packages.ImportedBefore) as error:
        raise Refused(Reason.UNTRUSTED, str(error)) from None
    if not isinstance(found, ProviderKind):
        wanted = f"{ProviderKind.__module__}.ProviderKind"
        raise Refused(Reason.MALFORMED, f"{where} is a {type(found).__name__}, not a {wanted}")
    return found


def origin(name: str, package: Package) -> str:
    """Names a provider of a package, for messages."""
    return f"provider {name!r} of package {package.name} {package.version}"


def hardware_of(provider: Provider) -> tuple[ProviderKind, Hardware]:
    """The kind of a provider, and the accelerator that it finds.

    Raises:
        Refused: as :func:`load_kind`; or there is no accelerator.
    """
    kind = load_kind(provider)
    try:
        found = kind.look()
        if kind.library is not None:
            devices_of(kind)
    except NoHardware as error:
        raise Refused(Reason.MALFORMED, f"{error}"[:_MOST]) from None
    except LichenError:
        raise
    except Exception as error:  # noqa: BLE001 - a package's own code; its words go to the owner
        words = f"looking for the hardware failed: {type(error).__name__}: {error}"
        raise Refused(Reason.MALFORMED, words[:_MOST]) from None
    return kind, Hardware(str(found.device), {str(k): str(v) for k, v in found.versions.items()})


_registered: set[str] = set()


def devices_of(kind: ProviderKind) -> Sequence[Any]:
    """ONNX Runtime's devices of a provider's library, which is registered in this process.

    Raises:
        NoHardware: there is none.
    """
    import onnxruntime  # noqa: PLC0415 - an optional part, and slow to import

    if kind.library is not None and kind.provider not in _registered:
        onnxruntime.register_execution_provider_library(kind.provider, str(kind.library()))
        _registered.add(kind.provider)
    found = kind.devices([one for one in onnxruntime.get_ep_devices() if one.ep_name == kind.provider])
    if not found:
        raise NoHardware(f"ONNX Runtime finds no device for {kind.provider} here")
    return found
