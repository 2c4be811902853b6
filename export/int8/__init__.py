"""Quantization of an exported model to int8."""
