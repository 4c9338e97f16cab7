// SPDX-License-Identifier: Apache-2.0
// After a backward pass of a TorchDataParallel every gradient is the mean over all ranks, however
// the pass goes, or every rank gets an error that names the culprit.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <tutti/torch.h>

#include <sstream>

#include "group/ranks.h"

namespace tutti {
namespace {

using namespace testing;
using ::testing::HasSubstr;
using torch::nn::Linear;

struct NetImpl : torch::nn::Module {
  Linear first = register_module("first", Linear(6, 16));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(16));
  Linear second = register_module("second", Linear(16, 3));
  Linear unused = nullptr;
  bool uses_all = true;

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = second(torch::relu(norm(first(x))));
    return unused && uses_all ? y + unused(x) : y;
  }
};
using Net = std::shared_ptr<NetImpl>;

// The same on all ranks if the seed is. LibTorch has one generator for all threads.
Net net_of(int seed, bool has_branch = false) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(uint64_t(seed));
  auto net = std::make_shared<NetImpl>();
  if (has_branch) net->unused = net->register_module("unused", Linear(6, 3));
  return net;
}

torch::Tensor batch_of(int rank, int step = 0) {
  return torch::sin(torch::arange(24, torch::kFloat) * (rank + 2) + step).reshape({4, 6});
}

torch::Tensor loss_of(const torch::Tensor& y) { return (y * y).mean(); }

std::vector<torch::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> all;
  for (const torch::Tensor& p : module.parameters()) all.push_back(p.grad());
  return all;
}

void expect_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].defined(), b[i].defined()) << "gradient " << i;
    if (a[i].defined()) {
      EXPECT_TRUE(torch::equal(a[i], b[i])) << "gradient " << i;
    }
  }
}

// What all ranks should have: the means of what each has by itself.
std::vector<torch::Tensor> means_of(std::vector<torch::Tensor> gradients, const Group& group) {
  std::vector<Tensor> list;
  for (torch::Tensor& gradient : gradients) {
    gradient = gradient.clone();
    list.push_back(from_torch(gradient));
  }
  group.all_reduce(list, ReduceOp::MEAN, kLong);
  return gradients;
}

void zero_to_none(const torch::nn::Module& module) {
  for (torch::Tensor p : module.parameters()) p.mutable_grad() = torch::Tensor();
}

class TorchModel : public Ranks {};
INSTANTIATE_TEST_SUITE_P(, TorchModel,
                         ::testing::Combine(::testing::Values(kWorlds[0], kWorlds[2]),
                                            ::testing::Values(1, 2, 3)),
                         name_of_ranks);

TEST_P(TorchModel, StartsAsThatOfRank0) {
  on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(group.rank()), first = net_of(0);
    net->norm->running_mean.fill_(group.rank());
    const TorchDataParallel model(net, group);
    for (size_t i = 0; i < net->parameters().size(); ++i)
      EXPECT_TRUE(torch::equal(net->parameters()[i], first->parameters()[i]));
    EXPECT_EQ(model->norm->running_mean.sum().item<float>(), 0);
  });
}

TEST_P(TorchModel, GradientsAreMeansForAllBucketsAndKindsOfZero) {
  for (const int64_t bucket_bytes : {1, 100, 1 << 20})
    on_ranks(groups, [&](const Group& group) {
      const Net net = net_of(1), alone = net_of(1);
      TorchDataParallel model(net, group, {.reducer = {.bucket_bytes = bucket_bytes}});
      for (int step = 0; step < 4; ++step) {
        zero_to_none(*alone);
        if (step == 2)
          for (const torch::Tensor& p : net->parameters()) p.mutable_grad().zero_();
        else
          zero_to_none(*net);
        loss_of(alone->forward(batch_of(group.rank(), step))).backward();
        loss_of(model.forward(batch_of(group.rank(), step))).backward();
        expect_equal(gradients_of(*net), means_of(gradients_of(*alone), group));
      }
    });
}

