"""A fabric as text and as SVG.

Large fabrics repeat themselves, so both show a part and say how much there is. The text counts cables by kind and rate.
The picture draws as many servers as have :data:`COLUMNS` GPUs, and at most :data:`SHOWN` switches of a tier. From top
to bottom it has the switches by tier, then servers with their NICs, PCIe, GPUs and NVSwitch; routers have no tier and
stand on a ring. The number and rate of the cables between two tiers stand between them. Hovering over a link names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import cos, pi, sin
from typing import NamedTuple, TypeVar
from xml.sax.saxutils import escape

from eidolon_simcore.fabric.settings import Settings
from eidolon_simcore.fabric.topology import SWITCHES, Kind, Link, Topology, Vertex

COLUMNS = 32  #: how many GPUs the picture draws, or NICs where a server has more of these
SHOWN = 16  #: how many switches of one tier the picture draws; of routers it draws twice as many

_TIERS = (Kind.CORE, Kind.SPINE, Kind.LEAF)
_INSIDE = (Kind.NIC, Kind.PCIE, Kind.GPU, Kind.NVSWITCH)
_COLORS = {
    Kind.CORE: "#8d5fb5",
    Kind.SPINE: "#3f6fb5",
    Kind.ROUTER: "#3f6fb5",
    Kind.LEAF: "#2f8f83",
    Kind.NIC: "#c0762a",
    Kind.PCIE: "#8a8a8a",
    Kind.NVSWITCH: "#5b9a2f",
    Kind.GPU: "#76b900",
}


def rate(bytes_per_s: int) -> str:
    """A rate as users read it: ``50 GB/s (400 Gb/s)``."""
    return f"{bytes_per_s / 1e9:g} GB/s ({bytes_per_s * 8 / 1e9:g} Gb/s)"


def text(fabric: Topology, settings: Settings) -> Iterator[str]:
    """The lines of the text: what there is, then every kind of cable with its rate, its latency, its number and an
    example of its name."""
    kinds = Counter(vertex.kind for vertex in fabric.vertices)
    shape = f"{settings.servers} x {settings.gpus_per_server} GPUs, {settings.type}, routing {settings.routing}"
    yield shape + (", PXN" if settings.pxn else "")
    yield "  " + ", ".join(f"{kinds[kind]} {kind.value}" for kind in Kind if kinds[kind])
    yield f"{'cable':<22} {'number':>7}  {'each direction':<24} {'latency':>8}  example"
    groups: dict[tuple[Kind, Kind, int, int], list[Link]] = {}
    for link in fabric.links[::2]:
        ends = sorted((fabric.vertices[link.source].kind, fabric.vertices[link.target].kind), key=list(Kind).index)
        groups.setdefault((ends[0], ends[1], link.bytes_per_s, link.latency_ns), []).append(link)
    for (a, b, bytes_per_s, latency_ns), links in groups.items():
        cable = f"{a.value} - {b.value}"
        yield f"{cable:<22} {len(links):>7}  {rate(bytes_per_s):<24} {latency_ns:>5} ns  {links[0].name}"
    down, up = _leaf_capacity(fabric)
    if up:
        yield f"leaves: {rate(down)} down, {rate(up)} up in all: oversubscription {down / up:.3g}"
    if fabric.failed:
        names = [fabric.links[number].name for number in sorted(fabric.failed) if number % 2 == 0]
        yield f"failed: {len(names)} cables: {', '.join(names[:8])}" + (", ..." if len(names) > 8 else "")


def _leaf_capacity(fabric: Topology) -> tuple[int, int]:
    down = up = 0
    for link in fabric.links:
        source, target = fabric.vertices[link.source], fabric.vertices[link.target]
        if source.kind is Kind.LEAF and link.number not in fabric.failed:
            down += link.bytes_per_s if target.kind is Kind.NIC else 0
            up += link.bytes_per_s if target.kind in SWITCHES else 0
    return down, up


# ---- the picture -----------------------------------------------------------------------------------------------------

_BOX_W, _BOX_H, _ROW = 78, 24, 92
_DEVICE_W, _DEVICE_ROW, _PAD, _GAP = 34, 60, 8, 16
_MARGIN = 250  #: room on the left, for the text that says what the cables are

T = TypeVar("T")


class Place(NamedTuple):
    """The middle of a box, and its width."""

    x: float
    y: float
    width: float


def svg(fabric: Topology, title: str) -> str:
    """An SVG document; see the module's docstring."""
    shown = _some(fabric.servers(), max(2, COLUMNS // _columns(fabric)))
    server_width = _columns(fabric) * (_DEVICE_W + 4) + 2 * _PAD
    tiers = [[v for v in fabric.vertices if v.kind is kind] for kind in _TIERS]
    drawn = [_some(tier, SHOWN) for tier in tiers]
    routers = [v for v in fabric.vertices if v.kind is Kind.ROUTER]
    ring = _some(routers, 2 * SHOWN)
    of_servers = len(shown) * (server_width + _GAP) - _GAP
    width = max(of_servers, *(len(tier) * (_BOX_W + _GAP) for tier in drawn), 26 * len(ring) + 300 if ring else 0)

    places: dict[int, Place] = {}
    notes: list[str] = []
    y = 64.0
    if ring:
        radius = 60 + len(ring) * 8.0
        places.update(_circle(ring, _MARGIN + width / 2, y + radius, radius))
        notes.append(_note(12, y, f"{len(ring)} of {len(routers)} routers shown"))
        y += 2 * radius + _ROW
    for tier, of_tier in zip(tiers, drawn, strict=True):
        if tier:
            places.update(_spread(of_tier, _MARGIN, width, y, _BOX_W))
            notes.append(_note(12, y + 4, f"{len(of_tier)} of {len(tier)} {tier[0].kind.value} shown"))
            y += _ROW
    rows = {kind: y + _DEVICE_ROW * i for i, kind in enumerate(_INSIDE)}
    bottom = rows[Kind.NVSWITCH] + 30
    frames = []
    for i, server in enumerate(shown):
        x = _MARGIN + (width - of_servers) / 2 + i * (server_width + _GAP)
        alone = server not in fabric.domains  # it shares its NVSwitch with no other server
        height = (bottom if alone else rows[Kind.GPU] + 24) - y + 24
        frames.append(
            f'<rect x="{x:.0f}" y="{y - 24:.0f}" width="{server_width}" height="{height:.0f}" rx="6" '
            'fill="#f4f6f3" stroke="#c9cfc6"/>'
        )
        notes.append(_note(x + 4, bottom + 14, f"server{server}"))
        for kind in _INSIDE if alone else _INSIDE[:-1]:
            of_kind = [v for v in fabric.vertices if v.server == server and v.kind is kind]
            wide = _BOX_W if kind is Kind.NVSWITCH else _DEVICE_W
            places.update(_spread(of_kind, x + _PAD, server_width - 2 * _PAD, rows[kind], wide))
    places.update(_shared_switches(fabric, places, rows[Kind.NVSWITCH]))
    lines = [_line(fabric, link, places) for link in fabric.links[::2] if {link.source, link.target} <= set(places)]
    boxes = [_box(fabric.vertices[number], place) for number, place in places.items()]
    notes.append(_note(12, bottom + 14, f"{len(shown)} of {len(fabric.servers())} servers shown"))
    notes += _legend(fabric, places, rows)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_MARGIN + width + 20:.0f} {bottom + 30:.0f}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="12" y="24" font-size="16">{escape(title)}</text>'
    )
    return "\n".join([head, *frames, *lines, *boxes, *notes, "</svg>", ""])


