"""Party's tables that DuckDB statements of its owner open: attached databases, views of files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import duckdb
from sqlglot import exp

from sqlfl.base.errors import Error, nearest
from sqlfl.databases.files import Connection

_SETTINGS = MappingProxyType(
    {
        "autoload_known_extensions": "false",
        "autoinstall_known_extensions": "false",
        "python_enable_replacements": "false",
        "temp_file_encryption": "true",
    }
)
"""Settings while the statements run: they open what they name, and nothing else."""
_HIDDEN = "..."
_TOKEN = re.compile(
    r"(?P<comment>--[^\n]*|/\*.*?\*/)"
    r"|(?P<text>'(?:[^']|'')*'|(?P<dollar>\$\w*\$).*?(?P=dollar))"
    r'|(?P<name>"(?:[^"]|"")*")|(?P<word>\w+)',
    re.DOTALL,
)
_VARIABLE = re.compile(r"\bgetvariable\s*\(\s*'((?:[^']|'')*)'\s*\)", re.IGNORECASE)
_SET_VARIABLE = re.compile(r"\bset\s+variable\s+\"?(\w+)", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z_]\w{0,60}", re.ASCII)
_PASSWORD = re.compile(
    r"(\b\w*(?:pass|passwd|password|pwd|token|secret|key)\w*\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s'\";&]+)",
    re.IGNORECASE,
)
_LOGIN = re.compile(r"(://[^/\s:@]*):[^@\s]+@")
_EXCERPT = re.compile(r"\n+LINE (\d+):.*", re.DOTALL)
_EXTENSION = re.compile(r'Extension "(\w+)" is an existing|the (?:extension )?(\w+) extension')
FULL_PATHS = "write paths in full: relative ones are those of the folder where the process starts"


@dataclass(frozen=True)
class SqlSources:
    """Statements that open the tables of a party, in a database in memory."""

    name: str
    """Name of the place of the statements, for errors."""
    text: str = field(repr=False)
    store: Path
    """The party's store: data that memory does not hold is put beside it."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Values that statements read by `getvariable('name')`, such as passwords; in no error."""
    private: tuple[Path, ...] = ()
    """Files that no query may open: keys, secrets and the store."""

    def open(self) -> Connection:
        """Run the statements, and return the connection. Raise Error for the first that fails, with
        its line, and leave nothing open.
        """
        # of secrets that the user has stored for DuckDB, none is found
        secrets, spilled = f"{self.store}.secrets", f"{self.store}.tmp"
        places = {"secret_directory": secrets, "temp_directory": spilled}
        con = duckdb.connect(":memory:", config={**_SETTINGS, **places})
        try:
            self._check_variables()
            for name, value in self.variables.items():
                con.execute(f"SET VARIABLE {name} = {exp.Literal.string(value).sql('duckdb')}")
            for line, statement in self._statements():
                self._run(con, line, statement)
            for name in self.variables:
                con.execute(f"RESET VARIABLE {name}")
            self._check_private(con)
            if not _tables(con):
                raise Error(
                    f"{self.name} makes no table or view",
                    hint="CREATE VIEW customers AS FROM '/data/customers.parquet' is one",
                )
        except BaseException:
            con.close()
            raise
        return con

    def check(self, con: Connection) -> None:
        """Raise Error for a view that cannot be read. Call it once queries are restricted."""
        for names in _views(con):
            database, schema, view = names
            table = exp.table_(view, schema, database, quoted=True)
            try:
                con.execute(exp.select("*").from_(table).limit(0).sql("duckdb")).fetchall()
            except duckdb.PermissionException as error:
                raise Error(
                    f"{self.name}: the view {names[-1]} reads a file that no query may open: "
                    f"{self._said(error)}",
                    hint="SET allowed_directories = ['/data/visits']; among the statements lets "
                    "queries read that folder, SET allowed_paths = ['/data/visits.csv']; one file; "
                    + FULL_PATHS,
                ) from None
            except duckdb.Error as error:
                raise Error(
                    f"{self.name}: the view {names[-1]} cannot be read: {self._said(error)}"
                ) from None

    def _check_variables(self) -> None:
        for name in self.variables:
            if not _NAME.fullmatch(name):
                raise Error(f"{name!r} is no name of a variable", hint="letters, digits and _")
        known = {*map(str.lower, self.variables), *map(str.lower, _SET_VARIABLE.findall(self.text))}
        for name in _VARIABLE.findall(self.text):
            if name.lower() not in known:
                meant = nearest(name, self.variables)
                raise Error(
                    f"{self.name} reads getvariable('{name}'), and there is no such variable",
                    hint=f"did you mean {meant}?"
                    if meant
                    else f'[variables] in the settings: {name} = "env:NAME", or a file',
                )

    def _statements(self) -> Iterator[tuple[int, duckdb.Statement]]:
        """Yield the statements with their lines. Raise Error for a text that is no SQL."""
        try:
            statements = duckdb.extract_statements(self.text)
        except duckdb.Error as error:
            at = _EXCERPT.search(str(error))
            line = f", line {at[1]}" if at else ""
            said = self._said(error, _texts(self.text))
            raise Error(f"{self.name}{line} is no SQL of DuckDB: {said}") from None
        place = 0
        for statement in statements:
            tokens = _TOKEN.finditer(statement.query)
            first = next((t.start() for t in tokens if not t["comment"]), 0)
            yield self.text.count("\n", 0, place + first) + 1, statement
            place += len(statement.query)

    def _run(self, con: Connection, line: int, statement: duckdb.Statement) -> None:
        words = [t["word"].upper() for t in _TOKEN.finditer(statement.query) if t["word"]]
        kind = " ".join([w for w in words if w not in ("OR", "REPLACE", "TEMP", "TEMPORARY")][:2])
        kind = kind if words[:1] == ["CREATE"] else kind.partition(" ")[0]
        where = f"{self.name}, line {line}"
        if kind == "ATTACH" and not {"READ_ONLY", "READ_WRITE"} & set(words):
            raise Error(
                f"{where}: ATTACH says neither READ_ONLY nor READ_WRITE",
                hint="ATTACH '...' AS name (READ_ONLY) is for reading; READ_WRITE makes a DuckDB "
                "file that is missing",
            )
        if kind == "CREATE PERSISTENT":
            raise Error(f"{where}: secrets are made anew at each start", hint="CREATE SECRET ...")
        try:
            con.execute(statement).fetchall()
        except duckdb.Error as error:
            said = self._said(error, _texts(statement.query) if "SECRET" in words else ())
            raise Error(f"{where}: {kind} failed: {said}", hint=_hint(str(error))) from None

    def _said(self, error: duckdb.Error, hidden: Iterable[str] = ()) -> str:
        """Return the first paragraph of an error, on one line, without passwords."""
        said = " ".join(_EXCERPT.sub("", str(error)).partition("\n\n")[0].split())
        for value in sorted({*self.variables.values(), *hidden} - {""}, key=len, reverse=True):
            pattern = re.escape(value)
            # a short one stands in many words
            said = re.sub(pattern if len(value) > 3 else rf"\b{pattern}\b", _HIDDEN, said)
        return _LOGIN.sub(rf"\1:{_HIDDEN}@", _PASSWORD.sub(rf"\1{_HIDDEN}", said))

    def _check_private(self, con: Connection) -> None:
        """Raise Error if queries could read a key, a secret or the store."""
        ((folders, files),) = con.execute(
            "SELECT current_setting('allowed_directories'), current_setting('allowed_paths')"
        ).fetchall()
        for path in self.private:
            real = Path(path).resolve()
            for place in (*folders, *files):
                if "://" not in place and real.is_relative_to(Path(place).resolve()):
                    raise Error(
                        f"{self.name} lets queries read {place}, where {path} lies",
                        hint="put data into a folder of its own, and name that",
                    )


