"""Central differential privacy: accuracy against epsilon, and how the recipe was chosen."""

from typing import Final

from lichen_lab.benchmarks.studies.privacy import variants as v
from lichen_lab.benchmarks.studies.privacy.settings import SPAR
from lichen_lab.benchmarks.studies.privacy.variants import NOISE, Part, line

_PLAIN: Final = "without protection"

CENTRAL: Final = Part(
    name="central",
    place=1,
    title="FedAvg under [privacy]: accuracy against epsilon, delta 0.001",
    variants=(
        *(line(title, noise) for title, noise in NOISE.items()),
        *(line(title, noise, v.TABLE_OF_SPAR, fleet=SPAR, shards=40) for title, noise in NOISE.items()),
    ),
    versus=tuple((title, _PLAIN) for title in NOISE if title != _PLAIN),
)
TUNE: Final = Part(
    name="central_tune",
    title="learning rate and clip, on people who train",
    variants=(
        *(
            line(title, NOISE[title], f"lr {lr:g}", tuning=True, config={**v.TRAINING, "lr": lr})
            for title in (_PLAIN, "epsilon 4", "epsilon 1")
            for lr in (0.1, 0.3)
        ),
        line("epsilon 4", NOISE["epsilon 4"], "lr 0.3, clip 0.5", tuning=True, clip=0.5),
    ),
    by_default=False,
    seeds=v.TUNING_SEEDS,
)