def _columns(fabric: Topology) -> int:
    """How many columns the widest server takes."""
    gpus = Counter(port.server for port in fabric.gpus)
    return max(*gpus.values(), *(len(nics) for nics in fabric.nics.values()), 1)


def _some(items: Sequence[T], count: int) -> list[T]:
    """At most ``count`` items, evenly spaced, with the first and the last, so that two pods are shown rather than
    one."""
    if len(items) <= count:
        return list(items)
    return [items[i * (len(items) - 1) // (count - 1)] for i in range(count)]


def _spread(row: Sequence[Vertex], x: float, width: float, y: float, wide: float) -> Iterator[tuple[int, Place]]:
    step = width / max(1, len(row))
    return ((v.number, Place(x + step * (i + 0.5), y, min(wide, step - 3))) for i, v in enumerate(row))


def _circle(row: Sequence[Vertex], x: float, y: float, radius: float) -> Iterator[tuple[int, Place]]:
    """Places on a circle, where every cable between two routers is a chord of its own."""
    for i, vertex in enumerate(row):
        turn = 2 * pi * i / len(row)
        yield vertex.number, Place(x + 1.6 * radius * sin(turn), y - radius * cos(turn), _BOX_W)


def _shared_switches(fabric: Topology, places: dict[int, Place], y: float) -> Iterator[tuple[int, Place]]:
    """Places of NVSwitches whose domain has several servers. Each is below those of its servers that are drawn."""
    for vertex in fabric.vertices:
        if vertex.kind is Kind.NVSWITCH and vertex.server in fabric.domains:
            domain = fabric.domains[vertex.server]
            gpus = [number for port, number in fabric.gpus.items() if fabric.domain(port) == domain]
            across = [places[number].x for number in gpus if number in places]
            if across:
                yield vertex.number, Place(sum(across) / len(across), y, 2 * _BOX_W)


def _legend(fabric: Topology, places: dict[int, Place], rows: dict[Kind, float]) -> Iterator[str]:
    """Text about the cables between two tiers, half-way between them, with a line for each kind of cable."""
    heights: dict[Kind, list[float]] = {kind: [y] for kind, y in rows.items()}
    for number, place in places.items():
        heights.setdefault(fabric.vertices[number].kind, []).append(place.y)
    middle = {kind: sum(ys) / len(ys) for kind, ys in heights.items()}
    seen: Counter[tuple[Kind, Kind, int]] = Counter()
    for link in fabric.links[::2]:
        seen[fabric.vertices[link.source].kind, fabric.vertices[link.target].kind, link.bytes_per_s] += 1
    taken: set[int] = set()
    for (a, b, bytes_per_s), count in seen.items():
        line = round((middle.get(a, 0.0) + middle.get(b, 0.0)) / 2 / 15)
        while line in taken:
            line += 1
        taken.add(line)
        yield _note(12, line * 15 + 4, f"{count} x {a.value} - {b.value}: {rate(bytes_per_s)}")


def _box(vertex: Vertex, place: Place) -> str:
    shared = vertex.kind in SWITCHES or place.width > _BOX_W  # the label says to which pod, group or domain it belongs
    label = vertex.name if shared else vertex.name.rsplit("/", 1)[-1]
    size = min(11.0, place.width / max(1, len(label)) * 1.6)
    return (
        f'<g><title>{escape(vertex.name)}</title><rect x="{place.x - place.width / 2:.1f}" '
        f'y="{place.y - _BOX_H / 2:.1f}" width="{place.width:.1f}" height="{_BOX_H}" rx="3" '
        f'fill="{_COLORS[vertex.kind]}"/><text x="{place.x:.1f}" y="{place.y + 4:.1f}" text-anchor="middle" '
        f'fill="white" font-size="{size:.1f}">{escape(label)}</text></g>'
    )


def _line(fabric: Topology, link: Link, places: dict[int, Place]) -> str:
    (x1, y1, _), (x2, y2, _) = places[link.source], places[link.target]
    broken = link.number in fabric.failed
    stroke = 'stroke="#d03030" stroke-dasharray="4 3"' if broken else 'stroke="#9aa4b0"'
    width = max(0.6, min(4.0, link.bytes_per_s / 200e9))
    name = escape(f"{link.name}: {rate(link.bytes_per_s)}, {link.latency_ns} ns" + (", failed" if broken else ""))
    # Between two of one row the line is bent, so that it does not go through their neighbours.
    bend = 28 if y1 == y2 and fabric.vertices[link.source].kind is not Kind.ROUTER else 0
    path = f"M{x1:.1f} {y1:.1f}Q{(x1 + x2) / 2:.1f} {(y1 + y2) / 2 - bend:.1f} {x2:.1f} {y2:.1f}"
    return f'<path d="{path}" fill="none" {stroke} stroke-width="{width:.1f}"><title>{name}</title></path>'


def _note(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="#444">{escape(words)}</text>'
