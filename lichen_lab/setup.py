"""The packages of the distribution: this folder is ``lichen_lab`` itself, which pyproject.toml cannot say."""

from setuptools import find_packages, setup

setup(
    package_dir={"lichen_lab": "."},
    packages=["lichen_lab", *(f"lichen_lab.{name}" for name in find_packages("."))],
)
