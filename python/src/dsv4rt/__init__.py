"""The attention layers of DeepSeek-V4 and the cache they own.

docs/python.md of the repository is the guide. `dsv4rt.transformers`, which needs torch and transformers, puts the
library under a model of transformers.
"""

from dsv4rt._arrays import Rows
from dsv4rt._library import lib as _lib, text as _text
from dsv4rt.engine import Engine
from dsv4rt.errors import (BackendLostError, BadInputError, Dsv4rtError, FailedPreconditionError, FaultedError,
                           InternalError, InvalidArgumentError, MismatchError, NotFoundError, ResourceExhaustedError,
                           StaleHandleError, UnsupportedError)
from dsv4rt.options import EngineMemory, EngineOptions, GraphStats, MemoryRegion
from dsv4rt.parallel import ParallelOptions, nccl_unique_id
from dsv4rt.prefix import (PrefixCache, PrefixCacheOptions, PrefixEvent, PrefixEventKind, PrefixLookup, PrefixPolicy,
                           PrefixRemoval, PrefixStats)
from dsv4rt.sequence import Sequence
from dsv4rt.state import (BlockShortage, CacheRole, CacheView, EngineConfig, EngineState, LayerInfo, RoleState,
                          SequenceState)
from dsv4rt.step import AcceptedCounts, OutputCheck, Step

__version__ = _text(_lib.dsv4rt_version())
C_API_VERSION: int = _lib.dsv4rt_c_api_version()

__all__ = ["AcceptedCounts", "BackendLostError", "BadInputError", "BlockShortage", "C_API_VERSION", "CacheRole",
           "CacheView", "Dsv4rtError", "Engine",
           "EngineConfig", "EngineMemory", "EngineOptions", "EngineState", "FailedPreconditionError", "FaultedError",
           "GraphStats", "InternalError", "InvalidArgumentError", "LayerInfo", "MemoryRegion", "MismatchError",
           "NotFoundError", "OutputCheck", "ParallelOptions",
           "PrefixCache", "PrefixCacheOptions", "PrefixEvent", "PrefixEventKind",
           "PrefixLookup", "PrefixPolicy", "PrefixRemoval", "PrefixStats", "ResourceExhaustedError", "RoleState",
           "Rows", "Sequence", "SequenceState", "StaleHandleError", "Step", "UnsupportedError",
           "__version__", "nccl_unique_id"]
