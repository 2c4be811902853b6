"""The keys of ``[infer]`` about accelerators (docs/accelerators.md)."""

from typing import Annotated

from pydantic import Field

from protocol.tasks.network import Package
from runtime.settings.load import Section


class ProviderPackage(Package):
    """``[[infer.packages]]``: a package whose providers may run models here; unknown keys are refused."""

    model_config = Section.model_config


class AcceleratorSettings(Section):
    """Which accelerators may run models, and limits of compiling for them."""

    packages: Annotated[tuple[ProviderPackage, ...], Field(max_length=8)] = ()
    """``[[infer.packages]]``: Python packages whose providers may run models, with version and hash as
    ``lichen task package NAME`` prints them. Their code runs in models' processes."""
    options: Annotated[dict[str, dict[str, str]], Field(max_length=8)] = Field(default_factory=dict)
    """``[infer.options.NAME]``: options of a provider, as ONNX Runtime documents them."""
    compile_timeout_s: Annotated[float, Field(gt=0, le=86400)] = 1800.0
    """A provider that takes longer to compile a model is not used for it."""
    engine_bytes: Annotated[int, Field(ge=64 * 1024, le=2**40)] = 512 * 1024 * 1024
    """Compiled models in ``cache_dir/engines``; those that were not used for longest are removed."""
