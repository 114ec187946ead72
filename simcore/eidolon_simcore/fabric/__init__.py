"""The fabric: what connects GPUs, which way bytes take, and what NCCL makes of both.

=================== ==========================================================================================
:mod:`.topology`    the graph: vertices (GPU, NVSwitch, PCIe, NIC, switches), named links with capacity and latency
:mod:`.settings`    what a plan says of a fabric, checked; presets of real systems (``data/fabrics.yaml``)
:mod:`.builders`    from settings to a graph: rails, leaf and spine, fat tree, torus, dragonfly, any graph
:mod:`.ncclxml`     topology and graph files of NCCL, as input
:mod:`.routing`     shortest paths, ECMP, spray, rails, PXN; what has failed is avoided
:mod:`.tuner`       algorithm, protocol, channels and time of an operation, as NCCL's tuner would choose
:mod:`.algorithms`  from a choice to flows over the graph
:mod:`.siblings`    which groups of ranks do what a group does, when only some ranks of a world run
:mod:`.quotient`    classes of equal links and flows, which are solved once
:mod:`.wires`       the links in the engine, one for each or one for each class
:mod:`.draw`        a fabric as text and as SVG
=================== ==========================================================================================

Everything here is a pure function of its arguments, but for :mod:`.fabric.network` and :mod:`.fabric.wires`, which hand
the results to the engine.
"""
