// SPDX-License-Identifier: Apache-2.0
// Every length of time that waiting and failing go by. A name means the same number everywhere.
#pragma once

#include <chrono>

#include "base/running_time.h"

namespace tutti::group::timing {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

// A thread that waits looks at its peers and at the job this often.
constexpr nanoseconds kPoll = milliseconds(20);
// A thread that watches GPUs asks for their events this often.
constexpr nanoseconds kGpuPoll = milliseconds(10);
// A thread that waits for something rare and short, such as another rank's list.
constexpr nanoseconds kShortPoll = milliseconds(1);

// A broken connection or a dead process may be followed by its reason: the rank that failed tells
// its peers, or the coordination service does.
constexpr nanoseconds kReason = milliseconds(300);
// NCCL's connections break before the process behind them is dead.
constexpr nanoseconds kNcclReason = seconds(1);
// Operations under way on GPUs get this long when the process ends.
constexpr nanoseconds kGpuShutdown = seconds(2);
// What a rank sent before it left the group may still be on its way.
constexpr nanoseconds kLastMessages = milliseconds(500);
// A rank that disagrees with one peer hears the others before it fails, so that all ranks name the
// same two. Some of them may never come.
constexpr nanoseconds kSettle = milliseconds(500);
// A rank that publishes a failure is done with writing it after this long, or has died in between.
constexpr nanoseconds kWriteFailure = milliseconds(100);
// A peer that works on this rank's memory is done after this long, or was stopped in between.
constexpr nanoseconds kLetGo = milliseconds(200);

// The rank nearest to the culprit speaks first: one on its host, then a rank that the culprit keeps
// waiting on another host, then, if ranks on two hosts miss each other, those that others accuse,
// then the ranks that wait for one of these.
constexpr nanoseconds kSlackBetweenHosts = milliseconds(400);
constexpr nanoseconds kSlackIfAccused = milliseconds(600);
constexpr nanoseconds kSlackBehindAnother = milliseconds(800);
// A rank announces that it waits from this long before its deadline on, this often: ranks that wait
// for it know then that it is not the culprit. A rank that stops announcing is presumed suspended.
constexpr nanoseconds kAnnounceBefore = seconds(2);
constexpr nanoseconds kAnnounceEvery = milliseconds(100);
constexpr nanoseconds kPresumedSuspended = milliseconds(400);
// Ranks on other hosts are probed this often, and count as heard for this long.
constexpr nanoseconds kProbeEvery = milliseconds(100);
constexpr nanoseconds kHeard = seconds(1);

// A job pumps in the background this often, while the program computes.
constexpr nanoseconds kBackgroundPump = milliseconds(50);
// A rank that joins looks this often for the first rank on its host, and for a failure of the job
// while its peers connect.
constexpr nanoseconds kAnnouncementPoll = milliseconds(10);
constexpr nanoseconds kConnectPoll = milliseconds(100);
// A rank that another one could not serve calls it again after this long. A program that connects
// to a rank has this long to show that it is a rank, too.
constexpr nanoseconds kCallAgain = milliseconds(50);
constexpr nanoseconds kStrangerTimeout = seconds(10);
// Programs that are no ranks are warned of this often.
constexpr nanoseconds kWarnEvery = seconds(1);
// A rank that leaves gives what it sent this long to arrive; or this long, if a peer does not
// answer, so that the others hear of it. The process that runs the coordination service stays this
// long for ranks that are not done yet.
constexpr nanoseconds kLastFlush = seconds(1);
constexpr nanoseconds kLastNotices = milliseconds(200);
constexpr nanoseconds kServiceLinger = seconds(5);
// A message to a rank that takes nothing any more is waited for this long, before the connection
// is cut.
constexpr nanoseconds kCancel = milliseconds(200);

// A thread that yields to one that computes gets its core back when the other's time slice is over;
// a thread that sleeps gets it back when it is woken. So a yield that took this long is the last
// for a while: a short while first, and twice as long each time that yielding is no better.
constexpr nanoseconds kLongYield = microseconds(500);
constexpr nanoseconds kNoYield = milliseconds(1);
constexpr nanoseconds kLongestNoYield = milliseconds(128);

// An operation that was started in the background waits for an idle core, which is looked for this
// often; after this long it runs anyway.
constexpr nanoseconds kIdleCorePoll = milliseconds(1);
constexpr nanoseconds kLateWork = milliseconds(100);

// A thread that slept for less than this should have looked longer instead.
constexpr nanoseconds kShortSleep = milliseconds(4);

static_assert(kGpuPoll <= kPoll && kPoll < base::RunningTime::kLook);
static_assert(kPoll < kReason && kReason < kSlackBetweenHosts);
static_assert(2 * kSlackBetweenHosts <= kSlackBehindAnother);
static_assert(kSlackBetweenHosts < kSlackIfAccused && kSlackIfAccused < kSlackBehindAnother);
static_assert(3 * kAnnounceEvery < kPresumedSuspended && kPresumedSuspended < kAnnounceBefore);
static_assert(3 * kProbeEvery < kHeard);
static_assert(2 * kPoll < kLastNotices && kLastNotices < kReason && kLastFlush < kServiceLinger);

}  // namespace tutti::group::timing
