// The gate before the workload.
#pragma once
#include <signal.h>

// Returns once the agent has opened the gate and every name resolves; ends the process if that takes more than
// `limit_s`, or if the run is over before. `signals` are blocked; one of them that asks for an end is obeyed.
void wait_at_gate(double limit_s, char *const *names, int count, const sigset_t *signals);
