"""The device's half of a rollout: a new model is tried where it will run, and stays or goes by itself.

``machine`` decides, as a table; ``health`` judges; ``book`` is what outlives a power cut; ``bundles`` are the
folders on disk. All but ``bundles`` and the reading of the book are pure. ``edge_agent.deployment.service``
acts.
"""