TEST_P(TorchModel, GradientsAreMadeInMemoryOfTheGroup) {
  on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(1), alone = net_of(1);
    std::optional<TorchDataParallel<NetImpl>> model(std::in_place, net, group);
    std::vector<void*> made(net->parameters().size());
    for (size_t i = 0; i < made.size(); ++i)
      net->parameters()[i].register_hook(
          [&made, i](const torch::Tensor& gradient) { made[i] = gradient.data_ptr(); });
    for (int step = 0; step < 2; ++step) {
      zero_to_none(*net);
      loss_of(model->forward(batch_of(group.rank()))).backward();
      size_t kept = 0;
      for (size_t i = 0; i < made.size(); ++i) kept += gradients_of(*net)[i].data_ptr() == made[i];
      EXPECT_EQ(kept, made.size());
    }
    const auto deleter_of = [](const torch::Tensor& tensor) {
      return tensor.storage().data_ptr().get_deleter();
    };
    const auto is_lent = [&](const torch::Tensor& tensor) {
      return deleter_of(tensor) != deleter_of(torch::empty({1}));
    };
    loss_of(alone->forward(batch_of(group.rank()))).backward();
    for (const torch::Tensor& gradient : gradients_of(*net)) EXPECT_EQ(is_lent(gradient), n > 1);
    for (const torch::Tensor& gradient : gradients_of(*alone)) EXPECT_FALSE(is_lent(gradient));
    model.reset();
    expect_equal(gradients_of(*net), means_of(gradients_of(*alone), group));
    zero_to_none(*net);
    void* const memory = c10::GetAllocator(torch::kCPU)->raw_allocate(64);
    c10::GetAllocator(torch::kCPU)->raw_deallocate(memory);
  });
}

TEST_P(TorchModel, GradientsOfOtherTypesAndLayoutsBecomeThoseOfTheirParameters) {
  on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(1), alone = net_of(1);
    TorchDataParallel<NetImpl> model(net, group, {.reducer = {.bucket_bytes = 1}});
    for (const Net& one : {net, alone}) {
      const torch::NoGradGuard no_grad;
      one->first->weight.mutable_grad() = torch::ones({6, 16}).t();
      one->first->bias.mutable_grad() = torch::ones({16}, torch::kDouble);
      one->second->bias.mutable_grad() = torch::ones({3, 2}).select(1, 0);
    }
    loss_of(model.forward(batch_of(group.rank()))).backward();
    loss_of(alone->forward(batch_of(group.rank()))).backward();
    std::vector<torch::Tensor> local = gradients_of(*alone);
    for (torch::Tensor& gradient : local) gradient = gradient.to(torch::kFloat).contiguous();
    expect_equal(gradients_of(*net), means_of(local, group));
  });
}

TEST_P(TorchModel, ParametersOfAnotherModelAreRefused) {
  on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(1);
    std::optional<TorchDataParallel<NetImpl>> model(std::in_place, net, group);
    EXPECT_THAT(caught([&] { TorchDataParallel<NetImpl>(net, group); }).text,
                HasSubstr("\"first.weight\" belongs to another TorchDataParallel, too"));
    model.emplace(net_of(2), group);
    TorchDataParallel<NetImpl> second(net, group);
    zero_to_none(*net);
    loss_of(second.forward(batch_of(group.rank()))).backward();
  });
}

// The gradients of `a` and `b` are views of one tensor.
TEST_P(TorchModel, GradientsThatShareMemoryAreMeansEach) {
  struct Biases : torch::nn::Module {
    torch::Tensor a = register_parameter("a", torch::zeros({6})),
                  b = register_parameter("b", torch::zeros({6}));
    torch::Tensor forward(const torch::Tensor& x) { return x + a.view({1, 6}) + b.view({1, 6}); }
  };
  on_ranks(groups, [&](const Group& group) {
    auto net = std::make_shared<Biases>(), alone = std::make_shared<Biases>();
    TorchDataParallel model(net, group, {.reducer = {.bucket_bytes = 1}});
    for (int step = 0; step < 3; ++step) {
      zero_to_none(*net);
      zero_to_none(*alone);
      loss_of(model.forward(batch_of(group.rank(), step).slice(0, 0, 1))).backward();
      loss_of(alone->forward(batch_of(group.rank(), step).slice(0, 0, 1))).backward();
      expect_equal(gradients_of(*net), means_of(gradients_of(*alone), group));
    }
  });
}

