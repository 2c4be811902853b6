"""``[infer.mqtt]`` of ``agent.toml``."""

from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from runtime.settings.load import BrokerSettings, MqttSettings

_DEVICE = "{device}"


class PublishSettings(BrokerSettings):
    """Where predictions are published: any broker on the site, other than the fleet's."""

    topic: Annotated[str, Field(min_length=1, max_length=200)] = "lichen/{device}"
    """``{device}`` stands for the device's name. Below it: ``prediction`` and ``availability``."""
    every_s: Annotated[float, Field(ge=0, le=86400)] = 0.0
    """At most one prediction in this time, always the newest; 0: every one."""
    retain: bool = False
    """Keep the last prediction on the broker for later subscribers."""
    home_assistant: bool = False
    """Announce a sensor for each target by MQTT discovery."""
    discovery_prefix: Annotated[str, Field(min_length=1, max_length=100)] = "homeassistant"
    birth_topic: Annotated[str, Field(min_length=1, max_length=200)] = "homeassistant/status"
    """The topic on which Home Assistant sends ``online`` when it has started."""
    labels: bool = False
    """Accept labels of stored windows from this broker; with ``home_assistant``, announce what gives them."""
    expire_after_s: Annotated[int, Field(ge=0, le=86400)] = 0
    """After this long without a prediction Home Assistant shows ``unavailable``; 0: never."""

    @field_validator("topic")
    @classmethod
    def _has_only_the_device(cls, topic: str) -> str:
        rest = topic.replace(_DEVICE, "")
        if "{" in rest or "}" in rest:
            raise ValueError(f"only {_DEVICE} is filled in; write no other braces")
        return topic

    @field_validator("topic", "discovery_prefix", "birth_topic")
    @classmethod
    def _is_one_topic(cls, topic: str) -> str:
        if any(c in topic for c in "+#\x00"):
            raise ValueError("it must name one topic: without the wildcards + and #, and without NUL")
        if topic.startswith(("/", "$")) or topic.endswith("/"):
            raise ValueError(
                "a topic must not begin or end with a slash, nor begin with $ (reserved for the broker)"
            )
        return topic

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if 0 < self.expire_after_s <= self.every_s:
            raise ValueError(
                "expire_after_s is not above every_s: the sensors would be unavailable in between"
            )
        return self

    def of_task(self, name: str) -> Self:
        """The same for a further task of the device: its topics begin with ``<topic>/<name>``."""
        return self.model_copy(update={"topic": f"{self.topic}/{name}"})

    def base(self, device: str) -> str:
        """The prefix of all topics of a device."""
        return self.topic.replace(_DEVICE, device)

    def link(self) -> MqttSettings:
        """Settings of the connection."""
        return self.link_with(backoff_max_s=30.0)
