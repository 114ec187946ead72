"""What runs beside a workload: the agent, and what is injected into the workload's processes."""
