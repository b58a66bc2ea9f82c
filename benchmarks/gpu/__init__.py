"""The trainer on a GPU, with random weights of real sizes: ``python -m benchmarks.gpu``, in about ten minutes.

``models`` has the shapes, ``trajectory`` the data, ``plans`` what is measured, and ``trainer`` measures it.
"""
