"""Predictions of agents, for programs in Python.

    from lichen.client import predictions

    for said in predictions("mqtt://127.0.0.1/lichen/+"):
        print(said.source, said.label, said.confidence, said.missing)

Imports the standard library alone; paho-mqtt where a broker is listened to. docs/predictions.md explains it.
"""

from lichen.client.follow import Predictions, predictions
from lichen.client.prediction import Answer, Found, Prediction, parse
from lichen.client.recorded import read

__all__ = ["Answer", "Found", "Prediction", "Predictions", "parse", "predictions", "read"]
