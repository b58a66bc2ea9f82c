"""The tracker: copies a run's metrics and sample trajectories to TensorBoard, MLflow, wandb or trackio.

It only reads the log; nothing may depend on it. Each tool's own library is imported in its module of ``backends``.
"""
