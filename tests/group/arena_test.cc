// SPDX-License-Identifier: Apache-2.0
#include "group/shm/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <tutti/error.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

namespace tutti::group {
namespace {

// This process as a peer of itself.
PeerArena::Origin origin() {
  const Arena& arena = Arena::mine();
  return {.name = "rank 1",
          .pid = getpid(),
          .fd = arena.fd(),
          .inode = inode_of(arena.fd()),
          .first_segment = arena.first_segment(),
          .user = geteuid(),
          .dumpable = true};
}

size_t address_space() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * size_t(sysconf(_SC_PAGESIZE));
}

constexpr size_t kMebibyte = 1 << 20;

TEST(Arena, TakesAddressesAsTheyAreNeeded) {
  Arena& arena = Arena::mine();
  const size_t before = address_space();
  const PeerArena first(origin()), second(origin());
  EXPECT_LE(address_space(), before + 2 * arena.first_segment() + kMebibyte);
  const std::shared_ptr<void> large = arena.allocate(5 * arena.first_segment());
  const size_t with_large = address_space();
  EXPECT_NE(second.at(arena.position_of(large.get(), 1)), nullptr);
  EXPECT_GE(address_space(), with_large + 5 * arena.first_segment());
}

TEST(Arena, PeersFindMemoryInEverySegment) {
  Arena& arena = Arena::mine();
  const PeerArena early(origin());
  std::vector<std::shared_ptr<void>> all;
  for (const size_t bytes :
       {size_t(1), 20 * kMebibyte, 2 * arena.first_segment(), size_t(100), 70 * kMebibyte})
    all.push_back(arena.allocate(bytes));
  const PeerArena late(origin());
  size_t last_segment = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    std::memset(all[i].get(), int(i + 1), 1);
    const uint64_t position = arena.position_of(all[i].get(), 1);
    last_segment = std::max(last_segment, segment_of(position));
    EXPECT_EQ(arena.at(position), all[i].get());
    for (const PeerArena* peer : {&early, &late})
      EXPECT_EQ(*static_cast<char*>(peer->at(position)), char(i + 1));
  }
  EXPECT_GT(last_segment, 0u);
}

TEST(Arena, ThreadsOfAPeerMayLookAtANewSegmentAtOnce) {
  Arena& arena = Arena::mine();
  const PeerArena peer(origin());
  const std::shared_ptr<void> data = arena.allocate(9 * arena.first_segment());
  const uint64_t position = arena.position_of(data.get(), 1);
  std::vector<void*> found(4);
  std::vector<std::thread> threads;
  for (void*& at : found) threads.emplace_back([&] { at = peer.at(position); });
  for (std::thread& thread : threads) thread.join();
  for (void* const at : found) EXPECT_EQ(at, found[0]);
}

TEST(Arena, KnowsWhatIsNotItsOwn) {
  Arena& arena = Arena::mine();
  const std::shared_ptr<void> data = arena.allocate(100);
  int other = 0;
  EXPECT_EQ(arena.position_of(&other, sizeof(other)), PeerMemory::kUnreachable);
  EXPECT_EQ(arena.position_of(data.get(), size_t(1) << 50), PeerMemory::kUnreachable);
}

TEST(PeerArena, SaysThatDescriptorsAreMissing) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UndefinedBehaviorSanitizer looks at objects through a pipe of its own";
#endif
  const PeerArena::Origin peer = origin();
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{3, limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  std::string text;
  try {
    PeerArena(peer).check();
  } catch (const ResourceExhaustedError& error) {
    text = error.what();
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_THAT(text, ::testing::HasSubstr("rank 1"));
  EXPECT_THAT(text, ::testing::HasSubstr("ulimit -n allows 3: raise it"));
}

TEST(Arena, RefusesMoreThanTheMachineHas) {
  EXPECT_THROW(Arena::mine().allocate(size_t(1) << 50), ResourceExhaustedError);
}

}  // namespace
}  // namespace tutti::group
