"""Heat maps of the links of a run's network: one for each tier.

Links are named ``KIND PLACE`` by the network, e.g. ``nic out 3/2``: where places are ``server/device``, a map has a row
for each server and a column for each device. Other links (of switches) fill rows one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from eidolon_operator.reporting import charts
from eidolon_operator.reporting.charts import Cell
from eidolon_operator.reporting.model import Run

PER_ROW: Final = 16  #: links of switches
MOST_SERVERS: Final = 128  #: rows of a map; of more, those with the busiest links
_PLACE: Final = re.compile(r"^(?P<kind>.*?) ?(?P<server>\d+)/(?P<device>\d+)$")


def heat_maps(run: Run) -> list[tuple[str, str]]:
    """(title, SVG) of each kind of link that carried anything."""
    links = run.summary.get("links") or []
    seconds = sum(step["time_ns"] for step in run.training) / 1e9
    if not links or not seconds:
        return []
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for link in links:
        found = _PLACE.match(link["name"])
        kinds.setdefault(found["kind"] if found else link["tier"], []).append(link)
    out = []
    for kind in sorted(kinds):
        some = kinds[kind]
        if not any(link["bytes"] for link in some):
            continue
        rate = max(link["bytes_per_s"] for link in some) / 1e9
        title = f"{kind} ({rate:g} GB/s each)"
        if all(_PLACE.match(link["name"]) for link in some):
            chart = _by_server(some, seconds, title)
        else:
            chart = _in_rows(some, seconds, title)
        out.append((title, chart))
    return out


def _by_server(links: Iterable[Mapping[str, Any]], seconds: float, title: str) -> str:
    cells: dict[int, dict[int, Cell]] = {}
    for link in links:
        place = _PLACE.match(link["name"])
        assert place is not None
        cells.setdefault(int(place["server"]), {})[int(place["device"])] = _cell(link, seconds)
    columns = sorted({device for row in cells.values() for device in row})
    servers = sorted(cells)
    if len(servers) > MOST_SERVERS:
        busiest = sorted(servers, key=lambda server: -max(cell.share for cell in cells[server].values()))
        servers = sorted(busiest[:MOST_SERVERS])
    rows = [(f"server {server}", [cells[server].get(device) for device in columns]) for server in servers]
    return charts.heat_map(rows, [f"GPU {device}" for device in columns], title=title)


def _in_rows(links: list[Mapping[str, Any]], seconds: float, title: str) -> str:
    cells = [_cell(link, seconds) for link in links]
    rows = [(links[at]["name"], list(cells[at : at + PER_ROW])) for at in range(0, min(len(cells), 1024), PER_ROW)]
    return charts.heat_map(rows, [f"+{i}" for i in range(min(PER_ROW, len(cells)))], title=title)


def _cell(link: Mapping[str, Any], seconds: float) -> Cell:
    rate = link["bytes"] / seconds
    share = rate / link["bytes_per_s"] if link["bytes_per_s"] else 0.0
    return Cell(share, f"{link['name']}: {share:.1%}, {rate / 1e9:.2f} GB/s of {link['bytes_per_s'] / 1e9:g} GB/s")
