"""Heat maps of the links of a run's network: one for each tier and direction.

Links are named by their ends, for example ``server3/gpu2>server3/nvswitch``. If one end is a GPU or NIC of a server, a
map has a row for each server and a column for each GPU or NIC. Links between switches fill rows one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from eidolon_operator.reporting import charts
from eidolon_operator.reporting.charts import Cell
from eidolon_operator.reporting.model import Run

PER_ROW: Final = 16  #: columns of a map of links between switches
MOST_SERVERS: Final = 128  #: most rows of a map; those with the busiest links are chosen
_DEVICE: Final = re.compile(r"server(\d+)/(?:gpu|nic)(\d+)")
_OLDER: Final = re.compile(r"(.*?) (\d+)/(\d+)")  # ``nic out 3/2``


class _Place(NamedTuple):
    kind: str
    server: int
    device: int


def heat_maps(run: Run) -> list[tuple[str, str]]:
    """Title and SVG for each kind of link that carried anything."""
    links = run.summary.get("links") or []
    seconds = sum(step["time_ns"] for step in run.training) / 1e9
    if not links or not seconds:
        return []
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for link in links:
        place = _place(link)
        kinds.setdefault(place.kind if place else link["tier"], []).append(link)
    out = []
    for kind in sorted(kinds):
        some = kinds[kind]
        if not any(link["bytes"] for link in some):
            continue
        rate = max(link["bytes_per_s"] for link in some) / 1e9
        title = f"{kind} ({rate:g} GB/s each)"
        if all(_place(link) for link in some):
            chart = _by_server(some, seconds, title)
        else:
            chart = _in_rows(some, seconds, title)
        out.append((title, chart))
    return out


def _place(link: Mapping[str, Any]) -> _Place | None:
    """The device that a link goes to or from, and the direction. None for a link between switches."""
    source, _, target = link["name"].partition(">")
    for end, way in ((source, "out"), (target, "in")):
        if found := _DEVICE.fullmatch(end):
            return _Place(f"{link['tier']} {way}", int(found[1]), int(found[2]))
    older = _OLDER.fullmatch(link["name"])
    return _Place(older[1], int(older[2]), int(older[3])) if older else None


def _by_server(links: Iterable[Mapping[str, Any]], seconds: float, title: str) -> str:
    cells: dict[int, dict[int, Cell]] = {}
    for link in links:
        place = _place(link)
        assert place is not None
        cells.setdefault(place.server, {})[place.device] = _cell(link, seconds)
    columns = sorted({device for row in cells.values() for device in row})
    servers = sorted(cells)
    if len(servers) > MOST_SERVERS:
        busiest = sorted(servers, key=lambda server: -max(cell.share for cell in cells[server].values()))
        servers = sorted(busiest[:MOST_SERVERS])
    rows = [(f"server {server}", [cells[server].get(device) for device in columns]) for server in servers]
    return charts.heat_map(rows, [str(device) for device in columns], title=title)


def _in_rows(links: list[Mapping[str, Any]], seconds: float, title: str) -> str:
    cells = [_cell(link, seconds) for link in links]
    rows = [(links[at]["name"], list(cells[at : at + PER_ROW])) for at in range(0, min(len(cells), 1024), PER_ROW)]
    return charts.heat_map(rows, [f"+{i}" for i in range(min(PER_ROW, len(cells)))], title=title)


def _cell(link: Mapping[str, Any], seconds: float) -> Cell:
    rate = link["bytes"] / seconds
    share = rate / link["bytes_per_s"] if link["bytes_per_s"] else 0.0
    return Cell(share, f"{link['name']}: {share:.1%}, {rate / 1e9:.2f} GB/s of {link['bytes_per_s'] / 1e9:g} GB/s")
