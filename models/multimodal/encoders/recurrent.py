"""The encoder ``lstm``."""

from collections.abc import Sequence

from torch import Tensor, nn

from models.multimodal.encoders.steps import BatchNorm, ModalityEncoder, Step


class Lstm(ModalityEncoder):
    """BatchNorm of the input, stacked LSTM layers, the mean over time, BatchNorm, a linear layer.

    The mean over time, rather than the last hidden state, lets plain SGD reach every time step: on UCI-HAR's
    gyroscope alone ten epochs over 2,000 windows gave 0.48 accuracy against 0.38. BatchNorm after it, rather
    than on every time step, gave 0.48 against 0.43, for less work.

    Args:
        channels: C of the input.
        samples: T of the task's windows.
        width: hidden units of every layer.
        depth: number of stacked layers.
        feature_dim: D of the output.
    """

    any_length = True

    def __init__(self, channels: int, samples: int, width: int, depth: int, feature_dim: int) -> None:
        super().__init__()
        self.norm_in = BatchNorm(channels)
        self.lstm = nn.LSTM(channels, width, num_layers=depth, batch_first=True)
        self.norm_out = BatchNorm(width)
        self.fc = nn.Linear(width, feature_dim)
        self.window_values = samples * max(channels, width)

    def steps(self) -> Sequence[Step]:
        """What a window goes through, each BatchNorm a step of its own."""
        return [self.norm_in, self._mean_hidden, self.norm_out, self.fc]

    def _mean_hidden(self, x_BCT: Tensor) -> Tensor:
        hidden_BTH: Tensor = self.lstm(x_BCT.transpose(1, 2))[0]
        return hidden_BTH.mean(dim=1)
