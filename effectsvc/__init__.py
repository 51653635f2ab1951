"""effectsvc: tool calls of AI agents happen at most once, and can be proved.

The public API. Everything else is private to the package.
"""

from importlib import metadata as _metadata

try:
    __version__ = _metadata.version("effectsvc")
except _metadata.PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0"
