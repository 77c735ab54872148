// The whole library. It is compiled once per instruction set: each of the small .cpp files here includes this one and
// differs only in the flags setup.py gives it.
//
// To add a kernel: write its header (templates and inline functions inside namespace quire, at the end the functions
// marked QUIRE_EXPORT that take raw pointers and sizes), include it below, and declare the function's arguments in
// native.py; tape.hpp names it once more if a step calls it. setup.py finds new headers by itself.
#pragma once

#include "penalize.hpp"
#include "rope_in_place.hpp"
#include "score.hpp"
#include "tape.hpp"
#include "top_k_top_p.hpp"