TEST_P(TorchModel, AddsUpGradientsWithoutSync) {
  on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(1), alone = net_of(1);
    TorchDataParallel model(net, group);
    for (int pass = 0; pass < 3; ++pass) {
      loss_of(alone->forward(batch_of(group.rank(), pass))).backward();
      std::optional<GradientReducer::Pause> pause;
      if (pass < 2) pause = model.no_sync();
      loss_of(model.forward(batch_of(group.rank(), pass))).backward();
      if (pass < 2) expect_equal(gradients_of(*net), gradients_of(*alone));
    }
    expect_equal(gradients_of(*net), means_of(gradients_of(*alone), group));
  });
}

TEST_P(TorchModel, WeightedMeansAreThoseOfAllExamples) {
  on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(1), alone = net_of(1);
    TorchDataParallel model(net, group);
    model.begin(group.rank() + 1);
    loss_of(model.forward(batch_of(group.rank()))).backward();
    loss_of(alone->forward(batch_of(group.rank()))).backward();
    std::vector<Tensor> list;
    for (const torch::Tensor& gradient : gradients_of(*alone)) list.push_back(from_torch(gradient));
    group.all_reduce(list, WeightedMean{group.rank() + 1.}, kLong);
    expect_equal(gradients_of(*net), gradients_of(*alone));
  });
}

TEST_P(TorchModel, MayBeUsedTwiceInAPass) {
  on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(1), alone = net_of(1);
    TorchDataParallel model(net, group);
    const auto twice = [&](auto& module) {
      const torch::Tensor x = module.forward(batch_of(group.rank()));
      loss_of(x + module.forward(batch_of(group.rank(), 1))).backward();
    };
    twice(model);
    twice(*alone);
    expect_equal(gradients_of(*net), means_of(gradients_of(*alone), group));
  });
}

// Runs a module again in the backward pass, which starts a pass inside the pass.
struct Checkpointed : torch::autograd::Function<Checkpointed> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor x,
                               Linear* module) {
    context->save_for_backward({x});
    context->saved_data["module"] = int64_t(module);
    return (*module)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const torch::AutoGradMode with_grad(true);
    torch::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    auto& module = *reinterpret_cast<Linear*>(context->saved_data["module"].toInt());
    module(x).backward(gradients[0]);
    return {x.grad(), torch::Tensor()};
  }
};

// The last layer's pass is over before another gradient is made.
struct CheckpointedNet : torch::nn::Module {
  Linear first = register_module("first", Linear(6, 5)),
         second = register_module("second", Linear(5, 4)),
         third = register_module("third", Linear(4, 3));
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = Checkpointed::apply(torch::relu(first(x)), &second);
    return Checkpointed::apply(torch::relu(y), &third);
  }
};

TEST_P(TorchModel, PassesMayStartPasses) {
  on_ranks(groups, [&](const Group& group) {
    auto net = std::make_shared<CheckpointedNet>();
    TorchDataParallel model(net, group, {.reducer = {.bucket_bytes = 1}});
    const auto alone = std::make_shared<CheckpointedNet>();
    for (size_t i = 0; i < net->parameters().size(); ++i)
      alone->parameters()[i].data().copy_(net->parameters()[i].detach());
    for (int step = 0; step < 3; ++step) {
      zero_to_none(*net);
      zero_to_none(*alone);
      loss_of(model.forward(batch_of(group.rank(), step))).backward();
      loss_of(alone->forward(batch_of(group.rank(), step))).backward();
      expect_equal(gradients_of(*net), means_of(gradients_of(*alone), group));
    }
  });
}

TEST_P(TorchModel, NamesAParameterThatIsUnusedOnOneRank) {
  const auto errors = errors_on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(1, true);
    TorchDataParallel model(net, group);
    net->uses_all = group.rank() != n - 1;
    loss_of(model.forward(batch_of(group.rank()))).backward();
  });
  expect_everywhere(errors, ErrorCode::failed_precondition,
                    {"rank " + std::to_string(n - 1) + " has no gradient of \"unused."});
}

