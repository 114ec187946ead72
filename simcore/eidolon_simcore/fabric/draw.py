"""A fabric as text and as SVG.

Large fabrics repeat themselves, so both show one of everything: the text counts cables by kind and rate, the picture
draws at most :data:`SHOWN` servers and switches of a tier and says how many there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from xml.sax.saxutils import escape

from eidolon_simcore.fabric.settings import Settings
from eidolon_simcore.fabric.topology import SWITCHES, Kind, Link, Topology, Vertex

SHOWN = 16  #: servers, and switches of one tier, that the picture draws

_TIERS = (Kind.CORE, Kind.SPINE, Kind.ROUTER, Kind.LEAF)
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
    """``50 GB/s (400 Gb/s)``."""
    return f"{bytes_per_s / 1e9:g} GB/s ({bytes_per_s * 8 / 1e9:g} Gb/s)"


def text(fabric: Topology, settings: Settings) -> Iterator[str]:
    """Lines: what there is, then every kind of cable with its rate, latency, number and an example of its name."""
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

_BOX_W, _BOX_H, _GAP, _ROW = 74, 24, 14, 92
_DEVICE_W = 34


def svg(fabric: Topology, title: str) -> str:
    """An SVG document: switches by tier, servers below them with NICs, NVSwitch and GPUs; hovering names a link."""
    servers = fabric.servers()[:SHOWN]
    places: dict[int, tuple[float, float]] = {}
    rows: list[str] = []
    widest = 0.0
    y = 64.0
    for kind in _TIERS:
        tier = [vertex for vertex in fabric.vertices if vertex.kind is kind]
        if not tier:
            continue
        shown = tier[: 2 * SHOWN]
        for i, vertex in enumerate(shown):
            places[vertex.number] = (40 + i * (_BOX_W + _GAP) + _BOX_W / 2, y)
            rows.append(_box(vertex, *places[vertex.number], _BOX_W))
        widest = max(widest, 40 + len(shown) * (_BOX_W + _GAP))
        rows.append(_note(12, y - 20, f"{kind.value}: {len(shown)} of {len(tier)} shown"))
        y += _ROW
    x = 40.0
    bottom = y
    for server in servers:
        inside = [v for v in fabric.vertices if v.server == server]
        devices = max(sum(v.kind is Kind.GPU for v in inside), len(fabric.nics.get(server, ())), 1)
        width = devices * (_DEVICE_W + 4) + 12
        rows.append(
            f'<rect x="{x:.0f}" y="{y - 30:.0f}" width="{width}" height="190" rx="6" fill="#f4f6f3" stroke="#c9cfc6"/>'
        )
        rows.append(_note(x + 6, y + 172, f"server{server}"))
        for row, kind in enumerate((Kind.NIC, Kind.PCIE, Kind.NVSWITCH, Kind.GPU)):
            of_kind = [v for v in inside if v.kind is kind]
            for i, vertex in enumerate(of_kind):
                step = (width - 12) / max(1, len(of_kind))
                places[vertex.number] = (x + 6 + step * (i + 0.5), y + 44 * row)
                rows.append(_box(vertex, *places[vertex.number], min(_DEVICE_W, step - 3)))
        bottom = max(bottom, y + 190)
        x += width + 18
    widest = max(widest, x)
    lines = [_line(fabric, link, places) for link in fabric.links[::2] if {link.source, link.target} <= set(places)]
    rows.append(_note(12, bottom + 4, f"{len(servers)} of {len(fabric.servers())} servers shown"))
    legend = [_note(12, bottom + 24 + 16 * i, line.strip()) for i, line in enumerate(_legend(fabric))]
    height = bottom + 40 + 16 * len(legend)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {widest + 20:.0f} {height:.0f}" '
        f'font-family="sans-serif" font-size="11"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="12" y="24" font-size="16">{escape(title)}</text>'
    )
    return "\n".join([head, *lines, *rows, *legend, "</svg>", ""])


def _legend(fabric: Topology) -> Iterator[str]:
    seen: Counter[str] = Counter()
    for link in fabric.links[::2]:
        ends = f"{fabric.vertices[link.source].kind.value} - {fabric.vertices[link.target].kind.value}"
        seen[f"{ends}: {rate(link.bytes_per_s)}"] += 1
    for entry, count in seen.items():
        yield f"{count} x {entry}"


def _box(vertex: Vertex, x: float, y: float, width: float) -> str:
    label = vertex.name.rsplit("/", 1)[-1]
    return (
        f'<g><title>{escape(vertex.name)}</title><rect x="{x - width / 2:.1f}" y="{y - _BOX_H / 2:.1f}" '
        f'width="{width:.1f}" height="{_BOX_H}" rx="3" fill="{_COLORS[vertex.kind]}"/>'
        f'<text x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle" fill="white" '
        f'font-size="{min(11.0, width / max(1, len(label)) * 1.7):.1f}">{escape(label)}</text></g>'
    )


def _line(fabric: Topology, link: Link, places: dict[int, tuple[float, float]]) -> str:
    (x1, y1), (x2, y2) = places[link.source], places[link.target]
    broken = link.number in fabric.failed
    stroke = 'stroke="#d03030" stroke-dasharray="4 3"' if broken else 'stroke="#9aa4b0"'
    width = max(0.6, min(4.0, link.bytes_per_s / 200e9))
    name = escape(f"{link.name}: {rate(link.bytes_per_s)}, {link.latency_ns} ns" + (", failed" if broken else ""))
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {stroke} stroke-width="{width:.1f}">'
        f"<title>{name}</title></line>"
    )


def _note(x: float, y: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="#444">{escape(words)}</text>'
