from lichen.api.fleet import Fleet as Fleet
from lichen.api.rows import Rows as Rows
from lichen.api.simulation import Simulation as Simulation
from lichen.api.simulation import simulate as simulate
from protocol.errors import LichenError as LichenError
from protocol.errors import Misconfigured as Misconfigured
from protocol.errors import Refused as Refused
from protocol.errors import Transient as Transient
