"""Models in processes of their own: one for each model, forked by a *zygote* that has ONNX Runtime loaded.

``agent -> zygote -> servant``, one servant for each loaded model (ADR 23). ``wire`` is what they say to each
other, ``zygote`` and ``servant`` are the processes, ``parent``, ``channel`` and ``served`` the agent's side,
``choose`` and ``measure`` find the fastest variant of a model. Linux only.
"""
