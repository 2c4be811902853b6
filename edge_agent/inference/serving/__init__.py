"""Models in processes of their own: one for each model, forked by a *zygote* that has ONNX Runtime loaded.

``agent -> zygote -> servant``, one servant for each loaded model (ADR 23). ``codec`` has their messages;
``zygote`` and ``model_server`` are the processes; ``zygote_client``, ``channel`` and ``served_model`` are the
agent's side; ``variants`` finds the fastest variant of a model. Linux only.
"""
