"""Evaluates the models that this device runs on windows that it holds back from learning."""
