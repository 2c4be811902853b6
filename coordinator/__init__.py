"""The coordinator: enrol, select, receive, aggregate, register, roll out (docs/architecture.md).

Never imports torch or onnx: what needs them (a fresh model, evaluation, export) runs in a child process.
"""