TEST_P(TorchModel, CountsAnUnusedParameterAsZeroIfAsked) {
  on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(1, true), alone = net_of(1, true);
    TorchDataParallel model(net, group, {.reducer = {.missing_as_zero = true}});
    const bool uses_all = net->uses_all = alone->uses_all = group.rank() == 0;
    for (int step = 0; step < 3; ++step) {
      zero_to_none(*net);
      zero_to_none(*alone);
      loss_of(model.forward(batch_of(group.rank(), step))).backward();
      loss_of(alone->forward(batch_of(group.rank(), step))).backward();
      if (!uses_all)
        for (torch::Tensor p : alone->unused->parameters()) p.mutable_grad() = torch::zeros_like(p);
      expect_equal(gradients_of(*net), means_of(gradients_of(*alone), group));
    }
    // An optimizer does not touch one that no rank has used.
    net->uses_all = false;
    zero_to_none(*net);
    loss_of(model.forward(batch_of(group.rank()))).backward();
    EXPECT_FALSE(net->unused->weight.grad().defined());
    EXPECT_TRUE(net->first->weight.grad().defined());
  });
}

// Returns what it is given: no parameter takes part in its pass.
TEST_P(TorchModel, APassThatReachesNoParameterIsAStepAllTheSame) {
  struct Droppable : torch::nn::Module {
    Linear layer = register_module("layer", Linear(6, 6));
    bool is_dropped = false;
    torch::Tensor forward(const torch::Tensor& x) { return is_dropped ? x * 1 : layer(x); }
  };
  const auto errors = errors_on_ranks(groups, [&](const Group& group) {
    for (const bool may_miss : {true, false}) {
      const auto net = std::make_shared<Droppable>();
      TorchDataParallel model(net, group, {.reducer = {.missing_as_zero = may_miss}});
      net->is_dropped = group.rank() == n - 1;
      torch::Tensor x = batch_of(group.rank()).requires_grad_();
      loss_of(model.forward(x)).backward();
      EXPECT_EQ(net->layer->weight.grad().defined(), n > 1);
      EXPECT_TRUE(torch::autograd::grad({loss_of(model.forward(x))}, {x})[0].defined());
    }
  });
  expect_everywhere(errors, ErrorCode::failed_precondition,
                    {"rank " + std::to_string(n - 1) + " has no gradient of \"layer."});
}

// Has no gradient for `y`.
struct First : torch::autograd::Function<First> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, torch::Tensor x,
                               torch::Tensor y) {
    return x + 0 * y.sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0], torch::Tensor()};
  }
};

TEST_P(TorchModel, AGradientThatAPassLeavesUndefinedIsMissing) {
  struct HalfUsed : torch::nn::Module {
    torch::Tensor used = register_parameter("used", torch::ones({3})),
                  idle = register_parameter("idle", torch::ones({3}));
    torch::Tensor forward(const torch::Tensor& x) { return First::apply(x * used, idle); }
  };
  on_ranks(groups, [&](const Group& group) {
    auto net = std::make_shared<HalfUsed>();
    TorchDataParallel model(net, group, {.reducer = {.missing_as_zero = true}});
    loss_of(model.forward(batch_of(group.rank()).slice(1, 0, 3))).backward();
    EXPECT_TRUE(net->used.grad().defined());
    EXPECT_FALSE(net->idle.grad().defined());
  });
  const auto errors = errors_on_ranks(groups, [&](const Group& group) {
    TorchDataParallel model(std::make_shared<HalfUsed>(), group);
    loss_of(model.forward(batch_of(group.rank()).slice(1, 0, 3))).backward();
  });
  expect_everywhere(errors, ErrorCode::failed_precondition, {"has no gradient of \"idle\""});
}

