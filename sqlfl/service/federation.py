"""A federation whose coordinator is elsewhere, with the methods of one in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from sqlfl.base.errors import Error
from sqlfl.base.foreign_names import FEDERATION, no_attribute
from sqlfl.base.progress import Progress
from sqlfl.base.result import Result
from sqlfl.base.sanitize import line
from sqlfl.contract.schema import Column
from sqlfl.federation import user_warnings
from sqlfl.federation.relation import Relation
from sqlfl.federation.script import Values, pieces, whole
from sqlfl.planner.grammar import statements as st
from sqlfl.planner.grammar.decoding import decoded
from sqlfl.planner.grammar.parameters import fill
from sqlfl.planner.grammar.queries import read_path
from sqlfl.service import answers
from sqlfl.service.analyst_connection import AWAY, AnalystConnection
from sqlfl.service.calls import EXPLAIN, LIST, MODEL, QUERY, REMARK, SCHEMA, SQL, TABLE
from sqlfl.service.frames import Frame
from sqlfl.service.settings import AnalystSettings, read_settings
from sqlfl.store.registry import Model

SETTINGS = "SQLFL_CONFIG"
"""The variable of the environment that names an analyst's settings."""


class RemoteFederation:
    """An analyst's desk at a coordinator. Use `sqlfl.connect("grpc+tls://host:8815", ...)`.

    config : the TOML file of the analyst's settings (docs/distributed.md); by default the file that
        the variable SQLFL_CONFIG names. study : which of the coordinator's; by default the one of
        the settings. analyst : the analyst's name, where there is no certificate. progress : as in
        `sqlfl.connect`.

    Parties come and go by themselves: `attach` and `detach` are not built, and neither are `trace`,
    as no party discloses its queries, and EXPORT and IMPORT MODEL. Raise Error where the
    coordinator cannot be reached, or does not take the analyst.
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(self, name, FEDERATION, dir(type(self)))

    def __init__(
        self,
        location: str,
        *,
        config: str | os.PathLike[str] | None = None,
        study: str | None = None,
        analyst: str | None = None,
        progress: bool | None = None,
    ) -> None:
        path = os.environ.get(SETTINGS) if config is None else config
        settings = AnalystSettings() if path is None else read_settings(AnalystSettings, path)
        study = study or settings.study
        if study is None:
            raise Error("no study is named", hint="sqlfl.connect(location, study='name')")
        self._progress = progress
        self._location = location
        self._line = AnalystConnection(location, study, settings, analyst or settings.name or "")

    # -- statements -------------------------------------------------------------------------------

    def sql(self, text: str, parameters: Values = None) -> Result:
        """As `Federation.sql`: of several statements, those before one that fails are done."""
        read = [(piece, piece.statement()) for piece in pieces(text, parameters)]
        for piece, statement in read:
            with piece.placed(done=True):
                result = answers.bytes_to_result(self._asked(SQL, piece.sql, statement))
        return result

    def explain(self, text: str, parameters: Values = None) -> answers.RemotePlan:
        """As `Federation.explain`: text and HTML of the plan, and its `details`."""
        piece = whole(text, parameters)
        statement = piece.statement()
        with piece.placed():
            return answers.bytes_to_plan(self._asked(EXPLAIN, piece.sql, statement))

    def result_schema(self, text: str, parameters: Values = None) -> pa.Schema:
        """Return the schema as `Federation.result_schema` does."""
        piece = whole(text, parameters)
        piece.statement()
        with piece.placed():
            return answers.bytes_to_result(self._line.ask(SCHEMA, piece.sql)).arrow().schema

    def model(self, name: str) -> Model:
        """As `Federation.model`."""
        model = answers.bytes_to_model(self._line.ask(MODEL, name))
        return replace(model, ask=self.sql)

    @property
    def parties(self) -> tuple[str, ...]:
        return self._names("parties")

    @property
    def models(self) -> tuple[str, ...]:
        return self._names("models")

    def tables(self) -> Result:
        return self._list("tables")

    def chain(self) -> Result:
        return self._list("chain")

    def audit(self) -> Result:
        return self._list("audit")

    def status(self) -> Result:
        """Return the coordinator's parties: whether they are connected, and their traffic."""
        return self._list("status")

    def statements(self) -> Result:
        """Yours in this study: those that run (`ended` is NULL), and the last of the others."""
        return self._list("statements")

    def table(self, name: str) -> Relation:
        path = read_path(name, "a table", 2, 4)
        return self._relation(TABLE, name, path)

    def query(self, text: str, parameters: Values = None) -> Relation:
        return self._relation(QUERY, fill(decoded(text, "a query"), parameters).sql)

    # -- what is not there ------------------------------------------------------------------------

    def attach(self, name: str, *_: object, **__: object) -> None:
        raise Error(
            "a party joins a coordinator on another machine by itself",
            hint=f"where its database is: sqlfl party --join {self._location} --config party.toml",
        )

    def detach(self, name: str) -> None:
        raise Error("a party leaves a coordinator on another machine by itself")

    def trace(self) -> NoReturn:
        raise Error("parties on other machines do not say what SQL they run")

    # -- the connection ---------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the connection; models stay, and running statements go on."""
        self._line.close()

    def __enter__(self) -> RemoteFederation:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return line(f"<sqlfl federation at {self._location}, study {self._line.study}>")

    def _names(self, what: str) -> tuple[str, ...]:
        return tuple(name for (name,) in self._list(what))

    def _list(self, what: str) -> Result:
        return answers.bytes_to_result(self._line.ask(LIST, what))

    def _relation(self, what: str, text: str, path: tuple[str, ...] = ()) -> Relation:
        described = answers.bytes_to_result(self._line.ask(what, text))
        columns = tuple(Column(name, kind) for name, kind in described)
        return Relation(described.own()[0] or text, columns, self, path)  # type: ignore[arg-type]

    def _asked(self, what: str, text: str, statement: st.Statement) -> Any:
        shown = _Shown(self._progress)
        try:
            return self._line.ask(what, text, shown.heard, shown.stopping)
        finally:
            shown.close()
            for said in shown.remarks:
                user_warnings.remark(said)


