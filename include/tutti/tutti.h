// All of Tutti. Each header also stands alone; compat.h, with names of earlier releases, is
// included by itself.
#pragma once

#include <tutti/cross_device_ops.h>
#include <tutti/destinations.h>
#include <tutti/device.h>
#include <tutti/dtype.h>
#include <tutti/error.h>
#include <tutti/reduce_op.h>
#include <tutti/regroup.h>
#include <tutti/shape.h>
#include <tutti/tensor.h>
#include <tutti/values.h>
#include <tutti/version.h>
