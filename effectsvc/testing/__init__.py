"""What users test their own tools with: the real gates and executor on a store in memory, and a provider that fails.

`check_tool` tries a tool in the cases in which tools duplicate work. `Workbench` runs client, worker and store in one
process; `FakeProvider` keeps an honest ledger and fails on demand, `HttpProvider` and `SmtpProvider` do so over HTTP
and SMTP.
"""

from effectsvc.testing.check_tool import check_tool, check_tool_sync
from effectsvc.testing.http_provider import HttpProvider
from effectsvc.testing.memory_store import MemoryStore
from effectsvc.testing.provider import FakeProvider, Provider, ProviderRejected
from effectsvc.testing.report import Case, Report
from effectsvc.testing.smtp_provider import SmtpProvider
from effectsvc.testing.workbench import Workbench

__all__ = [
    "Case",
    "FakeProvider",
    "HttpProvider",
    "MemoryStore",
    "Provider",
    "ProviderRejected",
    "Report",
    "SmtpProvider",
    "Workbench",
    "check_tool",
    "check_tool_sync",
]
