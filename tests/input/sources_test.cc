// SPDX-License-Identifier: Apache-2.0
#include <tutti/device.h>

#include <limits>

#include "input/pipelines.h"

namespace tutti {
namespace {

using testing::Ints;
using testing::value;
using testing::values;

TEST(Range, CountsFromZero) {
  EXPECT_EQ(values(Dataset::range(4)), (Ints{0, 1, 2, 3}));
  EXPECT_EQ(values(Dataset::range(1)), (Ints{0}));
  EXPECT_EQ(values(Dataset::range(0)), Ints{});
  EXPECT_EQ(values(Dataset::range(-3)), Ints{});
}

TEST(Range, StepsEitherWay) {
  EXPECT_EQ(values(Dataset::range(2, 9, 3)), (Ints{2, 5, 8}));
  EXPECT_EQ(values(Dataset::range(2, 8, 3)), (Ints{2, 5}));
  EXPECT_EQ(values(Dataset::range(3, -4, -3)), (Ints{3, 0, -3}));
  EXPECT_EQ(values(Dataset::range(0, 5, -1)), Ints{});
  EXPECT_EQ(Dataset::range(3, -4, -3).cardinality(), 3);
}

TEST(Range, ReachesTheEndsOfItsType) {
  constexpr int64_t least = std::numeric_limits<int64_t>::min();
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(values(Dataset::range(least, most, most)), (Ints{least, -1, most - 1}));
  EXPECT_EQ(values(Dataset::range(most, least, least)), (Ints{most, -1}));
  EXPECT_EQ(Dataset::range(least, most).cardinality(), most);
}

TEST(Range, RefusesAStepOfZero) {
  EXPECT_ERROR(InvalidArgumentError, "range: the step from 1 to 5 is 0", Dataset::range(1, 5, 0));
}

TEST(Range, GivesScalarsOnTheCpuWhateverTheScope) {
  set_logical_devices("CPU", 2);
  const DeviceScope scope("/cpu:1");
  const Dataset dataset = Dataset::range(2).map([](const std::vector<Tensor>& element) {
    return std::vector<Tensor>{element[0], Tensor::scalar(1.f)};
  });
  const auto element = dataset.make_iterator().next();
  EXPECT_EQ((*element)[0].shape(), Shape{});
  for (const Tensor& component : *element) EXPECT_EQ(component.device(), canonicalize("/cpu:0"));
  EXPECT_EQ(current_device(), canonicalize("/cpu:1"));
}

TEST(FromTensors, IsOneElement) {
  const Dataset dataset =
      Dataset::from_tensors({Tensor::of<float>({1, 2}), Tensor::scalar<int32_t>(3)});
  EXPECT_EQ(dataset.cardinality(), 1);
  DatasetIterator it = dataset.make_iterator();
  const auto element = it.next();
  ASSERT_EQ(element->size(), 2u);
  EXPECT_EQ((*element)[0].to_vector<float>(), (std::vector<float>{1, 2}));
  EXPECT_EQ((*element)[1].item<int32_t>(), 3);
  EXPECT_FALSE(it.next());
  EXPECT_FALSE(it.next());
}

TEST(FromTensors, RefusesNothing) {
  EXPECT_ERROR(InvalidArgumentError, "from_tensors: there are no components",
               Dataset::from_tensors({}));
  EXPECT_ERROR(InvalidArgumentError, "from_tensors: component 1 holds nothing",
               Dataset::from_tensors({Tensor::scalar(1), Tensor()}));
}

TEST(FromTensorSlices, GivesRowsOfAllComponents) {
  const Tensor x = Tensor::of<float>({0, 1, 2, 3, 4, 5}).reshape({3, 2});
  const Tensor y = Tensor::of<int64_t>({7, 8, 9});
  const Dataset dataset = Dataset::from_tensor_slices({x, y});
  EXPECT_EQ(dataset.cardinality(), 3);
  int64_t row = 0;
  for (const auto& element : dataset) {
    EXPECT_EQ(element[0].to_vector<float>(),
              (std::vector<float>{float(2 * row), float(2 * row + 1)}));
    EXPECT_EQ(element[0].const_data(), x.span<const float>().data() + 2 * row) << "a copy";
    EXPECT_EQ(element[1].shape(), Shape{});
    EXPECT_EQ(element[1].item<int64_t>(), 7 + row++);
  }
  EXPECT_EQ(row, 3);
}

TEST(FromTensorSlices, KeepsTheMemoryOfItsRowsAlive) {
  std::vector<Tensor> last;
  {
    const Dataset dataset = Dataset::from_tensor_slices({Tensor::of<int64_t>({1, 2, 3})});
    for (const auto& element : dataset) last = element;
  }
  EXPECT_EQ(value(last), 3);
}

TEST(FromTensorSlices, WorksWithoutRowsAndWithEmptyOnes) {
  EXPECT_EQ(values(Dataset::from_tensor_slices({Tensor::zeros({0, 3}, DType::int64)})), Ints{});
  const Dataset empty_rows = Dataset::from_tensor_slices({Tensor::zeros({3, 0}, DType::int64)});
  EXPECT_EQ(empty_rows.cardinality(), 3);
  EXPECT_EQ(testing::batches(empty_rows), (std::vector<Ints>{{}, {}, {}}));
}

TEST(FromTensorSlices, RefusesWhatHasNoCommonRows) {
  const Tensor x = Tensor::of<float>({1, 2, 3});
  EXPECT_ERROR(InvalidArgumentError,
               "from_tensor_slices: component 0 is float32[3] and component 1 is int32[2], "
               "expected as many rows in each",
               Dataset::from_tensor_slices({x, Tensor::of<int32_t>({1, 2})}));
  EXPECT_ERROR(InvalidArgumentError,
               "from_tensor_slices: component 1 is a scalar float64 and has no rows",
               Dataset::from_tensor_slices({x, Tensor::scalar(1.0)}));
  EXPECT_ERROR(InvalidArgumentError, "from_tensor_slices: there are no components",
               Dataset::from_tensor_slices(Dataset::Components{}));
  EXPECT_ERROR(InvalidArgumentError, "from_tensor_slices: component 0 holds nothing",
               Dataset::from_tensor_slices({Tensor()}));
}

Dataset::Generator counting_to(int64_t stop) {
  return [i = int64_t{0}, stop]() mutable -> std::optional<Dataset::Components> {
    if (i == stop) return {};
    return Dataset::Components{Tensor::scalar(i++)};
  };
}

TEST(FromGenerator, StartsAnewInEveryRun) {
  int starts = 0;
  const Dataset dataset = Dataset::from_generator([&] {
    ++starts;
    return counting_to(3);
  });
  EXPECT_EQ(values(dataset), (Ints{0, 1, 2}));
  EXPECT_EQ(values(dataset.repeat(2)), (Ints{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(starts, 3);
  EXPECT_EQ(dataset.cardinality(), Dataset::unknown);
}

TEST(FromGenerator, IsNotAskedAgainAfterItsEnd) {
  int calls = 0;
  const Dataset dataset = Dataset::from_generator([&] {
    return [&]() -> std::optional<Dataset::Components> {
      ++calls;
      return {};
    };
  });
  DatasetIterator it = dataset.make_iterator();
  EXPECT_FALSE(it.next());
  EXPECT_FALSE(it.next());
  EXPECT_EQ(calls, 1);
}

TEST(FromGenerator, PassesOnWhatItThrows) {
  const Dataset dataset = Dataset::from_generator([] {
    return [i = 0]() mutable -> std::optional<Dataset::Components> {
      if (i == 2) throw UnavailableError("no more today");
      return Dataset::Components{Tensor::scalar<int64_t>(i++)};
    };
  });
  DatasetIterator it = dataset.make_iterator();
  EXPECT_EQ(value(*it.next()), 0);
  EXPECT_EQ(value(*it.next()), 1);
  EXPECT_ERROR(UnavailableError, "no more today", it.next());
  EXPECT_FALSE(it.next());
}

TEST(FromGenerator, RefusesEmptyFunctions) {
  EXPECT_ERROR(InvalidArgumentError, "from_generator: the function is empty",
               Dataset::from_generator({}));
  const Dataset dataset = Dataset::from_generator([] { return Dataset::Generator(); });
  EXPECT_ERROR(InvalidArgumentError, "from_generator: start returned an empty function",
               dataset.make_iterator().next());
}

TEST(Text, GoesThroughATensorUnchanged) {
  for (const std::string& bytes : {std::string(), std::string("a"), std::string("\0\xFFz", 3)}) {
    const Tensor tensor = text_tensor(bytes);
    EXPECT_EQ(tensor.dtype(), DType::uint8);
    EXPECT_EQ(tensor.shape(), Shape{int64_t(bytes.size())});
    EXPECT_EQ(text(tensor), bytes);
  }
  EXPECT_ERROR(InvalidArgumentError, "text: the tensor is int32[]", text(Tensor::scalar(1)));
}

TEST(Dataset, HoldsNothingAfterAMove) {
  Dataset dataset = Dataset::range(3);
  const Dataset other = std::move(dataset);
  EXPECT_EQ(values(other), (Ints{0, 1, 2}));
  EXPECT_ERROR(FailedPreconditionError, "moved from", dataset.batch(2));
  DatasetIterator it = other.make_iterator();
  DatasetIterator second = std::move(it);
  EXPECT_EQ(value(*second.next()), 0);
  EXPECT_ERROR(FailedPreconditionError, "moved from", it.next());
  it = std::move(second);
  EXPECT_EQ(value(*it.next()), 1);
}

TEST(Dataset, RunsAreIndependent) {
  const Dataset dataset = Dataset::range(5).shuffle(5, 1).batch(2);
  DatasetIterator a = dataset.make_iterator(), b = dataset.make_iterator();
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ((*a.next())[0].to_vector<int64_t>(), (*b.next())[0].to_vector<int64_t>());
}

TEST(Dataset, AnIteratorOutlivesItsDataset) {
  std::optional<Dataset> dataset = Dataset::range(6).map(testing::squared, 2).batch(3).prefetch(1);
  DatasetIterator it = dataset->make_iterator();
  dataset.reset();
  EXPECT_EQ((*it.next())[0].to_vector<int64_t>(), (Ints{0, 1, 4}));
}

TEST(FromTensorSlices, TakesOneTensor) {
  EXPECT_EQ(values(Dataset::from_tensor_slices(Tensor::of<int64_t>({4, 5}))), (Ints{4, 5}));
}

TEST(DatasetReduce, FoldsAllElementsFromTheFirstState) {
  const auto add = [](const Dataset::Components& state, const Dataset::Components& element) {
    return Dataset::Components{Tensor::scalar(value(state) + value(element)),
                               Tensor::scalar(state[1].item<int32_t>() + 1)};
  };
  const auto sum = [&](const Dataset& dataset) {
    return dataset.reduce({Tensor::scalar<int64_t>(100), Tensor::scalar<int32_t>(0)}, add);
  };
  EXPECT_EQ(value(sum(Dataset::range(5))), 110);
  EXPECT_EQ(sum(Dataset::range(5).prefetch(2))[1].item<int32_t>(), 5);
  EXPECT_EQ(value(sum(Dataset::range(0))), 100);
}

TEST(DatasetReduce, KeepsTheDtypesOfItsState) {
  EXPECT_ERROR(InvalidArgumentError, "reduce: got dtypes [int64] and [float64]",
               Dataset::range(2).reduce({Tensor::scalar<int64_t>(0)},
                                        [](const Dataset::Components&, const Dataset::Components&) {
                                          return Dataset::Components{Tensor::scalar(1.5)};
                                        }));
  EXPECT_ERROR(InvalidArgumentError, "reduce: the function is empty",
               Dataset::range(2).reduce({Tensor::scalar(1)}, {}));
}

}  // namespace
}  // namespace tutti
