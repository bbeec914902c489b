"""Database that sqlfl has opened and whose owner has policies: it opens nothing but itself."""

from __future__ import annotations

from sqlfl.databases.files import Connection
from sqlfl.governance.policies import Governance
from sqlfl.governance.records import Records
from sqlfl.options.policies import TrainingPolicy, strictest

CLOSED = (
    "autoload_known_extensions",
    "autoinstall_known_extensions",
    "allow_community_extensions",
    "allow_persistent_secrets",
    "python_enable_replacements",
    "enable_external_access",
)
"""Settings that become false, in this order."""


def rules_of(records: Records) -> TrainingPolicy | None:
    """Return the strictest of all policies in force; None without policies."""
    policies = Governance(records).policies()
    return strictest(policy for _, policy in policies.values()) if policies else None


def close_off(con: Connection, rules: TrainingPolicy) -> bool:
    """Restrict the database's queries to its own file and to `folders`, without network and further
    extensions, and with limited memory and threads. Nobody can change that afterwards.

    If somebody else in this process has the database open, nothing changes, because sqlfl must not
    change their settings. Return whether it is closed off then, as by another federation.
    """
    ((connections, locked),) = con.execute(
        "SELECT count, current_setting('lock_configuration') "
        "FROM system.main.duckdb_connection_count()"
    ).fetchall()
    if locked or connections > 1:
        return bool(locked)
    if rules.threads is not None:
        con.execute("SET threads = ?", [rules.threads])
    if rules.memory is not None:
        con.execute("SET memory_limit = ?", [f"{rules.memory}B"])
    if rules.folders is not None:
        con.execute("SET allowed_directories = ?", [list(rules.folders)])
    for name in CLOSED:
        con.execute(f"SET {name} = false")
    con.execute("SET lock_configuration = true")
    return True
