"""`eidolon profile` measures a real GPU for the cost tables. It needs PyTorch, and none of our native parts.

It is made to run also on a machine where Eidolon cannot be built. Besides the package it needs one file of Eidolon, the
fixed load ``eidolon_simcore/costs/reference_load.py``. The two can be copied to such a machine under these names, and
started with ``python -m eidolon_simcore.profile``.

=============  ======================================================================================================
``operators``  durations of the operator set (:mod:`.operators`), kernel by kernel, with warm and with cold L2 cache
``script``     the kernels of any training script, with the operators that launched them, from a profiler trace
``sustained``  clock and power under loads of several seconds, and how mixes of two loads share a power limit
``host``       what operators cost on the host
``calibrate``  the host cost table of this machine (:mod:`.calibrate`): `eidolon calibrate host`
``nccl``       collectives, from CUDA graphs, so that no host time is in them (start it with ``torchrun``)
=============  ======================================================================================================

Everything is measured on random normal data, because on zeros a tensor core draws a third less power and the clock
stays higher. The SM clock is measured beside each case by a kernel that spins for a known number of cycles, because a
table is only as good as the clock it was measured at.
"""
