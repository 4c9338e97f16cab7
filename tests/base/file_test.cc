// SPDX-License-Identifier: Apache-2.0
// Files that are written: limits on their size, writers that are killed, and writers that are not.
#include "base/file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/log.h"
#include "support/expect.h"

namespace tutti::base {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;

class File : public ::testing::Test {
 protected:
  File() { fs::create_directories(folder); }
  ~File() override { fs::remove_all(folder); }
  std::string path(const std::string& name) const { return folder / name; }
  std::string content(const std::string& name) const {
    std::ifstream in(path(name));
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder)) all.push_back(entry.path().filename());
    std::ranges::sort(all);
    return all;
  }
  void write(const std::string& name, const std::string& text) const {
    NewFile file(path(name));
    file.write(text);
    file.commit();
  }

  const fs::path folder = fs::temp_directory_path() / ("tutti_file_" + std::to_string(getpid()));
};

// The soft limit on the size of files, for a while.
class Limit {
 public:
  explicit Limit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~Limit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

bool is_pending(int signal) {
  sigset_t set;
  sigpending(&set);
  return sigismember(&set, signal) == 1;
}

TEST_F(File, PastTheLimitOnItsSizeIsAnErrorAndNoSignal) {
  const int fd = open(path("f").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  {
    const Limit limit(10);
    EXPECT_TRUE(write_all(fd, "12345678"));
    errno = 0;
    EXPECT_FALSE(write_all(fd, "12345678"));
    EXPECT_EQ(errno, EFBIG);
    EXPECT_THAT(why_not_written(errno), ::testing::HasSubstr("ulimit -f"));
  }
  close(fd);
  EXPECT_FALSE(is_pending(SIGXFSZ));
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  EXPECT_EQ(sigismember(&mask, SIGXFSZ), 0);
}

TEST_F(File, SignalThatWasPendingBeforeIsLeftToTheProgram) {
  sigset_t ours, before;
  sigemptyset(&ours);
  sigaddset(&ours, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &ours, &before);
  raise(SIGXFSZ);
  { const NoFileSizeSignal quiet; }
  EXPECT_TRUE(is_pending(SIGXFSZ));
  const timespec now{};
  EXPECT_EQ(sigtimedwait(&ours, nullptr, &now), SIGXFSZ);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST_F(File, OfTheLogMayReachTheLimitToo) {
  EXPECT_EXIT(
      {
        const Limit limit(0);
        dup2(open(path("log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666), STDERR_FILENO);
        log(LogLevel::error, "a line that does not fit");
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(File, AppearsWholeOrNotAtAll) {
  {
    NewFile file(path("f"));
    file.write("half");
    EXPECT_FALSE(fs::exists(path("f")));
  }
  EXPECT_THAT(names(), ElementsAre());
  write("f", "one");
  write("f", "two");
  EXPECT_EQ(content("f"), "two");
  EXPECT_THAT(names(), ElementsAre("f"));
}

TEST_F(File, HasTheModeThatTheUmaskGives) {
  const mode_t before = umask(0027);
  write("f", "");
  umask(before);
  struct stat info {};
  ASSERT_EQ(stat(path("f").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0640u);
}

TEST_F(File, OfAKilledWriterIsRemovedBeforeTheNextIsWritten) {
  EXPECT_EXIT(
      {
        NewFile file(path("f"));
        file.write("half");
        raise(SIGKILL);
      },
      ::testing::KilledBySignal(SIGKILL), "");
  ASSERT_EQ(names().size(), 1u);
  EXPECT_TRUE(names()[0].starts_with("f.tmp."));
  std::ofstream(path("g.tmp.1")) << "of another file";
  std::ofstream(path("f.tmp.old")) << "of the user";
  {
    const NewFile next(path("f"));
    const auto now = names();
    EXPECT_EQ(now.size(), 3u) << "the next temporary file, g's, and the user's";
    EXPECT_THAT(now, ::testing::IsSupersetOf({"f.tmp.old", "g.tmp.1"}));
  }
  EXPECT_THAT(names(), ::testing::UnorderedElementsAre("f.tmp.old", "g.tmp.1"));
}

TEST_F(File, OfALivingWriterStays) {
  NewFile first(path("f"));
  first.write("first");
  write("f", "second");
  remove_leftovers(folder, [](const std::string&) { return true; });
  EXPECT_EQ(content("f"), "second");
  first.commit();
  EXPECT_EQ(content("f"), "first");
  EXPECT_THAT(names(), ElementsAre("f"));
}

}  // namespace
}  // namespace tutti::base
