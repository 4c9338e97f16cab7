// SPDX-License-Identifier: Apache-2.0
// tutti bench: how fast the collectives are here, in the columns of nccl-tests.
#include "bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "command.h"
#include "fd.h"
#include "group/net/registry.h"

namespace tutti::tools {

namespace {

DType dtype_named(const std::string& text) {
  for (size_t i = 0; i < detail::kDTypes.size(); ++i)
    if (name(DType(i)) == text) return DType(i);
  throw CLI::ValidationError("--dtype", fmt::format("there is no type \"{}\"", text));
}

Measurement from_json(const nlohmann::json& line) {
  return {line.at("library"),
          line.value("op", ""),
          line.value("dtype", ""),
          line.at("ranks"),
          line.at("bytes"),
          line.at("median_us"),
          line.value("p10_us", 0.0),
          line.value("p90_us", 0.0),
          line.value("iterations", int64_t{0}),
          line.value("wrong", int64_t{0})};
}

std::vector<Measurement> read_lines(std::istream& in, const std::string& name) {
  std::vector<Measurement> all;
  for (std::string line; std::getline(in, line);) {
    if (line.empty()) continue;
    try {
      all.push_back(from_json(nlohmann::json::parse(line)));
    } catch (const nlohmann::json::exception& error) {
      throw std::runtime_error(fmt::format("{}: {}", name, error.what()));
    }
  }
  return all;
}

// Those that need no launcher of their own.
std::vector<std::string> transports() {
  std::vector<std::string> names;
  for (const auto& transport : group::transports())
    if (group::module_for(transport.kind, "")) names.emplace_back(transport.name);
  return names;
}

// Shows each measurement when it is there, so that a long run can be followed.
class Results {
 public:
  explicit Results(bool json) : json_(json) {}

  void add(const Measurement& m) {
    if (json_) {
      fmt::print("{}\n", m.to_json());
    } else {
      if (all_.empty())
        fmt::print(
            "{}: {}, {} ranks; GB/s, medians of rank 0\n{:>9} {:>9} {:>11} {:>11} {:>11} {:>8} "
            "{:>8} {:>6}\n",
            m.library, m.op, m.ranks, "size", "type", "time us", "p10", "p90", "algbw", "busbw",
            "wrong");
      fmt::print("{:>9} {:>9} {:>11.2f} {:>11.2f} {:>11.2f} {:>8.3f} {:>8.3f} {:>6}\n",
                 size_text(m.bytes), m.dtype, m.median_us, m.p10_us, m.p90_us, m.algbw(), m.busbw(),
                 m.wrong);
    }
    std::fflush(stdout);
    all_.push_back(m);
  }
  const std::vector<Measurement>& all() const { return all_; }

