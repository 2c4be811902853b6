async def test_x(broker, broker_v3, mosquitto):
    assert broker.port and mosquitto.port
