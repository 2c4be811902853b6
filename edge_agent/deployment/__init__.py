"""The device's part of a rollout: a new model is tried on the device, and then committed or rolled back.

``state_machine`` decides, as a table; ``health`` evaluates a trial; ``record`` survives a power cut;
``bundle_store`` holds the folders on disk. All but ``bundle_store`` are pure.
``edge_agent.deployment.service`` and ``executor`` act.
"""
