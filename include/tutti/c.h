// SPDX-License-Identifier: Apache-2.0
// Tutti's groups for C99, and for all languages that can call C.
//
//   tutti_group* world;
//   if (tutti_group_from_environment(&world) != TUTTI_OK) return puts(tutti_last_error()), 1;
//   tutti_tensor gradient = {.data = values, .count = 1000, .dtype = TUTTI_FLOAT32};
//   tutti_all_reduce(world, NULL, &gradient, TUTTI_MEAN, NULL, NULL);  // in place, and waits
//   tutti_group_destroy(world);
//
// Errors: an `int` is TUTTI_OK or an error code if nothing else is said; tutti_last_error has the
// text. NULL is an error if no meaning is given for it. What is wrong with the arguments is
// noticed before anything has moved; any other error is the group's last, on all ranks.
//
// Ownership: a handle is the caller's, to be destroyed by the function of its name; a destroyed one
// is an error rather than a crash until a new one takes its place. Tensors, shapes, options and
// text are read during the call only; memory is borrowed until the operation is done.
//
// Threads: all functions may be called by any thread, if the order of operations on a group is the
// same on all ranks, and no thread uses a handle that another destroys.
//
// ABI: numbers, structs and functions stay as they are; there will be more of them. An options
// struct begins with its size, so that it can grow.
#pragma once

#include <stddef.h>
#include <stdint.h>

struct DLManagedTensor;  // of DLPack; any version of its header fills them in
struct DLManagedTensorVersioned;

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

// tutti/error.h says what each stands for.
enum tutti_code {
  TUTTI_OK = 0,
  TUTTI_INVALID_ARGUMENT = 1,
  TUTTI_FAILED_PRECONDITION = 2,
  TUTTI_UNAVAILABLE = 3,
  TUTTI_DEADLINE_EXCEEDED = 4,
  TUTTI_ABORTED = 5,
  TUTTI_CANCELLED = 6,
  TUTTI_UNIMPLEMENTED = 7,
  TUTTI_OUT_OF_RANGE = 8,
  TUTTI_NOT_FOUND = 9,
  TUTTI_ALREADY_EXISTS = 10,
  TUTTI_DATA_LOSS = 11,
  TUTTI_RESOURCE_EXHAUSTED = 12,
  TUTTI_UNAUTHENTICATED = 13,
  TUTTI_INTERNAL = 14
};

// The type of an element.
enum tutti_dtype {
  TUTTI_BOOL = 0,
  TUTTI_INT8 = 1,
  TUTTI_INT16 = 2,
  TUTTI_INT32 = 3,
  TUTTI_INT64 = 4,
  TUTTI_UINT8 = 5,
  TUTTI_UINT16 = 6,
  TUTTI_UINT32 = 7,
  TUTTI_UINT64 = 8,
  TUTTI_FLOAT16 = 9,
  TUTTI_BFLOAT16 = 10,
  TUTTI_FLOAT32 = 11,
  TUTTI_FLOAT64 = 12
};

// tutti/reduce_op.h says what each does.
enum tutti_op { TUTTI_SUM = 0, TUTTI_MEAN = 1, TUTTI_MIN = 2, TUTTI_MAX = 3, TUTTI_PROD = 4 };

// What adds up values on GPUs; see CommunicationImplementation in tutti/reduce_op.h.
enum tutti_implementation { TUTTI_AUTO = 0, TUTTI_RING = 1, TUTTI_NCCL = 2 };

// Of a tutti_tensor.
enum tutti_tensor_flags { TUTTI_READ_ONLY = 1 };

// Values of timeout_ns.
enum tutti_timeout { TUTTI_NO_TIMEOUT = -1 };

// Contiguous memory of the caller's. With zeros behind dtype: a vector in host memory.
typedef struct tutti_tensor {
  void* data;            // its first element
  int64_t count;         // elements
  int32_t dtype;         // TUTTI_FLOAT32, ...
  int32_t device;        // 0: host memory; 1 + i: the GPU that CUDA calls i
  const int64_t* shape;  // ndim extents, whose product is count; NULL: {count}
  int32_t ndim;          // of `shape`
  int32_t flags;         // TUTTI_READ_ONLY: never an output
} tutti_tensor;

// Hints for one operation; NULL in their place, or 0 in a field, leaves it to Tutti. A field that
// this version does not know is TUTTI_UNIMPLEMENTED if it is not 0.
typedef struct tutti_options {
  size_t size;         // sizeof(tutti_options)
  int64_t timeout_ns;  // of the whole call; 0: the setting TUTTI_TIMEOUT; TUTTI_NO_TIMEOUT
  // The cudaStream_t whose order tensors on a GPU follow; NULL: Tutti's. CUDA's default stream, of
  // which other libraries give 0 as the handle, is (void*)1 (cudaStreamLegacy) here.
  void* stream;
  int32_t implementation;  // TUTTI_AUTO, ...
  int32_t reserved;        // 0
} tutti_options;

typedef struct tutti_group tutti_group;  // a rank's membership in a group
typedef struct tutti_work tutti_work;    // an operation in the background

// The version of the library, "major.minor.patch".
const char* tutti_version(void);
// The whole text of this thread's last error, "" before any; good until its next error.
const char* tutti_last_error(void);

