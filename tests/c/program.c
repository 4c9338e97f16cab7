// SPDX-License-Identifier: Apache-2.0
// Every function of tutti/c.h from C99, on one rank of any number; prints "ok" if all was right.
#include <dlpack/dlpack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tutti/c.h>

enum { kMost = 64 };  // ranks

static int size, rank;

static void expect(int holds, const char* what, int line) {
  if (holds) return;
  fprintf(stderr, "wrong on rank %d, line %d: %s (%s)\n", rank, line, what, tutti_last_error());
  exit(1);
}
#define EXPECT(holds) expect((holds), #holds, __LINE__)
#define EXPECT_ERROR(code, part, call) \
  EXPECT((call) == (code) && strstr(tutti_last_error(), (part)) != NULL)

static tutti_tensor floats(float* data, int64_t count) {
  tutti_tensor tensor = {.data = data, .count = count, .dtype = TUTTI_FLOAT32};
  return tensor;
}

static void reductions(tutti_group* world) {
  float mine[2] = {(float)rank, 1}, sums[2] = {-1, -1};
  const float sum = (float)(size * (size - 1) / 2), mean = sum / (float)size;
  const tutti_tensor in = floats(mine, 2), out = floats(sums, 2);
  EXPECT(tutti_all_reduce(world, &in, &out, TUTTI_SUM, NULL, NULL) == TUTTI_OK);
  EXPECT(sums[0] == sum && sums[1] == (float)size && mine[0] == (float)rank);
  EXPECT(tutti_all_reduce(world, NULL, &in, TUTTI_MEAN, NULL, NULL) == TUTTI_OK);
  EXPECT(mine[0] == mean && mine[1] == 1);

  mine[0] = (float)rank;
  int64_t count = rank + 1;
  const tutti_tensor list[2] = {in, {.data = &count, .count = 1, .dtype = TUTTI_INT64}};
  EXPECT(tutti_all_reduce_list(world, list, 2, TUTTI_MAX, NULL, NULL) == TUTTI_OK);
  EXPECT(mine[0] == (float)(size - 1) && count == size);
  EXPECT(tutti_all_reduce_list(world, NULL, 0, TUTTI_SUM, NULL, NULL) == TUTTI_OK);

  mine[0] = (float)rank;  // the first rank alone has a weight
  EXPECT(tutti_all_reduce_weighted(world, &in, 1, rank == 0 ? 2.5 : 0, NULL, NULL) == TUTTI_OK);
  EXPECT(mine[0] == 0);

  const int root = size - 1;
  mine[0] = (float)rank, sums[0] = -1;
  EXPECT(tutti_reduce(world, &in, rank == root ? &out : NULL, TUTTI_SUM, root, NULL) == TUTTI_OK);
  EXPECT(sums[0] == (rank == root ? sum : -1) && mine[0] == (float)rank);
  EXPECT(tutti_reduce(world, NULL, &in, TUTTI_MIN, root, NULL) == TUTTI_OK);
  EXPECT(mine[0] == (rank == root ? 0 : (float)rank));
}

