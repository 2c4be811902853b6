"""What the terminal shows of the gateways at the end."""

from rich.table import Table

from lichen.demo.plans.mmfed3_hide.story import GraphStory, Scores


def table(story: GraphStory) -> Table:
    """One row a gateway: its facts, MRR with the fleet and alone, bytes beside float32."""
    made = Table("facts that nobody was told", box=None, padding=(0, 2, 0, 0))
    for column in ("facts", "entities", "MRR", "alone", "hits@10", "alone", "up, % of float32", "down, %"):
        made.add_column(column, justify="right")
    for one in story.gateways:
        up, down = one.share(lambda turn: turn.up), one.share(lambda turn: turn.down)
        made.add_row(
            one.name,
            str(one.last.triples if one.last else one.triples),
            str(one.entities),
            *_pair(one.scores, one.scores_alone),
            "" if up is None else f"{100 * up:.0f}",
            "" if down is None else f"{100 * down:.0f}",
        )
    return made


def _pair(fleet: Scores | None, alone: Scores | None) -> list[str]:
    cells = [f"{one.mrr:.3f}" if one else "" for one in (fleet, alone)]
    return cells + [f"{100 * one.hits10:.0f}" if one else "" for one in (fleet, alone)]
