"""The tracker: copies a run's metrics and sample trajectories to TensorBoard, MLflow, wandb or trackio.

It only reads the log, and nothing may depend on it. Each tool's library is imported in its module of ``backends``.
"""
