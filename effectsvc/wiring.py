"""The composition root: which parts a process is made of. Nothing else builds these together."""

from __future__ import annotations

from effectsvc.errors import SettingsError
from effectsvc.executor import Executor
from effectsvc.hooks import load_authorizer
from effectsvc.policy.policy_file import Policy, load_policy
from effectsvc.session import Session
from effectsvc.settings import Settings
from effectsvc.tools.registry import ToolRegistry, load_registry


def load_tools(settings: Settings) -> ToolRegistry:
    """The registry that `EFFECTSVC_TOOLS` names. Raises SettingsError when it names none, ContractError when wrong."""
    if not settings.tools:
        raise SettingsError(
            "EFFECTSVC_TOOLS is not set: a worker has no tools to run.",
            next_step="Set it to `package.module:tools`, where `tools` is your ToolRegistry.",
        )
    return load_registry(settings.tools)


def load_rules(settings: Settings, registry: ToolRegistry) -> Policy | None:
    """The operator's policy file; None where there is none."""
    return None if settings.policy is None else load_policy(settings.policy, registry)


async def build_worker(settings: Settings) -> Session:
    """A started worker: executor and session on the running event loop."""
    registry = load_tools(settings)
    executor = Executor(
        settings, registry, load_rules(settings, registry), authorizer=load_authorizer(settings.authorizer)
    )
    try:
        await executor.start()
        session = Session(executor)
        await session.start()
    except BaseException:
        await executor.stop()
        raise
    return session
