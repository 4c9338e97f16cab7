# SPDX-License-Identifier: Apache-2.0
"""Exchanges tensors between Tutti and NumPy, and PyTorch if it can be imported, over DLPack.

Usage: dlpack_exchange.py libdlpack_exchange_helper.so

Prints what it checked and what it skipped, and why. Exits with 1 where a check failed.
"""
import ctypes
import gc
import sys
import traceback

# In the order of tutti::DType.
DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
          "float16", "bfloat16", "float32", "float64"]
OLD, NEW = b"dltensor", b"dltensor_versioned"
USED = {OLD: b"used_dltensor", NEW: b"used_dltensor_versioned"}

helper = ctypes.CDLL(sys.argv[1])
for name, result, arguments in [
        ("error", ctypes.c_char_p, []),
        ("released", ctypes.c_int, []),
        ("make", ctypes.c_void_p, [ctypes.c_int, ctypes.POINTER(ctypes.c_int64), ctypes.c_int]),
        ("drop", None, [ctypes.c_void_p]),
        ("export", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int]),
        ("import", ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_int]),
        ("data", ctypes.c_void_p, [ctypes.c_void_p]),
        ("dtype", ctypes.c_int, [ctypes.c_void_p]),
        ("rank", ctypes.c_int, [ctypes.c_void_p]),
        ("extent", ctypes.c_int64, [ctypes.c_void_p, ctypes.c_int]),
        ("read_only", ctypes.c_int, [ctypes.c_void_p]),
        ("get", ctypes.c_double, [ctypes.c_void_p, ctypes.c_int64]),
        ("set", None, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_double])]:
    function = getattr(helper, "exchange_" + name)
    function.restype, function.argtypes = result, arguments

api = ctypes.pythonapi
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


notes = set()


class Skip(Exception):
    """The other library lacks what a check needs."""


class TuttiTensor:
    """A tensor of Tutti's, as other libraries expect one: with __dlpack__."""

    def __init__(self, handle, versioned=False):
        self.handle = handle
        if not handle:
            raise RuntimeError(helper.exchange_error().decode())
        self.versioned = versioned
        self.capsule_name = None

    @staticmethod
    def zeros(dtype, shape, versioned):
        extents = (ctypes.c_int64 * len(shape))(*shape)
        return TuttiTensor(
            helper.exchange_make(DTYPES.index(dtype), extents, len(shape)), versioned)

    def __del__(self):
        helper.exchange_drop(self.handle)

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        # A consumer that asks for no version understands the old structure only.
        new = self.versioned and max_version is not None and max_version[0] >= 1
        managed = helper.exchange_export(self.handle, new)
        if not managed:
            raise BufferError(helper.exchange_error().decode())
        self.capsule_name = NEW if new else OLD
        return api.PyCapsule_New(managed, self.capsule_name, None)

    data = property(lambda self: helper.exchange_data(self.handle) or 0)
    dtype = property(lambda self: DTYPES[helper.exchange_dtype(self.handle)])
    read_only = property(lambda self: bool(helper.exchange_read_only(self.handle)))

    @property
    def shape(self):
        return tuple(helper.exchange_extent(self.handle, i)
                     for i in range(helper.exchange_rank(self.handle)))

    def __getitem__(self, index):
        return helper.exchange_get(self.handle, index)

    def __setitem__(self, index, value):
        helper.exchange_set(self.handle, index, value)


def take(capsule):
    """What a library exported, taken over by Tutti as a consumer does."""
    name = NEW if api.PyCapsule_IsValid(capsule, NEW) else OLD
    managed = api.PyCapsule_GetPointer(capsule, name)
    tensor = TuttiTensor(helper.exchange_import(managed, name == NEW))
    api.PyCapsule_SetName(capsule, USED[name])
    return tensor


class Library:
    """Another library. Its own exchange with itself says what it is able to."""

    def need(self, dtype):
        array = self.zeros(dtype, (1,))
        try:
            self.receive(array)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise Skip(f"it has no DLPack for {dtype}: {error}") from error

    def send(self, array, versioned):
        if not versioned:
            return array.__dlpack__()
        try:
            return array.__dlpack__(max_version=(1, 0))
        except TypeError as error:
            raise Skip(f"it has no versioned structure: {error}") from error


class NumPy(Library):
    def __init__(self):
        import numpy
        if not hasattr(numpy, "from_dlpack"):
            raise ImportError(f"NumPy {numpy.__version__} has no from_dlpack")
        self.np = numpy
        self.name = "NumPy " + numpy.__version__

    def zeros(self, dtype, shape):
        if dtype == "bfloat16":
            raise Skip("it has no bfloat16")
        return self.np.zeros(shape, dtype)

    def receive(self, tensor):
        return self.np.from_dlpack(tensor)

    def address(self, array):
        return array.__array_interface__["data"][0]

    def writable(self, array):
        return array.flags.writeable

    def read_only_array(self):
        array = self.np.arange(3, dtype=self.np.float32)
        array.flags.writeable = False
        return array

    def dtype_name(self, array):
        return str(array.dtype)


class Torch(Library):
    def __init__(self):
        import torch
        self.torch = torch
        self.name = "PyTorch " + torch.__version__

    def zeros(self, dtype, shape):
        if not hasattr(self.torch, dtype):
            raise Skip(f"it has no {dtype}")
        return self.torch.zeros(shape, dtype=getattr(self.torch, dtype))

    def receive(self, tensor):
        return self.torch.from_dlpack(tensor)

    def address(self, array):
        return array.data_ptr()

    def writable(self, array):
        return True

    def read_only_array(self):
        raise Skip("it has no read-only tensors")

    def dtype_name(self, array):
        return str(array.dtype).removeprefix("torch.")


