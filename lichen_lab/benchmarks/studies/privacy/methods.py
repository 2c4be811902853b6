"""The run of each method of the study, by name. Imports torch."""

from collections.abc import Mapping
from typing import Final

from lichen_lab.benchmarks.studies.privacy import federation
from lichen_lab.benchmarks.studies.privacy.audit import (
    canaries,
    inversion,
    model_membership,
    prototype_membership,
    update_membership,
)
from lichen_lab.benchmarks.studies.privacy.fleets import PrivacyFleet
from lichen_lab.benchmarks.studies.privacy.settings import (
    CANARY,
    FEDAVG,
    INVERSION,
    MODEL,
    PROTOTYPES,
    UPDATE,
    PrivacyOutcome,
    PrivacySetting,
)
from lichen_lab.benchmarks.study.run_spec import Run

RUNS: Final[Mapping[str, Run[PrivacyFleet, PrivacySetting, PrivacyOutcome]]] = {
    FEDAVG: federation.train,
    CANARY: canaries.audit,
    MODEL: model_membership.attack,
    UPDATE: update_membership.attack,
    PROTOTYPES: prototype_membership.attack,
    INVERSION: inversion.attack,
}
