"""Prints figures that are published for clusters beside those of the model.

The figures for 8 GPUs are from the package's tables (half precision, 256 MiB unless stated). Those for NICs and
clusters are what users report of their machines.
"""

from __future__ import annotations

from eidolon_simcore import catalogue
from eidolon_simcore.engine.native import NativeEngine
from eidolon_simcore.fabric import settings
from eidolon_simcore.fabric.network import Network, Port

MIB, GIB = 1 << 20, 1 << 30


def network(gpu: str, servers: int, **fields: object) -> Network:
    """The fabric of servers with eight of these GPUs each. ``fields`` are those of ``spec.network``."""
    model = catalogue.gpu(gpu)
    made = settings.parse(
        fields,
        gpus=[model] * servers,
        gpus_per_server=8,
        inter_bytes_per_s=model.nic_bytes_per_s,
        inter_latency_ns=2_000,
    )
    return Network(NativeEngine(), model, made)


def gpus(servers: int) -> list[Port]:
    """All GPUs of this number of servers."""
    return [Port(server, device) for server in range(servers) for device in range(8)]


def show() -> None:
    """Prints the published figures beside those of the model."""
    print(f"\n{'anchors':<72} published    model    error")
    for gpu, by_op in {
        "h100-sxm": {"all_reduce": 430, "all_gather": 322, "reduce_scatter": 325, "all_to_all": 308},
        "h200-sxm": {"all_reduce": 446, "all_gather": 324, "reduce_scatter": 328, "all_to_all": 305},
        "a100-80gb-sxm": {"all_reduce": 215, "all_gather": 193, "reduce_scatter": 204, "all_to_all": 196},
        "b200-sxm": {"all_reduce": 657, "all_gather": 598, "reduce_scatter": 593, "all_to_all": 537},
    }.items():
        one = network(gpu, 1)
        for op, gb_per_s in by_op.items():
            alone_ns = one.collective(op, 256 * MIB, one.team(gpus(1))).alone_ns
            factor = (2 if op == "all_reduce" else 1) * 7 / 8
            _line(f"8 {gpu}, {op} of 256 MiB, busbw GB/s", gb_per_s, factor * 256 * MIB / alone_ns)
    h100 = network("h100-sxm", 1)
    for size, us in ((512, 15.6), (2 * MIB, 38.2), (32 * MIB, 199.8)):
        pattern = h100.collective("all_reduce", size, h100.team(gpus(1)))
        launch = h100.tuner.launch_us(8)
        _line(f"8 h100-sxm, all_reduce of {size} B, us (less the launch)", us, pattern.alone_ns / 1e3 - launch)
    alone_ns = h100.collective("all_reduce", 8 * GIB, h100.team(gpus(1))).alone_ns
    _line("8 h100-sxm, all_reduce of 8 GiB, busbw GB/s", 479, 1.75 * 8 * GIB / alone_ns)
    two = network("h100-sxm", 2, type="rail")
    pair = two.pair(Port(0, 0), Port(1, 0), GIB)
    _line("one 400 Gb/s NIC, GB/s (46 to 48)", 47, GIB / pair.alone_ns)
    alone_ns = two.collective("all_reduce", 16 * GIB, two.team(gpus(2))).alone_ns
    _line("2 x 8 h100-sxm on rails, all_reduce of 16 GiB, algbw GB/s", 250, 16 * GIB / alone_ns)
    for routing in ("ecmp", "spray"):
        many = network("h200-sxm", 248, type="rail", routing=routing)
        alone_ns = many.collective("all_reduce", 512_000_000, many.team(gpus(248))).alone_ns
        bus = 2 * 1983 / 1984 * 512_000_000 / alone_ns
        _line(f"248 x 8 h200-sxm on rails, {routing}, all_reduce of 512 MB, busbw GB/s", 350, bus)


def _line(what: str, published: float, model: float) -> None:
    print(f"  {what:<70} {published:>9.1f} {model:>8.1f} {model / published - 1:>+8.1%}")
