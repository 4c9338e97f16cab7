// SPDX-License-Identifier: Apache-2.0
#include "job/job.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "base/fork.h"
#include "base/settings.h"
#include "base/world.h"
#include "gpu/nccl.h"
#include "job/job_impl.h"
#include "job/terminate.h"

namespace tutti::group {

namespace {

using cluster::Failure;
using cluster::Membership;

std::mutex job_mutex;

// Never destroyed: groups in static variables may outlive any order of destruction.
std::atomic<Job*> joined = nullptr;

// That this process has joined; null: none.
Job* own_job() {
  base::World* const world = base::world();
  return world ? static_cast<Job*>(world->job()) : joined.load();
}

// Locks may be held by threads that a forked child does not have.
std::optional<Failure> failure_of_child() {
  if (!base::is_forked_child()) return {};
  return Failure{-1, ErrorCode::failed_precondition, std::string(kForkedChild)};
}

// The job of this process, joined by the first call. Under job_mutex.
Job& this_job(const Membership& membership) {
  Job* job = joined.load();
  if (job && !job->is(membership))
    throw FailedPreconditionError(fmt::format(
        "this process is {} already, and cannot become rank {} of {} ({}): a process takes part in "
        "one job",
        job->name(), membership.rank, membership.addresses.size(), membership.addresses[0]));
  if (!job) {
    // Without a launcher a worker ends as any program does.
    if (std::getenv("TUTTI_LAUNCHER"))
      publish_uncaught_exceptions(membership.rank, [](const char* text) { abort_job(text); });
    job = std::make_unique<Job>(membership, this_machine()).release();
    joined = job;
    // Registered after the module was loaded, so before its own statics are destroyed.
    std::atexit([] {
      if (!base::is_forked_child()) joined.load()->leave();
    });
  }
  return *job;
}

JobGroup new_group(Job& job, const std::string& purpose) {
  try {
    return {job.new_group(purpose), job.stragglers()};
  } catch (const Error& error) {
    job.link().report({-1, error.code(), error.what()});
    throw;
  }
}

// Under tutti run stdout is a pipe, which stdio fills before it writes: a line would come late, and
// be lost in a crash. As on a terminal, a line goes out when it ends. From the library's loading
// on, whether or not the program joins a job.
[[gnu::constructor]] void write_whole_lines() {
  struct stat out {};
  if (!std::getenv("TUTTI_LAUNCHER") || fstat(STDOUT_FILENO, &out) != 0 || !S_ISFIFO(out.st_mode))
    return;
  std::fflush(stdout);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
}

}  // namespace

JobGroup join(const std::optional<Membership>& membership, const std::string& purpose) {
  if (base::world() && own_job()) return new_group(*own_job(), purpose);
  if (!membership || base::world()) {
    expect_nccl_if_required();
    return {std::move(make_in_process(1, base::settings().costs)[0]), 0};
  }
  if (const auto failure = failure_of_child()) throw_error(failure->code, failure->text);
  std::lock_guard lock(job_mutex);
  return new_group(this_job(*membership), purpose);
}

std::optional<Failure> job_failure() {
  if (const auto failure = failure_of_child()) return failure;
  const Job* const job = own_job();  // without the lock: a thread that makes a group may wait
  return job ? job->failure() : std::nullopt;
}

void report_failure(const Failure& failure) {
  if (base::is_forked_child()) return;
  if (Job* const job = own_job()) job->link().report(failure);
}

void abort_job(const std::string& reason) {
  if (base::is_forked_child()) return;
  if (Job* const job = own_job()) job->link().abort(reason);
}

JobLayout layout_from_environment() {
  const std::optional<Membership> membership = cluster::membership_from_environment();
  if (!membership) return {};
  if (const auto failure = failure_of_child()) throw_error(failure->code, failure->text);
  std::lock_guard lock(job_mutex);
  return this_job(*membership).layout();
}

}  // namespace tutti::group
