"""The epoch under which a federation's closed jobs run, as its coordinator shows it."""

from __future__ import annotations

from typing import NoReturn

from solera.core.errors import UsageError
from solera.serve.connection import Connection
from solera.trust.epoch.epoch import Epoch
