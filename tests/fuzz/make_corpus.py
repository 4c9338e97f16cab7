#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of tests/fuzz/corpus; what fuzzing found lies there too, and is left alone."""
import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).parent / "corpus"


def put(target, name, data):
    folder = ROOT / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def device_names():
    seeds = {
        "empty": "",
        "slash": "/",
        "full": "/job:localhost/replica:0/task:0/device:CPU:0",
        "full_with_fallback": "/job:worker/replica:1/task:2/device:GPU:3\n/job:ps/cpu:0",
        "short_cpu": "cpu:1",
        "short_mixed_case": "/Custom:3\n/task:4",
        "type_only": "gpu\n/device:CPU:7",
        "stars": "/job:*/replica:*/task:*/device:GPU:*\n/job:a",
        "any_order": "/device:TPU:2/task:7/replica:3/job:muu\ntpu",
        "slashes": "//job:a_1///cpu:0/\n//",
        "largest_number": "/task:2147483647/epu:0",
        "own_type": "/device:XYZ_9:0\n/device:ABC:1",
        "job_twice": "/job:a/job:*\n/task:1/task:*",
        "fallback_only": "\n/job:worker/task:1/gpu:2",
        "bad_own_type_in_small_letters": "/device:xyz:0",
        "bad_unknown_part": "/foo:0",
        "bad_two_types": "/cpu:0/gpu:0",
        "bad_job": "/job:1a-b",
        "bad_job_empty": "/job:",
        "bad_number": "/task:0x1",
        "bad_number_negative": "/cpu:-1",
        "bad_number_too_large": "/replica:99999999999",
        "bad_number_missing": "/cpu:",
        "bad_index_twice": "/cpu:1:2",
        "bad_type": "/device:0",
        "bad_type_empty": "/device:",
        "bad_no_value": "/job",
        "bad_fallback": "/cpu:0\n/nonsense",
        "crash_fallback_in_small_letters": "\n/device:xyz:0",
        "bad_bytes": b"/job:\xff\x00a/cpu:\x80",
    }
    for name, text in seeds.items():
        put("device_names", name, text)


