// What has gone wrong on a GPU since somebody last looked: what was enqueued there runs on after
// its caller has returned, so its error waits for the next who does.
#pragma once

#include <tutti/error.h>

#include <string>

namespace tutti::device {

// What was enqueued on `card` has failed. The first error stays until somebody gets it.
void fail(int card, ErrorCode code, const std::string& text);

// Throws it, once. For those who have just waited for the card.
void throw_failure(int card);

}  // namespace tutti::device
