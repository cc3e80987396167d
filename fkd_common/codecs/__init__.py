"""How tensors are made smaller for the wire, and back: casts, quantisation, rotation, and zstd around them.

Packed tensors are named tensors too, so that what crosses the wire stays one safetensors blob. Which codec is in
use is a key of the run configuration; shapes and names follow from the run on both sides, so no message says them.
Unpacking is bounded by what the run expects, whatever a message claims, and what is unpacked is checked like
anything that came unpacked.
"""
