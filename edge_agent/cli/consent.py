"""``lichen agent consent``."""

from edge_agent.cli.options import DEFAULT_CONFIG, Config, TaskOption, read_task_settings
from edge_agent.tasks.consent import CONSENT_FILE, ConsentRecord
from protocol.errors import LichenError
from runtime.cli import Format, FormatOption, fail, print_result
from runtime.process.run_as_owner import run_as_owner


def consent(
    config: Config = DEFAULT_CONFIG, task_name: TaskOption = None, output: FormatOption = Format.TABLE
) -> None:
    """Take the task although it protects this device less than before. The agent asks for it in its status.

    It counts from the agent's next start. The floors of [privacy] in agent.toml hold in any case.
    """
    try:
        settings = read_task_settings(config, task_name)
        with run_as_owner(settings.state_dir):
            withheld = ConsentRecord(settings.state_dir / CONSENT_FILE).forget_all()
    except LichenError as error:
        fail("lichen agent consent", error, output)
    words = [
        f"consented anew: {name}: {why or 'its next announcement is taken'}" for name, why in withheld.items()
    ]
    print_result(
        output,
        {"tasks": withheld},
        "\n".join([*(words or ["no task was taken yet: nothing to consent to"]), "Restart the agent."]),
    )
