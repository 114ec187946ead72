"""Flows in SimGrid, for a Python that has it (Debian: python3-simgrid). Reads a JSON case from stdin, writes JSON.

{"links": [bytes/s], "flows": [[start_s, [link, ...], bytes], ...]} -> {"ends": [s, ...], "wall_s": s}

CM02, no cross traffic, no TCP window, latency 0: plain max-min sharing. Each flow has hosts of its own, so that its
route is exactly the list of links.
"""

import json
import sys
import time

from simgrid import Actor, Comm, Engine, Host, LinkInRoute, Mailbox, NetZone, this_actor  # noqa: F401


def main() -> None:
    case = json.load(sys.stdin)
    engine = Engine(["oracle", "--log=root.thresh:error", "--cfg=network/model:CM02", "--cfg=network/crosstraffic:0",
                     "--cfg=network/TCP-gamma:0", "--cfg=surf/precision:1e-12", "--cfg=maxmin/precision:1e-9"])
    zone = NetZone.create_full_zone("root")
    links = []
    for number, bytes_per_s in enumerate(case["links"]):
        links.append(zone.create_link(f"l{number}", float(bytes_per_s)).set_latency(0).seal())
    ends = [None] * len(case["flows"])

    def send(number, start, size):
        this_actor.sleep_until(start)
        Mailbox.by_name(f"m{number}").put(number, max(1, size))

    def receive(number):
        Mailbox.by_name(f"m{number}").get()
        ends[number] = Engine.clock

    pairs = []
    for number, (_, route, _) in enumerate(case["flows"]):
        a = zone.create_host(f"a{number}", 1e9).seal()
        b = zone.create_host(f"b{number}", 1e9).seal()
        zone.add_route(a.netpoint, b.netpoint, None, None, [LinkInRoute(links[link]) for link in route], True)
        pairs.append((a, b))
    zone.seal()
    for number, ((a, b), (start, _, size)) in enumerate(zip(pairs, case["flows"])):
        Actor.create(f"s{number}", a, send, number, start, size)
        Actor.create(f"r{number}", b, receive, number)
    begin = time.perf_counter()
    engine.run()
    json.dump({"ends": ends, "wall_s": time.perf_counter() - begin}, sys.stdout)


main()
