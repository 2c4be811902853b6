"""What of the options a round goes by, and how the networks are sized. Imports torch."""

from models.knowledge_graph.networks.fusion import FUSIONS, FixedWeights, Fusion
from models.knowledge_graph.networks.imputation import ImputerSettings
from models.knowledge_graph.networks.triple_scores import SCORES, Score
from models.knowledge_graph.training.known_answers import KnownAnswers
from models.knowledge_graph.training.negatives import Draw, Private, Shared
from models.methods.mmfed3_hide import MmFed3Config

_DIVISORS = (1, 2, 4)
"""An imputer's layers have D numbers, then half, then a quarter; the paper's 512, 256, 128 at D = 512."""


def in_round(config: MmFed3Config, round_: int) -> MmFed3Config:
    """The options of a round: in the first ones, those of structure alone (FedE)."""
    if round_ <= config.warmup_rounds:
        off = {
            "fusion": "structure",
            "fusion_weight": None,
            "imputer": "none",
            "dual": False,
            "prox": 0.0,
            "contrast": 0.0,
        }
        return config.model_copy(update=off)
    return config.model_copy(update={"imputer": "none"}) if config.fusion == "structure" else config


def score_of(config: MmFed3Config) -> Score:
    """F."""
    return SCORES[config.score](config.dim, config.gamma)


def settings_of(config: MmFed3Config) -> ImputerSettings:
    """Of the imputer."""
    return ImputerSettings(
        widths=tuple(max(2, config.dim // divisor) for divisor in _DIVISORS),
        denoiser=config.denoiser,
        steps=config.steps,
        gradient_steps=config.gradient_steps,
        scale=config.noise_scale,
        unit=config.span,
    )


def fusion_of(config: MmFed3Config, parts: int) -> Fusion:
    """Phi of P parts."""
    if config.fusion_weight is not None:
        return FixedWeights(parts, config.dim, config.fusion_weight)
    return FUSIONS[config.fusion](parts, config.dim)


def draw_of(config: MmFed3Config, known: KnownAnswers) -> Draw:
    """Of negatives."""
    return (Shared if config.negatives_of == "batch" else Private)(config.negatives, known)


def views_of(config: MmFed3Config, modalities: int) -> int:
    """V, embeddings of an entity that are scored apart."""
    return 1 + modalities if config.fusion == "split" else 1
