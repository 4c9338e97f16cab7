// SPDX-License-Identifier: Apache-2.0
// What docs/reference/comments.awk does, shown in a header of C and C++.
//
//   sample_open(7);  // as code
//
// More of it.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// The kinds of things.
typedef enum {
  SAMPLE_ONE = 1,  // the first
  // The others.
  SAMPLE_TWO,
  SAMPLE_THREE
} sample_kind;

// A handle.
typedef struct sample_thing sample_thing;

// Opens and closes. Of std::vector<int> and "// nothing {".
int sample_open(int fd);
int sample_close(const char* name);  // "}" is no end

int sample_lonely(void);

#ifdef __cplusplus
}
#endif

#pragma GCC visibility push(default)

// All of it.
namespace sample {
namespace detail {
// Not in the reference.
int hidden();
}  // namespace detail

struct Bare {
  int field;
};

// A class.
template <class T>
class Box : public Base<T> {
 public:
  using Options = int;
  Box() = default;
  explicit Box(T value, const Options& options = {}) : value_{value}, options_(options) {}
  Box(Box&& other) noexcept;
  ~Box() { close({}); }

  // Both of them.
  template <class U>
    requires(sizeof(U) == 4 && requires(U u) { u(); })
  void put(U&& u, int at = f({1}, '{')) {
    // Not documentation.
    if (u) {
      value_ = u;
    }
  }
  void put(T value);
  static Box make();
  bool empty() const { return false; }  // is it?
  friend bool operator==(const Box&, const Box&) = default;

 private:
  T value_;
};

inline constexpr int lonely[] = {1, 2};

}  // namespace sample
