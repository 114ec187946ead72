// The gate that a workload waits at before it starts.
#pragma once
#include <signal.h>

// Returns once the agent has opened the gate and every name resolves. Ends the process if that takes more than
// `limit_s`, or if the run is over before. `signals` are blocked, and this function obeys one of them that asks for an
// end.
void wait_at_gate(double limit_s, char *const *names, int count, const sigset_t *signals);
