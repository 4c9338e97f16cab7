// SPDX-License-Identifier: Apache-2.0
#include "input/pipelines.h"

namespace tutti {
namespace {

using testing::batches;
using testing::Ints;
using testing::squared;
using testing::value;
using testing::values;
using Batches = std::vector<Ints>;
using Components = Dataset::Components;

TEST(Map, CallsItsFunctionOnEveryElement) {
  EXPECT_EQ(values(Dataset::range(4).map(squared)), (Ints{0, 1, 4, 9}));
  EXPECT_EQ(values(Dataset::range(0).map(squared)), Ints{});
  EXPECT_EQ(Dataset::range(4).map(squared).cardinality(), 4);
}

TEST(Map, MayChangeTheNumberOfComponents) {
  const Dataset pairs = Dataset::range(3).map([](const Components& element) {
    return Components{element[0], squared(element)[0]};
  });
  int64_t i = 0;
  for (const Components& element : pairs) {
    ASSERT_EQ(element.size(), 2u);
    EXPECT_EQ(element[1].item<int64_t>(), i * i);
    ++i;
  }
  EXPECT_EQ(i, 3);
}

TEST(Map, RefusesNoFunctionAndNoThreads) {
  EXPECT_ERROR(InvalidArgumentError, "map: the function is empty", Dataset::range(1).map({}));
  EXPECT_ERROR(InvalidArgumentError, "map: num_parallel_calls is 0, expected 1 or more",
               Dataset::range(1).map(squared, 0));
}

TEST(Filter, KeepsWhatItsFunctionWants) {
  const auto even = [](const Components& element) { return value(element) % 2 == 0; };
  EXPECT_EQ(values(Dataset::range(5).filter(even)), (Ints{0, 2, 4}));
  EXPECT_EQ(values(Dataset::range(5).filter([](const Components&) { return false; })), Ints{});
  EXPECT_EQ(Dataset::range(5).filter(even).cardinality(), Dataset::unknown);
  EXPECT_EQ(Dataset::range(0).filter(even).cardinality(), 0);
  EXPECT_ERROR(InvalidArgumentError, "filter: the function is empty", Dataset::range(1).filter({}));
}

TEST(Filter, PassesOnWhatItsFunctionThrows) {
  DatasetIterator it = Dataset::range(5)
                           .filter([](const Components& element) -> bool {
                             if (value(element) == 1) throw std::logic_error("not this one");
                             return true;
                           })
                           .make_iterator();
  EXPECT_EQ(value(*it.next()), 0);
  EXPECT_ERROR(std::logic_error, "not this one", it.next());
  EXPECT_FALSE(it.next());
}

TEST(Batch, JoinsElements) {
  EXPECT_EQ(batches(Dataset::range(6).batch(3)), (Batches{{0, 1, 2}, {3, 4, 5}}));
  EXPECT_EQ(batches(Dataset::range(5).batch(3)), (Batches{{0, 1, 2}, {3, 4}}));
  EXPECT_EQ(batches(Dataset::range(5).batch(3, true)), (Batches{{0, 1, 2}}));
  EXPECT_EQ(batches(Dataset::range(2).batch(3)), (Batches{{0, 1}}));
  EXPECT_EQ(batches(Dataset::range(2).batch(3, true)), Batches{});
  EXPECT_EQ(batches(Dataset::range(0).batch(3)), Batches{});
  EXPECT_EQ(batches(Dataset::range(2).batch(1)), (Batches{{0}, {1}}));
  EXPECT_EQ(batches(Dataset::range(2).batch(int64_t{1} << 60)), (Batches{{0, 1}}));
}

TEST(Batch, AddsAFirstAxisToEveryComponent) {
  const Tensor x = Tensor::of<float>({0, 1, 2, 3, 4, 5}).reshape({3, 2});
  const Tensor y = Tensor::of<int8_t>({7, 8, 9});
  const auto batch = *Dataset::from_tensor_slices({x, y}).batch(2).batch(1).make_iterator().next();
  EXPECT_EQ(batch[0].shape(), (Shape{1, 2, 2}));
  EXPECT_EQ(batch[0].to_vector<float>(), (std::vector<float>{0, 1, 2, 3}));
  EXPECT_EQ(batch[1].shape(), (Shape{1, 2}));
  EXPECT_EQ(batch[1].to_vector<int8_t>(), (std::vector<int8_t>{7, 8}));
}

TEST(Batch, IsMemoryOfItsOwn) {
  const Tensor x = Tensor::of<int64_t>({1, 2});
  const auto batch = *Dataset::from_tensor_slices({x}).batch(2).make_iterator().next();
  batch[0].span<int64_t>()[0] = 5;
  EXPECT_EQ(x.to_vector<int64_t>(), (Ints{1, 2}));
}

TEST(Batch, JoinsEmptyElements) {
  const Dataset dataset = Dataset::from_tensor_slices({Tensor::zeros({4, 0}, DType::int64)});
  EXPECT_EQ((*dataset.batch(3).make_iterator().next())[0].shape(), (Shape{3, 0}));
}

TEST(Batch, NamesElementsThatDiffer) {
  const auto batched = [](std::function<Components(int64_t)> make) {
    return Dataset::range(3)
        .map([=](const Components& element) { return make(value(element)); })
        .batch(3)
        .make_iterator()
        .next();
  };
  EXPECT_ERROR(InvalidArgumentError,
               "batch: component 0 is float32[2] in element 0 and float32[3] in element 2",
               batched([](int64_t i) {
                 return Components{Tensor::zeros({i == 2 ? 3 : 2}, DType::float32)};
               }));
  EXPECT_ERROR(InvalidArgumentError,
               "batch: component 1 is int32[] in element 0 and int64[] in element 1",
               batched([](int64_t i) {
                 return Components{Tensor::scalar(1),
                                   Tensor::zeros({}, i == 1 ? DType::int64 : DType::int32)};
               }));
  EXPECT_ERROR(InvalidArgumentError, "batch: element 0 has 1 components, element 1 has 2",
               batched([](int64_t i) { return Components(size_t(i + 1), Tensor::scalar(1)); }));
  EXPECT_ERROR(InvalidArgumentError, "batch: batch_size is 0, expected 1 or more",
               Dataset::range(1).batch(0));
}

TEST(Unbatch, UndoesABatch) {
  EXPECT_EQ(batches(Dataset::range(5).batch(3).unbatch()), (Batches{{0}, {1}, {2}, {3}, {4}}));
  EXPECT_EQ(values(Dataset::range(0).batch(3).unbatch()), Ints{});
  EXPECT_EQ(batches(Dataset::range(7).batch(3).unbatch().batch(2)),
            (Batches{{0, 1}, {2, 3}, {4, 5}, {6}}));
}

TEST(Unbatch, PassesOverEmptyBatches) {
  const Tensor none = Tensor::zeros({0}, DType::int64), two = Tensor::of<int64_t>({1, 2});
  const Dataset dataset = Dataset::from_tensors({none})
                              .concatenate(Dataset::from_tensors({two}))
                              .concatenate(Dataset::from_tensors({none}));
  EXPECT_EQ(values(dataset.unbatch()), (Ints{1, 2}));
}

TEST(Unbatch, RefusesWhatIsNoBatch) {
  EXPECT_ERROR(InvalidArgumentError, "unbatch: component 0 is a scalar int64 and has no rows",
               Dataset::range(2).unbatch().make_iterator().next());
  const Dataset uneven =
      Dataset::from_tensors({Tensor::zeros({2}, DType::int8), Tensor::zeros({3}, DType::int8)});
  EXPECT_ERROR(InvalidArgumentError, "unbatch: component 0 is int8[2] and component 1 is int8[3]",
               uneven.unbatch().make_iterator().next());
}

TEST(Take, StopsEarly) {
  EXPECT_EQ(values(Dataset::range(5).take(2)), (Ints{0, 1}));
  EXPECT_EQ(values(Dataset::range(5).take(0)), Ints{});
  EXPECT_EQ(values(Dataset::range(2).take(5)), (Ints{0, 1}));
  EXPECT_EQ(values(Dataset::range(2).repeat().take(5)), (Ints{0, 1, 0, 1, 0}));
  EXPECT_EQ(values(Dataset::range(3).take(-1)), (Ints{0, 1, 2}));
  EXPECT_EQ(Dataset::range(3).repeat().take(-1).cardinality(), Dataset::infinite);
  EXPECT_ERROR(InvalidArgumentError, "take: count is -2, expected -1 or more",
               Dataset::range(1).take(-2));
}

TEST(Take, AsksForNoMoreThanItGives) {
  int calls = 0;
  const Dataset counted = Dataset::range(9).map([&](const Components& element) {
    ++calls;
    return element;
  });
  EXPECT_EQ(values(counted.take(3)), (Ints{0, 1, 2}));
  EXPECT_EQ(calls, 3);
}

TEST(Skip, StartsLater) {
  EXPECT_EQ(values(Dataset::range(5).skip(3)), (Ints{3, 4}));
  EXPECT_EQ(values(Dataset::range(5).skip(0)), (Ints{0, 1, 2, 3, 4}));
  EXPECT_EQ(values(Dataset::range(5).skip(5)), Ints{});
  EXPECT_EQ(values(Dataset::range(5).skip(7)), Ints{});
  EXPECT_EQ(values(Dataset::range(5).skip(-1)), Ints{});
  EXPECT_EQ(values(Dataset::range(5).repeat().skip(-1)), Ints{});
  EXPECT_EQ(Dataset::range(5).repeat().skip(-1).cardinality(), 0);
  EXPECT_ERROR(InvalidArgumentError, "skip: count is -2", Dataset::range(1).skip(-2));
}

TEST(Shard, GivesEveryNthElement) {  // C202
  EXPECT_EQ(values(Dataset::range(7).shard(3, 0)), (Ints{0, 3, 6}));
  EXPECT_EQ(values(Dataset::range(7).shard(3, 1)), (Ints{1, 4}));
  EXPECT_EQ(values(Dataset::range(7).shard(3, 2)), (Ints{2, 5}));
  EXPECT_EQ(values(Dataset::range(7).shard(1, 0)), (Ints{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(values(Dataset::range(2).shard(3, 2)), Ints{});
}

TEST(Shard, ChecksItsNumbers) {
  EXPECT_ERROR(InvalidArgumentError, "shard: num_shards is 0, expected 1 or more",
               Dataset::range(1).shard(0, 0));
  EXPECT_ERROR(InvalidArgumentError, "shard: index is 3, expected 0 to 2 for 3 shards",
               Dataset::range(1).shard(3, 3));
  EXPECT_ERROR(InvalidArgumentError, "shard: index is -1", Dataset::range(1).shard(3, -1));
}

TEST(Cardinality, FollowsEveryStep) {
  const Dataset n = Dataset::range(10), endless = n.repeat();
  const Dataset unknown = n.filter([](const Components&) { return true; });
  EXPECT_EQ(n.batch(3).cardinality(), 4);
  EXPECT_EQ(n.batch(3, true).cardinality(), 3);
  EXPECT_EQ(n.batch(5).cardinality(), 2);
  EXPECT_EQ(endless.batch(3).cardinality(), Dataset::infinite);
  EXPECT_EQ(unknown.batch(3).cardinality(), Dataset::unknown);
  EXPECT_EQ(n.batch(3).unbatch().cardinality(), Dataset::unknown);
  EXPECT_EQ(n.take(4).cardinality(), 4);
  EXPECT_EQ(n.take(14).cardinality(), 10);
  EXPECT_EQ(endless.take(4).cardinality(), 4);
  EXPECT_EQ(unknown.take(4).cardinality(), Dataset::unknown);
  EXPECT_EQ(unknown.take(0).cardinality(), 0);
  EXPECT_EQ(n.skip(4).cardinality(), 6);
  EXPECT_EQ(n.skip(14).cardinality(), 0);
  EXPECT_EQ(endless.skip(4).cardinality(), Dataset::infinite);
  EXPECT_EQ(unknown.skip(4).cardinality(), Dataset::unknown);
  for (int64_t shards : {1, 2, 3, 4, 7, 11})
    for (int64_t i = 0; i < shards; ++i)
      EXPECT_EQ(n.shard(shards, i).cardinality(), int64_t(values(n.shard(shards, i)).size()));
  EXPECT_EQ(endless.shard(3, 1).cardinality(), Dataset::infinite);
  EXPECT_EQ(n.shuffle(3, 1).map(squared, 2).prefetch(2).cache().cardinality(), 10);
}

// C214
TEST(BatchSize, IsThatOfTheLastBatchStep) {
  const Dataset four = Dataset::range(32).batch(4);
  EXPECT_EQ(Dataset::range(32).batch_size(), std::nullopt);
  EXPECT_EQ(four.batch_size(), 4);
  EXPECT_EQ(Dataset::range(32).batch(4, /*drop_remainder=*/true).batch_size(), 4);
  EXPECT_EQ(four.batch(8).batch_size(), 8);
}

// C214
TEST(BatchSize, PassesThroughStepsThatKeepElementsWhole) {
  const Dataset four = Dataset::range(32).batch(4);
  EXPECT_EQ(four.take(2).batch_size(), 4);
  EXPECT_EQ(four.skip(2).batch_size(), 4);
  EXPECT_EQ(four.repeat().repeat(2).batch_size(), 4);
  EXPECT_EQ(four.shuffle(2, 1).batch_size(), 4);
  EXPECT_EQ(four.cache().batch_size(), 4);
  EXPECT_EQ(four.shard(2, 1).batch_size(), 4);
  EXPECT_EQ(four.prefetch(1).batch_size(), 4);
  EXPECT_EQ(four.filter([](const Components&) { return true; }).batch_size(), 4);
  EXPECT_EQ(four.map(squared).batch_size(), std::nullopt);
  EXPECT_EQ(four.map(squared, 4).batch_size(), std::nullopt);
  EXPECT_EQ(four.unbatch().batch_size(), std::nullopt);
  EXPECT_EQ(four.interleave([=](const Components&) { return four; }, 1).batch_size(), std::nullopt);
}

// C214
TEST(BatchSize, OfSeveralIsThatOfAllOrNone) {
  const Dataset four = Dataset::range(32).batch(4), eight = Dataset::range(32).batch(8);
  EXPECT_EQ(Dataset::zip({four, four.take(3)}).batch_size(), 4);
  EXPECT_EQ(Dataset::zip({four, eight}).batch_size(), std::nullopt);
  EXPECT_EQ(Dataset::zip({four, Dataset::range(8)}).batch_size(), std::nullopt);
  EXPECT_EQ(four.concatenate(four).batch_size(), 4);
  EXPECT_EQ(four.concatenate(eight).batch_size(), std::nullopt);
}

TEST(EndsWithBatch, LooksThroughPrefetchesOnly) {
  const Dataset four = Dataset::range(32).batch(4);
  EXPECT_TRUE(four.ends_with_batch());
  EXPECT_TRUE(four.prefetch(1).prefetch(2).ends_with_batch());
  EXPECT_FALSE(Dataset::range(32).ends_with_batch());
  EXPECT_FALSE(Dataset::range(32).prefetch(1).ends_with_batch());
  EXPECT_FALSE(four.take(1).ends_with_batch());
  EXPECT_FALSE(four.repeat().ends_with_batch());
  EXPECT_FALSE(four.map(squared).ends_with_batch());
  EXPECT_FALSE(four.unbatch().ends_with_batch());
}

TEST(TakeWhile, EndsWithTheFirstElementThatDoesNotFit) {
  const auto below_three = [](const Components& element) { return value(element) % 5 < 3; };
  EXPECT_EQ(values(Dataset::range(9).take_while(below_three)), (Ints{0, 1, 2}));
  EXPECT_EQ(values(Dataset::range(3).take_while(below_three)), (Ints{0, 1, 2}));
  EXPECT_EQ(values(Dataset::range(3, 9).take_while(below_three)), Ints{});
  EXPECT_EQ(values(Dataset::range(9).repeat().take_while(below_three)), (Ints{0, 1, 2}));
  EXPECT_EQ(Dataset::range(9).repeat().take_while(below_three).cardinality(), Dataset::unknown);
  EXPECT_ERROR(InvalidArgumentError, "take_while: the function is empty",
               Dataset::range(1).take_while({}));
}

TEST(Rebatch, IsUnbatchAndBatch) {
  for (int64_t n : {0, 1, 5, 6, 7, 12})
    for (int64_t from : {1, 2, 3, 7})
      for (int64_t to : {1, 2, 3, 4, 20})
        for (const bool drop : {false, true}) {
          const Dataset old = Dataset::range(n).batch(from);
          EXPECT_EQ(batches(old.rebatch(to, drop)), batches(old.unbatch().batch(to, drop)))
              << n << " elements from " << from << " to " << to;
        }
}

TEST(Rebatch, TakesSizesInTurn) {
  const Dataset fives = Dataset::range(10).batch(5);
  EXPECT_EQ(batches(fives.rebatch({3, 1})), (Batches{{0, 1, 2}, {3}, {4, 5, 6}, {7}, {8, 9}}));
  EXPECT_EQ(batches(fives.rebatch({3, 1}, true)), (Batches{{0, 1, 2}, {3}, {4, 5, 6}, {7}}));
  EXPECT_EQ(fives.rebatch(4).batch_size(), 4);
  EXPECT_EQ(fives.rebatch({3, 1}).batch_size(), std::nullopt);
  EXPECT_TRUE(fives.rebatch(4).ends_with_batch());
}

TEST(Rebatch, KeepsComponentsTogether) {
  const Tensor x = Tensor::of<float>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}).reshape({5, 2});
  const Dataset pairs = Dataset::from_tensor_slices({x, Tensor::of<int64_t>({0, 1, 2, 3, 4})});
  DatasetIterator it = pairs.batch(2).rebatch(3).make_iterator();
  const Components first = *it.next();
  EXPECT_EQ(first[0].shape(), (Shape{3, 2}));
  EXPECT_EQ(first[0].to_vector<float>(), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(first[1].to_vector<int64_t>(), (Ints{0, 1, 2}));
}

TEST(Rebatch, RefusesWhatIsNoBatch) {
  EXPECT_ERROR(InvalidArgumentError, "rebatch: batch_size is 0", Dataset::range(1).rebatch(0));
  EXPECT_ERROR(InvalidArgumentError, "rebatch: there are no batch sizes",
               Dataset::range(1).rebatch(std::vector<int64_t>{}));
  EXPECT_ERROR(InvalidArgumentError, "rebatch: component 0 is a scalar",
               Dataset::range(2).rebatch(2).make_iterator().next());
  const Dataset uneven =
      Dataset::from_tensors({Tensor::zeros({1, 2}, DType::int8)})
          .concatenate(Dataset::from_tensors({Tensor::zeros({1, 3}, DType::int8)}));
  EXPECT_ERROR(InvalidArgumentError,
               "rebatch: component 0 is int8[1, 2] in element 0 and int8[1, 3]",
               uneven.rebatch(2).make_iterator().next());
}

// 0 to n - 1, in as many elements.
Dataset growing(int64_t n) {
  return Dataset::range(n).map([](const Components& element) {
    Ints numbers;
    for (int64_t i = 0; i < value(element); ++i) numbers.push_back(i + 1);
    return Components{Tensor::of(std::span<const int64_t>(numbers))};
  });
}

TEST(PaddedBatch, PadsToTheLargestOfTheBatch) {
  const Dataset padded = growing(5).padded_batch(2);
  EXPECT_EQ(batches(padded), (Batches{{0, 1}, {1, 2, 0, 1, 2, 3}, {1, 2, 3, 4}}));
  EXPECT_EQ((*padded.make_iterator().next())[0].shape(), (Shape{2, 1}));
  EXPECT_EQ(batches(growing(5).padded_batch(2, {}, {}, true)).size(), 2u);
  EXPECT_EQ(padded.batch_size(), 2);
  EXPECT_EQ(batches(Dataset::range(3).padded_batch(2)), (Batches{{0, 1}, {2}}));
}

TEST(PaddedBatch, PadsToAShapeAndWithAValue) {
  const Tensor minus = Tensor::scalar<int64_t>(-1);
  EXPECT_EQ(batches(growing(3).padded_batch(3, {{4}}, {minus})),
            (Batches{{-1, -1, -1, -1, 1, -1, -1, -1, 1, 2, -1, -1}}));
  EXPECT_EQ(batches(growing(3).padded_batch(3, {{-1}}, {minus})), (Batches{{-1, -1, 1, -1, 1, 2}}));
}

TEST(PaddedBatch, PadsEveryAxisOfEveryComponent) {
  const Dataset small =
      Dataset::from_tensors({Tensor::of<float>({1, 2}).reshape({1, 2}), Tensor::scalar(true)});
  const Dataset large = Dataset::from_tensors(
      {Tensor::of<float>({3, 4, 5, 6}).reshape({2, 2}), Tensor::scalar(false)});
  const Components joined =
      *small.concatenate(large).padded_batch(2, {{-1, 3}, {}}).make_iterator().next();
  EXPECT_EQ(joined[0].shape(), (Shape{2, 2, 3}));
  EXPECT_EQ(joined[0].to_vector<float>(), (std::vector<float>{1, 2, 0, 0, 0, 0, 3, 4, 0, 5, 6, 0}));
  EXPECT_EQ(joined[1].to_vector<bool>(), (std::vector<bool>{true, false}));
}

TEST(PaddedBatch, RefusesWhatDoesNotFit) {
  const auto first_of = [](const Dataset& dataset) { return dataset.make_iterator().next(); };
  EXPECT_ERROR(InvalidArgumentError, "component 0 is int64[2], larger than the padded shape [1]",
               first_of(growing(3).padded_batch(3, {{1}})));
  EXPECT_ERROR(InvalidArgumentError, "is to be padded to [1, 1]",
               first_of(growing(3).padded_batch(3, {{1, 1}})));
  EXPECT_ERROR(InvalidArgumentError, "its padding int32[]",
               first_of(growing(3).padded_batch(3, {}, {Tensor::scalar(1)})));
  EXPECT_ERROR(InvalidArgumentError, "2 padded shapes and 0 padding values",
               first_of(growing(3).padded_batch(3, {{3}, {3}})));
  EXPECT_ERROR(InvalidArgumentError, "expected a scalar",
               growing(3).padded_batch(3, {}, {Tensor::of<int64_t>({1, 2})}));
  EXPECT_ERROR(InvalidArgumentError, "an extent is -2", growing(3).padded_batch(3, {{-2}}));
  EXPECT_ERROR(InvalidArgumentError, "batch_size is 0", growing(3).padded_batch(0));
}

using Specs = std::vector<TensorSpec>;

TEST(ElementSpec, FollowsEveryStep) {
  const Dataset pairs = Dataset::from_tensor_slices(
      {Tensor::zeros({6, 2}, DType::float32), Tensor::zeros({6}, DType::int8)});
  const Specs both{{DType::float32, {2}}, {DType::int8, {}}};
  EXPECT_EQ(pairs.element_spec(), both);
  EXPECT_EQ(pairs.shuffle(2, 1).repeat().take(3).prefetch(1).cache().element_spec(), both);
  EXPECT_EQ(pairs.batch(4).element_spec(), (Specs{{DType::float32, {-1, 2}}, {DType::int8, {-1}}}));
  EXPECT_EQ(pairs.batch(4, true).element_spec(),
            (Specs{{DType::float32, {4, 2}}, {DType::int8, {4}}}));
  EXPECT_EQ(pairs.batch(4).unbatch().element_spec(), both);
  EXPECT_EQ(pairs.batch(4).rebatch(3, true).element_spec(),
            (Specs{{DType::float32, {3, 2}}, {DType::int8, {3}}}));
  EXPECT_EQ(pairs.padded_batch(2, {{-1}, {}}).element_spec(),
            (Specs{{DType::float32, {-1, -1}}, {DType::int8, {-1}}}));
  EXPECT_EQ(Dataset::zip({Dataset::range(2), pairs}).element_spec(),
            (Specs{{DType::int64, {}}, both[0], both[1]}));
  EXPECT_EQ(Dataset::from_tensors({Tensor::zeros({2, 3}, DType::bfloat16)})
                .concatenate(Dataset::from_tensors({Tensor::zeros({2, 4}, DType::bfloat16)}))
                .element_spec(),
            (Specs{{DType::bfloat16, {2, -1}}}));
  EXPECT_EQ(Dataset::text_lines({"none"}).element_spec(), (Specs{{DType::uint8, {-1}}}));
  EXPECT_EQ(Dataset::fixed_length_records({"none"}, 7).element_spec(),
            (Specs{{DType::uint8, {7}}}));
}

TEST(ElementSpec, LooksAtWhatAFunctionMakes) {
  const Dataset halves = Dataset::range(4).map([](const Components& element) {
    return Components{Tensor::scalar(value(element) / 2.0), Tensor::zeros({3}, DType::uint16)};
  });
  EXPECT_EQ(halves.batch(2, true).element_spec(),
            (Specs{{DType::float64, {2}}, {DType::uint16, {2, -1}}}));
  EXPECT_EQ(Dataset::range(0).map(squared).element_spec(), Specs{});
  EXPECT_EQ(Dataset::range(3)
                .flat_map([](const Components&) { return Dataset::range(2).batch(2); })
                .element_spec(),
            (Specs{{DType::int64, {-1}}}));
}

}  // namespace
}  // namespace tutti
