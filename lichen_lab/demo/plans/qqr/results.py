"""Further results of QQR's demo: devices, rollouts, simulated seeds, sizes."""

from dataclasses import dataclass, field

from lichen_lab.demo.core.results import DeviceResults, WindowResults
from lichen_lab.demo.plans.qqr.simulated_seeds import SeedLine
from lichen_lab.demo.rollout.results import RolloutResults


@dataclass
class Sizes:
    """Bytes on the wire, MQTT and CBOR headers included."""

    prototypes_4bit: int
    delta_int8: int
    """A full update: the model's delta at int8, with its 4-bit prototypes."""
    delta_float32: int
    """The same update, all of it in float32."""
    parameters: int
    """The model's parameters alone in float32: no names, headers or prototypes (as ``lichen bench wire``)."""

    @property
    def ratio(self) -> float:
        """The int8 update as a share of the same one in float32."""
        return self.delta_int8 / self.delta_float32

    @property
    def ratio_to_parameters(self) -> float:
        """The int8 update as a share of the bare parameters in float32."""
        return self.delta_int8 / self.parameters


@dataclass(kw_only=True)
class QqrResults(WindowResults):
    """All results."""

    devices: list[DeviceResults] = field(default_factory=list)
    rollout: RolloutResults | None = None
    study: list[SeedLine] = field(default_factory=list)
    sizes: Sizes | None = None

    @property
    def alone(self) -> list[float]:
        """Accuracies of devices trained alone."""
        return [d.alone for d in self.devices if d.alone is not None]
