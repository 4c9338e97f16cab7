// SPDX-License-Identifier: Apache-2.0
// A worker that trains a small net of LibTorch, and may be told to go wrong.
//   torch_worker SEED STEPS [FAULT RANK STEP [TWIST]]
// FAULT of RANK at STEP:
//   throw    a user's hook throws in the backward pass, and nothing catches it. Not the first hook:
//            the pass has not reached the model by then, and a rank that catches it may go on
//   catch    the same, but the program catches it, and goes on
//   models   all ranks make a second model, and that of RANK is different: it has another layer
//            (TWIST 1), a wider one (2), float64 (3), another name (4) or a frozen parameter (5)
//   unused   two parameters are unused
//   missing  they are unused now and then from STEP on, with missing_as_zero: all is well
//   uneven   the ranks have different numbers of batches, at most STEPS: all is well
//   none     the driver kills a rank
// The seed chooses the net, the buckets, and whether hooks take their time. Unless the driver kills
// a rank, every rank also trains the nets of all ranks itself, and compares after each step.
// Reports as multiprocess_worker does. The text of "fault" is what the others' errors must say.
#include <ATen/Parallel.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <tutti/torch.h>
#include <tutti/tutti.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <thread>

#include "report.h"

using namespace tutti;
using namespace tutti::testing;