 private:
  const bool json_;
  std::vector<Measurement> all_;
};

void measure_threads(int ranks, const BenchOptions& options,
                     const std::function<void(const Measurement&)>& report) {
  std::vector<Group> groups = Group::in_process(ranks);
  std::vector<std::exception_ptr> errors(groups.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < groups.size(); ++r)
    // A rank that fails leaves the group, so that the others do not wait for it.
    threads.emplace_back([&, r, group = std::move(groups[r])]() mutable {
      try {
        const Group mine = std::move(group);
        measure(mine, options, report);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

// The workers of a job are this program again. Rank 0 writes its lines into a pipe to this process.
void run_workers(int ranks, const std::vector<std::string>& arguments, Results& results) {
  Pipe pipe = make_pipe();
  std::exception_ptr error;
  std::jthread reader([&] {
    try {
      std::ifstream lines(fmt::format("/proc/self/fd/{}", pipe.read.get()));
      for (std::string line; std::getline(lines, line);)
        results.add(from_json(nlohmann::json::parse(line)));
    } catch (...) {
      error = std::current_exception();
    }
  });
  Fd write_end = std::move(pipe.write);  // closed before the reader is joined
  std::vector<std::string> command{"tutti run",
                                   "-n",
                                   std::to_string(ranks),
                                   "--",
                                   std::filesystem::read_symlink("/proc/self/exe").string(),
                                   "bench",
                                   "--into",
                                   fmt::format("/proc/{}/fd/{}", getpid(), write_end.get())};
  command.insert(command.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const int code = run(int(command.size()), argv.data());
  write_end.close();
  reader.join();
  if (error) std::rethrow_exception(error);
  if (code != 0) throw std::runtime_error(fmt::format("the workers failed, with {}", code));
}

// A system that promises more memory than it has would end the ranks once they use it.
void check_memory(int ranks, const BenchOptions& options) {
  const size_t memory = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
  size_t largest = options.min_bytes;
  while (largest <= options.max_bytes / options.factor) largest *= options.factor;
  if (largest > memory / size_t(ranks))
    throw std::runtime_error(
        fmt::format("{} ranks with {} each need more than the {:.1f} GiB of this machine; choose a "
                    "smaller --max-bytes",
                    ranks, size_text(largest), double(memory) / double(1 << 30)));
}

}  // namespace

std::string size_text(size_t bytes) {
  for (const auto& [unit, name] :
       {std::pair(size_t(1) << 30, "GiB"), {size_t(1) << 20, "MiB"}, {size_t(1) << 10, "KiB"}})
    if (bytes >= unit && bytes % unit == 0) return fmt::format("{} {}", bytes / unit, name);
  return fmt::format("{} B", bytes);
}

int bench(int argc, char** argv) {
  CommandLine app("tutti bench", "[options]",
                  "Measures a collective on this machine, and checks every result.");
  BenchOptions options;
  int ranks = 2;
  std::string dtype = "float32", reduce = "SUM", backend = "shm", plot_file, into;
  std::vector<std::string> peer_files;
  bool json = false, no_pin = false;
  app.add_option("-n", ranks, "how many ranks (2)")->check(CLI::Range(1, 4096))->option_text("N");
  app.add_option("--op", options.op,
                 fmt::format("the collective: {} (all_reduce)", fmt::join(bench_ops(), ", ")))
      ->check(CLI::IsMember(bench_ops()))
      ->option_text("NAME");
  app.add_option("--dtype", dtype, "the element type, as in bfloat16 (float32)")
      ->option_text("NAME");
  app.add_option("--reduce", reduce, "SUM, MEAN, MIN, MAX or PROD (SUM)")->option_text("NAME");
  std::vector<std::string> backends = transports();
  const std::string remote = fmt::format("{}", fmt::join(backends, ", "));
  backends.insert(backends.begin(), "shm");
  backends.push_back("in_process");
  app.add_option("--backend", backend,
                 fmt::format("shm: processes that share memory; {}: processes that do not; "
                             "in_process: threads (shm)",
                             remote))
      ->check(CLI::IsMember(backends))
      ->option_text("NAME");
  app.add_option("--buffers", options.buffers,
                 "private: memory of the rank's own; window: of the group (private)")
      ->check(CLI::IsMember({"private", "window"}))
      ->option_text("NAME");
  app.add_option("--min-bytes", options.min_bytes, "the smallest size, as in 4, 64K or 1M (4)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(size_t(1), size_t(1) << 40))
      ->option_text("SIZE");
  app.add_option("--max-bytes", options.max_bytes, "the largest size, as in 64M or 1G (256M)")
      ->transform(CLI::AsSizeValue(false))
      ->option_text("SIZE");
  app.add_option("--factor", options.factor, "from one size to the next (4)")
      ->check(CLI::Range(size_t(2), size_t(1) << 20))
      ->option_text("N");
  app.add_option("--seconds", options.seconds, "about how long a size takes (1)")
      ->check(CLI::PositiveNumber)
      ->option_text("S");
  app.add_flag("--no-pin", no_pin, "leave the ranks to the scheduler");
  app.add_flag("--json", json, "a line of JSON per size");
  app.add_option("--plot", plot_file, "an SVG file: time over size, with its spread")
      ->option_text("FILE");
  app.add_option("--peers", peer_files, "files with lines of JSON, to be drawn beside ours")
      ->option_text("FILE...");
  app.add_option("--into", into)->group("");  // in a worker
  if (const auto code = parse(app, argc, argv)) return *code;
  options.pin = !no_pin;
  std::vector<Measurement> peers;
  try {
    options.dtype = dtype_named(dtype);
    options.reduce = reduce_op(reduce);
    if (result_dtype(options.reduce, options.dtype) != options.dtype)
      throw std::runtime_error(fmt::format("the {} of {} has another type", reduce, dtype));
    if (options.min_bytes > options.max_bytes)
      throw std::runtime_error(fmt::format("--min-bytes {} is more than --max-bytes {}",
                                           options.min_bytes, options.max_bytes));
    if (!peer_files.empty() && plot_file.empty())
      throw std::runtime_error("--peers are for the plot: --plot names its file");
    for (const std::string& name : peer_files) {
      std::ifstream file(name);
      if (!file) throw std::runtime_error(fmt::format("cannot read {}", name));
      const std::vector<Measurement> read = read_lines(file, name);
      peers.insert(peers.end(), read.begin(), read.end());
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "tutti bench: {}\n", error.what());
    return kUsageError;
  }

  if (!into.empty()) {
    std::ofstream lines(into);
    measure(Group::from_environment(), options,
            [&](const Measurement& m) { lines << m.to_json() << std::endl; });
    return 0;
  }
  check_memory(ranks, options);
  Results results(json);
  if (backend == "in_process") {
    measure_threads(ranks, options, [&](const Measurement& m) { results.add(m); });
  } else {
    if (backend != "shm") setenv("TUTTI_BACKEND", backend.c_str(), 1);  // for the workers
    setenv("OMP_NUM_THREADS", "1", 0);  // no worker uses it, so tutti run need not speak of it
    run_workers(ranks, {argv + 1, argv + argc}, results);
  }

  if (!plot_file.empty()) {
    std::vector<Measurement> all = results.all();
    all.insert(all.end(), peers.begin(), peers.end());
    std::ofstream file(plot_file);
    file << plot(all);
    if (!file.flush()) throw std::runtime_error(fmt::format("cannot write {}", plot_file));
  }
  for (const Measurement& m : results.all())
    if (m.wrong) return 1;
  return 0;
}

}  // namespace tutti::tools
