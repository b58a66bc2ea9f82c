"""Entropulse of ComputerRL: supervised phases on the policy's own successes."""