TEST_P(TorchModel, LeavesFrozenParametersAndSharedOnesAsTheyAre) {
  struct Tied : torch::nn::Module {
    Linear a = register_module("a", Linear(6, 6)), b = register_module("b", a),
           frozen = register_module("frozen", Linear(6, 6));
    torch::Tensor forward(const torch::Tensor& x) { return b(a(frozen(x))); }
  };
  on_ranks(groups, [&](const Group& group) {
    auto net = std::make_shared<Tied>();
    for (torch::Tensor p : net->frozen->parameters()) p.requires_grad_(false);
    TorchDataParallel model(net, group);
    EXPECT_EQ(model.reducer().size(), 2u);
    loss_of(model.forward(batch_of(group.rank()))).backward();
    EXPECT_FALSE(net->frozen->weight.grad().defined());
    std::vector<float> first(36);
    const Tensor mine = from_torch(net->a->weight.grad());
    if (group.rank() == 0) first = mine.to_vector<float>();
    group.broadcast(first, 0, kLong);
    EXPECT_EQ(mine.to_vector<float>(), first);
  });
}

// As a discriminator is while the generator learns.
TEST_P(TorchModel, MayBeFrozenForSomePasses) {
  on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(1), alone = net_of(1);
    TorchDataParallel model(net, group);
    const auto train = [&](bool trains) {
      for (torch::Tensor p : net->parameters()) p.requires_grad_(trains);
    };
    train(false);
    const torch::Tensor x = batch_of(group.rank()).requires_grad_();
    loss_of(model.forward(x)).backward();
    EXPECT_TRUE(x.grad().defined());
    EXPECT_FALSE(net->first->weight.grad().defined());
    train(true);
    loss_of(model.forward(batch_of(group.rank()))).backward();
    loss_of(alone->forward(batch_of(group.rank()))).backward();
    expect_equal(gradients_of(*net), means_of(gradients_of(*alone), group));
  });
}

TEST_P(TorchModel, NamesAParameterThatWasFrozenLater) {
  const auto errors = errors_on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(1);
    TorchDataParallel model(net, group);
    net->second->bias.requires_grad_(false);
    loss_of(model.forward(batch_of(group.rank()))).backward();
  });
  expect_everywhere(errors, ErrorCode::failed_precondition, {"has no gradient of \"second.bias\""});
}

TEST_P(TorchModel, TakesHoldersAndLayoutsAndManyResults) {
  struct Pair : torch::nn::Module {
    torch::nn::Conv2d a = register_module("a", torch::nn::Conv2d(2, 3, 2)),
                      b = register_module("b", torch::nn::Conv2d(2, 3, 2));
    std::tuple<torch::Tensor, std::vector<torch::Tensor>> forward(const torch::Tensor& x) {
      return {a(x), {b(x)}};
    }
  };
  on_ranks(groups, [&](const Group& group) {
    TorchDataParallel model(torch::nn::Sequential(Linear(6, 4), torch::nn::ReLU(), Linear(4, 2)),
                            group);
    loss_of(model.forward(batch_of(group.rank()))).backward();
    EXPECT_TRUE((*model).parameters()[0].grad().defined());

    auto net = std::make_shared<Pair>();
    for (torch::Tensor p : net->parameters())
      if (p.dim() == 4) p.set_data(p.detach().contiguous(torch::MemoryFormat::ChannelsLast));
    TorchDataParallel pair(net, group);
    const auto [a, b] = pair.forward(torch::ones({1, 2, 4, 4}) * (group.rank() + 1));
    (a.sum() + b[0].sum()).backward();
    EXPECT_EQ(net->b->weight.grad().strides(), net->b->weight.strides());
    EXPECT_EQ(net->a->weight.grad().max().item<float>(), 9 * float(n + 1) / 2);
  });
}

TEST_P(TorchModel, AddsNoHooksToParametersThatForwardReturns) {
  struct Constant : torch::nn::Module {
    torch::Tensor value = register_parameter("value", torch::ones({3}));
    torch::Tensor forward() { return value; }
  };
  on_ranks(groups, [&](const Group& group) {
    auto net = std::make_shared<Constant>();
    TorchDataParallel model(net, group);
    (model.forward() * float(group.rank() + 1)).sum().backward();
    EXPECT_EQ(net->value.grad()[0].item<float>(), float(n + 1) / 2);
    EXPECT_TRUE(torch::autograd::impl::hooks(net->value).empty());
  });
}

