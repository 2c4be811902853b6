"""The coordinator: enrol, select, receive, aggregate, register, roll out (DESIGN sections 3 to 6).

Never imports torch or onnx: what needs them (a fresh model, evaluation, export) runs in a child process.
"""
