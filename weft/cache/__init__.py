"""What is kept on disk: compiled kernels of both engines, in one folder, with one set of rules. docs/cache.md says what they promise.

Owns the entry's format (`entry`), files and folders that nobody else may write (`private`), locks between processes (`lock`), the folder of
entries (`disk`), and digests of code (`digests`). It does not know what an entry means. Read first: `disk.DiskCache`.
"""

from weft.cache.digests import digest_of_files, files_below
from weft.cache.disk import CacheUse, DiskCache, default_cache
from weft.cache.entry import Artefact, ArtefactNotJson, artefact_key

__all__ = ["Artefact", "ArtefactNotJson", "CacheUse", "DiskCache", "artefact_key", "default_cache", "digest_of_files", "files_below"]
