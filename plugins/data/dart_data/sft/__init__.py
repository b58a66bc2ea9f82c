"""Supervised fine-tuning before a run (``dart-streams train --sft``), by the trainer's own update."""
