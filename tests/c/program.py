#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tutti/c.h from Python, by ctypes and with NumPy's arrays. usage: program.py LIBTUTTI; prints "ok" if all was right."""
import ctypes
import sys

import numpy as np

OK, INVALID_ARGUMENT, UNIMPLEMENTED, ABORTED = 0, 1, 7, 5
SUM, MEAN, MAX = 0, 1, 3
NUMPY_DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", None,
                "float32", "float64"]
c = ctypes


class Tensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("count", c.c_int64), ("dtype", c.c_int32), ("device", c.c_int32),
                ("shape", c.POINTER(c.c_int64)), ("ndim", c.c_int32), ("flags", c.c_int32)]


class Options(c.Structure):
    _fields_ = [("size", c.c_size_t), ("timeout_ns", c.c_int64), ("stream", c.c_void_p),
                ("implementation", c.c_int32), ("reserved", c.c_int32)]


class NewerOptions(c.Structure):
    _fields_ = Options._fields_ + [("newer", c.c_int64)]


tutti = c.CDLL(sys.argv[1])
tutti.tutti_last_error.restype = tutti.tutti_version.restype = tutti.tutti_group_backend.restype = c.c_char_p
capsule_pointer = c.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype, capsule_pointer.argtypes = c.c_void_p, [c.py_object, c.c_char_p]


def last_error():
    return tutti.tutti_last_error().decode()


def ok(code):
    assert code == OK, f"code {code}: {last_error()}"


def expect(code, part, got):
    assert got == code and part in last_error(), f"code {got}: {last_error()}"


def of(array):
    return Tensor(array.ctypes.data, array.size, NUMPY_DTYPES.index(array.dtype.name))


def collectives(world, rank, size):
    for dtype in filter(None, NUMPY_DTYPES):
        array = np.full(1000, rank % 2, dtype)
        ok(tutti.tutti_all_reduce(world, None, c.byref(of(array)), MAX, None, None))
        assert (array == min(size - 1, 1)).all(), dtype
    gradient = np.arange(6, dtype=np.float32).reshape(2, 3) + rank
    mean = np.arange(6, dtype=np.float32).reshape(2, 3) + (size - 1) / 2
    ok(tutti.tutti_all_reduce(world, None, c.byref(of(gradient)), MEAN, None, None))
    assert (gradient == mean).all()

    rows = np.full(rank + 1, rank, np.int16)
    count, counts = np.array([rows.size]), np.empty(size, np.int64)
    ok(tutti.tutti_all_gather(world, c.byref(of(count)), c.byref(of(counts)), None, None))
    joined = np.empty(counts.sum(), np.int16)
    ok(tutti.tutti_all_gather_uneven(world, c.byref(of(rows)), c.byref(of(joined)), c.c_void_p(counts.ctypes.data), None))
    assert (joined == np.repeat(np.arange(size), np.arange(size) + 1)).all()

    arrays = [np.full(3, rank, np.float32), np.full((2, 2), 2 * rank, np.float64)]
    tensors = (Tensor * 2)(*map(of, arrays))
    ok(tutti.tutti_all_reduce_list(world, tensors, c.c_size_t(2), SUM, None, None))
    assert (arrays[0] == size * (size - 1) / 2).all() and (arrays[1] == size * (size - 1)).all()


def dlpack(world, rank, size):
    """The array as JAX or PyTorch would hand it over; the capsule keeps it."""
    array = np.full((4, 5), rank, np.float64)
    capsule, tensor = array.__dlpack__(), Tensor()
    ok(tutti.tutti_tensor_from_dlpack(c.c_void_p(capsule_pointer(capsule, b"dltensor")), c.byref(tensor)))
    assert (tensor.data, tensor.count, tensor.shape[1]) == (array.ctypes.data, 20, 5)
    ok(tutti.tutti_all_reduce(world, None, c.byref(tensor), SUM, None, None))
    assert (array == size * (size - 1) / 2).all()
    strided = array[:, 1:3].__dlpack__()
    expect(INVALID_ARGUMENT, "strided", tutti.tutti_tensor_from_dlpack(
        c.c_void_p(capsule_pointer(strided, b"dltensor")), c.byref(tensor)))


def shared_memory(world, size):
    data = c.c_void_p()
    ok(tutti.tutti_alloc(world, c.c_int64(8 * 100), c.byref(data)))
    array = np.frombuffer((c.c_double * 100).from_address(data.value))
    array[:] = 1
    ok(tutti.tutti_all_reduce(world, None, c.byref(of(array)), SUM, None, None))
    assert (array == size).all()
    ok(tutti.tutti_free(data))


def background(world, rank, size):
    arrays, works = [np.full(100, i + rank) for i in range(4)], []
    for array in arrays:
        works.append(c.c_void_p())
        ok(tutti.tutti_all_reduce(world, None, c.byref(of(array)), SUM, None, c.byref(works[-1])))
    for i, (array, work) in enumerate(zip(arrays, works)):
        ok(tutti.tutti_work_wait(work))
        assert tutti.tutti_work_done(work) == 1 and (array == size * i + size * (size - 1) // 2).all()
        ok(tutti.tutti_work_destroy(work))


def errors(world, rank, size):
    expect(INVALID_ARGUMENT, "tutti_barrier: the group is NULL", tutti.tutti_barrier(None, None))
    expect(INVALID_ARGUMENT, "99 is not a dtype",
           tutti.tutti_broadcast(world, c.byref(Tensor(None, 0, 99)), 0, None, None))
    expect(UNIMPLEMENTED, "does not know",
           tutti.tutti_barrier(world, c.byref(NewerOptions(c.sizeof(NewerOptions), 0, None, 0, 0, 1))))
    ok(tutti.tutti_barrier(world, c.byref(NewerOptions(c.sizeof(NewerOptions)))))
    ok(tutti.tutti_barrier(world, c.byref(Options(16, 10**11, None, 99))))
    if size == 1:
        return
    part, array = c.c_void_p(), np.zeros(rank + 1, np.uint16)
    ok(tutti.tutti_group_split(world, 0, rank, c.byref(part)))
    got = tutti.tutti_all_reduce(part, None, c.byref(of(array)), SUM, None, None)
    expect(INVALID_ARGUMENT, "uint16[1]", got)
    assert "uint16[2]" in last_error() or size > 2, last_error()
    ok(tutti.tutti_group_destroy(part))


def main():
    world = c.c_void_p()
    ok(tutti.tutti_group_from_environment(c.byref(world)))
    rank, size = tutti.tutti_group_rank(world), tutti.tutti_group_size(world)
    assert tutti.tutti_version().count(b".") == 2 and tutti.tutti_group_backend(world)
    collectives(world, rank, size)
    dlpack(world, rank, size)
    shared_memory(world, size)
    background(world, rank, size)
    errors(world, rank, size)
    ok(tutti.tutti_barrier(world, None))
    ok(tutti.tutti_group_destroy(world))
    print("ok")


main()
