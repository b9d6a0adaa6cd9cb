"""The files of the compose example: settings that are read, and paths that are mounted."""

from __future__ import annotations

from pathlib import Path

import pytest

from solera.serve.settings import read_settings

pytest.importorskip("pandas", reason="the extra 'serve' is not installed")

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_every_path_of_the_settings_is_mounted():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for service, file, table in (
        ("coordinator", "coordinator.toml", "coordinator"),
        ("north", "agent.toml", "agent"),
        ("south", "agent.toml", "agent"),
    ):
        settings = getattr(read_settings(DEPLOY / "compose" / file), table)
        mounted = [volume.split(":")[1] for volume in services[service]["volumes"]]
        for name in ("database_file", "certificate", "key", "ca", "policy", "data", "token_file"):
            path = getattr(settings, name, None)
            assert path is None or path in mounted, (service, name, path)
        assert settings.folder.startswith(f"{mounted[0]}/")


def test_the_policy_is_one():
    from solera.serve.agent.policy_file import PolicyFile

    assert PolicyFile(DEPLOY / "compose" / "policy.toml").policy.hash()
