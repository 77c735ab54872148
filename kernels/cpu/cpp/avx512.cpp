#include "library.hpp"