static void movements(tutti_group* world) {
  const int root = size / 2;
  int32_t part = 10 * rank, all[kMost], parts[kMost];
  const tutti_tensor one = {.data = &part, .count = 1, .dtype = TUTTI_INT32};
  const tutti_tensor many = {.data = all, .count = size, .dtype = TUTTI_INT32};
  const tutti_tensor others = {.data = parts, .count = size, .dtype = TUTTI_INT32};
  EXPECT(tutti_all_gather(world, &one, &many, NULL, NULL) == TUTTI_OK);
  for (int r = 0; r < size; ++r) EXPECT(all[r] == 10 * r);
  for (int r = 0; r < size; ++r) all[r] = 100 * rank + r;
  EXPECT(tutti_all_to_all(world, &many, &others, NULL, NULL) == TUTTI_OK);
  for (int r = 0; r < size; ++r) EXPECT(parts[r] == 100 * r + rank);
  EXPECT(tutti_reduce_scatter(world, &many, &one, TUTTI_MAX, NULL, NULL) == TUTTI_OK);
  EXPECT(part == 100 * (size - 1) + rank);

  EXPECT(tutti_gather(world, &one, rank == root ? &many : NULL, root, NULL) == TUTTI_OK);
  for (int r = 0; rank == root && r < size; ++r) EXPECT(all[r] == 100 * (size - 1) + r);
  part = -1;
  EXPECT(tutti_scatter(world, rank == root ? &many : NULL, &one, root, NULL) == TUTTI_OK);
  EXPECT(part == 100 * (size - 1) + rank);
  EXPECT(tutti_broadcast(world, &one, root, NULL, NULL) == TUTTI_OK);
  EXPECT(part == 100 * (size - 1) + root);
  float more[3] = {(float)rank, (float)rank, (float)rank};
  const tutti_tensor list[2] = {one, floats(more, 3)};
  part = rank;
  EXPECT(tutti_broadcast_list(world, list, 2, root, NULL) == TUTTI_OK);
  EXPECT(part == root && more[2] == (float)root);

  // Rank r has r + 1 elements.
  float own[kMost], joined[kMost * kMost];
  int64_t counts[kMost], total = 0;
  for (int r = 0; r < size; ++r) own[r] = (float)rank, counts[r] = r + 1, total += r + 1;
  const tutti_tensor mine = floats(own, rank + 1), ours = floats(joined, total);
  EXPECT(tutti_all_gather_uneven(world, &mine, &ours, counts, NULL) == TUTTI_OK);
  int64_t at = 0;
  for (int r = 0; r < size; ++r)
    for (int i = 0; i <= r; ++i) EXPECT(joined[at++] == (float)r);

  EXPECT(tutti_barrier(world, NULL) == TUTTI_OK);
  if (size == 1) return;
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  int32_t token = rank == 0 ? 7 : 0;
  const tutti_tensor message = {.data = &token, .count = 1, .dtype = TUTTI_INT32};
  if (rank == 0) EXPECT(tutti_send(world, &message, next, 5, NULL) == TUTTI_OK);
  EXPECT(tutti_recv(world, &message, previous, 5, NULL) == TUTTI_OK);
  if (rank != 0) ++token, EXPECT(tutti_send(world, &message, next, 5, NULL) == TUTTI_OK);
  EXPECT(token == 7 + (rank == 0 ? size - 1 : rank));
}

static void background(tutti_group* world) {
  enum { kCount = 3 };
  float data[kCount][1000];
  tutti_work* work[kCount];
  for (int i = 0; i < kCount; ++i) {
    for (int k = 0; k < 1000; ++k) data[i][k] = (float)(i + rank);
    const tutti_tensor tensor = floats(data[i], 1000);  // need not last
    EXPECT(tutti_all_reduce(world, NULL, &tensor, TUTTI_SUM, NULL, &work[i]) == TUTTI_OK);
  }
  for (int i = kCount - 1; i >= 0; --i) {
    EXPECT(tutti_work_wait(work[i]) == TUTTI_OK);
    EXPECT(tutti_work_wait(work[i]) == TUTTI_OK && tutti_work_done(work[i]) == 1);
    EXPECT(data[i][999] == (float)(size * i + size * (size - 1) / 2));
    EXPECT(tutti_work_destroy(work[i]) == TUTTI_OK);
  }
  EXPECT_ERROR(TUTTI_INVALID_ARGUMENT, "tutti_work_wait: the work was destroyed",
               tutti_work_wait(work[0]));
  EXPECT(tutti_work_done(work[0]) == -1 && tutti_work_destroy(NULL) == TUTTI_OK);
}

static void memory(tutti_group* world) {
  void* data;
  EXPECT(tutti_alloc(world, 6 * sizeof(float), &data) == TUTTI_OK);
  float* const values = data;
  for (int i = 0; i < 6; ++i) values[i] = 2;
  int64_t shape[2] = {2, 3}, columns[2] = {1, 2};
  DLManagedTensor managed = {{data, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0}, NULL, NULL};
  tutti_tensor tensor;
  EXPECT(tutti_tensor_from_dlpack(&managed, &tensor) == TUTTI_OK);
  EXPECT(tensor.data == data && tensor.count == 6 && tensor.dtype == TUTTI_FLOAT32);
  EXPECT(tensor.ndim == 2 && tensor.shape == shape && !tensor.device && !tensor.flags);
  EXPECT(tutti_all_reduce(world, NULL, &tensor, TUTTI_SUM, NULL, NULL) == TUTTI_OK);
  EXPECT(values[5] == (float)(2 * size));
  managed.dl_tensor.strides = columns;
  EXPECT_ERROR(TUTTI_INVALID_ARGUMENT, "strided", tutti_tensor_from_dlpack(&managed, &tensor));
  EXPECT(tutti_free(data) == TUTTI_OK && tutti_free(NULL) == TUTTI_OK);
  EXPECT_ERROR(TUTTI_INVALID_ARGUMENT, "is not memory of tutti_alloc", tutti_free(&tensor));
}

