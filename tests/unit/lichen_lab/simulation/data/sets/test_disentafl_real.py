"""The study's fleets on the real data sets, where they are."""

import numpy as np
import pytest

from lichen_lab.benchmarks.studies.disentafl.data import fleets, merge_fa
from lichen_lab.simulation.data.access import locations
from lichen_lab.simulation.data.sets import av_mnist, uci_har, vehicle
from models.data import window_set
from protocol.errors import Misconfigured

pytestmark = pytest.mark.data


def here(*names: str) -> None:
    """Skips, saying why, where a data set is not."""
    for name in names:
        try:
            locations.folder(name)
        except Misconfigured as error:
            pytest.skip(str(error))


def test_vehicle_is_the_subset_that_is_described() -> None:
    here(vehicle.FOLDER)
    split = vehicle.load()
    assert np.bincount(split.windows.y_B).tolist() == [837, 1023]
    sizes = np.bincount(split.person_B)
    assert (len(sizes), sizes.min(), sizes.max()) == (23, 7, 534)
    fleet = fleets.fleet("vehicle-xm", 0)
    assert {len(m.train) + len(m.test) for m in fleet.members} == {93}


def test_fashion_mnist_has_its_published_counts() -> None:
    here(av_mnist.FASHION)
    pixels, kinds = av_mnist.images("test", av_mnist.FASHION)
    assert pixels.shape == (10_000, 28, 28)
    assert np.bincount(kinds).tolist() == [1000] * 10


def test_uci_har_xm_has_24_people_whose_intensity_spreads() -> None:
    here(uci_har.FOLDER)
    fleet = fleets.fleet("uci-har-xm", 0)
    assert len(fleet.members) == 24
    value_B = np.concatenate([window_set.target(m.train, "intensity") for m in fleet.members])
    target = fleet.task.target("intensity")
    known_B = value_B[~np.isnan(value_B)]
    assert float(known_B.mean()) == pytest.approx(target.offset, abs=0.2)
    assert float(known_B.std()) == pytest.approx(target.scale, abs=0.2)


def test_the_judges_of_merge_fa_recognise_what_members_would_have_to_generate() -> None:
    here("mnist", av_mnist.FASHION, "fsdd")
    fleet = merge_fa.build(0, each=2, train=10, test=40)
    right: dict[str, list[bool]] = {"gen_image": [], "gen_audio": []}
    for member in fleet.members:
        for name, truth_B in member.truth.items():
            windows_BCT = member.test.x[str(fleet.task.target(name).modality)]
            right[name] += (fleet.judges[name](windows_BCT) == truth_B).tolist()
    assert np.mean(right["gen_image"]) > 0.93
    assert np.mean(right["gen_audio"]) > 0.88