TEST_P(TorchModel, RunsAHookOnEachBucketBeforePassesEnd) {
  on_ranks(groups, [&](const Group& group) {
    int buckets = 0;
    GradientReducerOptions options{.bucket_bytes = 1};
    options.on_bucket = [&](const GradientReducerOptions::Bucket& bucket) {
      ++buckets;
      for (const Tensor& gradient : bucket.gradients) to_torch(gradient).fill_(3);
    };
    const Net net = net_of(1);
    TorchDataParallel model(net, group, {.reducer = options});
    loss_of(model.forward(batch_of(group.rank()))).backward();
    EXPECT_EQ(buckets, 6);
    for (const torch::Tensor& gradient : gradients_of(*net))
      EXPECT_TRUE((gradient == 3).all().item<bool>());
  });
}

// Rank r has r + 1 batches.
TEST_P(TorchModel, JoinsInputsThatEndUnevenly) {
  for (const bool may_miss : {false, true})
    on_ranks(groups, [&](const Group& group) {
      const Net net = net_of(1);
      TorchDataParallel model(net, group, {.reducer = {.missing_as_zero = may_miss}});
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      int step = 0;
      for (; model.join(step <= group.rank()); ++step) {
        optimizer.zero_grad();
        if (step <= group.rank())
          loss_of(model.forward(batch_of(group.rank(), step))).backward();
        else
          model.skip();
        optimizer.step();
      }
      EXPECT_EQ(step, n);
      std::vector<torch::Tensor> all = net->parameters();
      for (const torch::Tensor& mine : all) {
        torch::Tensor of_last = mine.detach().clone();
        group.broadcast(from_torch(of_last), n - 1, kLong);
        EXPECT_TRUE(torch::equal(of_last, mine.detach()));
      }
    });
}

TEST_P(TorchModel, AJoinedMeanIsThatOfTheRanksThatHaveABatch) {
  on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(1), alone = net_of(1);
    TorchDataParallel model(net, group);
    ASSERT_TRUE(model.join(group.rank() == n - 1));
    if (group.rank() == n - 1)
      loss_of(model.forward(batch_of(5))).backward();
    else
      model.skip();
    loss_of(alone->forward(batch_of(5))).backward();
    expect_equal(gradients_of(*net), gradients_of(*alone));
    EXPECT_FALSE(model.join(false));
  });
}

TEST_P(TorchModel, SkippingLeavesAParameterAloneThatNoRankHasUsed) {
  on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(1, true);
    net->uses_all = false;
    TorchDataParallel model(net, group, {.reducer = {.missing_as_zero = true}});
    ASSERT_TRUE(model.join(group.rank() == 0));
    if (group.rank() == 0)
      loss_of(model.forward(batch_of(0))).backward();
    else
      model.skip();
    EXPECT_FALSE(net->unused->weight.grad().defined());
    EXPECT_TRUE(net->first->weight.grad().defined());
  });
}

TEST_P(TorchModel, JoinsBeforeTheFirstBatchOfAStepOnly) {
  on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(1), alone = net_of(1);
    TorchDataParallel model(net, group);
    {
      const auto pause = model.no_sync();
      EXPECT_EQ(caught([&] { model.join(true); }).code, ErrorCode::failed_precondition);
    }
    // The weights of a step that does not end do not outlive it.
    ASSERT_TRUE(model.join(group.rank() == 0));
    EXPECT_FALSE(model.join(false));
    ASSERT_TRUE(model.join(true));
    loss_of(model.forward(batch_of(group.rank()))).backward();
    loss_of(alone->forward(batch_of(group.rank()))).backward();
    for (const torch::Tensor& gradient : gradients_of(*net)) EXPECT_TRUE(gradient.defined());
    const auto mine = gradients_of(*net), means = means_of(gradients_of(*alone), group);
    for (size_t i = 0; i < mine.size(); ++i) EXPECT_TRUE(torch::allclose(mine[i], means[i]));
  });
}

TEST_P(TorchModel, SkipsOnlyWhatJoinKnowsOf) {
  on_ranks(groups, [&](const Group& group) {
    TorchDataParallel model(net_of(1), group);
    EXPECT_EQ(caught([&] { model.skip(); }).code, ErrorCode::failed_precondition);
    EXPECT_TRUE(model.join(true));
    EXPECT_THAT(caught([&] { model.skip(); }).text, HasSubstr("join(false) comes before"));
  });
}

