"""The coordinator: enrol, select, receive, aggregate, register, roll out (docs/architecture.md).

Never imports torch or onnx: work that needs them (initial model, evaluation, export) runs in a child process.
"""
