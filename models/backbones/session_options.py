"""How ONNX Runtime runs models: the same way everywhere, so that features are the same."""

from typing import Any, Final

FORMAT: Final = ("session.load_model_format", "ONNX")
"""Otherwise the first bytes, or the file name's ending, may select ONNX Runtime's own format, which is not
checked."""


def session_options(threads: int) -> Any:
    """Options of a session.

    Args:
        threads: of an operator.

    Raises:
        ImportError: ONNX Runtime is not installed.
    """
    import onnxruntime  # noqa: PLC0415 - an optional part, and slow to import

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # an arena keeps the memory of the largest run
    options.log_severity_level = 3
    options.add_session_config_entry(*FORMAT)
    return options
