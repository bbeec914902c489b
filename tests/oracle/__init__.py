"""The central trainer that the federation must equal; it shares nothing with sqlfl."""

from tests.oracle.encoder import Encoder, matrix_of
from tests.oracle.metrics import classification_metrics, poisson_metrics, regression_metrics
from tests.oracle.trainer import L2, NUMBERS, Central, Fitted, central, materialised

__all__ = [
    "L2",
    "NUMBERS",
    "Central",
    "Encoder",
    "Fitted",
    "central",
    "classification_metrics",
    "materialised",
    "matrix_of",
    "poisson_metrics",
    "regression_metrics",
]
