// SPDX-License-Identifier: Apache-2.0
// Variables in files: what comes back, what the files look like, and what becomes of damaged ones.
#include <sys/resource.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "input/pipelines.h"
#include "strategy/strategies.h"
#include "support/reference.h"

namespace tutti {
namespace {

using testing::cpu;
using testing::cpus;
using ::testing::ElementsAre;
using testing::Floats;
using testing::Folder;
using ::testing::HasSubstr;
using testing::number;
using Aggregation = VariableAggregation;
using Synchronization = VariableSynchronization;
using Metadata = std::map<std::string, std::string>;

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_bytes(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}

// A file as another tool would write it.
std::string foreign(const std::string& header, std::string_view data) {
  const uint64_t size = header.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
  return bytes + header + std::string(data);
}

class SavedVariables : public ::testing::Test {
 protected:
  static Variable make(const std::string& name, const Tensor& value,
                       Aggregation aggregation = Aggregation::NONE,
                       Synchronization synchronization = Synchronization::ON_WRITE) {
    return Variable::create(
        value, {.name = name, .synchronization = synchronization, .aggregation = aggregation});
  }
  std::string path(const std::string& name = "model.safetensors") const { return folder_ / name; }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / ""))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  Folder folder_;
  MirroredStrategy strategy_{cpus(2)};
  Scope scope_ = strategy_.scope();
};

// C175
TEST_F(SavedVariables, RestoresEveryComponent) {
  const Variable mirrored = make("mirrored", Tensor::of<float>({1, 2}));
  const Variable sum = make("sum", number(0), Aggregation::SUM, Synchronization::ON_READ);
  const Variable mean = make("mean", number(0), Aggregation::MEAN, Synchronization::ON_READ);
  const Variable first =
      make("first", number(0), Aggregation::ONLY_FIRST_REPLICA, Synchronization::ON_READ);
  const std::vector<Variable> all{mirrored, sum, mean, first};
  strategy_.run([&](ReplicaContext& ctx) {
    const Tensor value = number(2 + 4 * ctx.local_replica_id());
    for (const Variable& v : {sum, mean, first}) v.assign(value);
  });
  save_variables(path(), all, {{"step", "100"}, {"empty", ""}, {"line\n\"", "\u00e4"}});
  mirrored.assign(Tensor::zeros({2}, DType::float32));
  for (const Variable& v : {sum, mean, first}) v.assign(number(-1));

  EXPECT_EQ(load_variables(path(), all),
            (Metadata{{"step", "100"}, {"empty", ""}, {"line\n\"", "\u00e4"}}));
  for (size_t i : {0, 1}) {
    EXPECT_EQ(mirrored.component(i).to_vector<float>(), Floats({1, 2}));
    EXPECT_EQ(sum.component(i).item<float>(), 4.f);  // 8 shared out
    EXPECT_EQ(mean.component(i).item<float>(), 4.f);
    EXPECT_EQ(first.component(i).item<float>(), 2.f);
  }
}

// C175
TEST_F(SavedVariables, MovesBetweenStrategiesAndPlainVariables) {
  const Variable mirrored = make("v", Tensor::of<float>({1, 2}));
  save_variables(path(), {mirrored});
  scope_.close();
  const Variable plain = make("v", Tensor::zeros({2}, DType::float32));
  load_variables(path(), {plain});
  EXPECT_EQ(plain.read_value().to_vector<float>(), Floats({1, 2}));
  plain.assign(Tensor::of<float>({3, 4}));
  save_variables(path(), {plain});
  load_variables(path(), {mirrored});
  EXPECT_EQ(mirrored.component(1).to_vector<float>(), Floats({3, 4}));
}

TEST_F(SavedVariables, KeepsTheBitsOfEveryDtypeAndOfNothing) {
  std::vector<Variable> saved, loaded;
  for (const DType dtype : testing::kDTypes)
    for (const Shape& shape : {Shape{3, 5}, Shape{}, Shape{0}, Shape{2, 0, 3}}) {
      const std::string name = std::string(tutti::name(dtype)) + shape.to_string();
      const Tensor value = Tensor::zeros(shape, dtype);
      testing::fill_random(dtype, value.data(), size_t(value.num_elements()), 1);
      saved.push_back(make(name, value));
      loaded.push_back(make(name, Tensor::zeros(shape, dtype)));
    }
  save_variables(path(), saved);
  load_variables(path(), loaded);
  for (size_t i = 0; i < saved.size(); ++i) {
    const Tensor &a = saved[i].component(0), &b = loaded[i].component(1);
    EXPECT_EQ(a.shape(), b.shape());
    if (a.num_bytes() == 0) continue;
    EXPECT_EQ(std::memcmp(a.const_data(), b.const_data(), a.num_bytes()), 0) << saved[i].name();
  }
}

