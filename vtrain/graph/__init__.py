"""The step graph: built from a model, differentiated, ranged, lowered to ONNX."""
