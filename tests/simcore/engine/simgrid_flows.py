"""Flows in SimGrid, for a Python that has it (Debian: python3-simgrid). Reads a JSON case from stdin, writes JSON.

{"links": [bytes/s], "flows": [[start_s, [link, ...], bytes], ...]} -> {"ends": [s, ...], "wall_s": s}

CM02, no cross traffic, no TCP window, latency 0: plain max-min sharing. Each flow has hosts of its own, so that its
route is exactly the list of links.
"""

import json
import sys
import time

from simgrid import Actor, Comm, Engine, Host, LinkInRoute, NetZone, this_actor


def main() -> None:
    case = json.load(sys.stdin)
    engine = Engine(
        [
            "oracle",
            "--log=root.thresh:error",
            "--cfg=network/model:CM02",
            "--cfg=network/crosstraffic:0",
            "--cfg=network/TCP-gamma:0",
            "--cfg=surf/precision:1e-12",
            "--cfg=maxmin/precision:1e-9",
        ]
    )
    zone = NetZone.create_full_zone("root")
    links = []
    for number, bytes_per_s in enumerate(case["links"]):
        links.append(zone.create_link(f"l{number}", float(bytes_per_s)).set_latency(0).seal())
    # One pair of hosts for each route: what a flow uses is exactly its list of links.
    pairs = {}
    for _, route, _ in case["flows"]:
        if tuple(route) not in pairs:
            number = len(pairs)
            a = zone.create_host(f"a{number}", 1e9).seal()
            b = zone.create_host(f"b{number}", 1e9).seal()
            zone.add_route(a.netpoint, b.netpoint, None, None, [LinkInRoute(links[link]) for link in route], True)
            pairs[tuple(route)] = (a, b)
    zone.seal()
    comms = [None] * len(case["flows"])

    def drive():
        for number in sorted(range(len(comms)), key=lambda n: case["flows"][n][0]):
            start, route, size = case["flows"][number]
            if start > Engine.clock:
                this_actor.sleep_until(start)
            comms[number] = Comm.sendto_async(*pairs[tuple(route)], size)
        Comm.wait_all(comms)

    Actor.create("driver", Host.by_name("a0"), drive)
    begin = time.perf_counter()
    engine.run()
    wall = time.perf_counter() - begin
    json.dump({"ends": [comm.finish_time for comm in comms], "wall_s": wall}, sys.stdout)


main()
