// SPDX-License-Identifier: Apache-2.0
// All of Tutti but c.h, torch.h, eigen.h, and compat.h with names of earlier releases. Each header
// also stands alone.
#pragma once

#include <tutti/checkpoint.h>
#include <tutti/cluster.h>
#include <tutti/collective_all_reduce.h>
#include <tutti/collective_strategy.h>
#include <tutti/cross_device_ops.h>
#include <tutti/cuda.h>
#include <tutti/dataset.h>
#include <tutti/destinations.h>
#include <tutti/device.h>
#include <tutti/dtype.h>
#include <tutti/error.h>
#include <tutti/gradient_reducer.h>
#include <tutti/group.h>
#include <tutti/input.h>
#include <tutti/mirrored_strategy.h>
#include <tutti/reduce_op.h>
#include <tutti/regroup.h>
#include <tutti/replica_context.h>
#include <tutti/safetensors.h>
#include <tutti/shape.h>
#include <tutti/simulation.h>
#include <tutti/span.h>
#include <tutti/strategy.h>
#include <tutti/strategy_extended.h>
#include <tutti/tensor.h>
#include <tutti/values.h>
#include <tutti/variable.h>
#include <tutti/version.h>
#include <tutti/work.h>