TEST_F(SavedVariables, SavesNoVariableToo) {
  save_variables(path(), {}, {{"a", "b"}});
  EXPECT_EQ(load_variables(path(), {}), (Metadata{{"a", "b"}}));
}

TEST_F(SavedVariables, IsAValidSafetensorsFile) {
  save_variables(path(),
                 {make("w", Tensor::of<float>({1.5f, -2}).reshape({1, 2})),
                  make("n", Tensor::scalar<int64_t>(7))},
                 {{"step", "100"}});
  const std::string bytes = bytes_of(path());
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  ASSERT_LT(size, bytes.size());
  EXPECT_EQ(size % 8, 0u);
  const std::string header = bytes.substr(8, size), data = bytes.substr(8 + size);
  EXPECT_EQ(header.front(), '{');
  const auto json = nlohmann::json::parse(header);
  ASSERT_EQ(json.size(), 3u);
  EXPECT_EQ(json["__metadata__"]["step"], "100");
  EXPECT_EQ(json["w"]["dtype"], "F32");
  EXPECT_EQ(json["w"]["shape"], (std::vector<int>{1, 2}));
  EXPECT_EQ(json["n"]["dtype"], "I64");
  EXPECT_EQ(json["n"]["shape"], std::vector<int>{});
  float w[2];
  ASSERT_EQ(int(json["w"]["data_offsets"][1]) - int(json["w"]["data_offsets"][0]), int(sizeof w));
  std::memcpy(w, data.data() + int(json["w"]["data_offsets"][0]), sizeof w);
  EXPECT_THAT(w, ElementsAre(1.5f, -2));
  EXPECT_EQ(data.size(), sizeof w + sizeof(int64_t));
}

TEST_F(SavedVariables, LeavesNothingElseBehind) {
  const Variable v = make("v", number(1));
  for (int i = 0; i < 3; ++i) save_variables(path(), {v});
  EXPECT_THAT(files(), ElementsAre("model.safetensors"));
}

// A container's process has the same id at every start.
TEST_F(SavedVariables, IsWrittenBesideWhatAKilledProcessOfTheSameIdLeft) {
  for (int i = 1; i < 200; ++i)
    write_bytes(path("model.safetensors.tmp." + std::to_string(getpid()) + "." + std::to_string(i)),
                "half");
  const Variable v = make("v", number(1));
  save_variables(path(), {v});
  load_variables(path(), {v});
  EXPECT_THAT(files(), ElementsAre("model.safetensors"));
}

TEST_F(SavedVariables, NamesTheFileThatCannotBeWritten) {
  const Variable v = make("v", number(1));
  EXPECT_ERROR(UnavailableError, path("none/model"), save_variables(path("none/model"), {v}));
  write_bytes(path("file"), "");
  EXPECT_ERROR(UnavailableError, path("file/model"), save_variables(path("file/model"), {v}));
  std::filesystem::create_directory(path("folder"));
  EXPECT_ERROR(UnavailableError, path("folder"), save_variables(path("folder"), {v}));
  EXPECT_THAT(files(), ElementsAre("file", "folder"));
}

