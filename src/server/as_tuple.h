#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace gapless {

// Of a coroutine that looks at the error itself: co_await gives it first, then the rest.
inline constexpr auto kAsTuple = boost::asio::as_tuple(boost::asio::use_awaitable);

}  // namespace gapless
