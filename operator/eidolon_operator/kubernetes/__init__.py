"""The Kubernetes backend: a ``SimulatedCluster`` becomes pods, and its status says where the run stands.

``python -m eidolon_operator.kubernetes`` starts it. Everything that decides is a pure function; everything that talks
to somebody is thin::

    watches (handlers, kopf)      put the key of an object into the queue, and keep small facts about pods (world)
    watch of the cores (cores)    asks running simulations; puts the key into the queue when one says something new
      └─ queue                    each key at most once; one worker per key; back-off
           └─ reconcile           reads the object, executes a decision
                ├─ decide         policies: (object, world, time) -> status to write, what to make and what to delete
                │    ├─ situation    what a decision looks at
                │    ├─ conditions   what is said of an attempt that goes on
                │    └─ status       reasons, failures, figures, and the draft of a status
                ├─ builders       (object, attempt) -> manifests
                └─ client         the API server, over the official asynchronous client

What all of them call things (pods, labels, ports, paths) is in naming. The rules that make it robust:

* *Level-based.* A watch event says only "look at this one". A reconcile reads the object anew and compares what should
  be with what is, so that lost, doubled and late events change nothing, and neither does a restart of the operator.
* *Deterministic names.* A pod is made under the name that its server has, so a pod that is made twice is made once.
* *Owner references, no finalizers.* Deletion needs no operator: the garbage collector removes what an object owns.
* *A resync on its own clock* lists objects and pods again, for the day a watch goes silent without an error.
* *Foreign things are left alone.* If a child of the right name belongs to somebody else, the operator waits until it is
  gone, and says so.

One replica, replaced and never overlapping (``Recreate``), without leader election: a run goes on without its operator,
and two operators would do no harm but the work of one.
"""