namespace {

struct Task {
  uint64_t seed;
  int64_t steps;
  std::string fault = "none";
  int rank = -1;
  int64_t at = 0;
  int twist = 0;
};

struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What a hook has thrown and the program has caught.
struct Caught : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Design {
  explicit Design(uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto one_of = [&](std::initializer_list<int64_t> choices) {
      return choices.begin()[random() % choices.size()];
    };
    layers = one_of({1, 2, 3, 5});
    width = one_of({4, 16, 64, 200});
    bucket_bytes = one_of({1, 1000, 100'000, 4 << 20});
    has_norms = one_of({0, 1});
    takes_time = one_of({0, 1});
    clears_gradients = one_of({0, 1});
    is_weighted = one_of({0, 1});
  }
  int64_t layers, width, bucket_bytes;
  bool has_norms;         // and with them buffers
  bool takes_time;        // in hooks
  bool clears_gradients;  // else they become zeros
  bool is_weighted;       // if the ranks have different numbers of batches
  int twist = 0;
};

constexpr int64_t kInputs = 8, kOutputs = 3;

struct NetImpl : torch::nn::Module {
  NetImpl(const Design& design, uint64_t seed) {
    torch::manual_seed(seed);
    const int64_t layers = design.layers + (design.twist == 1);
    int64_t inputs = kInputs;
    for (int64_t i = 0; i < layers; ++i) {
      const bool is_last = i == layers - 1;
      const int64_t outputs = design.width + (design.twist == 2 && is_last);
      const std::string name = design.twist == 4 && is_last ? "last" : "layer" + std::to_string(i);
      hidden.push_back(register_module(name, torch::nn::Linear(inputs, outputs)));
      if (design.has_norms)
        norms.push_back(register_module(name + "_norm", torch::nn::BatchNorm1d(outputs)));
      inputs = outputs;
    }
    branch = register_module("branch", torch::nn::Linear(inputs, inputs));
    output = register_module("output", torch::nn::Linear(inputs, kOutputs));
    if (design.twist == 3) to(torch::kDouble);
    if (design.twist == 5) output->weight.set_requires_grad(false);
    for (const torch::Tensor& parameter : parameters())
      if (parameter.requires_grad()) watched(parameter);
  }

  torch::Tensor forward(torch::Tensor x, bool uses_branch) {
    for (size_t i = 0; i < hidden.size(); ++i) {
      x = hidden[i](x);
      if (i < norms.size()) x = norms[i](x);
      x = watched(torch::relu(x));
    }
    if (uses_branch) x = x + watched(torch::tanh(branch(x)));
    return watched(output(x));
  }

  // With a hook, as a user may add one.
  torch::Tensor watched(const torch::Tensor& tensor) {
    tensor.register_hook([this](const torch::Tensor&) {
      if (on_gradient) on_gradient();
    });
    return tensor;
  }
  // That a pass calls.
  size_t hooks() { return parameters().size() + hidden.size() + 2; }

  std::vector<torch::nn::Linear> hidden;
  std::vector<torch::nn::BatchNorm1d> norms;
  torch::nn::Linear branch{nullptr}, output{nullptr};
  std::function<void()> on_gradient;
};
TORCH_MODULE(Net);

torch::optim::SGD optimizer_of(const Net& net) {
  return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
}

// What a rank does in a step.
struct Part {
  bool has_batch = true, uses_branch = true;
  double weight = 1;
  torch::Tensor inputs = {}, targets = {};
};

torch::Tensor loss_of(const torch::Tensor& outputs, const Part& part) {
  return torch::mse_loss(outputs, part.targets);
}

void clear_gradients(const Net& net, bool clears) {
  for (torch::Tensor& parameter : net->parameters()) {
    if (clears) parameter.mutable_grad().reset();
    if (parameter.grad().defined()) parameter.mutable_grad().zero_();
  }
}

// As ReduceOp::SUM: T(n) = T(p) + T(n - p), with p the largest power of two below n.
torch::Tensor sum_of(std::span<const torch::Tensor> terms) {
  if (terms.size() == 1) return terms[0];
  const size_t half = std::bit_floor(terms.size() - 1);
  return sum_of(terms.first(half)) + sum_of(terms.subspan(half));
}

// The nets of all ranks, in one process.
class Mirror {
 public:
  Mirror(const Design& design, int ranks) : design_(design) {
    for (int r = 0; r < ranks; ++r) {
      nets_.emplace_back(design, 0);
      optimizers_.push_back(optimizer_of(nets_.back()));
    }
  }

  const Net& net(int rank) const { return nets_[size_t(rank)]; }

  void train(const std::vector<Part>& parts) {
    copy_buffers(parts);
    for (size_t r = 0; r < nets_.size(); ++r) {
      clear_gradients(nets_[r], design_.clears_gradients);
      if (parts[r].has_batch)
        loss_of(nets_[r]->forward(parts[r].inputs, parts[r].uses_branch), parts[r]).backward();
    }
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < nets_[0]->parameters().size(); ++i) {
      const torch::Tensor mean = mean_of_gradients(i, parts);
      for (const Net& net : nets_) net->parameters()[i].mutable_grad() = mean.clone();
    }
    for (torch::optim::SGD& optimizer : optimizers_) optimizer.step();
  }

 private:
  // They come from the first rank that has a batch.
  void copy_buffers(const std::vector<Part>& parts) {
    const torch::NoGradGuard no_grad;
    const auto root = std::ranges::find(parts, true, &Part::has_batch) - parts.begin();
    const std::vector<torch::Tensor> from = nets_[size_t(root)]->buffers();
    for (const Net& net : nets_) {
      std::vector<torch::Tensor> buffers = net->buffers();
      for (size_t i = 0; i < from.size(); ++i) buffers[i].copy_(from[i]);
    }
  }

  torch::Tensor mean_of_gradients(size_t i, const std::vector<Part>& parts) const {
    const bool is_weighted = std::ranges::any_of(
        parts, [](const Part& part) { return !part.has_batch || part.weight != 1; });
    std::vector<torch::Tensor> terms;
    double weights = 0;
    for (size_t r = 0; r < nets_.size(); ++r) {
      const torch::Tensor parameter = nets_[r]->parameters()[i];
      const torch::Tensor gradient =
          parameter.grad().defined() ? parameter.grad() : torch::zeros_like(parameter);
      const double weight = parts[r].has_batch ? parts[r].weight : 0;
      weights += weight;
      terms.push_back(is_weighted ? gradient.to(torch::kDouble) * weight : gradient);
    }
    return (sum_of(terms) / weights).to(torch::kFloat);
  }

  const Design design_;
  std::vector<Net> nets_;
  std::vector<torch::optim::SGD> optimizers_;
};

class Training {
 public:
  Training(const Task& task, const Group& world)
      : task_(task),
        world_(world),
        rank_(world.rank()),
        design_(task.seed),
        net_(design_, uint64_t(rank_)),
        optimizer_(optimizer_of(net_)),
        model_(net_, world, options()) {
    if (task.fault != "none") mirror_.emplace(design_, world.size());
    net_->on_gradient = [this, random = std::mt19937(uint32_t(rank_))]() mutable {
      if (design_.takes_time && random() % 8 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
      if (hooks_until_throw_ && (*hooks_until_throw_)-- == 0) throw_own();
    };
  }

  void run() {
    for (int64_t step = 0; step < task_.steps; ++step) {
      std::vector<Part> parts;
      for (int r = 0; r < world_.size(); ++r) parts.push_back(part(r, step));
      const Part& mine = parts[size_t(rank_)];
      if (task_.fault == "uneven" && !model_.join(mine.has_batch)) break;
      if (step == task_.at) go_wrong();
      if (task_.fault == "catch")
        train_and_catch(mine);
      else
        train(mine);
      if (mirror_) compare(parts, step);
    }
    compare_with_others();
  }

  // What the program may do after an error.
  void go_on() {
    hooks_until_throw_.reset();
    if (task_.fault == "models") return make_second_model();
    train(part(rank_, task_.at + 1));
  }

 private:
  TorchDataParallelOptions options() const {
    TorchDataParallelOptions options;
    options.reducer.bucket_bytes = design_.bucket_bytes;
    options.reducer.missing_as_zero = task_.fault == "missing";
    return options;
  }

  uint64_t random(int rank, int64_t step) const {
    std::seed_seq seed{task_.seed, uint64_t(rank), uint64_t(step)};
    return std::mt19937(seed)();
  }

  // All ranks know it.
  Part part(int rank, int64_t step) const {
    Part part;
    const uint64_t choice = random(rank, step);
    const auto examples = int64_t(2 + choice % 7);  // the norms need more than one
    if (task_.fault == "uneven") {
      part.has_batch = uint64_t(step) < random(rank, -1) % uint64_t(task_.steps);
      if (design_.is_weighted) part.weight = double(examples);
    }
    if (rank == task_.rank && task_.fault == "unused") part.uses_branch = step != task_.at;
    if (rank == task_.rank && task_.fault == "missing")
      part.uses_branch = step < task_.at || choice / 7 % 2;
    torch::manual_seed(choice);
    part.inputs = torch::randn({examples, kInputs});
    part.targets = torch::randn({examples, kOutputs});
    return part;
  }

  void train(const Part& part) {
    clear_gradients(net_, design_.clears_gradients);
    if (!part.has_batch) {
      model_.skip();
    } else {
      if (task_.fault == "uneven" && design_.is_weighted) model_.begin(part.weight);
      loss_of(model_.forward(part.inputs, part.uses_branch), part).backward();
    }
    optimizer_.step();
  }

  // Of its own: a handler for it would be in the way of std::terminate.
  void train_and_catch(const Part& part) {
    try {
      train(part);
    } catch (const Error&) {
      throw;
    } catch (const std::runtime_error& own) {
      throw Caught(own.what());
    }
  }

  void go_wrong() {
    if (task_.fault == "models") return make_second_model();
    if (rank_ != task_.rank) return;
    if (task_.fault == "throw" || task_.fault == "catch")
      hooks_until_throw_ = 1 + random(rank_, -2) % (net_->hooks() - 1);
    if (task_.fault == "unused")
      report_fault("has no gradient of \"branch.weight\", \"branch.bias\"");
  }

  void report_fault(const std::string& what) {
    report("fault", rank_, "", "rank " + std::to_string(rank_) + " " + what);
  }

  [[noreturn]] void throw_own() {
    const std::string own = "bad pixel in image 42";
    report_fault("failed: " +
                 (task_.fault == "throw" ? own : "its backward pass ended with an exception"));
    throw std::runtime_error(own);
  }

  void make_second_model() {
    Design design = design_;
    if (rank_ == task_.rank) design.twist = task_.twist;
    const Net net(design, 0);
    if (rank_ == task_.rank) report("fault", rank_, "", first_difference(Net(design_, 0), net));
    const TorchDataParallel model(net, world_, options());
  }

  static std::string first_difference(const Net& usual, const Net& mine) {
    const auto a = usual->named_parameters().pairs(), b = mine->named_parameters().pairs();
    const auto is_same = [](const auto& one, const auto& other) {
      return one.first == other.first && one.second.sizes() == other.second.sizes() &&
             one.second.scalar_type() == other.second.scalar_type() &&
             one.second.requires_grad() == other.second.requires_grad();
    };
    const auto at = std::ranges::mismatch(a, b, is_same);
    return "line " + std::to_string(at.in1 - a.begin()) + " is ";
  }

  void compare(const std::vector<Part>& parts, int64_t step) {
    mirror_->train(parts);
    const auto compare = [&](const auto& mine, const auto& expected) {
      for (const auto& item : mine)
        if (!torch::equal(item.value(), expected[item.key()]))
          throw Wrong(item.key() + " after step " + std::to_string(step));
    };
    const Net& expected = mirror_->net(rank_);
    compare(net_->named_parameters(), expected->named_parameters());
    compare(net_->named_buffers(), expected->named_buffers());
  }

  void compare_with_others() {
    std::vector<torch::Tensor> flat;
    for (const torch::Tensor& parameter : net_->parameters())
      flat.push_back(parameter.detach().flatten());
    const torch::Tensor mine = torch::cat(flat);
    const torch::Tensor all = torch::empty({world_.size(), mine.numel()});
    Tensor out = from_torch(all);
    world_.all_gather(from_torch(mine), out);
    for (int r = 0; r < world_.size(); ++r)
      if (!torch::equal(all[r], mine)) throw Wrong("the parameters of rank " + std::to_string(r));
  }

  const Task task_;
  const Group world_;
  const int rank_;
  const Design design_;
  Net net_;
  torch::optim::SGD optimizer_;
  TorchDataParallel<NetImpl> model_;
  std::optional<Mirror> mirror_;
  std::optional<size_t> hooks_until_throw_;
};

int run(const Task& task) {
  int rank = -1;
  report("start", rank);
  try {
    const Group world = Group::from_environment();
    rank = world.rank();
    Training training(task, world);
    world.barrier();
    report("ready", rank);
    try {
      training.run();
      report("done", rank);
      return 0;
    } catch (const Error& error) {
      report("error", rank, error);
    } catch (const Caught& own) {
      report("error", rank, "its own", own.what());
    }
    try {
      training.go_on();
    } catch (const Error& again) {
      report("again", rank, again);
    }
    try {
      if (task.fault == "none") world.barrier({.timeout = std::chrono::seconds(1)});
    } catch (const Error& of_other) {
      report("other", rank, of_other);
    }
    return 3;
  } catch (const Error& error) {
    report("error", rank, error);
    return 3;
  } catch (const Wrong& wrong) {
    report("wrong", rank, "", wrong.what());
    return 4;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Task task{.seed = std::stoull(argv[1]), .steps = std::stoll(argv[2])};
  if (argc > 5) {
    task.fault = argv[3];
    task.rank = std::stoi(argv[4]);
    task.at = std::stoll(argv[5]);
  }
  if (argc > 6) task.twist = std::stoi(argv[6]);
  at::set_num_threads(1);  // the ranks share the cores
  return run(task);
}
