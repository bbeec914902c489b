"""The plan as a picture, in SVG: parties as boxes, and arrows with what they send and receive."""

from __future__ import annotations

import html
import textwrap
from dataclasses import dataclass, replace

from sqlfl.base.sanitize import line
from sqlfl.planner.explain.render import MANY, HtmlPicture, several
from sqlfl.planner.explain.sections import NAMES, KindTotal, Total, formula, kinds, totals
from sqlfl.planner.federated.exchanges import DOWN, UP
from sqlfl.planner.federated.plan import FederatedPlan

_WIDTH, _PARTY, _COORDINATOR = 860, 220, 150
_LINE, _PAD, _GAP = 17, 10, 22
_LETTERS = 64
"""Maximum characters in a line of an arrow's text."""
_STYLE = "font-family:sans-serif;font-size:12.5px;max-width:100%;height:auto"
"""No colours: the picture takes the colour of the page's text."""


@dataclass(frozen=True)
class _Lane:
    """A party, and what crosses its border."""

    party: str
    inside: tuple[str, ...]
    up: tuple[str, ...]
    down: tuple[str, ...]

    @property
    def height(self) -> int:
        arrows = len(self.up) + len(self.down) + 1
        return max(len(self.inside) + 1, arrows) * _LINE + 2 * _PAD


def picture(plan: FederatedPlan) -> HtmlPicture | None:
    """Return the picture; None if nothing leaves a party."""
    sums = {item.party: item for item in totals(plan)}
    if not sums:
        return None
    told = {way: [k for k in kinds(plan, way) if k.kind not in NAMES] for way in (UP, DOWN)}
    parties = dict.fromkeys(client.party for client in plan.databases)
    lanes = [_lane(plan, party, sums.get(party), told) for party in parties]
    return HtmlPicture(_drawn(plan, lanes if len(lanes) <= MANY else _together(plan, lanes)))


def _together(plan: FederatedPlan, lanes: list[_Lane]) -> list[_Lane]:
    """Merge the lanes of parties with equal texts into one. The coordinator's party
    keeps its own.
    """
    groups: dict[_Lane, list[str]] = {}
    for lane in lanes:
        at_coordinator = lane.party == plan.at
        groups.setdefault(lane if at_coordinator else replace(lane, party=""), []).append(
            lane.party
        )
    return [replace(lane, party=several(names, 1)) for lane, names in groups.items()]


def _lane(
    plan: FederatedPlan, party: str, total: Total | None, told: dict[str, list[KindTotal]]
) -> _Lane:
    inside = [line_ for slot in plan.ucq.slots for line_ in _inside(plan, slot.index, party)]
    if total is None:
        return _Lane(party, tuple(inside), (), ())
    up = _wrapped(", ".join(k.kind for k in told[UP] if party in k.parties), 3)
    size = f"{formula(total.of_rows)} bytes, of rows; {formula(total.others)} others"
    down = _wrapped(", ".join(k.kind for k in told[DOWN] if party in k.parties), 2)
    return _Lane(party, tuple(inside), (*up, *_wrapped(size, 3)), down)


def _inside(plan: FederatedPlan, index: int, party: str) -> list[str]:
    """Return the party's part of a slot as lines of text."""
    slot = plan.ucq.slots[index]
    fragments = [f for f in slot.evaluated if f.client.party == party and not f.virtual]
    if not fragments:
        return []
    known = [f.rows for f in fragments if f.rows is not None]
    rows = f"~{sum(known):,} rows" if len(known) == len(fragments) else "rows unknown"
    clients = len({f.client for f in fragments})
    number = len(slot.features)
    has = [f"{number} feature{'s' * (number != 1)}"] if number else []
    has += ["target"] * slot.target + ["weight"] * slot.weight + ["offset"] * slot.offset
    where = f", {clients} databases" if clients > 1 else ""
    told = f"{slot.name}: {rows}{where}"
    return [_short(told), *([_short(f"  {', '.join(has)}")] if has else [])]


def _wrapped(text: str, most: int) -> tuple[str, ...]:
    lines = textwrap.wrap(text, _LETTERS, break_on_hyphens=False)
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1][: _LETTERS - 2].rstrip(" ,;+") + " …"]
    return tuple(lines)


def _short(text: str, most: int = 32) -> str:
    text = line(text)
    return text if len(text) <= most else text[: most - 1] + "…"


# -- SVG ------------------------------------------------------------------------------------------


def _drawn(plan: FederatedPlan, lanes: list[_Lane]) -> str:
    coordinator_lanes = [lane for lane in lanes if plan.at == lane.party]
    height = sum(lane.height for lane in lanes) + _GAP * (len(lanes) - 1) + 2
    right = _WIDTH - _COORDINATOR
    pieces = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" role="img" style="{_STYLE}" fill="none" stroke="currentColor">',
        f"<title>{_escaped(_words(plan, lanes))}</title>",
        _box(right, 1, _COORDINATOR - 1, height - 2),
        _text(right + _PAD, _PAD + 14, "coordinator", bold=True),
        *(
            [_text(right + _PAD, _PAD + 14 + _LINE, f"at {coordinator_lanes[0].party}")]
            if coordinator_lanes
            else []
        ),
    ]
    top = 1
    for lane in lanes:
        pieces.append(_box(1, top, _PARTY, lane.height))
        pieces.append(_text(1 + _PAD, top + _PAD + 12, _short(lane.party, 26), bold=True))
        for number, text in enumerate(lane.inside, 1):
            pieces.append(_text(1 + _PAD, top + _PAD + 12 + number * _LINE, text))
        if lane.up:
            pieces += _arrows(lane, top, right)
        elif not coordinator_lanes or lane is not coordinator_lanes[0]:
            pieces.append(_text(_PARTY + 16, top + _PAD + 12, "nothing leaves"))
        top += lane.height + _GAP
    return "".join([*pieces, "</svg>"])


def _arrows(lane: _Lane, top: int, right: int) -> list[str]:
    left, shapes = _PARTY + 6, []
    at = top + _PAD + 12
    for text in lane.up:
        shapes.append(_text(left + 10, at, text))
        at += _LINE
    shapes.append(_arrow(left, right - 5, at - 9))
    at += _LINE - 2
    for text in lane.down:
        shapes.append(_text(left + 10, at, text, faint=True))
        at += _LINE
    if lane.down:
        shapes.append(_arrow(right - 5, left, at - 9))
    return shapes


def _box(x: int, y: int, width: int, height: int) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'


def _text(x: int, y: int, text: str, *, bold: bool = False, faint: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    faded = ' opacity="0.75"' if faint else ""
    spaced = _escaped(text).replace("  ", "\u00a0\u00a0")
    return f'<text x="{x}" y="{y}" fill="currentColor" stroke="none"{weight}{faded}>{spaced}</text>'


def _arrow(start: int, end: int, y: int) -> str:
    back = -7 if end > start else 7
    head = f"M{end + back} {y - 4} L{end} {y} L{end + back} {y + 4}"
    return f'<path d="M{start} {y} L{end} {y} {head}"/>'


def _words(plan: FederatedPlan, lanes: list[_Lane]) -> str:
    where = "the coordinator" if plan.at is None else f"the coordinator at {plan.at}"
    told = (
        f"{lane.party} ({'; '.join(t.strip() for t in lane.inside)}) to {where}: "
        f"{' '.join(lane.up) or 'nothing'}"
        for lane in lanes
    )
    return ". ".join(told)


def _escaped(text: str) -> str:
    return html.escape(line(text))
