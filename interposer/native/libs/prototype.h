// Takes apart the prototype of a function that a header declares, for definitions that repeat it.
#pragma once
#include <cstddef>
#include <tuple>

namespace eidolon {

template <class F> struct Signature;
template <class R, class... A> struct Signature<R(A...)> {
  using Return = R;
  using Arguments = std::tuple<A...>;
};
template <class R, class... A> struct Signature<R(A..., ...)> : Signature<R(A...)> {};
template <class R, class... A> struct Signature<R(A...) noexcept> : Signature<R(A...)> {};

// The result type and the i-th parameter type of a function.
template <class F> using Result = typename Signature<F>::Return;
template <class F, size_t i> using Parameter = std::tuple_element_t<i, typename Signature<F>::Arguments>;
template <class F> inline constexpr size_t kParameters = std::tuple_size_v<typename Signature<F>::Arguments>;

} // namespace eidolon
