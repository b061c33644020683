// Boost.JSON compiled from its headers: distributions ship them with every Boost, but not always
// the library.
#include <boost/json/src.hpp>
