"""What HidE and dual distillation are worth by themselves: controls, and features that differ by client."""

from typing import Final

from lichen_lab.benchmarks.studies.mmfed3_hide import variants as v
from lichen_lab.benchmarks.studies.mmfed3_hide.variants import Line, Part
from lichen_lab.benchmarks.study.part import lines

_RATE: Final = "r = 50 %"
UNDER: Final = f"{_RATE}, the same features at each client"
"""The main table's conditions. A name of their own: a stored figure replaces another of the same name."""
UNEVEN: Final = f"{_RATE}, features dealt unevenly"
ALPHA: Final = 0.1
"""The paper's."""
_METHODS: Final = (v.FEDE, v.MMFEDE, v.MMFEDE_HIDE, v.MMFED3, v.OURS)
REPLACED: Final = {f"{title}, own embeddings replaced each round": title for title in (v.MMFED3, v.OURS)}
"""As the paper's Algorithm 2 has it: no device keeps embeddings of its own."""
OWN: Final = f"{v.FEDE} with embeddings of its own"
"""Structure alone, two sets of embeddings, no distillation: what personal embeddings are worth."""
WEIGHTED: Final = f"{v.OURS}, the paper's fusion"
"""``weighted`` in place of ``gated``, which begins as structure alone and is not in the paper."""
_SHARED_PAIRS: Final = (
    (v.MMFEDE_HIDE, v.MMFEDE),
    (v.OURS, v.MMFED3),
    (v.MMFED3, v.MMFEDE),
    (v.OURS, v.MMFEDE_HIDE),
    (v.OURS, v.FEDE),
    *((title, v.MMFEDE_HIDE) for title in REPLACED if v.OURS in title),
    *((title, v.MMFEDE) for title in REPLACED if v.OURS not in title),
    *((kept, title) for title, kept in REPLACED.items()),
)


def _replaced(under: str, **more: float) -> tuple[Line, ...]:
    return tuple(
        Line(title, v.spec(*v.PLACES[kept], conditions={"own_rows": "replaced", **more}), under)
        for title, kept in REPLACED.items()
    )


PART: Final = Part(
    name="controls",
    place=10,
    title="HidE against none, embeddings of one's own against the fleet's, features that differ by client",
    variants=(
        *lines(v.line, _METHODS, {UNDER: {}}),
        *_replaced(UNDER),
        Line(WEIGHTED, v.spec(*v.PLACES[v.OURS], fusion="weighted"), UNDER),
        Line(OWN, v.spec(v.MMFED3, logits=0.0, feature=0.0, fusion="structure"), UNDER),
        *lines(v.line, _METHODS[1:], {UNEVEN: {"conditions": {"uneven": ALPHA}}}),
        *_replaced(UNEVEN, uneven=ALPHA),
        Line(
            WEIGHTED,
            v.spec(*v.PLACES[v.OURS], fusion="weighted", conditions={"uneven": ALPHA}),
            UNEVEN,
        ),
    ),
    versus=(*_SHARED_PAIRS, (v.OURS, WEIGHTED), (OWN, v.FEDE), (v.MMFED3, OWN)),
    by_default=False,
)
CLIENTS: Final = Part(
    name="clients",
    place=11,
    title="five and ten clients",
    variants=lines(
        v.line,
        (*_METHODS, v.S_IND),
        {f"{_RATE}, {count} clients": {"conditions": {"clients": count}} for count in (5, 10)},
    ),
    versus=_SHARED_PAIRS[:5],
    by_default=False,
    seeds=(0,),
)
BEYOND: Final = Part(
    name="beyond",
    place=15,
    title="one step beyond the paper: a fusion that begins at zero, five seeds",
    variants=tuple(
        Line(
            title,
            v.spec(*v.PLACES[v.OURS], conditions=conditions, fusion=fusion),
            f"{under}, five seeds",
        )
        for under, conditions in ((UNDER, {}), (UNEVEN, {"uneven": ALPHA}))
        for title, fusion in ((v.OURS, v.FUSION), (WEIGHTED, "weighted"))
    ),
    versus=((v.OURS, WEIGHTED),),
    by_default=False,
    seeds=(0, 1, 2, 3, 4),
)
"""The paper's fusion is ``weighted``."""
