"""A private fold on a cluster's child: the job has the round's table and key, and gives the same bytes."""

from coordinator.compute.fold_job import FoldJob, read_job, write_job
from models.privacy.noisy_fold import RoundNoise
from protocol.frames.frame import Limits
from protocol.tasks.folding import Privacy
from tests.support.coordinator.fake import tiny_task

PRIVACY = Privacy(clip=2.5, noise_multiplier=0.5)
KEY = bytes(range(32))


def test_a_fold_job_has_the_clip_of_its_round_and_the_key(tmp_path) -> None:
    task = tiny_task().model_copy(update={"privacy": PRIVACY.model_copy(update={"clip": 1.0})})
    job = FoldJob(task, 3, (), Limits(), 8, privacy=PRIVACY, noise_key=KEY.hex())
    write_job(tmp_path, job)
    read = read_job(tmp_path)
    assert isinstance(read, FoldJob)
    assert read.noise == RoundNoise(PRIVACY, KEY)
    assert read.privacy == PRIVACY
    assert FoldJob(tiny_task(), 3, (), Limits(), 8).noise is None
