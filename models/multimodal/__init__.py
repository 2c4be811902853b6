"""Networks of several sensor modalities: one encoder each, features of one size, one head."""
