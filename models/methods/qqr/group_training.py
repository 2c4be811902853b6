"""Which of QQR's devices train at once (:mod:`models.training.supervised_groups`). Imports torch.

If all windows are complete and of good quality, nothing is imputed (18, 19), and (22) is the task's loss
(20).
"""

from models.contract import WindowSet
from models.methods.qqr import QqrConfig
from models.methods.qqr.local_training import Globals
from models.multimodal.network import MultimodalNetwork
from models.multimodal.stacked import stacking_trouble
from models.training import supervised_groups


def group_trouble(net: MultimodalNetwork, config: QqrConfig) -> str:
    """Why devices of a task cannot train at once, in words; empty: they can."""
    if config.upload == "prototypes":
        return 'config.upload = "prototypes": devices train nothing'
    if config.model_every > 1:
        return f"config.model_every = {config.model_every}: devices begin from weights of their own"
    if config.modality_dropout:
        return f"config.modality_dropout = {config.modality_dropout}: windows of a batch lack modalities"
    return stacking_trouble(net)


def fits(net: MultimodalNetwork, known: Globals, windows: WindowSet) -> bool:
    """Whether a device can train in a group: its windows are complete, of good quality, and fit in memory."""
    return bool(known.high_quality(windows.quality_BM).all()) and supervised_groups.fits(net, windows)
