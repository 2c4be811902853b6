"""Encoders of one modality: a window ``x_BCT`` (batch, channels, time or pixels) to a feature ``z_BD``.

One file a family; ``registry`` names them. All hold BatchNorm, the transformer at its input: with the plain
SGD that federated methods use (learning rate .08) encoders stay at chance without it.
"""