// A group of its own fails, so that `world` goes on.
static void errors(tutti_group* world) {
  tutti_group* part;
  EXPECT(tutti_group_split(world, 0, -rank, &part) == TUTTI_OK);
  EXPECT(tutti_group_size(part) == size && tutti_group_rank(part) == size - 1 - rank);
  float data[2] = {1, 1};
  const tutti_tensor tensor = floats(data, tutti_group_rank(part) == 0 ? 2 : 1);
  const int code = tutti_all_reduce(part, NULL, &tensor, TUTTI_SUM, NULL, NULL);
  if (size == 1) {
    EXPECT(code == TUTTI_OK);
  } else {
    EXPECT(code == TUTTI_INVALID_ARGUMENT);
    EXPECT(strstr(tutti_last_error(), "float32[1]") && strstr(tutti_last_error(), "float32[2]"));
    EXPECT(tutti_barrier(part, NULL) == TUTTI_INVALID_ARGUMENT);  // the first error is the last
  }
  EXPECT(tutti_group_destroy(part) == TUTTI_OK && tutti_group_destroy(NULL) == TUTTI_OK);
  EXPECT_ERROR(TUTTI_INVALID_ARGUMENT, "tutti_barrier: the group was destroyed",
               tutti_barrier(part, NULL));

  enum { kThreads = 1500 };
  static tutti_group* threads[kThreads];
  static int64_t counts[kThreads];
  for (int r = 0; r < kThreads; ++r) counts[r] = 1000 + r;
  EXPECT(tutti_group_in_process(kThreads, threads) == TUTTI_OK);
  EXPECT_ERROR(TUTTI_INVALID_ARGUMENT, "by the counts 1000, 1001, 1002, ",
               tutti_all_gather_uneven(threads[0], &tensor, &tensor, counts, NULL));
  EXPECT(strlen(tutti_last_error()) > 6 * kThreads);
  EXPECT(strstr(tutti_last_error(), "2498, 2499 of all ranks") != NULL);
  for (int r = 0; r < kThreads; ++r) EXPECT(tutti_group_destroy(threads[r]) == TUTTI_OK);
}

static void options(tutti_group* world) {
  struct {
    tutti_options known;
    int64_t newer;
  } larger = {{.size = sizeof larger, .timeout_ns = TUTTI_NO_TIMEOUT}, 0};
  EXPECT(tutti_barrier(world, &larger.known) == TUTTI_OK);
  larger.newer = 1;
  EXPECT_ERROR(TUTTI_UNIMPLEMENTED, "does not know", tutti_barrier(world, &larger.known));
  // As a program gives it that was compiled before there was an implementation to choose.
  tutti_options smaller = {.size = 16, .timeout_ns = 60000000000, .implementation = 99};
  EXPECT(tutti_barrier(world, &smaller) == TUTTI_OK);
  smaller.size = sizeof smaller;
  EXPECT_ERROR(TUTTI_INVALID_ARGUMENT, "99 is not", tutti_barrier(world, &smaller));
}

int main(void) {
  tutti_group* world = NULL;
  EXPECT(tutti_group_from_environment(&world) == TUTTI_OK);
  rank = tutti_group_rank(world);
  size = tutti_group_size(world);
  EXPECT(rank >= 0 && rank < size && size <= kMost && tutti_group_backend(world) != NULL);
  EXPECT(tutti_group_local_rank(world) == rank && tutti_group_local_size(world) == size);
  reductions(world);
  movements(world);
  background(world);
  memory(world);
  options(world);
  errors(world);
  EXPECT(tutti_barrier(world, NULL) == TUTTI_OK);
  EXPECT(tutti_group_destroy(world) == TUTTI_OK);
  printf("ok\n");
  return 0;
}
