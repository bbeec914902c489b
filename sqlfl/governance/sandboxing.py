"""Database that sqlfl has opened, and that may open nothing else: its owner has policies, or
statements that open its tables.
"""

from __future__ import annotations

from collections.abc import Iterable

import duckdb

from sqlfl.base.errors import Error
from sqlfl.databases.files import Connection
from sqlfl.databases.sql_sources import SqlSources
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
    """Restrict the database's queries to open databases, to `folders` and to what its own settings
    allow, without network and further extensions, and with limited memory and threads. Nobody can
    change that afterwards.

    If somebody else in this process has the database open, nothing changes, because sqlfl must not
    change their settings. Return whether it is closed off then, as by another federation.
    """
    ((connections, locked),) = con.execute(
        "SELECT count, current_setting('lock_configuration') "
        "FROM system.main.duckdb_connection_count()"
    ).fetchall()
    if locked or connections > 1:
        return bool(locked)
    _restrict(con, rules, CLOSED)
    return True


def close_off_sources(con: Connection, sources: SqlSources, rules: TrainingPolicy | None) -> None:
    """Restrict the database that the statements have opened, with policies or without. Raise Error
    if that is impossible, and if a view of theirs can no longer be read.
    """
    # DuckDB does not change settings of secrets once there are some
    names = [name for name in CLOSED if name != "allow_persistent_secrets"]
    try:
        _restrict(con, rules or TrainingPolicy(), names)
    except duckdb.Error as error:
        said = str(error).partition("\n")[0].strip()
        raise Error(
            f"{sources.name}: queries cannot be restricted afterwards: {said}",
            hint="leave lock_configuration and enable_external_access to sqlfl; tables that the "
            "statements make must fit into the memory of all policies",
        ) from None
    sources.check(con)


def _restrict(con: Connection, rules: TrainingPolicy, names: Iterable[str]) -> None:
    if rules.threads is not None:
        con.execute("SET threads = ?", [rules.threads])
    if rules.memory is not None:
        con.execute("SET memory_limit = ?", [f"{rules.memory}B"])
    if rules.folders is not None:
        ((folders,),) = con.execute("SELECT current_setting('allowed_directories')").fetchall()
        con.execute("SET allowed_directories = ?", [[*folders, *rules.folders]])
    for name in names:
        con.execute(f"SET {name} = false")
    con.execute("SET lock_configuration = true")
