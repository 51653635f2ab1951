"""What users test their own tools with: the real gates and executor on a store in memory, and a provider that fails.

`Workbench` runs client, worker and store in one process; `FakeProvider` keeps an honest ledger and fails on demand.
"""

from effectsvc.testing.memory_store import MemoryStore
from effectsvc.testing.provider import FakeProvider, ProviderRejected
from effectsvc.testing.workbench import Workbench

__all__ = ["FakeProvider", "MemoryStore", "ProviderRejected", "Workbench"]
