"""The device library: what generated kernels call, as CUDA C++ text."""
