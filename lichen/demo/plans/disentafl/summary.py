"""What the terminal shows of the devices at the end."""

from rich.table import Table

from lichen.demo.plans.disentafl.cast import IN_WORDS
from lichen.demo.plans.disentafl.story import RoutedStory, WatchStory


def table(story: RoutedStory) -> Table:
    """One row a device; scores in percent, r2 in hundredths, with the fleet and alone."""
    made = Table("on people nobody trained on", box=None, padding=(0, 2, 0, 0))
    made.add_column("reads and learns")
    for target in story.targets:
        made.add_column(f"{IN_WORDS[target]} (alone)", justify="right")
    made.add_column("down a round", justify="right")
    for device in story.devices:
        cells = [_cell(device, target) for target in story.targets]
        made.add_row(device.name, device.kind, *cells, _down(device, story))
    return made


def _cell(device: WatchStory, target: str) -> str:
    score, alone = device.scores.get(target), device.alone.get(target)
    if score is None:
        return ""
    return f"{100 * score:.0f} ({100 * alone:.0f})" if alone is not None else f"{100 * score:.0f}"


def _down(device: WatchStory, story: RoutedStory) -> str:
    if device.down is None or not story.supernet:
        return "observes" if device.observes else ""
    return f"{device.down / 1000:.0f} kB, {100 * device.down / story.supernet:.0f} %"
