"""Fashion-MNIST: 10 kinds of clothing, 28 x 28 grey values, in MNIST's files and split.

H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms, 2017, arXiv:1708.07747.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lichen_lab.simulation.data.access.split import Part
from lichen_lab.simulation.data.sets import av_mnist

FOLDER: Final = "fashion_mnist"
LABELS: Final = (
    "T-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def images(part: Part) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (B, 28, 28) and kinds (B,) of the 60,000 or 10,000, from idx files, gzipped or not.

    Raises:
        Misconfigured: they are not here, or not what they should be.
    """
    return av_mnist.images(part, FOLDER)
