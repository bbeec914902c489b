"""A progress bar for what takes more than two seconds; silent where nobody looks."""

from __future__ import annotations

from tqdm import tqdm


class Progress:
    """Shows the stage and the epochs of one statement on standard error.

    `enabled` None means: only where standard error is a terminal.
    """

    def __init__(self, name: str, epochs: int | None, enabled: bool | None = None) -> None:
        disable = None if enabled is None else not enabled
        delay = 0.0 if enabled else 2.0
        self._bar = tqdm(
            total=epochs, desc=name, unit="epoch", delay=delay, disable=disable, leave=False
        )

    def stage(self, text: str) -> None:
        self._bar.set_postfix_str(text)

    def epoch(self, number: int, objective: float) -> None:
        self._bar.set_postfix_str(f"objective {objective:.6g}", refresh=False)
        self._bar.update(number - self._bar.n)

    def close(self) -> None:
        self._bar.close()
