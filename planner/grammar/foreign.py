"""Hints for statements and code of other tools."""

from __future__ import annotations

import re

from sqlglot.tokenizer_core import Token

from sqlfl.planner.grammar.tokens import QUOTED

_TRAIN = "TRAIN MODEL name USING kind TARGET column FROM (SELECT ...)"
_PREDICT = "PREDICT MODEL name ID (alias.column) FROM (SELECT ...)"
_EVALUATE = "EVALUATE MODEL name FROM (SELECT ...)"
_KINDS: tuple[tuple[str, str, str], ...] = (
    (r"CREATE (OR REPLACE )?(MODEL|PREDICTOR|ML_ENGINE|AGENT)\b.* PREDICT ", "MindsDB", _TRAIN),
    (r"CREATE (PREDICTOR|ML_ENGINE|AGENT|KNOWLEDGE_BASE) ", "MindsDB", _TRAIN),
    (r"(SELECT|WITH) .*\bMINDSDB \. ", "MindsDB", _PREDICT),
    (r"(RETRAIN|FINETUNE) ", "MindsDB", "TRAIN OR REPLACE MODEL trains anew"),
    (r"(SELECT|WITH|FROM) .* TO TRAIN ", "SQLFlow", _TRAIN),
    (r"(SELECT|WITH|FROM) .* TO PREDICT ", "SQLFlow", _PREDICT),
    (r"(SELECT|WITH|FROM) .* TO EVALUATE ", "SQLFlow", _EVALUATE),
    (r"(SELECT|WITH|FROM) .* TO EXPLAIN ", "SQLFlow",
     "CONTRIBUTIONS OF MODEL name FROM (SELECT ...)"),
    (r"SHOW TRAIN ", "SQLFlow", "DESCRIBE MODEL name shows the statement"),
    (r".*\bMADLIB \. \w*_?PREDICT", "MADlib", _PREDICT),
    (r".*\bMADLIB \. ", "MADlib", _TRAIN),
    (r".*\bPGML \. PREDICT", "PostgresML", _PREDICT),
    (r".*\bPGML \. ", "PostgresML", _TRAIN),
    (r"CREATE MODEL .* (FUNCTION|IAM_ROLE) ", "Redshift", _TRAIN),
    (r"CREATE (OR REPLACE )?SNOWFLAKE \. ML ", "Snowflake", _TRAIN),
    (r"(SELECT|WITH) .*\bAI_?\w* ?\( ?MODEL", "another database", _PREDICT),
    (r"SELECT (\w+ \. )?PREDICT \(", "another database", _PREDICT),
    (r"ML \. ", "BigQuery ML", "SELECT * FROM ML.PREDICT(MODEL name, (SELECT ...))"),
)  # fmt: skip
"""Beginnings of statements as words separated by blanks, their tool, and our spelling."""
_CODE: tuple[tuple[str, str, str], ...] = (
    (r"FED \. \w+ ?\(", "Python", "give the text between the quotes alone"),
    (r"(IMPORT|FROM) \w+( \. \w+)* (IMPORT|AS) ", "Python",
     "sqlfl.integrations.sklearn has estimators; docs/python.md"),
    (r"\w+ \. (PREDICT|PREDICT_PROBA) \(", "Python", _PREDICT),
    (r"\w+ \. SCORE \(", "Python", _EVALUATE),
    (r"\w+ \. SUMMARY \(|SUMMARY \(", "R or Python", "INFERENCE OF MODEL name FROM (SELECT ...)"),
    (r"(\w+ \. |\w+ \( [^)]*\) \. )?FIT(_\w+)? \(", "Python", _TRAIN),
    (r"\w+ \(.*\) \. FIT \(", "Python", _TRAIN),
    (r"(\w+ (<-|< -|=) )?(\w+ :: ?)?(GLM|LM|GLMNET|GAM|LMER|GLMER|COXPH|SMF \. \w+|SM \. \w+) \(",
     "R or Python", _TRAIN),
    (r"PREDICT \(", "R", _PREDICT),
)  # fmt: skip
_WORDS = {
    "FIT": _TRAIN, "LEARN": _TRAIN,
    "SCORE": _PREDICT, "INFER": _PREDICT, "TEST": _EVALUATE, "ASSESS": _EVALUATE,
    "DELETE": "DROP MODEL name", "REMOVE": "DROP MODEL name",
    "LIST": "SHOW MODELS, SHOW TABLES or SHOW PARTIES",
    "SUMMARY": "INFERENCE OF MODEL name FROM (SELECT ...), or DESCRIBE MODEL name",
    "SUMMARIZE": "CHECK (SELECT ... FROM party.table), or DESCRIBE party.table",
    "COEFFICIENTS": "WEIGHTS OF MODEL name",
    "ALTER": "train it under the other name; COMMENT ON MODEL name IS '...' changes its comment",
    "RENAME": "train it under the other name",
    "ATTACH": "fed.attach('name', connection_or_path) adds a party",
    "DETACH": "fed.detach('name')", "USE": "write party.table",
    "HELP": "sqlfl docs statements, on the command line",
    "SAVE": "EXPORT MODEL name TO 'folder'", "LOAD": "IMPORT MODEL name FROM 'folder'",
}  # fmt: skip
"""First words of statements that we have under other names."""
_FIRST_WORDS = 400


def instead(tokens: list[Token]) -> str | None:
    """Return a hint for a statement of another tool; None for an unknown one."""
    words = " ".join(
        "''" if token.token_type in QUOTED else token.text.upper()
        for token in tokens[:_FIRST_WORDS]
    )
    for pattern, whose, ours in (*_KINDS, *_CODE):
        if re.match(pattern, f"{words} "):
            kind = "code" if (pattern, whose, ours) in _CODE else "a statement"
            return f"this looks like {kind} of {whose}; here it is {ours}"
    first = words.split(" ", 1)[0]
    return f"here it is {_WORDS[first]}" if first in _WORDS else None
