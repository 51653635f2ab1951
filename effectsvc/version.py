"""The installed version."""

from importlib import metadata

try:
    __version__ = metadata.version("effectsvc")
except metadata.PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0"
