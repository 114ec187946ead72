"""A real Kubernetes on this machine, for the whole-system tests: ``python -m e2e.cluster up | status | down``.

One node, the real components: etcd, API server, controller manager, scheduler, containerd, kubelet, kube-proxy,
CoreDNS. Nothing ready-made is downloaded: what Kubernetes publishes as Go modules is built once (`binaries`, about
a quarter of an hour on two cores, then kept outside the checkout by version), the rest are Debian's packages.

Everything runs in one network, mount and PID namespace under one supervisor (`inside`), so that the cluster touches
nothing of the machine and ends whole when the supervisor ends: bridge, firewall rules, mounts and processes with it.
The cgroups, which belong to no namespace, are removed by `down` (`lifecycle`). The API server is reached from outside
through a port on the loopback interface, to which the supervisor listens for the cluster.

    lifecycle       up, status, down; run a program inside; load an image
    inside          the supervisor: mounts, network, components, restarts
    components      what runs, with which settings (pure)
    certificates    who trusts whom
    binaries        where the programs come from
    layout          which file is where
"""