// A disk that is full, by way of the limit on the size of files.
TEST_F(SavedVariables, KeepsTheOldFileIfTheNewOneDoesNotFit) {
  const Variable v = make("v", number(1));
  save_variables(path(), {v});
  const std::string before = bytes_of(path());
  v.assign(number(2));
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{20, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string text =
      testing::error_of<UnavailableError>([&] { save_variables(path(), {v}); });
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_THAT(text, HasSubstr(path()));
  EXPECT_THAT(text, HasSubstr("ulimit -f"));
  EXPECT_EQ(bytes_of(path()), before);
  EXPECT_THAT(files(), ElementsAre("model.safetensors"));
}

TEST_F(SavedVariables, NeedsNamesThatDiffer) {
  EXPECT_ERROR(InvalidArgumentError, "\"v\"",
               save_variables(path(), {make("v", number(1)), make("v", number(2))}));
  EXPECT_THAT(files(), ElementsAre());
}

// A file that could not be read back must not be written.
TEST_F(SavedVariables, RefusesNamesThatTheFormatCannotHold) {
  EXPECT_ERROR(InvalidArgumentError, "__metadata__",
               save_variables(path(), {make("__metadata__", number(1))}));
  EXPECT_ERROR(InvalidArgumentError, "UTF-8",
               save_variables(path(), {make("\xff", number(1)), make("\xfe", number(2))}));
}

TEST_F(SavedVariables, HasNoPlaceForWhatHasNoValue) {
  const Variable v = make("v", number(1), Aggregation::NONE, Synchronization::ON_READ);
  EXPECT_ERROR(InvalidArgumentError, "NONE", save_variables(path(), {v}));
  EXPECT_THAT(files(), ElementsAre());
}

TEST_F(SavedVariables, BelongsToCrossReplicaContext) {
  const Variable v = make("v", number(1));
  save_variables(path(), {v});
  strategy_.run([&] {
    EXPECT_ERROR(FailedPreconditionError, "replica", save_variables(path("other"), {v}));
    EXPECT_ERROR(FailedPreconditionError, "replica", load_variables(path(), {v}));
  });
}

TEST_F(SavedVariables, LoadsAllVariablesOrNone) {
  const Variable a = make("a", number(1)), b = make("b", Tensor::of<float>({1, 2}));
  save_variables(path(), {a, b});
  for (const Variable& v : {a, b}) v.assign(Tensor::full(v.shape(), 9, DType::float32));
  EXPECT_ERROR(NotFoundError, path("none"), load_variables(path("none"), {a}));
  EXPECT_ERROR(NotFoundError, "\"c\"", load_variables(path(), {a, make("c", number(1))}));
  EXPECT_ERROR(InvalidArgumentError, "float64[2]",
               load_variables(path(), {a, make("b", Tensor::of<double>({1, 2}))}));
  EXPECT_ERROR(InvalidArgumentError, "float32[3]",
               load_variables(path(), {a, make("b", Tensor::of<float>({1, 2, 3}))}));
  EXPECT_EQ(a.read_value().item<float>(), 9.f);
  EXPECT_EQ(b.read_value().to_vector<float>(), Floats({9, 9}));
}

TEST_F(SavedVariables, LoadsNoneIfOneBelongsToAnotherStrategy) {
  const Variable mine = make("v", number(1));
  save_variables(path(), {mine});
  scope_.close();
  MirroredStrategy other({cpu(2)});
  std::optional<Scope> scope(other.scope());
  const Variable others = make("v", number(5));
  EXPECT_ERROR(FailedPreconditionError, "another strategy", load_variables(path(), {others, mine}));
  EXPECT_EQ(others.read_value().item<float>(), 5.f);
}

TEST_F(SavedVariables, CutOffAnywhereIsDamaged) {
  const Variable v = make("v", Tensor::of<float>({1, 2}));
  save_variables(path(), {v});
  const std::string bytes = bytes_of(path());
  v.assign(Tensor::of<float>({8, 9}));
  for (size_t length = 0; length < bytes.size(); ++length) {
    write_bytes(path("cut"), bytes.substr(0, length));
    EXPECT_ERROR(DataLossError, path("cut"), load_variables(path("cut"), {v})) << length;
  }
  write_bytes(path("cut"), bytes + "x");
  EXPECT_ERROR(DataLossError, "1 bytes follow", load_variables(path("cut"), {v}));
  EXPECT_EQ(v.read_value().to_vector<float>(), Floats({8, 9}));
}

TEST_F(SavedVariables, WithAnyWrongBitIsDamaged) {
  const Variable a = make("a", Tensor::of<float>({1, 2})), b = make("b", Tensor::of<float>({3, 4}));
  save_variables(path(), {a, b});
  const std::string bytes = bytes_of(path());
  a.assign(Tensor::of<float>({8, 8}));
  b.assign(Tensor::of<float>({9, 9}));
  for (size_t i = 0; i < bytes.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      std::string wrong = bytes;
      wrong[i] = char(wrong[i] ^ (1 << bit));
      write_bytes(path("wrong"), wrong);
      EXPECT_ERROR(DataLossError, path("wrong"), load_variables(path("wrong"), {a, b}))
          << "byte " << i << " bit " << bit;
    }
  EXPECT_EQ(a.read_value().to_vector<float>(), Floats({8, 8}));
  EXPECT_EQ(b.read_value().to_vector<float>(), Floats({9, 9}));
}

TEST_F(SavedVariables, WithWrongMetadataIsDamaged) {
  const Variable v = make("v", number(1));
  save_variables(path(), {v}, {{"step", "100"}});
  std::string bytes = bytes_of(path());
  bytes[bytes.find("100")] ^= 1;
  write_bytes(path(), bytes);
  EXPECT_ERROR(DataLossError, path(), load_variables(path(), {v}));
}

TEST_F(SavedVariables, OfAnotherToolLoadsWithoutAChecksum) {
  const float values[2] = {1, 2};
  const std::string_view data(reinterpret_cast<const char*>(values), sizeof values);
  const Variable v = make("v", Tensor::zeros({2}, DType::float32));
  write_bytes(path(), foreign(R"({"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", data));
  EXPECT_EQ(load_variables(path(), {v}), Metadata());
  EXPECT_EQ(v.component(1).to_vector<float>(), Floats({1, 2}));
  write_bytes(
      path(),
      foreign(
          R"({"__metadata__":{"format":"pt"},"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
          data));
  EXPECT_EQ(load_variables(path(), {v}), (Metadata{{"format", "pt"}}));
  write_bytes(
      path(),
      foreign(
          R"({"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":{"a":[1,{"b":[]}],"b":0}}})",
          data));
  EXPECT_EQ(load_variables(path(), {v}), Metadata());
}

// 60 MiB of brackets, which a parser that builds a tree would take gigabytes for.
TEST_F(SavedVariables, WithADeepHeaderIsRefusedWithoutBuildingIt) {
  const Variable v = make("v", number(1));
  const auto peak = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss >> 10;
  };
  for (const char* start : {"", R"({"v":{"shape":)", R"({"v":{"more":)"}) {
    write_bytes(path(), foreign(start + std::string(60 << 20, '['), ""));
    const auto before = peak();
    EXPECT_ERROR(DataLossError, path(), load_variables(path(), {v}));
    EXPECT_LT(peak() - before, 128) << start;
  }
}

TEST_F(SavedVariables, OfAnotherKindIsDamaged) {
  const Variable v = make("v", number(1));
  const auto entry = [](const std::string& fields) {
    return foreign("{\"v\":{" + fields + "}}", "1234");
  };
  struct Case {
    std::string bytes;
    const char* text;
  };
  for (
      const Case& c : {
          Case{"PK\x03\x04 and so on, as archives begin", "header"},
          Case{foreign("[]", ""), "JSON object"},
          Case{foreign("{", ""), "JSON object"},
          Case{foreign("{}", "x"), "1 bytes follow"},
          Case{foreign(R"({"v":3})", ""), "not an object"},
          Case{foreign(R"({"__metadata__":{"a":1}})", ""), "metadata"},
          Case{foreign(R"({"__metadata__":[]})", ""), "metadata"},
          Case{foreign(R"({"__metadata__":{"a":{}}})", ""), "metadata"},
          Case{foreign(R"({"__metadata__":{"tutti.format":"1"}})", ""), "no checksum"},
          Case{foreign(R"({"__metadata__":{"a":"1","a":"1"}})", ""), "\"a\" is there twice"},
          Case{foreign(R"({"__metadata__":{},"__metadata__":{}})", ""), "twice"},
          Case{
              foreign(
                  R"({"v":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"v":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
                  "1234"),
              "\"v\" is there twice"},
          Case{entry(R"("dtype":"F32","shape":[],"shape":[],"data_offsets":[0,4])"),
               "\"shape\" is there twice"},
          Case{entry(R"("dtype":"F32","shape":[],"data_offsets":[0,4],"more":{"a":1,"a":2})"),
               "twice"},
          Case{entry(R"("dtype":"F32","shape":[[]],"data_offsets":[0,4])"), "shape"},
          Case{entry(R"("dtype":"F32","shape":{"a":1},"data_offsets":[0,4])"), "shape"},
          Case{entry(R"("dtype":"F32","shape":[],"data_offsets":[0,4,4])"), "data_offsets"},
          Case{entry(R"("dtype":"F32","shape":[])"), "data_offsets"},
          Case{entry(R"("dtype":"F8","shape":[],"data_offsets":[0,4])"), "dtype"},
          Case{entry(R"("dtype":32,"shape":[],"data_offsets":[0,4])"), "dtype"},
          Case{entry(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), "shape"},
          Case{entry(R"("dtype":"F32","shape":[1.5],"data_offsets":[0,4])"), "shape"},
          Case{entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), "4 bytes"},
          Case{entry(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4])"),
               "\"v\""},
          Case{entry(R"("dtype":"F32","shape":[],"data_offsets":[4,0])"), "outside"},
          Case{entry(R"("dtype":"F32","shape":[],"data_offsets":[1,5])"), "outside"},
          Case{entry(R"("dtype":"U8","shape":[3],"data_offsets":[1,4])"), "gap"},
          Case{entry(R"("dtype":"U8","shape":[3],"data_offsets":[0,3])"), "follow"},
          Case{
              foreign(
                  R"({"v":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"w":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
                  "1234"),
              "overlap"},
      }) {
    write_bytes(path(), c.bytes);
    const std::string text = testing::error_of<DataLossError>([&] { load_variables(path(), {v}); });
    EXPECT_THAT(text, HasSubstr(c.text)) << c.bytes;
    EXPECT_THAT(text, HasSubstr(path()));
  }
  EXPECT_ERROR(DataLossError, "regular", load_variables(folder_ / "", {v}));
  EXPECT_EQ(v.read_value().item<float>(), 1.f);
}

}  // namespace
}  // namespace tutti
