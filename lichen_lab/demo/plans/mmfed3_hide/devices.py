"""The sites of a fleet that completes a graph: their relations, and the task.

UMLS relates kinds of medical concepts. Here each site has relations that no other has, about concepts that
others have too.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lichen_lab.demo.core.scenario import Layout
from lichen_lab.simulation.data.sets import small_graphs
from protocol.tasks.links import Uplink
from protocol.tasks.options import Features, KnowledgeGraphTask
from protocol.tasks.rounds import Rounds
from protocol.tasks.task import Task

TASK_NAME: Final = "umls-sites"
TEXT: Final = small_graphs.TEXT
TEXT_WIDTH: Final = 32
TEXT_SHARE: Final = 0.5
"""Share of a site's entities that have text (r of the paper's tables)."""
TRIPLES: Final = "facts.tsv"
TEXT_FILE: Final = "text.npz"
QUESTIONS: Final = 8
"""Questions to each gateway."""
TOP_K: Final = 25
"""Answers of the model, known facts included."""
POLL_S: Final = 0.5
JUDGE_SHARE: Final = 0.1
"""Share of its own facts that a gateway judges its model on and never trains on."""

CONFIG: Final = {
    "dim": 64,
    "epochs": 3,
    "lr": 0.015,
    "batch": 512,
    "negatives": 64,
    "warmup_rounds": 2,
    "rows_share": 0.5,
    "validation": JUDGE_SHARE,
}
ALONE: Final = {"fusion": "structure", "imputer": "none", "dual": False, "warmup_rounds": 0, "lr": 0.03}
"""S-Ind, as changes of ``CONFIG``: structure alone, no fleet, at the best learning rate that was tried."""


@dataclass(frozen=True)
class DemoSite:
    """One gateway."""

    name: str
    relations: tuple[str, ...]
    about: str
    """Its relations, in words."""
    later: tuple[str, ...] = ()
    """Entities that it gets while the fleet runs, with all facts that name them."""
    late: bool = False
    """It joins while the fleet runs."""
    first: tuple[tuple[str, str], ...] = ()
    """Questions that come before all others."""


SITES: Final = (
    DemoSite(
        "anatomy",
        ("isa", "location_of", "part_of", "process_of", "property_of", "adjacent_to", "connected_to",
         "consists_of", "contains", "surrounds", "interconnects", "conceptual_part_of",
         "developmental_form_of"),
        "what is where, and part of what",
    ),
    DemoSite(
        "laboratory",
        ("measures", "analyzes", "diagnoses", "evaluation_of", "measurement_of", "assesses_effect_of", "uses",
         "carries_out", "performs", "practices", "method_of", "degree_of", "exhibits", "precedes"),
        "what measures and shows what",
    ),
    DemoSite(
        "ward",
        ("treats", "prevents", "complicates", "manages", "manifestation_of", "co-occurs_with", "occurs_in",
         "associated_with", "indicates", "result_of"),
        "what treats, prevents and complicates what",
        later=("antibiotic", "pharmacologic_substance", "hormone", "vitamin"),
        first=(("antibiotic", "treats"), ("pharmacologic_substance", "treats")),
    ),
    DemoSite(
        "pharmacy",
        ("affects", "interacts_with", "disrupts", "causes", "produces", "ingredient_of", "derivative_of",
         "issue_in", "conceptually_related_to"),
        "what acts on what",
        late=True,
    ),
)  # fmt: skip


def task(rounds: int, *, seed: int = 0, **config: Any) -> Task:
    """What the fleet learns: tails of facts, from structure and text."""
    return Task(
        name=TASK_NAME,
        method="mmfed3_hide",
        graph=KnowledgeGraphTask(
            features=(Features(name=TEXT, dim=TEXT_WIDTH),),
            top_k=TOP_K,
            max_entities=1000,
            max_relations=100,
            max_triples=20_000,
        ),
        rounds=Rounds(
            count=rounds,
            deadline_s=60.0,
            quorum=1.0,
            min_devices=sum(not site.late for site in SITES),
            min_windows=100,
        ),
        uplink=Uplink(codec="int8", error_carry=True),
        config={**CONFIG, **config},
        seed=seed,
    )


def growing() -> DemoSite:
    """The site that gets further facts."""
    return next(site for site in SITES if site.later)


def grow_round(rounds: int) -> int:
    """The round after which a site gets further facts."""
    return max(1, math.ceil(rounds / 3))


def join_round(rounds: int) -> int:
    """The round after which the late site joins."""
    return max(1, rounds // 2)


def folder(layout: Layout, name: str) -> Path:
    """Folder of a site's own files."""
    return layout.root / "sites" / name