class _Shown:
    """Frames before an answer: the progress of a statement, and its warnings."""

    def __init__(self, enabled: bool | None) -> None:
        self._enabled = enabled
        self._bar: Progress | None = None
        self._sent = self._first = 0
        self.remarks: list[str] = []

    def heard(self, frame: Frame) -> None:
        if frame.kind == REMARK:
            self.remarks.append(frame.text("text"))
            return
        if frame.kind == AWAY:
            if self._bar is not None:
                self._bar.stage("the connection was lost, and is made again")
            return
        told: Mapping[str, Any] = frame.told
        if told.get("over"):
            self.close()
            return
        self._sent, objective = frame.number("sent"), told.get("objective")
        if self._bar is None:
            epochs, tolerance = told.get("epochs"), told.get("tolerance")
            if objective is None:  # else the first was not heard
                self._first = frame.number("epoch")
            self._bar = Progress(
                frame.text("name"),
                epochs if type(epochs) is int else None,
                self._enabled,
                float(tolerance) if isinstance(tolerance, (int, float)) else 0.0,
                self._bytes,
                self._first,
            )
        if isinstance(objective, (int, float)):
            self._bar.epoch(frame.number("epoch") - self._first, float(objective))
        elif frame.text("note", ""):
            self._bar.stage(frame.text("note"))

    def stopping(self) -> None:
        """A first Ctrl-C ends a training at the end of its round, which may take long."""
        if self._bar is not None:
            self._bar.remark("ending; Ctrl-C again: at once")

    def close(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()

    def _bytes(self) -> int:
        return self._sent
