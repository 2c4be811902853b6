"""A model's process has no way to the device's secrets, whatever its model does."""

import json
from pathlib import Path

import numpy as np
import pytest

from runtime.process import landlock
from tests.support.agent.predicting import predicting
from tests.support.agent.serving import inference, judged, put, watched
from tests.support.fuzz.corpus import CORPUS
from tests.support.fuzz.models import DEVICE_KEY, naming
from tests.support.python import python
from tests.support.services import until

ROOT = Path(__file__).parents[5]
FEATURE = (CORPUS / "closed_graph" / "feature.onnx").read_bytes()
KEY = np.full(64, 7.5, np.float32).tobytes()
CHILD = """
import asyncio, json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import numpy as np
from edge_agent.inference.onnx_models import session as onnx_session
from edge_agent.inference.serving import model_server as servant
from edge_agent.inference.serving.zygote_client import ZygoteClient
from runtime.process import landlock

state, act = Path(sys.argv[2]), sys.argv[3]
os.chdir(state)
onnx_session.require_safe_model = lambda data, what: None  # as if it had a hole

def tried(name):
    try:
        return Path(name).read_bytes().decode("latin-1")
    except OSError as error:
        return type(error).__name__

def looking(self, header, given):
    answer, arrays = servant.ModelServer.open(self, header, given)
    if act == "later":
        os.write(wants, b"x")
        os.read(has, 1)
    names = ("identity/device.pem", str(state / "identity/device.pem"), str(state / "fleet.secret"))
    more = (str(state / "private/work.npz"), str(state / "models/a/model.onnx"), "/etc/hostname")
    return {**answer, "found": json.dumps({name: tried(name) for name in (*names, *more)})}, arrays

servant._DO["open"] = looking
if act == "lacking":
    landlock.version = lambda: 0
zygote = ZygoteClient()
(wanted, wants), (has, gives) = os.pipe(), os.pipe()
zygote.fork()

def train():
    os.read(wanted, 1)
    (state / "private").mkdir(exist_ok=True)
    (state / "private/work.npz").write_bytes(np.full(64, 7.5, np.float32).tobytes())
    os.write(gives, b"x")

async def main():
    answers = []
    for _ in range(2 if act == "lacking" else 1):
        answers.append(await opened())
    print("ANSWERS " + json.dumps(answers))
    await zygote.aclose()

async def opened():
    if act == "later":
        asyncio.get_running_loop().run_in_executor(None, train)
    pid, channel = await zygote.channel()
    asked = {"op": "open", "threads": 1}
    arrays = {}
    if act == "feature":
        arrays = {"graph": np.frombuffer(Path("hostile.onnx").read_bytes(), np.uint8)}
    else:
        private = str(state / "private") if act in {"blended", "later"} else None
        asked |= {"folder": str(state / "models/a"), "file": "model.onnx", "private": private}
        asked |= {"provider": "CPUExecutionProvider"}
    answer, _ = await channel.ask(asked, arrays, 60)
    channel.close()
    zygote.end(pid)
    return answer

asyncio.run(main())
"""
pytestmark = pytest.mark.skipif(
    not landlock.version(), reason="SKIPPED LOUDLY: this kernel has no Landlock, nothing is shown of it"
)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A device's, with what nobody may read."""
    for name in (DEVICE_KEY, "fleet.secret", "private/work.npz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(KEY)
    put(tmp_path / "models" / "a")
    (tmp_path / "hostile.onnx").write_bytes(naming(FEATURE))
    return tmp_path


def opened(state: Path, act: str) -> tuple[list[dict], str]:
    """What its processes answered, and the log."""
    done = python("-c", CHILD, str(ROOT), str(state), act)
    said, _, answers = done.stdout.partition("ANSWERS ")
    return json.loads(answers), said + done.stderr


@pytest.mark.parametrize("act", ["plain", "blended"])
def test_a_model_s_process_cannot_open_what_is_the_device_s(state: Path, act: str) -> None:
    (answer,), _ = opened(state, act)
    found = json.loads(answer["found"])
    key, below = str(state / DEVICE_KEY), f"{state}/"
    assert found.pop(DEVICE_KEY) == "FileNotFoundError"  # it stands in an empty folder
    private = found.pop(below + "private/work.npz")
    assert private == (KEY.decode("latin-1") if act == "blended" else "PermissionError")
    assert found.pop(below + "models/a/model.onnx") not in {"PermissionError", "FileNotFoundError"}
    assert found == dict.fromkeys((key, below + "fleet.secret", "/etc/hostname"), "PermissionError")


def test_tensors_that_training_writes_later_are_read(state: Path) -> None:
    """A device that has not trained yet has no folder for them."""
    (state / "private" / "work.npz").unlink()
    (state / "private").rmdir()
    (answer,), _ = opened(state, "later")
    assert json.loads(answer["found"])[str(state / "private/work.npz")] == KEY.decode("latin-1")


def test_a_feature_graph_that_got_past_the_look_finds_no_file(state: Path) -> None:
    """ONNX Runtime would read it: the file is below the folder that the agent stands in."""
    (answer,), _ = opened(state, "feature")
    assert "found" not in answer
    assert "does not load" in answer["words"]


async def test_a_folder_may_be_named_from_where_the_agent_stands(state: Path, monkeypatch) -> None:
    """Its processes stand elsewhere."""
    monkeypatch.chdir(state)
    async with predicting(inference()) as running:
        running.activate(await running.load(Path("models/a")))
        seen = watched(running)
        running.enqueue(judged())
        await until(lambda: seen)
        assert not seen[0].error


def test_where_the_kernel_lacks_it_models_run_and_the_log_says_so_once(state: Path) -> None:
    answers, said = opened(state, "lacking")
    assert len(answers) == 2
    for answer in answers:
        found = json.loads(answer["found"])
        assert found[DEVICE_KEY] == "FileNotFoundError"
        assert found[str(state / DEVICE_KEY)] == KEY.decode("latin-1")
    assert said.count("landlock_missing") == 1
