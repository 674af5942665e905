"""Structures and constants of the CUDA driver interface, as `cuda.h` (CUDA 12.8) declares them."""

from __future__ import annotations

from ctypes import Structure, Union, c_char, c_int, c_uint, c_uint64, c_void_p
from typing import Final

TENSOR_MAP_BYTES: Final = 128
TENSOR_MAP_ALIGNMENT: Final = 64
"""Of a `CUtensorMap`, which is opaque."""


class ClusterDimension(Structure):
    """`CUlaunchAttributeValue.clusterDim`: thread blocks of a cluster along x, y and z."""

    _fields_ = (("x", c_uint), ("y", c_uint), ("z", c_uint))


class LaunchAttributeValue(Union):
    """`CUlaunchAttributeValue`, as far as launches of printed kernels use it."""

    _fields_ = (
        ("pad", c_char * 64),
        ("cooperative", c_int),
        ("clusterDim", ClusterDimension),
        ("clusterSchedulingPolicyPreference", c_int),
        ("programmaticStreamSerializationAllowed", c_int),
    )


class LaunchAttribute(Structure):
    """`CUlaunchAttribute`: one of `ATTRIBUTE_*`, and its value."""

    _fields_ = (("id", c_int), ("pad", c_char * 4), ("value", LaunchAttributeValue))


class LaunchConfig(Structure):
    """`CUlaunchConfig`: what `cuLaunchKernelEx` takes beside the function and its parameters."""

    _fields_ = (
        ("gridDimX", c_uint),
        ("gridDimY", c_uint),
        ("gridDimZ", c_uint),
        ("blockDimX", c_uint),
        ("blockDimY", c_uint),
        ("blockDimZ", c_uint),
        ("sharedMemBytes", c_uint),
        ("hStream", c_void_p),
        ("attrs", c_void_p),
        ("numAttrs", c_uint),
    )


class KernelNodeParams(Structure):
    """`CUDA_KERNEL_NODE_PARAMS_v2`: a kernel node of a graph."""

    _fields_ = (
        ("func", c_void_p),
        ("gridDimX", c_uint),
        ("gridDimY", c_uint),
        ("gridDimZ", c_uint),
        ("blockDimX", c_uint),
        ("blockDimY", c_uint),
        ("blockDimZ", c_uint),
        ("sharedMemBytes", c_uint),
        ("kernelParams", c_void_p),
        ("extra", c_void_p),
        ("kern", c_void_p),
        ("ctx", c_void_p),
    )


class TensorMap(Structure):
    """`CUtensorMap`: opaque; it has to lie at a multiple of `TENSOR_MAP_ALIGNMENT`."""

    _fields_ = (("opaque", c_uint64 * (TENSOR_MAP_BYTES // 8)),)


ATTRIBUTE_COOPERATIVE: Final = 2
ATTRIBUTE_CLUSTER_DIMENSION: Final = 4
ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: Final = 5
ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: Final = 6
"""`CU_LAUNCH_ATTRIBUTE_*`."""

CLUSTER_SCHEDULING_POLICY_SPREAD: Final = 1

FUNC_CACHE_PREFER_SHARED: Final = 1
"""`CU_FUNC_CACHE_PREFER_SHARED`."""

FUNC_SHARED_SIZE_BYTES: Final = 1
FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES: Final = 8
FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: Final = 14
"""`CU_FUNC_ATTRIBUTE_*`."""

DEVICE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: Final = 97
"""`CU_DEVICE_ATTRIBUTE_*`."""

POINTER_MEMORY_TYPE: Final = 2
MEMORY_HOST: Final = 1
"""`CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, and its value for pinned host memory."""

EVENT_DEFAULT: Final = 0
EVENT_DISABLE_TIMING: Final = 2
"""`CU_EVENT_*`."""

TENSOR_MAP_INTERLEAVE_NONE: Final = 0
TENSOR_MAP_L2_PROMOTION_L2_128B: Final = 2
TENSOR_MAP_FLOAT_OOB_FILL_NONE: Final = 0
"""`CU_TENSOR_MAP_*`."""
