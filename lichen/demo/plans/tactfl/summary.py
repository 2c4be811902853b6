"""What the terminal shows of the devices at the end."""

from rich.table import Table

from lichen.demo.plans.tactfl.story import UnlabelledStory


def table(story: UnlabelledStory) -> Table:
    """One row a device: its weight in the last round by part, in percent, and beside the equal share."""
    made = Table("weights of the last round, %", box=None, padding=(0, 2, 0, 0))
    made.add_column("device")
    made.add_column("person, sensors")
    last = story.weighed[-1].weights if story.weighed else {}
    for part in last:
        made.add_column(part, justify="right")
    made.add_column("of an equal share", justify="right")
    for device in story.devices:
        shares = [
            f"{100 * last[part][device.name]:.1f}" if device.name in last[part] else "" for part in last
        ]
        relative = story.relative(device.name)
        made.add_row(
            device.name,
            f"{device.people[0]}, {device.trouble}",
            *shares,
            "" if relative is None else f"{relative:.2f}",
        )
    return made