def _texts(statement: str) -> list[str]:
    """Return the contents of the literals of a statement."""
    ends = ((t["text"], len(t["dollar"] or "'")) for t in _TOKEN.finditer(statement) if t["text"])
    return [text[end:-end].replace("''", "'") for text, end in ends]


def _tables(con: Connection) -> bool:
    """Return whether there is a table or view that other connections see."""
    ((number,),) = con.execute(
        "SELECT (SELECT count(*) FROM duckdb_tables() WHERE NOT internal AND NOT temporary) + "
        "(SELECT count(*) FROM duckdb_views() WHERE NOT internal AND NOT temporary)"
    ).fetchall()
    return bool(number)


def _views(con: Connection) -> list[tuple[str, str, str]]:
    """Return the views that the statements have made, by their full names."""
    return con.execute(
        "SELECT database_name, schema_name, view_name FROM duckdb_views() "
        "JOIN duckdb_databases() d USING (database_name) "
        "WHERE NOT duckdb_views.internal AND NOT temporary AND path IS NULL AND type = 'duckdb' "
        "ORDER BY ALL"
    ).fetchall()


def _hint(said: str) -> str | None:
    extension = _EXTENSION.search(said)
    if extension is not None:
        name = extension[1] or extension[2]
        return (
            f"INSTALL {name}; LOAD {name}; before it, as no extension is loaded by itself; without "
            f"a network copy its file, and LOAD '/path/{name}.duckdb_extension'"
        )
    if said.startswith("IO Error") and ("No files found" in said or "Cannot open" in said):
        return f"look at the path, and {FULL_PATHS}"
    return None
