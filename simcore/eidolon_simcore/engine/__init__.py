"""The engine: from lanes of work to times.

`interface` states what an engine is; `native` is the one in C++ (``simcore/native``). Everything else in the simulation
core talks to the interface only. (The plain Python one that it is held against is in the tests.)
"""
