"""Train models in SQL over tables that several parties keep in their own DuckDB databases.

>>> import sqlfl
>>> fed = sqlfl.connect()
>>> fed.close()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlfl.base.errors import (
    ApprovalError,
    Error,
    InternalError,
    ModelError,
    OptionError,
    ParseError,
    PartyError,
    PlanError,
    PolicyError,
    PrivacyError,
    Warning,
)
from sqlfl.base.version import __version__, refuse_compiled

refuse_compiled()

if TYPE_CHECKING:
    from sqlfl.base.result import Result
    from sqlfl.federation.relation import Relation
    from sqlfl.federation.session import Federation
    from sqlfl.federation.trace import Trace
    from sqlfl.governance.audit_verification import verify
    from sqlfl.governance.owner import owner
    from sqlfl.planner.federated.plan import FederatedPlan
    from sqlfl.service.connecting import connect
    from sqlfl.service.listening import listen
    from sqlfl.store.registry import Model

__all__ = [
    "ApprovalError",
    "Error",
    "FederatedPlan",
    "Federation",
    "InternalError",
    "Model",
    "ModelError",
    "OptionError",
    "ParseError",
    "PartyError",
    "PlanError",
    "PolicyError",
    "PrivacyError",
    "Relation",
    "Result",
    "Trace",
    "Warning",
    "__version__",
    "connect",
    "listen",
    "owner",
    "verify",
]

_HOMES = {
    "FederatedPlan": "sqlfl.planner.federated.plan",
    "Federation": "sqlfl.federation.session",
    "Model": "sqlfl.store.registry",
    "Relation": "sqlfl.federation.relation",
    "Result": "sqlfl.base.result",
    "Trace": "sqlfl.federation.trace",
    "connect": "sqlfl.service.connecting",
    "listen": "sqlfl.service.listening",
    "owner": "sqlfl.governance.owner",
    "verify": "sqlfl.governance.audit_verification",
}


def __getattr__(name: str) -> Any:
    """Load what needs DuckDB, Arrow or numpy on first use, so that `import sqlfl` stays light."""
    from importlib import import_module

    if name not in _HOMES:
        from sqlfl.base.foreign_names import PACKAGE

        hint = f"\nhint: {PACKAGE[name]}" if name in PACKAGE else ""
        raise AttributeError(f"module 'sqlfl' has no attribute {name!r}{hint}")

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """Define `%sqlfl` and `%%sqlfl`; IPython calls this for `%load_ext sqlfl`."""
    from sqlfl.notebook.magics import register

    register(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Take `%sqlfl` and `%%sqlfl` away; IPython calls this for `%unload_ext sqlfl`."""
    from sqlfl.notebook.magics import unregister

    unregister(shell)


def __dir__() -> list[str]:
    return sorted(__all__)
