"""Compile, load and launch kernels: NVRTC, disk cache, driver."""