// This process among the workers of its job, which the environment describes; alone without one.
int tutti_group_from_environment(tutti_group** group);
// `n` ranks for `n` threads of this process; sets groups[0] to groups[n - 1].
int tutti_group_in_process(int n, tutti_group** groups);
// The ranks that give the same color become a group, in the order of key, then of rank.
int tutti_group_split(tutti_group* group, int color, int key, tutti_group** part);
// Leaves the group without waiting, and cancels what it has in the background. NULL: nothing.
int tutti_group_destroy(tutti_group* group);
// Fails the group for all its ranks: they get TUTTI_ABORTED "rank 1 failed: REASON".
int tutti_group_abort(tutti_group* group, const char* reason);

// -1, or NULL, is an error.
int tutti_group_rank(tutti_group* group);
int tutti_group_size(tutti_group* group);
int tutti_group_local_rank(tutti_group* group);  // among the ranks on this rank's host
int tutti_group_local_size(tutti_group* group);
const char* tutti_group_backend(tutti_group* group);  // "in_process", "shm", "tcp", ...

// Memory that all ranks of the group can reach: collectives on it save copies. It is the caller's
// until tutti_free, and may outlive the group.
int tutti_alloc(tutti_group* group, int64_t bytes, void** data);
int tutti_free(void* data);  // NULL: nothing

// The memory of a DLPack tensor, which stays its owner's and must outlive the use of `tensor`.
// TUTTI_INVALID_ARGUMENT if it is strided, or of a type or on a device that Tutti does not know.
int tutti_tensor_from_dlpack(const struct DLManagedTensor* managed, tutti_tensor* tensor);
int tutti_tensor_from_dlpack_versioned(const struct DLManagedTensorVersioned* managed,
                                       tutti_tensor* tensor);

// Collectives: all ranks call the same ones in the same order, with the same types and numbers of
// elements. With `work` NULL they return when they are done; else they go on in the background, and
// *work stands for them. On GPUs they are done when they are enqueued on the stream.

// Each element of `out` becomes the combination of that element of `in` on all ranks. in NULL: of
// `out`, in place.
int tutti_all_reduce(tutti_group* group, const tutti_tensor* in, const tutti_tensor* out, int op,
                     const tutti_options* options, tutti_work** work);
// `n` tensors in place, of any dtypes and shapes, as one operation.
int tutti_all_reduce_list(tutti_group* group, const tutti_tensor* tensors, size_t n, int op,
                          const tutti_options* options, tutti_work** work);
// The mean of floating point numbers in which each rank has a weight, 0 or more.
int tutti_all_reduce_weighted(tutti_group* group, const tutti_tensor* tensors, size_t n,
                              double weight, const tutti_options* options, tutti_work** work);
// As tutti_all_reduce, for `root` alone; if `in` is not NULL, the others need no `out`.
int tutti_reduce(tutti_group* group, const tutti_tensor* in, const tutti_tensor* out, int op,
                 int root, const tutti_options* options);

// All ranks get the data of `root`.
int tutti_broadcast(tutti_group* group, const tutti_tensor* tensor, int root,
                    const tutti_options* options, tutti_work** work);
int tutti_broadcast_list(tutti_group* group, const tutti_tensor* tensors, size_t n, int root,
                         const tutti_options* options);

// `out` holds the `in` of all ranks, in their order.
int tutti_all_gather(tutti_group* group, const tutti_tensor* in, const tutti_tensor* out,
                     const tutti_options* options, tutti_work** work);
// The same with counts[r] elements from rank r; all ranks know all counts.
int tutti_all_gather_uneven(tutti_group* group, const tutti_tensor* in, const tutti_tensor* out,
                            const int64_t* counts, const tutti_options* options);

// `in` has a part for each rank; rank r gets the combination of all parts r.
int tutti_reduce_scatter(tutti_group* group, const tutti_tensor* in, const tutti_tensor* out,
                         int op, const tutti_options* options, tutti_work** work);
// `in` has a part for each rank; `out` gets a part from each rank.
int tutti_all_to_all(tutti_group* group, const tutti_tensor* in, const tutti_tensor* out,
                     const tutti_options* options, tutti_work** work);

// From all ranks to `root`, and from `root` a part to each. Only `root` needs the `out` of gather
// and the `in` of scatter.
int tutti_gather(tutti_group* group, const tutti_tensor* in, const tutti_tensor* out, int root,
                 const tutti_options* options);
int tutti_scatter(tutti_group* group, const tutti_tensor* in, const tutti_tensor* out, int root,
                  const tutti_options* options);

// Returns when all ranks have called it.
int tutti_barrier(tutti_group* group, const tutti_options* options);

// From one rank to another. Messages with the same tag arrive in order.
int tutti_send(tutti_group* group, const tutti_tensor* in, int peer, int64_t tag,
               const tutti_options* options);
int tutti_recv(tutti_group* group, const tutti_tensor* out, int peer, int64_t tag,
               const tutti_options* options);

// Returns when the operation is done, with its error, every time it is asked.
int tutti_work_wait(tutti_work* work);
// 1: the operation is done, 0: not yet, -1: an error.
int tutti_work_done(tutti_work* work);
// The operation goes on without its handle. NULL: nothing.
int tutti_work_destroy(tutti_work* work);

#ifdef __cplusplus
}  // extern "C"
#endif
#pragma GCC visibility pop
