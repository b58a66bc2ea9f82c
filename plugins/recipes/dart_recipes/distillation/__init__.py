"""On-policy distillation (Thinking Machines, 2025)."""
