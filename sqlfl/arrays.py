"""Names for types of arrays."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
"""Of numbers, whose type and shape the text beside it says."""

Float: TypeAlias = npt.NDArray[np.float64]
