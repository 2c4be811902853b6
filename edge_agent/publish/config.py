"""``[infer.mqtt]`` of ``agent.toml``."""

from typing import Annotated, Literal

from pydantic import Field

from runtime.settings import ConfigPath, Section, TlsSettings


class PublishSettings(Section):
    """Where predictions are published: any broker on the site, not the fleet's."""

    host: Annotated[str, Field(min_length=1, max_length=253)] = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 1883
    protocol: Literal["5", "3.1.1"] = "5"
    username: str | None = None
    password_file: ConfigPath | None = None
    """The first line is the password."""
    tls: TlsSettings | None = None
    topic: Annotated[str, Field(pattern=r"^[^+#\x00]{1,200}$")] = "lichen/{device}"
    """``{device}`` stands for the device's name. Below it: ``prediction`` and ``availability``."""
    every_s: Annotated[float, Field(ge=0, le=86400)] = 0.0
    """At most one prediction in this time, always the newest; 0: each."""
    retain: bool = False
    """Keep the last prediction on the broker for who subscribes later."""
    home_assistant: bool = False
    """Announce a sensor for each target by MQTT discovery."""
    discovery_prefix: Annotated[str, Field(pattern=r"^[^+#\x00]{1,100}$")] = "homeassistant"
    birth_topic: Annotated[str, Field(pattern=r"^[^+#\x00]{1,200}$")] = "homeassistant/status"
    """Where Home Assistant says ``online`` when it has started."""
    expire_after_s: Annotated[int, Field(ge=0, le=86400)] = 0
    """Without a prediction for so long Home Assistant shows ``unavailable``; 0: never."""
