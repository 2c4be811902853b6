"""Settings from environment variables, by pydantic-settings."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_settings import EnvSettingsSource, SettingsError

from protocol.errors import Misconfigured


class _Environment(EnvSettingsSource):
    """pydantic-settings' parser of variables, over a mapping that is passed in."""

    def __init__(self, model: type[BaseModel], prefix: str, environ: Mapping[str, str]) -> None:
        self._given = {key.lower(): value for key, value in environ.items()}
        # It reads only model_fields and model_config of the class, which a Section has.
        super().__init__(
            model,  # type: ignore[arg-type]
            case_sensitive=False,
            env_prefix=prefix,
            env_nested_delimiter="__",
        )

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return self._given


def variables(model: type[BaseModel], prefix: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """The variables of a prefix as nested tables of strings.

    Raises:
        Misconfigured: one names an unknown section, or is not valid JSON where JSON is needed.
    """
    _check(model, prefix, environ)
    try:
        return _Environment(model, prefix, environ)()
    except SettingsError as error:
        field = str(error).split('"')[1] if '"' in str(error) else "?"
        name = prefix + field.upper()
        raise Misconfigured(
            f"environment variable {name} (or below): not valid JSON: {error.__cause__}"
        ) from None


def _check(model: type[BaseModel], prefix: str, environ: Mapping[str, str]) -> None:
    """A misspelt section in a variable is an error too; pydantic-settings would ignore it."""
    for name in environ:
        if not name.upper().startswith(prefix) or "__" not in name[len(prefix) :]:
            continue
        section = name[len(prefix) :].split("__")[0].lower()
        if section not in model.model_fields:
            known = ", ".join(sorted(model.model_fields))
            raise Misconfigured(f"environment variable {name}: no section {section!r}; there are {known}")
