"""A model of outcomes, pretrained on recorded runs, orders the tasks."""
