"""Tensors between callers and the native module: their names, DLPack, hosts and devices."""