TEST_P(TorchModel, ForwardGivesAllRanksTheBuffersOfRank0WhileTraining) {
  on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(1);
    net->norm->options.momentum(0.);  // so that a pass leaves them as they are
    std::optional model(TorchDataParallel(net, group));
    const torch::Tensor& variances = net->norm->running_var;
    const auto set = [&] { variances.fill_(group.rank() + 5); };
    set();
    model->forward(batch_of(group.rank()));
    EXPECT_EQ(variances.min().item<float>(), 5);
    // No collectives, so one rank may do without the others.
    set();
    if (group.rank() == n - 1) {
      const torch::NoGradGuard no_grad;
      model->forward(batch_of(1));
    }
    if (group.rank() == n - 1) {
      const auto pause = model->no_sync();
      model->forward(batch_of(1));
    }
    net->eval();
    if (group.rank() == n - 1) model->forward(batch_of(1));
    EXPECT_EQ(variances.min().item<float>(), float(group.rank() + 5));

    net->train();
    model.reset();
    TorchDataParallel local(net, group, {.broadcast_buffers = false});
    set();
    local.forward(batch_of(1));
    EXPECT_EQ(variances.min().item<float>(), float(group.rank() + 5));
  });
}

TEST_P(TorchModel, GradOfItsResultsIsNoBackwardPass) {
  on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(1);
    TorchDataParallel model(net, group);
    const torch::Tensor x = batch_of(group.rank()).requires_grad_();
    // Only one rank asks for it.
    if (group.rank() == 0) torch::autograd::grad({loss_of(net->forward(x))}, {x}, {}, true, true);
    const torch::Tensor y = model.forward(x);
    if (group.rank() == 0) torch::autograd::grad({loss_of(y)}, {x}, {}, true);
    loss_of(y).backward();
    EXPECT_TRUE(net->first->weight.grad().defined());
  });
}

TEST_P(TorchModel, RefusesSecondDerivativesByName) {
  const auto errors = errors_on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(1);
    // Without buffers: a rank may hear of the failure while it makes them those of rank 0.
    TorchDataParallel model(net, group, {.broadcast_buffers = false});
    try {
      loss_of(model.forward(batch_of(group.rank()))).backward({}, true, /*create_graph=*/true);
    } catch (const Error&) {
      zero_to_none(*net);  // which hold the graph, and the graph holds them
      throw;
    }
  });
  expect_everywhere(errors, ErrorCode::invalid_argument, {"the gradient of \"", "create_graph"});
}

