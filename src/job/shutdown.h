// SPDX-License-Identifier: Apache-2.0
// The end of a process's part in its job.
#pragma once

#include "group/net/control_plane.h"
#include "job/bootstrap.h"
#include "job/link.h"

namespace tutti::group {

// Says goodbye to the ranks on other hosts, and stays a moment for those that connect to hear it.
// Whether the job is complete: it has not failed, and no rank was waited for in vain.
bool leave_network(ControlPlane& control, Link& link);

// Says goodbye to the service. The process that runs it stays for the others: up to 5 s for those
// that are not done if the job is complete, else for those that still answer.
void leave_service(Bootstrap& bootstrap, Link& link, bool complete);

}  // namespace tutti::group
