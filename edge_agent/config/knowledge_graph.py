"""``[graph]`` of ``agent.toml``."""

from typing import Annotated

from pydantic import Field

from protocol.tasks.options import FeatureName
from runtime.settings.load import ConfigPath, Section

Positive = Annotated[float, Field(gt=0, le=86400)]


class KnowledgeGraphSettings(Section):
    """``[graph]``: the device's facts, for tasks on knowledge graphs. Changed files are read again."""

    triples: Annotated[tuple[ConfigPath, ...], Field(min_length=1, max_length=256)]
    """Files of facts (head, relation, tail, separated by tabs), or folders whose ``*.tsv`` all count."""
    features: Annotated[dict[FeatureName, ConfigPath], Field(max_length=15, default_factory=dict)]
    """By modality of the task, an npz with ``entity`` and ``values``."""
    masks: ConfigPath | None = None
    """An npz with ``entity``, ``modality`` and ``present``: the entities whose features may be used."""
    secret_file: ConfigPath | None = None
    """The secret of the fleet's devices, which the coordinator does not have; made by ``lichen agent
    secret``. None: ``fleet.secret`` in ``state_dir/identity``."""
    queries: ConfigPath | None = None
    """Questions, as (head, relation) lines separated by tabs; appended lines are new questions."""
    poll_s: Positive = 5.0
    """Seconds between two checks for changed files."""
