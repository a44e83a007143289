"""A PyTorch module -> an ONNX file that :mod:`vtrain.graph.onnx_import` reads, names kept.

``capture`` runs ``torch.export`` in training semantics; ``translate`` writes what it gives as ONNX
nodes; ``constants`` computes what does not depend on the module's input.  Only this room and
``vtrain.train.torch_hooks`` import torch.
"""