TEST_P(TorchModel, RefusesSparseGradientsByName) {
  struct Words : torch::nn::Module {
    torch::nn::Embedding words = register_module(
        "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 3).sparse(true)));
    torch::Tensor forward(const torch::Tensor& x) { return words(x); }
  };
  const auto errors = errors_on_ranks(groups, [&](const Group& group) {
    TorchDataParallel model(std::make_shared<Words>(), group);
    model.forward(torch::arange(4)).sum().backward();
  });
  expect_everywhere(errors, ErrorCode::invalid_argument, {"\"words.weight\" is sparse"});
}

TEST_P(TorchModel, AnExceptionInAPassNamesTheRankOnAllOthers) {
  if (n == 1) return;
  std::vector<std::string> own(static_cast<size_t>(n));
  const auto errors = errors_on_ranks(groups, [&](const Group& group) {
    const Net net = net_of(1);
    TorchDataParallel model(net, group, {.reducer = {.bucket_bytes = 1}});
    loss_of(model.forward(batch_of(group.rank()))).backward();
    if (group.rank() == 1)
      net->first->weight.register_hook([](const torch::Tensor&) -> torch::Tensor {
        throw std::runtime_error("bad pixel in image 42");
      });
    try {
      loss_of(model.forward(batch_of(group.rank()))).backward();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      own[size_t(group.rank())] = e.what();
    }
    loss_of(model.forward(batch_of(group.rank()))).backward();
  });
  EXPECT_THAT(own[1], HasSubstr("bad pixel in image 42"));
  for (size_t r = 0; r < errors.size(); ++r) {
    EXPECT_EQ(errors[r].code, ErrorCode::aborted) << "rank " << r << ": " << errors[r].text;
    if (r == 1) continue;
    EXPECT_THAT(errors[r].text,
                HasSubstr("rank 1 failed: its backward pass ended with an exception"));
  }
}

TEST_P(TorchModel, DiffersFromThoseOfOtherRanksByName) {
  if (n == 1) return;
  const auto expect = [&](const auto& change, const std::string& text) {
    const auto errors = errors_on_ranks(groups, [&](const Group& group) {
      const Net net = net_of(1);
      if (group.rank() == n - 1) change(*net);
      TorchDataParallel(net, group);
    });
    expect_everywhere(errors, ErrorCode::invalid_argument,
                      {"TorchDataParallel: ranks hold different models: " + text + " on rank " +
                       std::to_string(n - 1)});
  };
  expect([](NetImpl& net) { net.register_module("more", Linear(2, 1)); },
         "line 6 is buffer \"norm.running_mean\" Float[16] on rank 0 and parameter "
         "\"more.weight\" Float[1, 2]");
  expect([](NetImpl& net) { net.second->to(torch::kDouble); },
         "line 4 is parameter \"second.weight\" Float[3, 16] on rank 0 and parameter "
         "\"second.weight\" Double[3, 16]");
  expect([](NetImpl& net) { net.second->bias.set_requires_grad(false); },
         "line 5 is parameter \"second.bias\" Float[3] on rank 0 and frozen parameter "
         "\"second.bias\" Float[3]");
  expect([](NetImpl& net) { net.register_buffer("more", torch::zeros({1})); },
         "line 6 is buffer \"norm.running_mean\" Float[16] on rank 0 and buffer \"more\" "
         "Float[1]");
}

TEST_P(TorchModel, RefusesLayoutsThatDifferBetweenRanks) {
  if (n == 1) return;
  const auto errors = errors_on_ranks(groups, [&](const Group& group) {
    torch::nn::Conv2d net(2, 3, 2);
    if (group.rank() == n - 1)
      net->weight.set_data(net->weight.detach().contiguous(torch::MemoryFormat::ChannelsLast));
    TorchDataParallel(net, group);
  });
  expect_everywhere(errors, ErrorCode::invalid_argument,
                    {"\"weight\" Float[3, 2, 2, 2] on rank 0 and parameter \"weight\" "
                     "Float[3, 2, 2, 2] with strides [8, 1, 4, 2] on rank"});
}

TEST_P(TorchModel, GoesOnAfterParametersAreLoaded) {
  std::stringstream file;
  {
    torch::serialize::OutputArchive archive;
    net_of(5)->save(archive);
    archive.save_to(file);
  }
  on_ranks(groups, [&, text = file.str()](const Group& group) {
    const Net net = net_of(1), alone = net_of(5);
    TorchDataParallel model(net, group);
    loss_of(model.forward(batch_of(group.rank()))).backward();
    std::istringstream stream(text);
    torch::serialize::InputArchive archive;
    archive.load_from(stream);
    net->load(archive);
    zero_to_none(*net);
    loss_of(model.forward(batch_of(group.rank()))).backward();
    loss_of(alone->forward(batch_of(group.rank()))).backward();
    expect_equal(gradients_of(*net), means_of(gradients_of(*alone), group));

    net->to(torch::kDouble);
    EXPECT_THAT(caught([&] { model.forward(batch_of(0).to(torch::kDouble)); }).text,
                HasSubstr("\"first.weight\" has become Double[16, 6] on cpu and was Float[16, 6]"));
  });
}

TEST(TorchHooks, DoNothingOnceTheModelIsGone) {
  const Group alone = Group::in_process(1)[0];
  const Net net = net_of(1);
  torch::Tensor y;
  {
    TorchDataParallel model(net, alone);
    y = model.forward(batch_of(0));
  }
  loss_of(y).backward();
  EXPECT_TRUE(net->first->weight.grad().defined());
  TorchDataParallel again(net, alone);
  loss_of(again.forward(batch_of(0))).backward();
}

}  // namespace
}  // namespace tutti