def check_export(library, dtype, versioned):
    """Tutti to the library: same memory, both see writes, and it lives as long as it is used."""
    library.need(dtype)
    before = helper.exchange_released()
    tensor = TuttiTensor.zeros(dtype, (2, 3), versioned)
    tensor[4] = 1
    array = library.receive(tensor)
    if versioned and tensor.capsule_name == OLD:
        raise Skip("it does not ask for the versioned structure")
    assert library.address(array) == tensor.data, "the data was copied"
    assert tuple(array.shape) == (2, 3), array.shape
    assert library.dtype_name(array) == dtype, array.dtype
    assert float(array[1, 1]) == 1 and float(array[0, 0]) == 0
    tensor[0] = 1
    assert float(array[0, 0]) == 1, "a write of Tutti's is not seen"
    if library.writable(array):
        array[1, 2] = 1
        assert tensor[5] == 1, "a write of the library's is not seen"
    else:
        notes.add(f"what comes in the {'versioned' if versioned else 'old'} structure is read-only")
    del tensor
    gc.collect()
    assert helper.exchange_released() == before, "the memory went while the library used it"
    assert float(array[1, 1]) == 1
    del array
    gc.collect()
    assert helper.exchange_released() == before + 1, "the memory was never given back"


def check_import(library, dtype, versioned):
    """The library to Tutti: the same the other way round."""
    library.need(dtype)
    array = library.zeros(dtype, (3, 2))
    array[0, 1] = 1
    tensor = take(library.send(array, versioned))
    assert tensor.data == library.address(array), "the data was copied"
    assert tensor.shape == (3, 2) and tensor.dtype == dtype, (tensor.shape, tensor.dtype)
    assert not tensor.read_only
    assert tensor[1] == 1 and tensor[5] == 0
    array[2, 1] = 1
    assert tensor[5] == 1, "a write of the library's is not seen"
    tensor[0] = 1
    assert float(array[0, 0]) == 1, "a write of Tutti's is not seen"
    back = library.receive(tensor)
    assert library.address(back) == library.address(array), "the way back copied"
    del back
    address = library.address(array)
    del array
    gc.collect()
    assert tensor.data == address and tensor[1] == 1 and tensor[5] == 1
    del tensor
    gc.collect()


def check_lifetime_of_imports(library, versioned):
    """The library's object is held until Tutti lets go, and then released."""
    array = library.zeros("float32", (1000,))
    count = sys.getrefcount(array)
    tensor = take(library.send(array, versioned))
    held = sys.getrefcount(array)
    del tensor
    gc.collect()
    assert sys.getrefcount(array) == count, "the object was never released"
    if held == count:
        raise Skip("it holds its memory in another way than by the Python object")


def check_read_only(library, versioned):
    """Read-only memory arrives as such, or not at all."""
    array = library.read_only_array()
    if versioned:
        tensor = take(library.send(array, True))
        assert tensor.read_only and tensor[2] == 2
        back = library.receive(TuttiTensor(helper.exchange_import(
            helper.exchange_export(tensor.handle, 1), 1), True))
        assert not library.writable(back), "read-only memory came back writable"
    else:
        try:
            library.send(array, False)
        except (BufferError, TypeError, ValueError):
            return
        raise Skip("it exports read-only memory in the old structure, which cannot say so")


def check_strided(library, versioned):
    """Memory that is not contiguous is refused, and stays the library's."""
    array = library.zeros("float32", (4, 4))
    capsule = library.send(array[:, 1:3], versioned)
    try:
        take(capsule)
    except RuntimeError as error:
        assert "strided" in str(error), error
    else:
        raise AssertionError("strided memory was accepted")
    assert api.PyCapsule_IsValid(capsule, NEW if versioned else OLD)


def main():
    checks = {"passed": 0, "skipped": 0, "failed": 0}
    skips = {}

    def run(what, check, *arguments):
        try:
            check(*arguments)
            checks["passed"] += 1
        except Skip as skip:
            checks["skipped"] += 1
            skips.setdefault(str(skip), []).append(what)
        except Exception:  # whatever it is, the others are still to be run
            checks["failed"] += 1
            print(f"FAILED: {what}")
            traceback.print_exc()

    for make in (NumPy, Torch):
        try:
            library = make()
        except ImportError as error:
            print(f"skipped: {make.__name__} ({error})")
            continue
        print(f"{library.name}:")
        for versioned in (False, True):
            kind = "versioned" if versioned else "old"
            for dtype in DTYPES:
                run(f"export {dtype} ({kind})", check_export, library, dtype, versioned)
                run(f"import {dtype} ({kind})", check_import, library, dtype, versioned)
            run(f"lifetime ({kind})", check_lifetime_of_imports, library, versioned)
            run(f"read-only ({kind})", check_read_only, library, versioned)
            run(f"strided ({kind})", check_strided, library, versioned)
        for reason, whats in skips.items():
            print(f"  skipped {', '.join(whats)}: {reason}")
        for note in sorted(notes):
            print(f"  note: {note}")
        skips.clear()
        notes.clear()
    print(", ".join(f"{count} {what}" for what, count in checks.items()))
    return 1 if checks["failed"] or not checks["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
