"""What a payload weighs as an MQTT message."""


def publish_bytes(topic: str, payload: int) -> int:
    """Bytes of one MQTT 5 PUBLISH at QoS 1 (MQTT 5.0, section 3.3): all that goes into the TCP stream.

    Type byte, remaining length (1 to 4 bytes), topic with its 2-byte length, packet identifier (2), length
    of no properties (1), payload.
    """
    remaining = 2 + len(topic.encode()) + 2 + 1 + payload
    length = 1 + sum(remaining >= limit for limit in (1 << 7, 1 << 14, 1 << 21))
    return 1 + length + remaining
