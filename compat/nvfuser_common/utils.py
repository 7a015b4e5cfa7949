"""`cmake_prefix_path`, where nvFuser's own wheels keep files for C++ extensions. weft has none: the folder does not exist."""

from pathlib import Path

cmake_prefix_path = str(Path(__file__).resolve().parent / "share" / "cmake")