def checksum(data, value=0x9E3779B97F4A7C15):
    mask = 2**64 - 1
    for at in range(0, len(data), 8):
        value = (value ^ int.from_bytes(data[at:at + 8], "little")) * 0xFF51AFD7ED558CCD & mask
        value ^= value >> 32
    return value ^ len(data)


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors():
    def put_file(name, header, data=b"", size=None):
        text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
        size = len(text) if size is None else size
        put("safetensors", name, struct.pack("<Q", size) + text + data)

    four = struct.pack("<2h", 1, 2)
    f32 = {"w": entry("F32", [2], 0, 8)}
    data = struct.pack("<2f", 1.5, -2)
    put_file("no_tensors", {})
    put_file("one_tensor", f32, data)
    put_file("padded_header", json.dumps(f32).encode() + b"    ", data)
    put_file("scalar", {"s": entry("F64", [], 0, 8)}, data)
    put_file("no_elements", {"e": entry("I64", [3, 0], 0, 0)})
    put_file("no_elements_large_extent", {"e": entry("I64", [2**62, 0], 0, 0)})
    put_file("metadata", {"__metadata__": {"format": "pt", "\u00e9": "\U0001f600"}, **f32}, data)
    text = json.dumps({"__metadata__": {"tutti.checksum": "0" * 16}, **f32}, separators=(",", ":")).encode()
    digits = f"{checksum(data, checksum(text)):016x}".encode()
    put_file("checksum", text.replace(b"0" * 16, digits), data)
    put_file("bools", {"b": entry("BOOL", [4], 0, 4)}, b"\0\1\1\0")
    types = {"BOOL": 1, "I8": 1, "U8": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
             "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8}
    header, at = {}, 0
    for dtype, size in types.items():
        header[f"layer.{dtype}"] = entry(dtype, [1, 1], at, at + size)
        at += size
    put_file("every_type", header, bytes([1] * at))
    put_file("unordered", {"b": entry("I16", [1], 2, 4), "a": entry("I16", [1], 0, 2)}, four)
    put_file("rank_64", {"r": entry("U8", [1] * 64, 0, 1)}, b"x")
    put_file("escaped_name", b'{"a\\u0000\\"":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x")
    put_file("unknown_field", {"a": {**entry("U8", [1], 0, 1), "more": {"b": [1, {"c": []}]}}}, b"x")
    put("safetensors", "bad_short", b"\x08\0\0")
    put_file("bad_header_longer_than_file", f32, data, size=10**6)
    put_file("bad_header_length_huge", f32, data, size=2**64 - 1)
    put_file("bad_not_json", b'{"a":', b"")
    put_file("bad_not_an_object", b"[1,2]")
    put_file("bad_deep", b"[" * 2000)
    put_file("bad_deep_field", b'{"a":{"more":' + b"[" * 2000)
    put_file("bad_name_twice", b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},'
             b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x")
    put_file("bad_field_twice", b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}', b"x")
    put_file("bad_metadata_twice", b'{"__metadata__":{"a":"b","a":"c"}}')
    put_file("bad_no_checksum", {"__metadata__": {"tutti.format": "1"}, **f32}, data)
    put_file("bad_utf8", b'{"\xff\xfe":{}}')
    put_file("bad_entry", {"a": 3})
    put_file("bad_no_shape", {"a": {"dtype": "F32", "data_offsets": [0, 4]}}, four)
    put_file("bad_type", {"a": entry("F8_E4M3", [4], 0, 4)}, four)
    put_file("bad_type_number", {"a": entry(5, [4], 0, 4)}, four)
    put_file("bad_negative_extent", {"a": entry("I8", [-4], 0, 4)}, four)
    put_file("bad_fractional_extent", {"a": entry("I8", [4.0], 0, 4)}, four)
    put_file("bad_rank_65", {"r": entry("U8", [1] * 65, 0, 1)}, b"x")
    put_file("bad_too_many_elements", {"a": entry("F32", [2**62, 2**62], 0, 4)}, four)
    put_file("bad_too_many_bytes", {"a": entry("F64", [2**62], 0, 4)}, four)
    put_file("bad_overflow_beside_zero", {"a": entry("I8", [0, 2**62, 2**62], 0, 0)})
    put_file("bad_offsets_one", {"a": {"dtype": "I8", "shape": [4], "data_offsets": [4]}}, four)
    put_file("bad_offsets_reversed", {"a": entry("I8", [0], 4, 0)}, four)
    put_file("bad_offsets_outside", {"a": entry("I8", [8], 0, 8)}, four)
    put_file("bad_overlap", {"a": entry("I8", [4], 0, 4), "b": entry("I8", [2], 2, 4)}, four)
    put_file("bad_gap", {"a": entry("I8", [2], 2, 4)}, four)
    put_file("bad_bytes_left", {"a": entry("I8", [2], 0, 2)}, four)
    put_file("bad_metadata", {"__metadata__": {"a": 1}})
    put_file("bad_checksum", {"__metadata__": {"tutti.checksum": "0" * 16}, **f32}, data)
    put_file("crash_bool_of_2", {"b": entry("BOOL", [2], 0, 2)}, b"\1\2")


VERSIONED, NO_STRIDES, CONTIGUOUS, NO_SHAPE, NO_DATA, NO_DELETER, LISTED = (1 << i for i in range(7))


def dlpack():
    def put_tensor(name, form, shape, strides=(), dtype=(2, 32, 1), device=1, ndim=None, offset=0,
                   version=(1, 0), flags=0):
        out = bytes([form])
        if form & VERSIONED:
            out += struct.pack("<BBQ", *version, flags)
        out += struct.pack("<3i", device, 0, len(shape) if ndim is None else ndim)
        out += struct.pack("<BBHH", *dtype, offset)
        for number in (*shape, *reversed(strides)):
            out += bytes([number]) if 0 <= number < 20 else struct.pack("<Bq", 255, number)
        put("dlpack", name, out)

    put_tensor("plain", NO_STRIDES, [3, 2])
    put_tensor("versioned", VERSIONED | NO_STRIDES, [3, 2])
    put_tensor("read_only", VERSIONED | CONTIGUOUS, [4], flags=1)
    put_tensor("flags_unknown", VERSIONED | CONTIGUOUS, [4], flags=2**64 - 1)
    put_tensor("version_1_9", VERSIONED | NO_STRIDES, [4], version=(1, 9))
    put_tensor("contiguous_strides", 0, [3, 2], [2, 1])
    put_tensor("stride_of_one_row", 0, [1, 2], [77, 1])
    put_tensor("strides_of_nothing", 0, [0, 2], [-5, 9])
    put_tensor("scalar", CONTIGUOUS, [])
    put_tensor("scalar_without_shape", NO_SHAPE | NO_STRIDES, [])
    put_tensor("nothing_without_memory", NO_DATA | NO_STRIDES, [0])
    put_tensor("no_deleter", NO_DELETER | NO_STRIDES, [2])
    put_tensor("offset", NO_STRIDES, [2], offset=64)
    put_tensor("offset_at_the_end", NO_STRIDES, [0], offset=4096)
    put_tensor("pinned", NO_STRIDES, [2], device=3)
    put_tensor("rank_64", CONTIGUOUS, [1] * 64)
    put_tensor("larger_than_its_memory", CONTIGUOUS, [2**40])
    for code in (0, 4, 8, 9, 10, 12):
        put_tensor(f"type_{code}", LISTED | CONTIGUOUS, [2], dtype=(code, 0, 0))
    put_tensor("bad_version_2", VERSIONED | NO_STRIDES, [2], version=(2, 0))
    put_tensor("bad_strided", 0, [3, 2], [1, 3])
    put_tensor("bad_type", NO_STRIDES, [2], dtype=(5, 64, 1))
    put_tensor("bad_lanes", NO_STRIDES, [2], dtype=(2, 32, 4))
    put_tensor("bad_device", NO_STRIDES, [2], device=2)
    put_tensor("bad_device_unknown", NO_STRIDES, [2], device=-7)
    put_tensor("bad_rank_negative", NO_STRIDES, [], ndim=-1)
    put_tensor("bad_rank_65", NO_STRIDES, [1] * 65)
    put_tensor("bad_no_shape", NO_SHAPE | NO_STRIDES, [2])
    put_tensor("bad_no_memory", NO_DATA | NO_STRIDES, [2])
    put_tensor("bad_extent", NO_STRIDES, [-2])
    put_tensor("bad_unaligned", NO_STRIDES, [2], offset=1)
    put_tensor("bad_too_many_elements", NO_STRIDES, [2**62, 2**62])
    put_tensor("bad_too_many_bytes", NO_STRIDES, [2**62])
    put_tensor("bad_overflow_beside_zero", CONTIGUOUS, [0, 2**62, 2**62])


def number(value):
    return struct.pack("<Q", value)


def flag(value):
    return bytes([value])


ON = flag(0)  # not at its end
INT64 = flag(1) + number(1) + number(5)  # the types of an element


def tensor(dtype, shape, data, device=b""):
    head = flag(1) + number(dtype) + number(len(shape)) + b"".join(map(number, shape))
    return head + number(len(device)) + device + data


def element(*tensors):
    return number(len(tensors)) + b"".join(tensors)


def scalar(value, device=b""):
    return element(tensor(4, [], number(value), device))


def dataset_state():
    def put_state(name, pipeline, position, steps=2):
        put("dataset_state", name, bytes([pipeline, steps]) + position)

    cpu = b"/job:localhost/replica:0/task:0/device:CPU:0"
    shuffled = ON + number(3) + number(12345) + number(2) + scalar(0) + scalar(2)
    put_state("range", 0, ON + number(4))
    put_state("range_at_end", 0, ON + number(10))
    put_state("ended", 0, flag(1))
    put_state("shuffle_repeat_batch", 1, ON + ON + number(1) + flag(1) + flag(0) + ON + shuffled)
    put_state("repeat_between_epochs", 1, ON + ON + number(3) + flag(0))
    put_state("shuffle_on_named_device", 1, ON + ON + number(0) + flag(1) + flag(0) + ON + ON + number(3)
              + number(1) + number(1) + scalar(5, cpu))
    rows = element(tensor(4, [2], number(7) + number(8)))
    put_state("unbatch", 2, ON + ON + ON + ON + number(4) + flag(1) + rows + number(1) + number(6))
    put_state("skip_shard", 3, ON + ON + ON + number(2) + flag(1) + flag(0))
    put_state("zip", 4, ON + ON + number(3) + ON + number(1) + INT64 + ON + number(0))
    opened = flag(1) + scalar(3) + number(14) + b"range(0, 3, 1)" + ON + number(1)
    put_state("interleave", 5, ON + ON + number(4) + flag(0) + number(0) + number(1) + number(2) + opened
              + flag(0))
    put_state("cache", 6, ON + number(1) + flag(1) + flag(0) + ON + number(2))
    put_state("prefetch", 7, ON + ON + number(2) + flag(0) + number(1) + flag(0) + scalar(1))
    put_state("prefetch_error", 7, ON + ON + number(2) + flag(1) + number(1) + flag(1) + number(2)
              + number(4) + b"gone")
    put_state("prefetch_other_error", 7, ON + ON + number(2) + flag(1) + number(1) + flag(1)
              + number(2**64 - 1) + number(3) + b"odd")
    put_state("parallel_map", 8, ON + ON + ON + number(5) + flag(0) + number(0))
    put_state("generator", 9, ON + number(0) + INT64 + ON + number(3))
    put_state("generator_second", 9, ON + number(1) + INT64 + ON + ON + number(3))
    put_state("concatenate_other_types", 9, ON + number(0) + flag(1) + number(1) + number(12) + ON + number(3))
    put_state("lines", 10, ON + ON + number(1) + flag(1) + number(4) + number(9) + number(0))
    put_state("records", 11, ON + ON + number(0) + flag(1) + number(6))
    put_state("filter_endless", 12, ON + ON + number(2**64 - 1) + flag(1) + flag(0) + ON + number(3))
    put_state("repeat_of_repeat", 14, ON + number(1) + flag(1) + flag(0) + ON + number(1) + flag(0))
    put_state("rows_without_bytes", 15, ON + ON + ON + ON + number(2) + flag(0) + number(0) + flag(1)
              + element(tensor(11, [2**40, 0], b"")) + number(5))
    put_state("component_that_holds_nothing", 1, ON + ON + number(0) + flag(1) + flag(0) + ON + ON
              + number(3) + number(1) + number(1) + element(flag(0)))
    put_state("sample", 16, ON + number(7) + INT64 + flag(1) + ON + number(2) + flag(0))
    put_state("rebatch", 17, ON + ON + ON + number(8) + flag(1) + element(tensor(4, [2], number(7) + number(8)))
              + number(1) + number(1))
    prefetched = (flag(1) + scalar(3) + number(26) + b"range(0, 3, 1).prefetch(2)" + ON + ON + number(2) + flag(0)
                  + number(1) + flag(0) + scalar(1))
    put_state("parallel_interleave", 18, ON + ON + number(4) + flag(1) + number(0) + number(1) + number(2)
              + prefetched + flag(0) + flag(0))
    put_state("parallel_interleave_error", 18, ON + ON + number(3) + flag(0) + number(0) + number(0) + number(2)
              + prefetched + flag(0) + flag(1) + number(2) + number(4) + b"gone")
    put_state("tfrecords", 19, ON + ON + number(1) + flag(1) + number(19))
    put_state("tfrecords_amid", 19, ON + ON + number(0) + flag(1) + number(5))
    put_state("enumerate", 20, ON + ON + ON + number(2) + ON + ON + number(5) + flag(0) + number(0) + number(0)
              + number(1) + flag(1) + scalar(3) + number(14) + b"range(0, 3, 1)" + ON + number(1))
    put_state("bad_turn", 17, ON + ON + ON + number(8) + flag(0) + number(2))
    put_state("bad_empty", 0, b"")
    put_state("bad_position", 0, ON + number(11))
    put_state("bad_flag", 0, flag(2) + number(1))
    put_state("bad_left_over", 0, ON + number(1) + b"x")
    put_state("bad_count", 7, ON + ON + number(2) + flag(0) + number(2**60))
    put_state("bad_generator_position", 9, ON + number(0) + flag(0) + ON + number(2**60))
    put_state("bad_types", 9, ON + number(0) + flag(1) + number(1) + number(15) + ON + number(3))
    put_state("bad_number_of_types", 9, ON + number(0) + flag(1) + number(2**60) + ON + number(3))
    put_state("bad_file_offset", 11, ON + ON + number(0) + flag(1) + number(7))
    put_state("bad_open_dataset", 5, ON + ON + number(4) + flag(0) + number(0) + number(1) + number(1)
              + flag(1) + scalar(2) + number(14) + b"range(0, 3, 1)" + ON + number(1))
    put_state("bad_device", 7, ON + ON + number(2) + flag(0) + number(1) + flag(0) + scalar(1, b"/gpu:9"))
    put_state("bad_bool", 7, ON + ON + number(2) + flag(0) + number(1) + flag(0)
              + element(tensor(0, [1], b"\2")))
    put_state("bad_raw", 0, b"hello there", steps=0x80)
    put_state("bad_raw_checksum", 0, b"tuttids2" + number(3) + b"abc" + number(0), steps=0x80)
    put_state("crash_overflow_beside_zero", 7, ON + ON + number(2) + flag(0) + number(1) + flag(0)
              + element(tensor(4, [0, 2**62, 2**62], b"")))
    put_state("crash_epoch_past_the_last", 6, ON + number(2) + flag(1) + flag(0) + ON + number(2))


if __name__ == "__main__":
    device_names()
    safetensors()
    dlpack()
    dataset_state()
