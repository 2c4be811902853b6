"""The task on FedAvg's page runs as it stands, and is the one in examples."""

import re
import tomllib
from pathlib import Path

from models.methods.fedavg import METHOD
from protocol.tasks.task import Task

ROOT = Path(__file__).resolve().parents[5]


def test_fedavg_the_task_on_the_page_is_the_example_and_fits_the_method() -> None:
    page = (ROOT / "docs" / "methods" / "fedavg.md").read_text()
    (block, *_) = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    table = tomllib.loads(block)
    assert table == tomllib.loads((ROOT / "examples" / "fedavg.toml").read_text())
    task = Task.model_validate(table, strict=False)
    assert METHOD.configure(task).lr == table["config"]["lr"]


def test_fedavg_the_page_names_every_option() -> None:
    page = (ROOT / "docs" / "methods" / "fedavg.md").read_text()
    options = page.partition("## Options")[2].partition("## FedAvg")[0]
    lacking = [name for name in METHOD.config.model_fields if f"`{name}`" not in options]
    assert not lacking
